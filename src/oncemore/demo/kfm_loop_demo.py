"""`oncemore demo kfm-loop --scenario NAME`: reference scenarios of the KFM loop, each replayed from its log.

Real runs in a temporary store, under the numbers of the profile; only the waits (up to five minutes each) end
at once. The demo prints the log of each scenario, entry by entry, and replays it: hash chain and states are
read again, decisions are computed again from their recorded inputs, artifacts are compared with their
digests. A replay executes nothing.

Scenarios that take hours or a month are programs of their own, to read and to copy: `examples/retry-loop` in
the source, and the folder `retry_loop` beside this module in a wheel. The demo runs the program itself.
"""

from __future__ import annotations

import runpy
import tempfile
from contextlib import redirect_stdout
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import oncemore
from oncemore.demo import kfm_loop_story
from oncemore.demo.terminal import LiveTerminal, cut_line, silence_logging, wrap_text
from oncemore.errors import UsageError
from oncemore.open_engine import find_engine
from oncemore.policy import files
from oncemore.profiles.kfm.loop import PROFILE, PermanentError, TransientError, last_run, retry_loop
from oncemore.queries import replay as replays
from oncemore.testing import instant_waits

if TYPE_CHECKING:
    from typing import TextIO

    from oncemore.demo.terminal import Line
    from oncemore.policy.policy import Policy

INPUTS, CFG = {"month": "2026-10"}, {"partition": "date=2026-10"}
BUSY, WRONG = TransientError("the warehouse is busy"), PermanentError("row 7 is negative")


class ScriptedNode:
    """A node with a scripted result for each attempt; the last one repeats."""

    def __init__(self, node_id: str, *turns: object) -> None:
        self.node_id, self.turns = node_id, list(turns)
        self.computed = 0

    def preflight_checkpoint(self, run: Any, key: str) -> Any:
        """Return the last checkpoint."""
        return run.resume({"done": 0})

    def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> Any:
        """Return or raise the scripted result."""
        # The last result repeats, so that a script need not list all attempts.
        turn = self.turns[min(self.computed, len(self.turns) - 1)]
        self.computed += 1
        if isinstance(turn, Exception):
            raise turn
        return turn


class FileNode:
    """A node with a file as its result."""

    def __init__(self, name: str) -> None:
        self.computed = 0
        decorate = oncemore.step(effect="pure", name=name, artifact="report.csv", policy=PROFILE)
        self.step = decorate(self.compute)

    def compute(self, month: str) -> Any:
        """Write the file."""
        self.computed += 1
        return oncemore.current().put(b"site,kg\nnorth,12\n", date=month, media_type="text/csv")


class LoopScenario(NamedTuple):
    """One run of a scenario.

    name      the name for `--scenario`; several runs may share one
    computes  the expected number of executions
    states    the expected transitions, each with its attempt (WAL-4, WAL-5)
    """

    name: str
    title: str
    node: ScriptedNode | FileNode
    computes: int
    states: str
    policy: Policy | str = PROFILE
    total_timeout_s: float | None = None


def list_scenarios() -> tuple[LoopScenario, ...]:
    """Return the five scenarios of WAL-4, and those of SCEN that need no external signals."""
    soft = [f"RUNNING({n}) SOFT_FAIL({n})" for n in range(1, 6)]
    return (
        LoopScenario(
            name="success", title="success", node=ScriptedNode("success", {"total": 10}), computes=1,
            states="PENDING(1) RUNNING(1) COMPLETE(1)",
        ),
        LoopScenario(
            name="two-soft-fails", title="two soft fails, then success",
            node=ScriptedNode("two-soft-fails", BUSY, BUSY, {"total": 10}), computes=3,
            states=f"PENDING(1) {' '.join(soft[:2])} RUNNING(3) COMPLETE(3)",
        ),
        LoopScenario(
            name="permanent", title="permanent", node=ScriptedNode("permanent", WRONG), computes=1,
            states="PENDING(1) RUNNING(1) HARD_FAIL(1)",
        ),
        LoopScenario(
            name="exhausted", title="exhausted", node=ScriptedNode("exhausted", BUSY), computes=6,
            states=f"PENDING(1) {' '.join(soft)} RUNNING(6) HARD_FAIL(6)",
        ),
        LoopScenario(
            name="artifact-exists", title="artifact exists", node=FileNode("artifact-exists"), computes=1,
            states="PENDING(1) RUNNING(1) COMPLETE(1) PENDING(1) COMPLETE(1)",
        ),
        *_deadline_scenarios(soft),
    )  # fmt: skip


