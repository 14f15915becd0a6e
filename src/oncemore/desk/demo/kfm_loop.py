"""`oncemore demo kfm-loop`: the reference scenarios of the KFM loop (WAL-4), each replayed from its log.

Real runs in a scratch store, under the profile's own numbers; only the waits (up to five minutes each) end
at once, by the clock that `oncemore.testing` has for that. What is shown of a scenario is its log, entry by
entry. Then it is replayed: every link and every state is read again, every decision is computed again from
what was known, and the bytes of artifacts are held against their digests. Nothing is executed for that.
"""

from __future__ import annotations

import tempfile
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import oncemore
from oncemore.desk.demo.board import cut
from oncemore.desk.demo.live import Terminal, hushed, wrapped
from oncemore.desk.service import replays
from oncemore.profiles.kfm_loop import PROFILE, PermanentError, TransientError, last_run, retry_loop
from oncemore.testing import instant

if TYPE_CHECKING:
    from typing import TextIO

    from oncemore.desk.demo.board import Line

INPUTS, CFG = {"month": "2026-10"}, {"partition": "date=2026-10"}
BUSY, WRONG = TransientError("the warehouse is busy"), PermanentError("row 7 is negative")


class Node:
    """A node of a pipeline that fares as it is told, attempt by attempt; the last word stays."""

    def __init__(self, node_id: str, *turns: object) -> None:
        self.node_id, self.turns = node_id, list(turns)
        self.computed = 0

    def preflight_checkpoint(self, run: Any, key: str) -> Any:
        """Begin where the last attempt left off."""
        return run.resume({"done": 0})

    def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> Any:
        """Do the work, or fail as told."""
        turn = self.turns[min(self.computed, len(self.turns) - 1)]
        self.computed += 1
        if isinstance(turn, Exception):
            raise turn
        return turn


class Filing:
    """A node whose result is a file; it is asked twice."""

    def __init__(self, name: str) -> None:
        self.computed = 0
        made = oncemore.step(effect="pure", name=name, artifact="report.csv", policy=PROFILE)
        self.step = made(self.compute)

    def compute(self, month: str) -> Any:
        """Write the file."""
        self.computed += 1
        return oncemore.current().put(b"site,kg\nnorth,12\n", date=month, media_type="text/csv")


class Scenario(NamedTuple):
    """A run to be made.

    states  what its transitions must read, with the attempt of each (WAL-4, WAL-5)
    """

    title: str
    node: Node | Filing
    computes: int
    states: str


def scenarios() -> tuple[Scenario, ...]:
    """Return the five scenarios of WAL-4."""
    soft = [f"RUNNING({n}) SOFT_FAIL({n})" for n in range(1, 6)]
    return (
        Scenario("success", Node("success", {"total": 10}), 1, "PENDING(1) RUNNING(1) COMPLETE(1)"),
        Scenario(
            "two soft fails, then success",
            Node("two-soft-fails", BUSY, BUSY, {"total": 10}), 3,
            f"PENDING(1) {' '.join(soft[:2])} RUNNING(3) COMPLETE(3)",
        ),
        Scenario("permanent", Node("permanent", WRONG), 1, "PENDING(1) RUNNING(1) HARD_FAIL(1)"),
        Scenario(
            "exhausted", Node("exhausted", BUSY), 6,
            f"PENDING(1) {' '.join(soft)} RUNNING(6) HARD_FAIL(6)",
        ),
        Scenario(
            "artifact exists", Filing("artifact-exists"), 1,
            "PENDING(1) RUNNING(1) COMPLETE(1) PENDING(1) COMPLETE(1)",
        ),
    )  # fmt: skip


class Replay(NamedTuple):
    """What came out when a run was read again; `faults` is empty if all of it agrees."""

    states: int
    decisions: int
    digests: int
    faults: tuple[str, ...]


def play(scenario: Scenario) -> oncemore.Run:
    """Make a scenario's run, and return it."""
    node = scenario.node
    if isinstance(node, Filing):
        node.step("2026-10")
        node.step.rerun("2026-10", reason="the message came twice")
        run = node.step.last("2026-10")
    else:
        retry_loop(node, INPUTS, CFG)
        run = last_run(node, INPUTS, CFG)
    assert run is not None
    return run


