"""A call of failed work begins a new run, or says that its failure is stored, since when, and what to do."""

from __future__ import annotations

import contextvars
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.steps import importing
from oncemore.steps.importing import refuse_during_import
from tests.steps.colours import Turns, do, each_colour, made

if TYPE_CHECKING:
    from oncemore.testing import FakeClock

BUG = ValueError("a bug")


@each_colour
@pytest.mark.parametrize("effect", ["pure", "idempotent", "outbox"])
@pytest.mark.parametrize("policy", ["standard", oncemore.Policy("ours")])
def test_a_new_call_of_failed_work_is_a_new_run(
    engine: oncemore.Engine, colour: str, effect: str, policy: Any
) -> None:
    turns = Turns(BUG, "done")
    step = made(colour, turns, effect=effect, policy=policy)
    with pytest.raises(oncemore.PermanentFailure):
        do(colour, step)
    assert do(colour, step) == "done"
    assert (step.last_run().state.run_number, turns.calls) == (2, 2)


@each_colour
def test_a_once_step_raises_its_stored_failure_under_every_policy(
    engine: oncemore.Engine, colour: str
) -> None:
    turns = Turns(BUG, "done")
    step = made(colour, turns, effect="once", policy="standard", not_applied=ValueError)
    for _ in range(2):
        with pytest.raises(oncemore.PermanentFailure):
            do(colour, step)
    assert turns.calls == 1


def test_cancelled_work_is_not_begun_by_a_call(engine: oncemore.Engine) -> None:
    turns = Turns("done")
    step = made("plain", turns, policy="standard")
    step.submit()
    step.cancel(reason="not wanted")
    with pytest.raises(oncemore.Cancelled):
        step()
    assert turns.calls == 0


def test_a_governed_profile_raises_it_again_and_says_since_when_and_how_to_run_it(
    tmp_path: Path, clock: FakeClock
) -> None:
    turns = Turns(BUG, "done")
    with oncemore.open(tmp_path / "log.db"):

        @oncemore.step(effect="idempotent", name="fetch", policy="kfm-loop")
        def fetch(day: str, pages: int = 1) -> Any:
            return turns()

        with pytest.raises(oncemore.PermanentFailure) as first:
            fetch("2026-11-18")
        clock.advance(3600.0)
        with pytest.raises(oncemore.PermanentFailure) as second:
            fetch("2026-11-18")
        assert turns.calls == 1
        assert "stored" not in str(first.value)
        text = str(second.value)
        assert "This failure is stored since 20" in text
        assert "nothing was run now" in text
        assert "fetch.rerun(day='2026-11-18', pages=1, reason=…)" in text
        assert fetch.rerun(day="2026-11-18", pages=1, reason="fixed") == "done"


def test_what_the_error_shows_hides_secrets_and_long_values(tmp_path: Path) -> None:
    with oncemore.open(tmp_path / "log.db"):

        @oncemore.step(effect="idempotent", name="fetch", policy="kfm-loop", ignore="token")
        def fetch(text: str, token: str) -> Any:
            raise BUG

        fetch.run("x" * 5000, "hunter2")
        with pytest.raises(oncemore.PermanentFailure) as caught:
            fetch("x" * 5000, "hunter2")
    text = str(caught.value)
    assert "hunter2" not in text
    assert "token=…" in text
    assert len(text) < 1000
    assert "oncemore runs rerun" not in text, "another process does not have the token"


def test_the_call_in_the_error_fits_every_kind_of_parameter(tmp_path: Path) -> None:
    """What the error shows can be pasted: positional values, *args and **kwargs stand as in a call."""
    with oncemore.open(tmp_path / "log.db"):
        made_of: list[Any] = []

        @oncemore.step(effect="idempotent", name="many", policy="kfm-loop")
        def many(a: int, /, b: int, *more: int, c: int = 3, **rest: int) -> Any:
            if not made_of:
                raise BUG
            return "done"

        many.run(1, 2, 4, 5, d=6)
        with pytest.raises(oncemore.PermanentFailure) as caught:
            many(1, 2, 4, 5, d=6)
        shown = str(caught.value).rpartition("to run it again: ")[2]
        assert shown == "many.rerun(1, 2, 4, 5, c=3, d=6, reason=…)"
        made_of.append(1)
        assert eval(shown.replace("…", "'fixed'"), {"many": many}) == "done"  # noqa: S307 - the text above


def test_an_ignored_argument_with_its_default_is_left_out_of_the_call(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="idempotent", name="quiet", policy="kfm-loop", ignore="verbose")
    def quiet(n: int, verbose: bool = False) -> None:
        raise BUG

    quiet.run(1)
    with pytest.raises(oncemore.PermanentFailure, match=r"quiet\.rerun\(n=1, reason=…\)"):
        quiet(1)


