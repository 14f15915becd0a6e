"""`oncemore demo kfm-loop`: the scenarios of the KFM loop (WAL-4, SCEN-1), each replayed from its log.

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
from oncemore.demo.pipeline.board import cut_line
from oncemore.demo.pipeline.live import LiveTerminal, silence_logging, wrap_text
from oncemore.errors import UsageError
from oncemore.open_engine import find_engine
from oncemore.policy import files
from oncemore.profiles.kfm.loop import PROFILE, PermanentError, TransientError, last_run, retry_loop
from oncemore.queries import replay as replays
from oncemore.testing import instant_waits

if TYPE_CHECKING:
    from typing import TextIO

    from oncemore.demo.pipeline.board import Line
    from oncemore.policy.policy import Policy

INPUTS, CFG = {"month": "2026-10"}, {"partition": "date=2026-10"}
BUSY, WRONG = TransientError("the warehouse is busy"), PermanentError("row 7 is negative")


class ScriptedNode:
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


class FileNode:
    """A node whose result is a file; it is asked twice."""

    def __init__(self, name: str) -> None:
        self.computed = 0
        made = oncemore.step(effect="pure", name=name, artifact="report.csv", policy=PROFILE)
        self.step = made(self.compute)

    def compute(self, month: str) -> Any:
        """Write the file."""
        self.computed += 1
        return oncemore.current().put(b"site,kg\nnorth,12\n", date=month, media_type="text/csv")


class LoopScenario(NamedTuple):
    """A run to be made.

    name      what it is asked for by; several runs may make one scenario
    states    what its transitions must read, with the attempt of each (WAL-4, WAL-5)
    total_timeout_s  how long there is until its deadline, if it has one
    """

    name: str
    title: str
    node: ScriptedNode | FileNode
    computes: int
    states: str
    policy: Policy | str = PROFILE
    total_timeout_s: float | None = None


def list_scenarios() -> tuple[LoopScenario, ...]:
    """Return the five scenarios of WAL-4, and those of SCEN that need no signals from outside."""
    soft = [f"RUNNING({n}) SOFT_FAIL({n})" for n in range(1, 6)]
    return (
        LoopScenario(
            "success",
            "success",
            ScriptedNode("success", {"total": 10}),
            1,
            "PENDING(1) RUNNING(1) COMPLETE(1)",
        ),
        LoopScenario(
            "two-soft-fails",
            "two soft fails, then success",
            ScriptedNode("two-soft-fails", BUSY, BUSY, {"total": 10}),
            3,
            f"PENDING(1) {' '.join(soft[:2])} RUNNING(3) COMPLETE(3)",
        ),
        LoopScenario(
            "permanent",
            "permanent",
            ScriptedNode("permanent", WRONG),
            1,
            "PENDING(1) RUNNING(1) HARD_FAIL(1)",
        ),
        LoopScenario(
            "exhausted",
            "exhausted",
            ScriptedNode("exhausted", BUSY),
            6,
            f"PENDING(1) {' '.join(soft)} RUNNING(6) HARD_FAIL(6)",
        ),
        LoopScenario(
            "artifact-exists",
            "artifact exists",
            FileNode("artifact-exists"),
            1,
            "PENDING(1) RUNNING(1) COMPLETE(1) PENDING(1) COMPLETE(1)",
        ),
        *_deadline_scenarios(soft),
    )


#: What an outage of hours has left of the time to the deadline, far below the buffer that the policy wants.
LEFT_S = 900.0
CATCHUP = "deadline-catchup"


def _deadline_scenarios(soft: list[str]) -> tuple[LoopScenario, LoopScenario]:
    """Return a report that is late, with the policy's deadline bias and without it (SCEN-1)."""
    biased = files.policy("p2-batch-reporting")
    assert biased.tuning is not None
    patient = biased.replace(
        name="p2 without deadline bias", tuning=biased.tuning._replace(deadline_bias=False)
    )
    return (
        LoopScenario(
            CATCHUP,
            "late, with deadline bias",
            ScriptedNode(CATCHUP, *4 * [BUSY], {"total": 10}),
            5,
            f"PENDING(1) {' '.join(soft[:4])} RUNNING(5) COMPLETE(5)",
            biased,
            LEFT_S,
        ),
        LoopScenario(
            CATCHUP,
            "late, without deadline bias",
            ScriptedNode(f"{CATCHUP}-unbiased", *4 * [BUSY], {"total": 10}),
            4,
            f"PENDING(1) {' '.join(soft[:3])} RUNNING(4) HARD_FAIL(4)",
            patient,
            LEFT_S,
        ),
    )


def select_scenarios(name: str | None) -> tuple[LoopScenario, ...]:
    """Return the runs of one scenario, or all."""
    found = tuple(one for one in list_scenarios() if name in (None, one.name))
    if not found:
        known = ", ".join(dict.fromkeys(one.name for one in list_scenarios()))
        raise UsageError(f"there is no scenario {name!r}; there are {known}")
    return found


