"""The output of runs, show, explain, replay, tail, doctor and health: text, JSON, exit codes, pipes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

import oncemore
from tests.queries.test_rebuild import change
from tests.queries.work import squared
from tests.shell import PROGRAM, ROOT, environment, on_a_terminal, run, told

if TYPE_CHECKING:
    from pathlib import Path


def key_of(path: Path, step: str) -> str:
    return str(told("runs", "--store", str(path), "--step", step)[0]["key"])


def test_runs_are_listed_and_filtered(path: Path) -> None:
    store = ("--store", str(path))
    text = run("runs", *store, COLUMNS="120").stdout
    assert text.splitlines()[0].split() == ["changed", "state", "id", "step", "arguments", "tries", "reason"]
    assert len(text.splitlines()) == 12
    assert re.search(r"SOFT_FAIL +[0-9a-f]{8} +pay .* 1/3 +held: outcome unknown", text)
    assert re.search(r"SOFT_FAIL +[0-9a-f]{8} +polite .* TransientError, due in", text)
    rows = told("runs", *store, "--state", "hard_fail", "--since", "1h")
    assert [row["step"] for row in rows] == ["hopeless", "wrong"]
    for words, steps in (
        (("--error", "CONNECTION_RESET"), ["pay"]),
        (("--dataset", "rivers"), ["flaky"]),
        (("--tenant", "tenant-6"), ["flaky"]),
        (("--correlation", "corr-chart"), ["chart"]),
        (("--held",), ["pay"]),
        (("--limit", "1"), ["hopeless"]),
        (("--until", "2001-01-01"), []),
    ):
        assert [row["step"] for row in told("runs", *store, *words)] == steps
    assert run("runs", *store, "--step", "nothing").stdout == "No runs match.\n"
    assert "Only the latest 1" in run("runs", *store, "--limit", "1").stdout


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_run_is_drawn_as_wide_as_the_terminal(path: Path, columns: int) -> None:
    key = key_of(path, "flaky")
    text = on_a_terminal("show", key[:8], "--store", str(path), columns=columns, NO_COLOR="1")
    drawn = [line for line in text.splitlines() if any(mark in line for mark in "█░━") and "   " in line]
    assert len(drawn) == 7, text  # five spans, a lease, the legend
    assert max(len(line) for line in text.splitlines() if key not in line) <= columns
    assert key in text, "what can be copied is never broken"
    assert "\033" not in text


def test_a_shell_completes_runs_steps_and_what_waits_for_a_person(path: Path) -> None:
    def completed(line: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1), "ONCEMORE_STORE": str(path)}
        ran = run(_ONCEMORE_COMPLETE="bash_complete", **words)
        return [row.partition(",")[2] for row in ran.stdout.splitlines() if row]

    rows = told("runs", "--store", str(path))
    held = [row["run_id"] for row in rows if row["held_for"]]
    assert completed(f"oncemore show {rows[0]['run_id'][:-1]}") == [rows[0]["run_id"]]
    assert completed(f"oncemore runs rerun flows --run {rows[0]['run_id'][:-1]}") == [rows[0]["run_id"]]
    assert completed("oncemore quarantine show 0") == held
    assert held
    assert completed("oncemore runs --step hope") == ["hopeless"]
    assert completed("oncemore show --store nowhere.db 0") == []


def test_ids_are_printed_for_other_commands(path: Path) -> None:
    words = ("runs", "--state", "HARD_FAIL", "--ids", "--store", str(path))
    ids = run(*words).stdout.split()
    assert ids == [row["run_id"] for row in told("runs", "--state", "HARD_FAIL", "--store", str(path))]
    assert told(*words) == ids
    assert all(run("show", one, "--store", str(path)).returncode == 0 for one in ids[:1])


def test_a_terminal_without_unicode_gets_ascii(path: Path) -> None:
    ran = run(
        "show", key_of(path, "flaky"), "--store", str(path), PYTHONUTF8="0", PYTHONIOENCODING="ascii:strict"
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.isascii()
    assert "# attempt   : delay   = lease" in ran.stdout


def test_colours_are_for_terminals_and_carry_no_information_alone(path: Path) -> None:
    words = ("show", key_of(path, "flaky"), "--store", str(path))
    coloured, plain = on_a_terminal(*words), on_a_terminal(*words, NO_COLOR="1")
    assert "\033[32mflaky" in coloured
    assert re.sub(r"\033\[\d+m", "", coloured) == plain
    assert "\033" not in run(*words).stdout
    assert "\033" not in on_a_terminal(*words, "--json")
    assert "\033[33m" in on_a_terminal("store", "doctor", "--store", str(path))


def test_show_prints_the_whole_run(path: Path) -> None:
    text = run("show", key_of(path, "flaky"), "--store", str(path)).stdout
    for part in (
        "flaky  COMPLETE",
        "3 of 3 attempts",
        "tenant-6",
        '{"day": "2026-11-16"}',
        "rivers of 2026-11-16",
        "attempt 2: CONNECTION_RESET: peer went away",
        "COMMIT COMPLETE",
        "Reasons: `oncemore explain",
    ):
        assert part in text
    assert (
        "9883322dcb4f21daeae6652cfa8d4ec4" in run("show", key_of(path, "chart"), "--store", str(path)).stdout
    )
    story = told("show", key_of(path, "hopeless"), "--store", str(path))
    assert len(story["lives"]) == 2
    assert story["row"]["error"] == "TIMEOUT"
    other = run("show", story["lives"][0], "--store", str(path)).stdout
    assert f"other runs  {story['lives'][1]}" in other


@pytest.mark.req("PROOF-3")
def test_explain_answers_why_an_attempt_waited(path: Path) -> None:
    words = ("explain", key_of(path, "flaky"), "--store", str(path))
    text = " ".join(run(*words, "--attempt", "3").stdout.split())
    assert "attempt 3 of 3 follows in" in text
    assert "The policy's own delay is u * min(30, 1 * 2 ** 1) =" in text
    assert "Attempt 1 began" not in text
    whole = told(*words)
    assert [one["attempt"] for one in whole["told"]] == [1, 2, 3]
    assert whole["told"][1]["proof"]["delay_s"] > 0
    wrong = run(*words, "--attempt", "9")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "has no attempt 9; it has attempts 1 to 3" in " ".join(wrong.stderr.split())


@pytest.mark.req("REPLAY-1", "CLI-1")
def test_replay_ends_with_0_on_agreement_and_1_on_drift(path: Path) -> None:
    store = ("--store", str(path))
    key = key_of(path, "flaky")
    ran = run("replay", key, *store)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "agrees: 6 entries, 2 decisions, all as recorded; the state is COMPLETE" in ran.stdout
    assert "attempt 1 failed with CONNECTION_RESET" in " ".join(ran.stdout.split())
    run_id = told("replay", "--run", key, *store)["run_id"]
    kfm = [
        sys.executable,
        "-c",
        "from oncemore.cli import kfm_replay; kfm_replay()",
        "--run",
        run_id,
        *store,
    ]
    other = subprocess.run(kfm, capture_output=True, text=True, check=False, env=environment(), timeout=60)
    assert (other.returncode, other.stdout) == (0, ran.stdout)
    change(path, "UPDATE log SET body=CAST(replace(body, 'peer', 'pear') AS BLOB) WHERE seq=11")
    bad = run("replay", key, *store)
    assert bad.returncode == 1
    assert "damaged: 1 entries, 0 decisions; entry 11 (run/" in " ".join(bad.stdout.split())
    found = told("replay", "--all", *store, code=1)
    assert found["totals"]["damaged"] == 1
    assert "entry 11" in found["verdicts"][0]["fault"]


def test_the_program_kfm_replay_is_installed() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'kfm-replay = "oncemore.cli:kfm_replay"' in text


@pytest.mark.req("REPLAY-8")
def test_a_window_lists_each_runs_verdict_and_totals(path: Path) -> None:
    store = ("--store", str(path))
    window = told("replay", "--since", "1d", "--until", "2099-01-01", *store)
    assert window["totals"] == {
        "runs": 11, "agrees": 11, "drift": 0, "damaged": 0, "entries": 41, "decisions": 12,
    }  # fmt: skip
    assert {one["verdict"] for one in window["verdicts"]} == {"agrees"}
    assert len(window["verdicts"]) == 11
    text = run("replay", "--until", "2099-01-01", *store).stdout
    assert "11 runs: 11 agree, 0 drift, 0 damaged; 41 entries, 12 decisions recomputed" in text
    assert told("replay", "--all", *store)["totals"]["agrees"] == 12
    assert told("replay", "--since", "2001-01-01", "--until", "2001-01-02", *store)["totals"]["runs"] == 0
    change(path, "UPDATE head SET state='PENDING' WHERE step='pay'")
    bad = run("replay", "--all", *store)
    assert bad.returncode == 1
    assert "its head is different" in " ".join(bad.stdout.split())
    assert run("replay", key_of(path, "pay"), *store).returncode == 1


@pytest.mark.req("REPLAY-6")
def test_a_policy_file_that_has_changed_is_drift_with_both_values(tmp_path: Path) -> None:
    root = tmp_path / "policies"
    root.mkdir()
    file = root / "mine.yaml"
    text = 'version: "1"\nprofile: mine\nretry_policy:\n  max_attempts: 3\n  base_delay_s: {}\n'
    file.write_text(text.format("0.01"))
    program = (
        "import oncemore\n"
        f"@oncemore.step(effect='idempotent', name='s', policy={str(file)!r})\n"
        "def s(): raise ConnectionResetError('x')\n"
        "with oncemore.open('log.db'):\n"
        "    print(s.run().status)\n"
    )
    made = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert made.stdout == "HARD_FAIL\n"
    (row,) = told("runs", "--store", "log.db")
    words = ("replay", row["run_id"], "--store", "log.db")
    assert run(*words, "--current", ONCEMORE_POLICY_ROOT=str(root)).returncode == 0
    file.write_text(text.format("0.5"))
    assert run(*words, ONCEMORE_POLICY_ROOT=str(root)).returncode == 0, "the log still agrees with itself"
    drift = run(*words, "--current", ONCEMORE_POLICY_ROOT=str(root))
    assert drift.returncode == 1
    assert "policy.digest" in drift.stdout
    assert re.search(r"recorded +\"[0-9a-f]{64}\"\n +computed +\"[0-9a-f]{64}\"", drift.stdout)
    assert "now.delay_s" in drift.stdout


def test_verify_recomputes_pure_runs_and_skips_the_rest(path: Path) -> None:
    words = ("replay", "--since", "1d", "--until", "2099-01-01", "--store", str(path), "--verify", "--module")
    ran = run(*words, "tests.queries.work", PYTHONPATH=f"{ROOT}:{os.environ.get('PYTHONPATH', '')}")
    assert ran.returncode == 0, ran.stderr
    assert "recomputed: 4 equal, 7 skipped" in ran.stdout
    assert "5 skipped: its effect is idempotent: only pure steps are run again" in ran.stdout
    wrong = run(*words, "nowhere.at.all")
    assert wrong.returncode == 2
    assert "there is no module 'nowhere.at.all'" in " ".join(wrong.stderr.split())


def test_tail_prints_the_end_and_follows(path: Path) -> None:
    store = ("--store", str(path))
    lines = run("store", "tail", *store, "-n", "3").stdout.splitlines()
    assert len(lines) == 3
    assert "HARD_FAIL DECISION ESCALATION #6  hopeless" in lines[-1]
    assert "TIMEOUT: no answer for 2026-11-16" in lines[-1]
    assert run("store", "tail", *store, "-n", "0").stdout == ""
    rows = [
        json.loads(line) for line in run("store", "tail", *store, "-n", "1000", "--json").stdout.splitlines()
    ]
    assert [row["seq"] for row in rows] == sorted(row["seq"] for row in rows)
    assert {row["kind"] for row in rows} == {"run", "event", "artifact"}
    for words, count in (
        (("--kind", "worker"), 2),
        (("--mark", "commit"), 7),
        (("--step", "flaky"), 6),
        (("--tenant", "tenant-6"), 6),
        (("--correlation", "corr-announce"), 3),
        (("--error", "TIMEOUT"), 6),
    ):
        assert len(run("store", "tail", *store, "-n", "1000", *words).stdout.splitlines()) == count, words
    with subprocess.Popen(
        [*PROGRAM, "store", "tail", "-f", "-n", "1", *store, "--step", "squared"], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=environment(),
    ) as follows:  # fmt: skip
        assert follows.stdout is not None
        assert "COMMIT COMPLETE" in follows.stdout.readline()
        with oncemore.open(path):
            squared(77)
        assert "PENDING RUNNING INTENT #1  squared" in follows.stdout.readline()
        assert "COMMIT COMPLETE #1  squared" in follows.stdout.readline()
        follows.send_signal(signal.SIGINT)
        _, complaint = follows.communicate(timeout=30)
    assert (follows.returncode, complaint.strip()) == (130, "")


def test_doctor_and_health_end_with_1_when_something_is_bad(path: Path) -> None:
    store = ("--store", str(path))
    good = run("store", "doctor", "--rebuild", *store)
    assert (good.returncode, good.stderr) == (0, "")
    assert re.search(r"(?m)^warn  held runs +1 run waits for a person$", good.stdout)
    assert re.search(r"(?m)^ok    rebuild +48 entries, 17 heads compared, all equal$", good.stdout)
    assert run("store", "health", *store).returncode == 0
    change(path, "DELETE FROM head WHERE step='flaky'")
    bad = told("store", "doctor", "--rebuild", *store, code=1)
    assert bad["worst"] == "bad"
    assert bad["checks"][-1]["name"] == "rebuild"
    assert run("store", "health", *store).stdout.splitlines()[-1] == "not healthy"
    repair_store = run("store", "doctor", "--rebuild", "--write", *store)
    assert repair_store.returncode == 0
    assert "1 heads were rebuilt from the log" in repair_store.stdout
    assert told("store", "health", *store)["healthy"] is True
    wrong = run("store", "doctor", "--write", *store)
    assert (wrong.returncode, "--write needs --rebuild" in wrong.stderr) == (2, True)
    module = run(
        "store",
        "doctor",
        "--module",
        "tests.queries.work",
        *store,
        PYTHONPATH=f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    )
    assert "the named modules define the step of every open run" in " ".join(module.stdout.split())


def test_health_lists_active_switches_and_stays_healthy(path: Path) -> None:
    store = ("--store", str(path))
    calm = told("store", "health", *store)
    assert (calm["healthy"], calm["switches"], calm["moved_to"]) == (True, [], "")
    before = run("store", "health", *store)
    assert "stopped" not in before.stdout
    with oncemore.open(path) as engine:
        engine.switches.on(reason="the ledger is wrong", by="operator")
        engine.switches.on(step="squared", reason="the bank is down", by="another")
    shown = run("store", "health", *store)
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = [line for line in shown.stdout.splitlines() if line.startswith("stopped")]
    assert len(lines) == 2
    assert re.fullmatch(
        r"stopped   switch all_execution is on since .+, by operator: the ledger is wrong", lines[0]
    )
    assert lines[1].endswith("by another: the bank is down")
    assert shown.stdout.splitlines()[-1] == "healthy"
    found = told("store", "health", *store)
    assert [(one["name"], one["by"], one["reason"]) for one in found["switches"]] == [
        ("all_execution", "operator", "the ledger is wrong"),
        ("step:squared", "another", "the bank is down"),
    ]
    change(path, "DELETE FROM head WHERE step='flaky'")
    assert told("store", "health", *store, code=1)["switches"] == found["switches"], "they hide nothing"


def test_health_names_the_new_location_of_a_moved_log(tmp_path: Path) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    with oncemore.open(old):
        squared(7)
    done = run("store", "move", str(old), str(new), "--reason", "outgrown")
    assert done.returncode == 0, done.stderr
    shown = run("store", "health", "--store", str(old))
    assert shown.returncode == 0
    line = f"moved     this log has been moved to sqlite:///{new}; no work starts here"
    assert line in shown.stdout.splitlines()
    assert told("store", "health", "--store", str(old))["moved_to"] == f"sqlite:///{new}"
    assert told("store", "health", "--store", str(new))["moved_to"] == ""


@pytest.mark.parametrize(
    "words",
    [
        ("runs",),
        ("show", "abcdef"),
        ("explain", "abcdef"),
        ("replay", "abcdef"),
        (
            "store",
            "tail",
        ),
        (
            "store",
            "doctor",
        ),
        (
            "store",
            "health",
        ),
    ],
    ids=lambda words: words[0],
)
def test_a_missing_store_is_a_usage_error_in_every_command(words: tuple[str, ...], tmp_path: Path) -> None:
    ran = run(*words, "--store", "nowhere.db", "--json")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "nowhere.db; name one with --store" in json.loads(ran.stderr)["error"]["message"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "told_"),
    [
        (("show", "ffffffffffff"), "there is no run 'ffffffffffff'; `oncemore runs` lists"),
        (("runs", "--since", "soon"), "'soon' is not a time; write 2h"),
        (("runs", "--state", "DONE"), "'DONE' is not one of"),
        (("replay",), "Give a RUN, or a window"),
        (("replay", "--all", "--since", "1h"), "Give a RUN, or a window"),
        (("replay", "abcdef", "--verify"), "--verify needs --module"),
        (("replay", "--all", "--verify", "--module", "x"), "--verify needs a RUN or a window"),
        (("replay", "--since", "1h", "--until", "2h"), "the window ends before it begins"),
        (("store", "tail", "--kind", "dataset"), "'dataset' is not one of"),
    ],
)
def test_usage_errors_are_one_sentence_with_advice(path: Path, words: tuple[str, ...], told_: str) -> None:
    ran = run(*words, "--store", str(path))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert told_ in " ".join(ran.stderr.split())
    assert "Traceback" not in ran.stderr


def test_a_damaged_store_is_reported_in_one_sentence(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "text.db"
    other.write_text("this is no database at all, whatever its name says" * 40)
    ran = run("runs", "--store", str(other))
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "this is not a store of oncemore" in " ".join(ran.stderr.split())
    size = path.stat().st_size
    for file in path.parent.glob("log.db-*"):
        if file.is_file():
            file.unlink()
    with path.open("rb+") as torn:
        torn.truncate(size // 2 + 100)
    for words in (
        ("runs",),
        ("store", "doctor", "--rebuild"),
        ("replay", "--all"),
        (
            "store",
            "health",
        ),
        (
            "store",
            "tail",
        ),
    ):
        ran = run(*words, "--store", str(path))
        assert ran.returncode == 1, words
        assert "Traceback" not in ran.stderr, ran.stderr


def test_a_closed_pipe_is_not_an_error(path: Path) -> None:
    for words in (
        ("runs",),
        ("show", key_of(path, "flaky")),
        ("store", "tail", "-n", "1000"),
        ("store", "tail", "-f", "-n", "1000"),
    ):
        command = [*PROGRAM, *words, "--store", str(path)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        ) as program:
            assert program.stdout is not None
            assert program.stderr is not None
            program.stdout.readline()
            program.stdout.close()
            if "-f" in words:
                with oncemore.open(path):
                    for n in range(100, 103):
                        squared(n)
            complaint = program.stderr.read()
            program.wait(60)
        assert (program.returncode, complaint) == (0, b""), words


def test_reading_does_not_wait_for_a_writer(path: Path) -> None:
    code = (
        "import sys, time\nfrom oncemore.log.sqlite.store import SqliteStore\n"
        "store = SqliteStore(sys.argv[1])\nstore._lock.__enter__()\n"
        "print('held', flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        assert run("runs", "--store", str(path)).returncode == 0
        assert run("store", "doctor", "--store", str(path)).returncode == 0
        assert time.monotonic() - began < 15
        holder.kill()
        holder.wait(30)


def test_progress_is_shown_on_a_terminal_and_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from oncemore.cli import output as progress

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(progress, "FIRST_DRAW_S", 0.0)
    monkeypatch.setattr(progress, "REDRAW_S", 0.0)
    with progress.ProgressLine("rebuilding") as bar:
        for done in (0, 5, 10):
            bar(done, 10)
        bar(0, 0)
    text = out.getvalue()
    assert "rebuilding [###############...............]  50%" in text
    assert text.endswith("\r")
    assert not text.rpartition("\r")[0].rpartition("\r")[2].strip()
    out.truncate(0)
    with progress.ProgressLine("rebuilding", quiet=True) as bar:
        bar(5, 10)
    assert out.getvalue().strip("\0") == ""


def test_a_shell_completes_runs(path: Path) -> None:
    run_id = told("runs", "--store", str(path), "--limit", "1")[0]["run_id"]

    def completed(line: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
        ran = run(_ONCEMORE_COMPLETE="bash_complete", ONCEMORE_STORE=str(path), **words)
        return [row.partition(",")[2] for row in ran.stdout.splitlines() if row]

    assert run_id in completed(f"oncemore explain {run_id[:6]}")
    assert completed("oncemore explain zzzz") == []
    assert completed("oncemore repl") == ["replay"]
    assert "--correlation" in completed("oncemore runs --cor")


@pytest.mark.parametrize(
    "name", ["runs", "show", "explain", "replay", "store tail", "store doctor", "store health"]
)
def test_every_help_has_examples_that_fit(name: str) -> None:
    text = run(*name.split(), "--help").stdout
    examples = text.partition("\nExamples:\n")[2].splitlines()
    assert examples
    assert all("oncemore" in line for line in examples)
    assert max(map(len, text.splitlines())) <= 90


@pytest.mark.parametrize("name", ["runs", "show"])
def test_reading_commands_load_neither_engine_nor_policy_parser(path: Path, name: str) -> None:
    words = [name, "--store", str(path)] + ([key_of(path, "flaky")] if name == "show" else [])
    code = (
        "import sys\nfrom oncemore.cli import run_command as run\n"
        f"code = run({words!r})\nprint(*sys.modules, file=sys.stderr)\nsys.exit(code)\n"
    )
    clean = {name: value for name, value in environment().items() if not name.startswith("COVERAGE")}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean, timeout=60
    )
    loaded = set(ran.stderr.split())
    assert not {
        name for name in loaded if name.startswith(("oncemore.policy.files", "ruamel", "asyncio", "psycopg"))
    }
    assert name == "show" or not {name for name in loaded if name.startswith("oncemore.engine")}