#: Time to the deadline after an outage of hours, far below the buffer in the policy.
TIME_LEFT_S = 900.0
CATCHUP = "deadline-catchup"
#: The name for `--scenario` that selects every scenario.
ALL = "all"
#: The scenarios that are programs of their own, and what each shows.
PROGRAMS = {
    "monthly-carbon-cap": "the carbon of a month nears its cap: reports slow down and pause, nowcasts go on",
    "offhours-slowdown": "at night a report runs one part at a time, and is done in time",
    "carbon-clamp": "a nowcast fails on a dirty grid: its delays are stretched by a quarter at most",
    "care-escalation": "a protected tile fails: no retry, and a person decides before it goes on",
    "thrash-control": "a signal swings around its threshold: the level changes twice, not ten times",
}
#: Where a program is in a wheel, and in the source.
PROGRAM_FOLDERS = (
    Path(__file__).parent / "retry_loop",
    Path(__file__).parents[3] / "examples" / "retry-loop",
)


def _deadline_scenarios(soft: list[str]) -> tuple[LoopScenario, LoopScenario]:
    """Return a report that is late, with the policy's deadline bias and without it (SCEN-1)."""
    biased = files.policy("p2-batch-reporting")
    assert biased.tuning is not None
    unbiased = biased.replace(
        name="p2 without deadline bias", tuning=biased.tuning._replace(deadline_bias=False)
    )
    return (
        LoopScenario(
            name=CATCHUP, title="late, with deadline bias",
            node=ScriptedNode(CATCHUP, *4 * [BUSY], {"total": 10}), computes=5,
            states=f"PENDING(1) {' '.join(soft[:4])} RUNNING(5) COMPLETE(5)",
            policy=biased, total_timeout_s=TIME_LEFT_S,
        ),
        LoopScenario(
            name=CATCHUP, title="late, without deadline bias",
            node=ScriptedNode(f"{CATCHUP}-unbiased", *4 * [BUSY], {"total": 10}), computes=4,
            states=f"PENDING(1) {' '.join(soft[:3])} RUNNING(4) HARD_FAIL(4)",
            policy=unbiased, total_timeout_s=TIME_LEFT_S,
        ),
    )  # fmt: skip


def list_names() -> list[str]:
    """Return all names for `--scenario`."""
    # Several runs share a name; a dictionary removes the duplicates and keeps the order.
    return list(dict.fromkeys([*(one.name for one in list_scenarios()), *PROGRAMS, ALL]))


def select_scenarios(name: str) -> tuple[LoopScenario, ...]:
    """Return the runs of one scenario, or of all of them; none if it is a program."""
    if name not in list_names():
        raise UsageError(f"there is no scenario {name!r}; there are {', '.join(list_names())}")
    return tuple(one for one in list_scenarios() if name in (ALL, one.name))


def find_program(name: str) -> Path:
    """Return the file of a scenario that is a program of its own."""
    file = f"{name.replace('-', '_')}.py"
    for folder in PROGRAM_FOLDERS:
        if (folder / file).is_file():
            return folder / file
    raise UsageError(f"the program {file} of scenario {name} is not installed; install oncemore again")


def play_program(name: str, terminal: LiveTerminal, out: TextIO) -> None:
    """Run the program of a scenario, and say where it is."""
    path = find_program(name)
    terminal.write_paragraph(f"{name}: {PROGRAMS[name]}", "bold")
    with silence_logging(), redirect_stdout(out):
        runpy.run_path(str(path), run_name="__main__")
    terminal.write_paragraph(f"The program: {path}", "dim")


class ReplayCheck(NamedTuple):
    """The result of a replay: counts of states, decisions and digests, and the differences."""

    states: int
    decisions: int
    digests: int
    faults: tuple[str, ...]


def play_scenario(scenario: LoopScenario) -> oncemore.Run[Any]:
    """Execute a scenario; return its run."""
    node = scenario.node
    if isinstance(node, FileNode):
        node.step("2026-10")
        # The file exists already: the second run completes without an execution.
        node.step.rerun("2026-10", reason="the message came twice")
        run: oncemore.Run[Any] | None = node.step.last_run("2026-10")
    else:
        # The engine's clock, because the waits are instant and move it.
        ends = None if scenario.total_timeout_s is None else find_engine().now() + scenario.total_timeout_s
        with oncemore.context(deadline=ends):
            retry_loop(node, INPUTS, CFG, policy=scenario.policy)
        run = last_run(node, INPUTS, CFG)
    # The loop always records a run, also for a failure.
    assert run is not None
    return run


def list_transitions(wal: list[dict[str, Any]]) -> list[str]:
    """Return the states of a run in order, each with its attempt."""
    return [f"{line['state']}({line['attempt']})" for line in wal if line["kind"] == "TRANSITION"]