class ReplayCheck(NamedTuple):
    """What came out when a run was read again; `faults` is empty if all of it agrees."""

    states: int
    decisions: int
    digests: int
    faults: tuple[str, ...]


def play_scenario(scenario: LoopScenario) -> oncemore.Run[Any]:
    """Make a scenario's run, and return it."""
    node = scenario.node
    if isinstance(node, FileNode):
        node.step("2026-10")
        node.step.rerun("2026-10", reason="the message came twice")
        run: oncemore.Run[Any] | None = node.step.last_run("2026-10")
    else:
        ends = None if scenario.total_timeout_s is None else find_engine().now() + scenario.total_timeout_s
        with oncemore.context(deadline=ends):
            retry_loop(node, INPUTS, CFG, policy=scenario.policy)
        run = last_run(node, INPUTS, CFG)
    assert run is not None
    return run


def list_transitions(wal: list[dict[str, Any]]) -> list[str]:
    """Return the states of a run in order, each with its attempt."""
    return [f"{line['state']}({line['attempt']})" for line in wal if line["kind"] == "TRANSITION"]


def replay_run(engine: oncemore.Engine, scenario: LoopScenario, run: oncemore.Run[Any]) -> ReplayCheck:
    """Read a run again from its log alone, and say where it differs."""
    before = scenario.node.computed
    again, wal = replays.replay_run(engine.store, f"run/{run.key}", current=True), run.records()
    faults = [again.fault] if again.fault else []
    faults += [
        f"attempt {one.attempt}: {one.what} is {one.recorded!r} in the log, {one.computed!r} when computed"
        for one in again.differences
    ]
    if list_transitions(wal) != scenario.states.split():
        faults.append(f"the states are {' '.join(list_transitions(wal))}, and not {scenario.states}")
    kept = run.artifacts
    faults += [f"{one.name} was altered" for one in kept if sha256(one.read()).hexdigest() != one.digest]
    if scenario.node.computed != before or before != scenario.computes:
        faults.append(f"it was computed {scenario.node.computed} times, and not {scenario.computes}")
    return ReplayCheck(len(list_transitions(wal)), again.decisions, len(kept), tuple(faults))


def scenario_lines(scenario: LoopScenario, run: oncemore.Run[Any], width: int) -> list[Line]:
    """Return a scenario with its entries."""
    row = "  {:>4} {:<11} {:<10} {:>7}  {}".format
    ended = run.status + (f" ({run.reason})" if run.reason else "")
    lines: list[Line] = [
        [(f"{scenario.title}: {ended}", "green" if run.status == "COMPLETE" else "red")],
        [(row("seq", "kind", "state", "attempt", ""), "dim")],
    ]
    for each in run.records():
        told = row(each["seq"], each["kind"], each["state"], each["attempt"], _describe_entry(each))
        lines.append([(told, "")])
    return [cut_line(line, width) for line in lines]


def _describe_entry(line: dict[str, Any]) -> str:
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


def verdict_lines(found: ReplayCheck, width: int) -> list[Line]:
    """Return what a replay found."""
    if found.faults:
        return wrap_text(f"replayed: {'; '.join(found.faults)}", width, "red", "  ")
    said = [
        f"{found.states} states agree",
        f"{found.decisions} of {found.decisions} decisions come out the same" if found.decisions else "",
        "its digest is valid" if found.digests else "",
        "nothing executed",
    ]
    return wrap_text(f"replayed: {', '.join(filter(None, said))}", width, "bold", "  ")


def print_scenarios(out: TextIO) -> int:
    """Say which scenarios there are, and what happens in each."""
    for name in dict.fromkeys(one.name for one in list_scenarios()):
        titles = [one.title for one in list_scenarios() if one.name == name]
        out.write(f"{name:<18}{'; '.join(titles)}\n")
    return 0


def main(out: TextIO, *, plain: bool = False, scenario: str | None = None) -> int:
    """Play, show and replay scenarios, all or one; return 1 if any of them differs."""
    chosen_ones = select_scenarios(scenario)
    terminal, faults = LiveTerminal(out, 0, plain=plain), 0
    width = terminal.terminal_size()[0]
    terminal.write_paragraph(
        "The reference scenarios of the KFM loop, under its policies, in a scratch store. Waits are decided "
        "and kept as always, and end at once."
    )
    with (
        silence_logging(),
        tempfile.TemporaryDirectory(prefix="oncemore-demo-") as folder,
        instant_waits(),
        oncemore.open(Path(folder) / "log.db") as engine,
    ):
        for one in chosen_ones:
            run = play_scenario(one)
            found = replay_run(engine, one, run)
            faults += len(found.faults)
            terminal.write_lines([[], *scenario_lines(one, run, width), *verdict_lines(found, width)])
    terminal.write_lines([[]])
    agree = (
        f"All {len(chosen_ones)} agree with their logs."
        if len(chosen_ones) > 1
        else "It agrees with its log."
    )
    terminal.write_paragraph(agree if not faults else f"{faults} differences.", "bold")
    return 1 if faults else 0