def test_a_context_that_outlives_its_attempt_is_a_caller_of_its_own(engine: oncemore.Engine) -> None:
    turns, contexts = Turns(BUG, "done"), []

    @oncemore.step(effect="idempotent", name="outer")
    def outer() -> None:
        made("plain", turns, name="inner").run()
        contexts.append(contextvars.copy_context())

    outer()
    # The failure is younger than the outer run, and that run is over: the call begins a new run.
    assert contexts[0].run(made("plain", turns, name="inner")) == "done"


def test_a_program_of_this_package_shows_no_python_call(tmp_path: Path) -> None:
    program = tmp_path / "policy.yaml"
    program.write_text('version: "1"\nretry_policy: {}\nafter_failure: raise\n')
    words = ("-m", "oncemore", "exec", "--key", "k", "--effect", "idempotent", "--policy", str(program))
    for _ in range(2):
        done = run_python(*words, "--", "sh", "-c", "exit 7")
    assert done.returncode == 7
    assert "nothing was run now" in " ".join(done.stderr.split())
    assert ".rerun(" not in done.stderr
    assert "--rerun --reason TEXT" in done.stderr


def test_a_changed_version_begins_failed_work_under_every_policy_but_not_once(
    engine: oncemore.Engine,
) -> None:
    for policy in ("standard", "kfm-loop", "lit", "nova-cat"):
        turns = Turns(BUG, "done")
        options: dict[str, Any] = {"name": policy, "policy": policy}
        made("plain", turns, version="1", **options).run()
        assert made("plain", turns, version="2", **options)() == "done"
    turns = Turns(BUG, "done")
    options = {"effect": "once", "not_applied": ValueError, "policy": "standard"}
    made("plain", turns, version="1", **options).run()
    with pytest.raises(oncemore.PermanentFailure, match="stored since"):
        made("plain", turns, version="2", **options)()


def test_submit_begins_failed_work_of_another_version(engine: oncemore.Engine) -> None:
    turns = Turns(BUG, "done")
    made("plain", turns, version="1", policy="kfm-loop").run()
    step = made("plain", turns, version="2", policy="kfm-loop")
    assert step.submit().status == "PENDING"
    oncemore.Worker(engine, [step]).run_until_idle()
    assert step() == "done"


# Inside an outer run --------------------------------------------------------------------------------


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("depth", [1, 2])
def test_in_an_outer_run_a_failure_since_it_began_is_raised_again_at_once(
    engine: oncemore.Engine, depth: int
) -> None:
    turns = Turns(TimeoutError("slow"))
    calls: list[int] = []

    @oncemore.step(effect="idempotent", name="inner")
    def inner() -> Any:
        return turns()

    @oncemore.step(effect="idempotent", name="middle")
    def middle(n: int) -> Any:
        return inner()

    @oncemore.step(effect="idempotent", name="outer")
    def outer() -> Any:
        calls.append(1)
        for n in range(3):
            with pytest.raises(oncemore.Error):
                inner() if depth == 1 else middle(n)
        raise ConnectionError("and the outer one is tried again too")

    with pytest.raises(oncemore.RetriesExhausted):
        outer()
    assert (len(calls), turns.calls) == (3, 3), "three attempts each, and not three times three"


def test_in_a_new_outer_run_an_older_failure_begins_a_new_run(engine: oncemore.Engine) -> None:
    turns = Turns(BUG, "done")
    inner = made("plain", turns, name="inner", policy="standard")
    outer = made("plain", lambda x: inner(), name="outer", policy="standard")
    with pytest.raises(oncemore.PermanentFailure):
        outer()
    assert outer() == "done", "the new outer run began after the failure of the inner one"


def test_a_second_map_begins_failed_items_and_keeps_finished_ones(engine: oncemore.Engine) -> None:
    seen: list[int] = []

    @oncemore.step(effect="idempotent", name="parse")
    def parse(n: int) -> int:
        seen.append(n)
        if n == 2 and seen.count(2) == 1:
            raise BUG
        return n

    assert parse.map(range(4), progress="off").counts["failed"] == 1
    assert parse.map(range(4), progress="off").counts["done"] == 4
    assert sorted(seen) == [0, 1, 2, 2, 3]