def transitions(wal: list[dict[str, Any]]) -> list[str]:
    """Return the states of a run in order, each with its attempt."""
    return [f"{line['state']}({line['attempt']})" for line in wal if line["kind"] == "TRANSITION"]


def replay(engine: oncemore.Engine, scenario: Scenario, run: oncemore.Run) -> Replay:
    """Read a run again from its log alone, and say where it differs."""
    before = scenario.node.computed
    again, wal = replays.replay(engine.store, f"run/{run.key}", current=True), run.wal()
    faults = [again.fault] if again.fault else []
    faults += [
        f"attempt {one.attempt}: {one.what} is {one.recorded!r} in the log, {one.computed!r} when computed"
        for one in again.differences
    ]
    if transitions(wal) != scenario.states.split():
        faults.append(f"the states are {' '.join(transitions(wal))}, and not {scenario.states}")
    kept = run.artifacts
    faults += [f"{one.name} was altered" for one in kept if sha256(one.read()).hexdigest() != one.digest]
    if scenario.node.computed != before or before != scenario.computes:
        faults.append(f"it was computed {scenario.node.computed} times, and not {scenario.computes}")
    return Replay(len(transitions(wal)), again.decisions, len(kept), tuple(faults))


def shown(scenario: Scenario, run: oncemore.Run, width: int) -> list[Line]:
    """Return a scenario with its entries."""
    row = "  {:>4} {:<11} {:<10} {:>7}  {}".format
    ended = run.status + (f" ({run.reason})" if run.reason else "")
    lines: list[Line] = [
        [(f"{scenario.title}: {ended}", "green" if run.status == "COMPLETE" else "red")],
        [(row("seq", "kind", "state", "attempt", ""), "dim")],
    ]
    for each in run.wal():
        told = row(each["seq"], each["kind"], each["state"], each["attempt"], _what(each))
        lines.append([(told, "")])
    return [cut(line, width) for line in lines]


def _what(line: dict[str, Any]) -> str:
    """Return what there is to say of an entry beside its state."""
    proof, error = line["decision_proof"], line["error"] or {}
    if line["kind"] == "DECISION" and proof:
        return f"retry in {proof['delay_s']:.3f} s" if proof["action"] == "retry" else str(proof["action"])
    if line["kind"] == "INTENT":
        return str(line["intent"])
    if line["kind"] == "TRANSITION":
        said = error.get("last") or error
        told = f"{said['type']}: {said['message']}" if "type" in said else ""
        return ", ".join(filter(None, [line["reason"] if line["reason"] != "retry" else "", told]))
    return ""


def verdict(found: Replay, width: int) -> list[Line]:
    """Return what a replay found."""
    if found.faults:
        return wrapped(f"replayed: {'; '.join(found.faults)}", width, "red", "  ")
    said = [
        f"{found.states} states agree",
        f"{found.decisions} of {found.decisions} decisions come out the same" if found.decisions else "",
        "its digest is valid" if found.digests else "",
        "nothing executed",
    ]
    return wrapped(f"replayed: {', '.join(filter(None, said))}", width, "bold", "  ")


def main(out: TextIO, *, plain: bool = False) -> int:
    """Play, show and replay all scenarios; return 1 if any of them differs."""
    terminal, faults = Terminal(out, 0, plain=plain), 0
    width = terminal.size()[0]
    terminal.say(
        "The reference scenarios of the KFM loop, under the policy kfm-loop, in a scratch store. Waits "
        "are decided and kept as always, and end at once."
    )
    with (
        hushed(),
        tempfile.TemporaryDirectory(prefix="oncemore-demo-") as folder,
        instant(),
        oncemore.open(Path(folder) / "log.db") as engine,
    ):
        for scenario in scenarios():
            run = play(scenario)
            found = replay(engine, scenario, run)
            faults += len(found.faults)
            terminal.lines([[], *shown(scenario, run, width), *verdict(found, width)])
    terminal.lines([[]])
    terminal.say("All five agree with their logs." if not faults else f"{faults} differences.", "bold")
    return 1 if faults else 0
