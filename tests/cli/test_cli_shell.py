"""What a shell and a person see of `oncemore`: exit codes, streams, pipes, colours, start-up."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

import oncemore
from oncemore.cli.commands import root
from oncemore.cli.output import OutputWriter
from tests.shell import PROGRAM, environment, on_a_terminal, run

SAMPLE = (
    "runs",
    "key",
    "--operation",
    "kill_switch_update",
    "--tenant",
    "tenant-123",
    "--correlation",
    "corr-456",
)
KEY = "b4b6cd7399901d2f626be7417c244b3b5696478ff091bb108dbad2a55a2f0578"
LEGACY = "d5923fa44a7b8d95a2a6ce83a85292c5e7a3243498ee9c86a0294ffcef01bb76"


# The program and its ends.


def test_the_script_and_the_module_are_the_same_program() -> None:
    script = Path(sys.executable).with_name("oncemore")
    by_script = subprocess.run([script, "--version"], capture_output=True, text=True, check=False)
    assert by_script.stdout == run("--version").stdout
    # Scripts read the version from the first line; the optional parts follow.
    assert by_script.stdout.splitlines()[:3] == [f"oncemore {oncemore.__version__}", "", "Optional parts:"]


def test_without_a_command_help_is_shown_and_the_question_was_wrong() -> None:
    ran = run()
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("Usage: oncemore [OPTIONS] COMMAND")
    asked = run("--help")
    assert (asked.returncode, asked.stderr) == (0, "")
    assert asked.stdout == ran.stderr


def walk_commands(
    command: click.Command, words: tuple[str, ...] = ()
) -> dict[tuple[str, ...], click.Command]:
    """Return a command and all commands below it, by their words."""
    found = {words: command}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            found |= walk_commands(inner, (*words, name))
    return found


COMMANDS = walk_commands(root)
#: Commands whose --json is another one: the output of `exec` is that of its program; the formats of `lint`
#: have an option of their own.
OTHER_JSON = {("exec",), ("lint",)}


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words) or "oncemore")
def test_every_help_has_examples_that_fit(words: tuple[str, ...]) -> None:
    context = click.Context(COMMANDS[words], info_name=" ".join(("oncemore", *words)), max_content_width=80)
    text = COMMANDS[words].get_help(context)
    examples = text.partition("\nExamples:\n")[2].splitlines()
    assert examples
    assert all("oncemore" in line for line in examples)
    assert max(map(len, text.splitlines())) <= 97
    assert "..." not in text.partition("Commands:")[2].partition("Examples:")[0], "a summary is cut off"


@pytest.mark.parametrize("option", ["--json", "--store", "--by"])
def test_an_option_means_the_same_in_every_command(option: str) -> None:
    forms: dict[tuple[object, ...], list[tuple[str, ...]]] = {}
    for words, command in COMMANDS.items():
        for parameter in command.params:
            if option in parameter.opts and not (option == "--json" and words in OTHER_JSON):
                assert isinstance(parameter, click.Option)
                form = (
                    *(parameter.name, parameter.help, str(parameter.type), parameter.default),
                    *(parameter.required, parameter.is_flag, parameter.multiple),
                )
                forms.setdefault(form, []).append(words)
    assert len(forms) == 1, forms
    assert sum(map(len, forms.values())) > 25


def test_every_command_that_lists_or_shows_has_json() -> None:
    """So that a script never has to read a table."""
    without = [
        " ".join(words)
        for words, command in COMMANDS.items()
        if not isinstance(command, click.Group)
        and words[-1] in ("list", "show", "status", "tail", "verify", "doctor", "health", "sizes")
        and "--json" not in {name for parameter in command.params for name in parameter.opts}
    ]
    assert without == []


def test_exit_codes_and_streams_are_kept_apart(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("version: retry-loop-v1.0\nretry_policy: {max_attempt: 6}\n")
    good = run("policy", "show", "kfm-loop")
    assert (good.returncode, good.stderr) == (0, "")
    no = run("policy", "check", str(bad))
    assert (no.returncode, no.stderr) == (1, "")
    assert ":2:16: retry_policy.max_attempt is not a field" in no.stdout
    wrong = run("policy", "show", "kfm-lop")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("oncemore: there is no policy 'kfm-lop' (did you mean kfm-loop?)")


@pytest.mark.parametrize(
    "words",
    [("policy", "list"), ("policy", "show", "kfm-loop"), ("policy", "show", "kfm-loop", "--attempt", "1"),
     ("policy", "diff", "kfm-loop", "kfm-rules"), ("policy", "plot", "kfm-rules"), ("policy", "schema"),
     SAMPLE],
    ids=lambda words: " ".join(words)[:24],
)  # fmt: skip
def test_json_is_one_document_and_nothing_else(words: tuple[str, ...]) -> None:
    ran = run(*words, "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    json.loads(ran.stdout)
    assert "\033" not in ran.stdout


def test_errors_are_json_on_stderr_when_asked(tmp_path: Path) -> None:
    for words in (
        ("policy", "show", "nope", "--json"),
        ("runs", "key", "--json"),
        ("policy", "show", "--json"),
    ):
        ran = run(*words)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert json.loads(ran.stderr)["error"]["message"]
    bad = tmp_path / "bad.yaml"
    bad.write_text("- 1\n")
    ran = run("policy", "show", str(bad), "--json")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert f"{bad}:1:1" in json.loads(ran.stderr)["error"]["message"]
    unwritable = run("policy", "plot", "kfm-loop", "--svg", str(tmp_path / "no" / "x"), "--json")
    assert "Check the path" in json.loads(unwritable.stderr)["error"]["hint"]


def test_every_fault_of_a_file_has_a_line_of_its_own(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("governed: true\nretry_policy: {max_attempts: 0, timeout_s: -1}\n")
    told = run("policy", "show", str(bad), COLUMNS="200").stderr  # whatever the folder is called
    assert len(re.findall(r"(?m)^(?:oncemore:|         ) \S*bad\.yaml:[12]:\d+:", told)) == 3


def test_a_policy_root_that_is_none_is_a_wrong_question() -> None:
    for words in (("policy", "list"), ("policy", "show", "kfm-loop")):
        ran = run(*words, ONCEMORE_POLICY_ROOT="/nowhere")
        assert (ran.returncode, ran.stdout) == (2, "")
        assert "ONCEMORE_POLICY_ROOT is '/nowhere', which is not a folder" in ran.stderr
    words = {"COMP_WORDS": "oncemore policy show k", "COMP_CWORD": "3", "_ONCEMORE_COMPLETE": "bash_complete"}
    completing = run(ONCEMORE_POLICY_ROOT="/nowhere", **words)
    assert (completing.stdout, completing.stderr) == ("\n", "")


def test_what_is_in_a_name_cannot_steer_the_terminal(tmp_path: Path) -> None:
    tmp_path.joinpath("x\033[31mred.yaml").write_text("- 1\n")
    text = on_a_terminal("policy", "list", ONCEMORE_POLICY_ROOT=str(tmp_path), NO_COLOR="1")
    assert "\033" not in text
    assert "x\\x1b[31mred" in text


@pytest.mark.parametrize(("redirect", "code"), [(">&-", 0), ("2>&-", 0), (">/dev/full", 2)])
def test_streams_that_are_closed_or_full_are_no_accident(redirect: str, code: int) -> None:
    command = f"{shlex.join(PROGRAM)} policy list {redirect}"
    ran = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, env=environment())  # noqa: S602
    assert ran.returncode == code
    assert "Traceback" not in ran.stderr
    assert "Exception ignored" not in ran.stderr
    if code:
        assert (
            "cannot write the output: No space left on device. Write it to another file or device."
            in " ".join(ran.stderr.split())
        )


def test_an_interrupt_ends_with_130_and_no_traceback() -> None:
    with subprocess.Popen(
        [*PROGRAM, "policy", "check", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=environment(),
    ) as program:  # fmt: skip
        assert program.stdin is not None
        program.stdin.write(b"#" * 300_000)  # more than a pipe holds: when this is done, the other side reads
        program.stdin.flush()
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=30)
    assert (program.returncode, out, err.strip()) == (130, b"", b"")


# Pipes.


def piped(*words: str, reader: str) -> tuple[int, str, str]:
    """Run with a reader that goes away early; return our exit code, what it read, and what we complained."""
    with subprocess.Popen(
        [*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        with program.stdout as out:
            read = subprocess.run(reader, shell=True, stdin=out, capture_output=True, check=False)  # noqa: S602
        complaint = program.stderr.read().decode()
        program.wait(60)
    return program.returncode, read.stdout.decode(), complaint


def test_a_reader_that_goes_away_is_no_error() -> None:
    code, read, complaint = piped("policy", "schema", reader="head -n 1")
    assert (code, read, complaint) == (0, "{\n", "")
    code, _, complaint = piped("policy", "show", "kfm-loop", reader="true")
    assert (code, complaint) == (0, "")


def test_a_check_that_failed_has_failed_however_much_of_it_was_read(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("version: 1\n")
    code, _, complaint = piped("policy", "check", *[str(bad)] * 50, reader="true")
    assert (code, complaint) == (1, "")


# Colours and widths.


def test_colours_are_for_terminals_only_and_can_be_switched_off() -> None:
    assert "\033[1mkfm-loop" in on_a_terminal("policy", "show", "kfm-loop")
    assert "\033" not in on_a_terminal("policy", "show", "kfm-loop", NO_COLOR="1")
    assert "\033" not in on_a_terminal("policy", "show", "kfm-loop", TERM="dumb")
    assert "\033" not in on_a_terminal("policy", "show", "kfm-loop", "--json")
    assert "\033" not in run("policy", "show", "kfm-loop").stdout
    assert "\033[31moncemore: there is no policy" in on_a_terminal("policy", "show", "nope")
    assert "\033" not in on_a_terminal("policy", "show", "nope", "--json")


def test_nothing_is_said_by_colour_alone() -> None:
    plain = on_a_terminal("policy", "plot", "kfm-rules", "--runs", "2", NO_COLOR="1")
    coloured = on_a_terminal("policy", "plot", "kfm-rules", "--runs", "2")
    assert plain != coloured
    stripped = coloured
    for code in ("\033[1m", "\033[2m", "\033[0m"):
        stripped = stripped.replace(code, "")
    assert plain == stripped


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_drawing_is_as_wide_as_the_terminal(columns: int) -> None:
    lines = on_a_terminal("policy", "plot", "kfm-rules", columns=columns, NO_COLOR="1").splitlines()
    widest = max(len(line) for line in lines if "│" in line and "always" not in line)
    assert columns - 4 <= widest <= columns


def test_a_stream_that_knows_no_blocks_gets_ascii() -> None:
    ran = run("policy", "plot", "kfm-rules", "--runs", "1", PYTHONUTF8="0", PYTHONIOENCODING="ascii:strict")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.isascii()
    assert "# shortest   : jitter   | planned   o sample runs" in ran.stdout


def test_a_paper_wraps_the_last_column_and_closes_up_where_it_is_narrow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [("name", "text"), ("a", "one two three four five six seven eight nine ten")]
    OutputWriter().write_table(rows, "  ")
    assert capsys.readouterr().out.splitlines() == [
        "  name  text",
        "  a     one two three four five six",
        "        seven eight nine ten",
    ]
    OutputWriter().write_table([("a" * 15, "b" * 15, "c"), ("1", "2", "3" * 30)])
    assert capsys.readouterr().out.splitlines()[1] == "1" + " " * 15 + "2" + " " * 15 + "3" * 30


# Keys.


@pytest.mark.req("CLI-5", "IDEM-4")
def test_a_key_is_printed_in_both_forms() -> None:
    ran = run(*SAMPLE, "--param", "switch_name=all_execution")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"{KEY}\n", "")
    assert run(*SAMPLE, "--params", '{"switch_name": "all_execution"}', "--legacy").stdout == f"{LEGACY}\n"


def test_a_key_may_come_from_standard_input_and_a_file(tmp_path: Path) -> None:
    parts = {"operation": "kill_switch_update", "tenant_id": "tenant-123", "correlation_id": "corr-456",
             "additional_params": {"switch_name": "all_execution"}}  # fmt: skip
    text = json.dumps(parts)
    assert run("runs", "key", "-", given=text).stdout == f"{KEY}\n"
    path = tmp_path / "parts.json"
    path.write_text(f"{text}\n{text}\n")
    assert run("runs", "key", str(path), "--legacy").stdout == f"{LEGACY}\n" * 2
    lines = run("runs", "key", str(path), "--json").stdout.splitlines()
    assert [json.loads(line)["key"] for line in lines] == [KEY, KEY]


@pytest.mark.parametrize(
    ("words", "given", "told"),
    [
        (
            (
                "runs",
                "key",
            ),
            "",
            "Missing option '--operation'",
        ),
        (("runs", "key", "-", "--tenant", "t"), "{}", "either a FILE or the options"),
        (("runs", "key", "-"), '{"operation": "a", "tenant": "t"}', "did you mean tenant_id?"),
        (("runs", "key", "-"), '{"operation": "a"}\n{"operation"', "not JSON at line 2, column 13"),
        (("runs", "key", "--operation", "a", "--param", "x"), "", "'x' is not of the form NAME=TEXT"),
        (("runs", "key", "--operation", "a", "--params", "[1]"), "", "expected an object"),
        (("runs", "key", "--operation", "a", "--params", "{}{}"), "", "give one JSON object"),
        (
            ("runs", "key", "--operation", "a", "--params", '{"x": 1e999}'),
            "",
            "$.additional_params.x: inf has no JSON form",
        ),
        (("runs", "key", "nowhere.json"), "", "nowhere.json"),
    ],
)
def test_what_makes_no_key_is_refused_before_anything_is_printed(
    words: tuple[str, ...], given: str, told: str
) -> None:
    ran = run(*words, given=given)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert told in " ".join(ran.stderr.split())


# Completion, demo, start-up.


def test_a_shell_completes_commands_and_names() -> None:
    def completed(line: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - (not line.endswith(" ")))}
        ran = run(_ONCEMORE_COMPLETE="bash_complete", **words)
        return [row.partition(",")[2] for row in ran.stdout.splitlines()]

    assert completed("oncemore pol") == ["policy"]
    assert completed("oncemore policy sh") == ["show"]
    assert completed("oncemore policy show kfm-l") == ["kfm-loop", "kfm-loop-default"]
    assert completed("oncemore policy diff kfm-rules p0") == ["p0-storm-nowcast"]
    assert completed("oncemore demo kfm-loop --scenario dead") == ["deadline-catchup"]
    assert completed("oncemore runs --state so") == ["SOFT_FAIL"]
    assert completed("oncemore exec --policy kfm-r") == ["kfm-rules"]
    for shell in ("bash", "zsh", "fish"):
        assert "oncemore" in run(_ONCEMORE_COMPLETE=f"{shell}_source").stdout


def test_the_demo_is_a_command() -> None:
    ran = run("demo", "retry", "--fast")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "Seven calls to a flaky server on this machine" in ran.stdout


LOADED = """
import sys
before = set(sys.modules)
from oncemore.cli import run_command as run
code = run({words!r})
print(*(set(sys.modules) - before), file=sys.stderr)
sys.exit(code)
"""


def loaded_by(*words: str) -> set[str]:
    """The modules that a command loads, asked in a fresh interpreter that nobody measures."""
    clean = {name: value for name, value in environment().items() if not name.startswith("COVERAGE")}
    command = [sys.executable, "-c", LOADED.format(words=list(words))]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=clean)
    return set(ran.stderr.split())


@pytest.mark.parametrize(
    "words", [("--version",), ("policy", "list"), SAMPLE], ids=["version", "list", "key"]
)
def test_a_simple_command_loads_click_and_nothing_dear(words: tuple[str, ...]) -> None:
    loaded = loaded_by(*words)
    foreign = {name.split(".")[0] for name in loaded} - sys.stdlib_module_names
    assert foreign == {"click", "oncemore"}
    assert not {
        name
        for name in loaded
        if name.startswith(("oncemore.policy.files", "oncemore.engine", "oncemore.retries.decorator"))
    }
    dear = {"asyncio", "logging", "http", "urllib.request", "difflib", "tempfile", "dataclasses"}
    # importlib.metadata, which finds the optional parts, imports it.
    assert not loaded & (dear - {"tempfile"} if words == ("--version",) else dear)


@pytest.mark.parametrize("words", ["runs list", "show", "explain", "store tail", "store doctor", "replay"])
def test_a_command_that_looks_at_a_store_loads_no_engine(words: str, tmp_path: Path) -> None:
    @oncemore.step(effect="pure", name="double")
    def double(x: int) -> int:
        return 2 * x

    store = tmp_path / "log.db"
    with oncemore.open(store):
        double(1)
        run = [double.last_run(1).state.run_id] if words in ("show", "explain", "replay") else []  # type: ignore[union-attr]
    loaded = loaded_by(*words.split(), *run, "--store", str(store))
    foreign = {name.split(".")[0] for name in loaded} - sys.stdlib_module_names
    assert foreign <= {"click", "oncemore", "apsw", "msgspec", "typing_extensions"}
    assert not loaded & {
        "oncemore.open_engine",
        "oncemore.steps.engine",
        "oncemore.steps.ops",
        "oncemore.retries.decorator",
    }
    assert not loaded & {"asyncio", "logging", "http", "tempfile", "shutil", "dataclasses", "difflib"}


def test_a_dear_module_would_be_seen() -> None:
    assert any(name.startswith("ruamel") for name in loaded_by("policy", "show", "kfm-loop"))