def test_a_retry_around_a_step_does_not_multiply_its_attempts(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    turns = Turns(TimeoutError("slow"))
    step = made("plain", turns, policy="standard")

    @oncemore.retry(on=Exception, attempts=3)
    def around() -> Any:
        return step()

    with pytest.raises(oncemore.RetriesExhausted):
        around()
    assert turns.calls == 3


# Scripts whose last lines call their steps ------------------------------------------------------------

SCRIPT = """
from pathlib import Path
import oncemore

@oncemore.step(effect="idempotent", name="report", policy="kfm-loop")
def report(day: str) -> str:
    with Path("ran.txt").open("a") as file:
        file.write(day + "\\n")
    if not Path("fixed").exists():
        raise ValueError("a bug")
    return "done"

{call}

@oncemore.step(effect="idempotent", name="below")
def below(day: str) -> str:
    return day
"""
CALLS = {
    "a call": 'print(report("2026-11-18"))',
    "run": 'print(report.run("2026-11-18").status)',
    "submit": 'print(report.submit("2026-11-18").status)',
    "map": 'print(report.map(["2026-11-18"]).counts)',
    "rerun": 'print(report.rerun("2026-11-18", reason="again"))',
    "a guard": 'if __name__ == "__main__":\n    print(report("2026-11-18"))',
}


def run_python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60, check=False)


def count_runs() -> int:
    return len(Path("ran.txt").read_text().splitlines()) if Path("ran.txt").exists() else 0


def test_the_command_in_the_error_runs_the_step_of_a_script_that_calls_it() -> None:
    Path("daily.py").write_text(SCRIPT.format(call=CALLS["a call"]))
    run_python("daily.py")
    failed = run_python("daily.py")
    assert "nothing was run now" in failed.stderr
    assert count_runs() == 1
    _, _, command = failed.stderr.rpartition(", or oncemore ")
    words = command.strip().splitlines()[0].split()
    assert words[:4] == ["runs", "rerun", "daily", "--run"]
    Path("fixed").touch()
    done = run_python("-m", "oncemore", *words[:-1], "fixed")
    assert (done.returncode, "COMPLETE" in done.stdout) == (0, True), done.stderr
    assert count_runs() == 2, "the import did not run the work, the rerun did"
    assert "report was called while a command imported daily; nothing was run" in done.stderr
    assert 'if __name__ == "__main__":' in done.stderr


@pytest.mark.parametrize("call", CALLS)
def test_importing_a_script_runs_nothing_and_finds_the_steps_above_its_calls(call: str) -> None:
    Path("daily.py").write_text(SCRIPT.format(call=CALLS[call]))
    oncemore.open("log.db").close()
    words = ["-m", "oncemore", "worker", "daily", "--store", "log.db", "--drain"]
    done = run_python(*words)
    assert (done.returncode, count_runs()) == (0, 0), done.stderr
    assert ("worker started for report on" in done.stderr) == (call != "a guard")
    assert ("was called while a command imported daily" in done.stderr) == (call != "a guard")


def test_a_step_below_the_call_is_not_found_and_the_error_says_why() -> None:
    Path("daily.py").write_text(SCRIPT.format(call=CALLS["a call"]))
    done = run_python("-m", "oncemore", "runs", "submit", "daily:below", "day=x", "--store", "log.db")
    assert (done.returncode, count_runs()) == (2, 0), done.stderr
    assert "report was called while a command imported daily" in done.stderr


def test_a_call_in_another_module_of_the_import_ends_it() -> None:
    Path("helpers.py").write_text(SCRIPT.format(call=CALLS["a call"]))
    Path("daily.py").write_text("import helpers\n")
    done = run_python("-m", "oncemore", "worker", "daily", "--store", "log.db", "--drain")
    assert (done.returncode != 0, count_runs()) == (True, 0), done.stderr


def test_a_call_while_another_module_is_imported_names_no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_other(name: str) -> None:
        refuse_during_import("report")

    monkeypatch.setattr(importing, "import_module", import_other)
    with pytest.raises(importing.CallDuringImport, match="nothing was run") as caught:
        importing.import_for_command("not.there")
    assert (caught.value.module, importing.IMPORTING) == (None, [])


def test_a_module_in_a_package_is_found_again_after_its_import_was_ended() -> None:
    Path("shop").mkdir()
    Path("shop/__init__.py").touch()
    Path("shop/daily.py").write_text(SCRIPT.format(call=CALLS["a call"]))
    code = (
        "from oncemore.workers.find_steps import find_steps\n"
        "print([step.name for step in find_steps(['shop.daily', 'shop.daily:report'])])\n"
        "import shop.daily; print(shop.daily.report.name)\n"
    )
    done = run_python("-c", code)
    assert done.stdout.splitlines() == ["['report']", "report"], done.stderr