def replay_run(engine: oncemore.Engine, scenario: LoopScenario, run: oncemore.Run[Any]) -> ReplayCheck:
    """Replay a run from its log alone, and list the differences."""
    before = scenario.node.computed
    replay, wal = replays.replay_run(engine.store, f"run/{run.key}", current=True), run.records()
    faults = [replay.fault] if replay.fault else []
    faults += [
        f"attempt {one.attempt}: {one.what} is {one.recorded!r} in the log, {one.computed!r} when computed"
        for one in replay.differences
    ]
    # The order of the states is fixed by the document (WAL-4).
    if list_transitions(wal) != scenario.states.split():
        faults.append(f"the states are {' '.join(list_transitions(wal))}, and not {scenario.states}")
    artifacts = run.artifacts
    faults += [f"{one.name} was altered" for one in artifacts if sha256(one.read()).hexdigest() != one.digest]
    # A replay must not execute the node.
    if scenario.node.computed != before or before != scenario.computes:
        faults.append(f"it was computed {scenario.node.computed} times, and not {scenario.computes}")
    return ReplayCheck(len(list_transitions(wal)), replay.decisions, len(artifacts), tuple(faults))


def scenario_lines(scenario: LoopScenario, run: oncemore.Run[Any], width: int) -> list[Line]:
    """Return the heading of a scenario and its log entries."""
    row = "  {:>4} {:<11} {:<10} {:>7}  {}".format
    ended = run.status + (f" ({run.reason})" if run.reason else "")
    lines: list[Line] = [
        [(f"{scenario.title}: {ended}", "green" if run.status == "COMPLETE" else "red")],
        [(row("seq", "kind", "state", "attempt", ""), "dim")],
    ]
    for each in run.records():
        text = row(each["seq"], each["kind"], each["state"], each["attempt"], _describe_entry(each))
        lines.append([(text, "")])
    return [cut_line(line, width) for line in lines]


def _describe_entry(line: dict[str, Any]) -> str:
    """Return the decision, the intent or the error of an entry, in a few words."""
    proof, error = line["decision_proof"], line["error"] or {}
    if line["kind"] == "DECISION" and proof:
        return f"retry in {proof['delay_s']:.3f} s" if proof["action"] == "retry" else str(proof["action"])
    if line["kind"] == "INTENT":
        return str(line["intent"])
    if line["kind"] == "TRANSITION":
        last = error.get("last") or error
        text = f"{last['type']}: {last['message']}" if "type" in last else ""
        return ", ".join(filter(None, [line["reason"] if line["reason"] != "retry" else "", text]))
    return ""


def replay_lines(check: ReplayCheck, width: int) -> list[Line]:
    """Return the result of a replay."""
    if check.faults:
        return wrap_text(f"replayed: {'; '.join(check.faults)}", width, "red", "  ")
    parts = [
        f"{check.states} states agree",
        f"{check.decisions} of {check.decisions} decisions come out the same" if check.decisions else "",
        "its digest is valid" if check.digests else "",
        "nothing executed",
    ]
    return wrap_text(f"replayed: {', '.join(filter(None, parts))}", width, "bold", "  ")


def print_scenarios(out: TextIO) -> int:
    """Print the names and titles of the scenarios."""
    # Runs that share a name are one scenario.
    titles = {name: [title] for name, title in PROGRAMS.items()}
    for one in list_scenarios():
        titles.setdefault(one.name, []).append(one.title)
    out.writelines(f"{name:<20}{'; '.join(titles[name])}\n" for name in list_names()[:-1])
    return 0


def main(out: TextIO, *, plain: bool = False, scenario: str | None = None) -> int:
    """Tell the story of a day; or run, print and replay scenarios. Return 1 if a result differs."""
    if scenario is None:
        return kfm_loop_story.main(out, plain=plain)
    scenarios = select_scenarios(scenario)
    terminal = LiveTerminal(out, plain=plain)
    faults = _play_and_replay(scenarios, terminal) if scenarios else 0
    for name in PROGRAMS if scenario == ALL else [scenario] if scenario in PROGRAMS else []:
        if scenarios:
            terminal.write_line()
        play_program(name, terminal, out)
    return 1 if faults else 0


def _play_and_replay(scenarios: tuple[LoopScenario, ...], terminal: LiveTerminal) -> int:
    """Execute scenarios, print and replay each; return the number of differences."""
    faults, width = 0, terminal.terminal_size()[0]
    terminal.write_paragraph(
        "The reference scenarios of the KFM loop, under its policies, in a temporary store. Waits are "
        "decided and stored as always, and end at once."
    )
    with (
        silence_logging(),
        tempfile.TemporaryDirectory(prefix="oncemore-demo-") as folder,
        instant_waits(),
        oncemore.open(Path(folder) / "log.db") as engine,
    ):
        for one in scenarios:
            run = play_scenario(one)
            check = replay_run(engine, one, run)
            faults += len(check.faults)
            terminal.write_lines([[], *scenario_lines(one, run, width), *replay_lines(check, width)])
    terminal.write_line()
    agree = (
        f"All {len(scenarios)} agree with their logs." if len(scenarios) > 1 else "It agrees with its log."
    )
    terminal.write_paragraph(agree if not faults else f"{faults} differences.", "bold")
    return faults
