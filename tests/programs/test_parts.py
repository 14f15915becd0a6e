"""The parts of `programs` one by one: exit rules, spool, matcher, masking, search for the command."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import TYPE_CHECKING

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemore.cli.params import PAIR, SIZE, parse_duration
from oncemore.errors import UsageError
from oncemore.policy.verdict import ErrorClasses
from oncemore.programs import guardian, output_match
from oncemore.programs.command import MAX_WORDS, mask_command
from oncemore.programs.exit_rules import (
    ANY_EXIT,
    ExitRules,
    check_disjoint,
    failure_code,
    format_exit_code,
    parse_exit_codes,
)
from oncemore.programs.find_command import CommandNotRunnable, find_executable
from oncemore.programs.output import OutputSpool

if TYPE_CHECKING:
    from pathlib import Path

# What an exit code means.

FEW = frozenset({75, 100})


@pytest.mark.parametrize(
    ("rules", "code", "matched", "verdict", "declared"),
    [
        (ExitRules("once"), 0, False, "done", True),
        (ExitRules("once"), 1, False, "unknown", False),
        (ExitRules("once", retry=FEW), 75, False, "again", True),
        (ExitRules("once", retry=FEW), 1, False, "unknown", False),
        (ExitRules("once", fail=FEW), 75, False, "failed", True),
        (ExitRules("once", outputs=("x",)), 1, True, "again", True),
        (ExitRules("once", ok=FEW), 100, False, "done", True),
        (ExitRules("idempotent"), 1, False, "again", False),
        (ExitRules("idempotent"), 126, False, "failed", False),
        (ExitRules("idempotent"), 127, False, "failed", False),
        (ExitRules("pure", retry=FEW), 1, False, "failed", False),
        (ExitRules("pure", outputs=("x",)), 1, False, "failed", False),
        (ExitRules("pure", outputs=("x",), fail=FEW), 75, True, "failed", True),
        (ExitRules("pure", retry=frozenset({0})), 0, False, "again", True),
        (ExitRules("pure", retry=ANY_EXIT), 0, False, "done", True),
        (ExitRules("pure", retry=ANY_EXIT, fail=FEW), 75, False, "failed", True),
        (ExitRules("pure", retry=ANY_EXIT), 127, False, "again", True),
    ],
)
def test_exit_rules_give_each_code_its_verdict(
    rules: ExitRules, code: int, matched: bool, verdict: str, declared: bool
) -> None:
    meaning = rules.judge_exit(code, matched, None)
    assert (meaning.verdict, meaning.is_declared) == (verdict, declared)


def test_a_policy_decides_only_about_codes_that_it_names() -> None:
    rules = ExitRules("idempotent", retry=frozenset({1}))
    classes = ErrorClasses(("Exception", "EXIT_7", "SIGNAL_*"), ("EXIT_7x", "EXIT_8"))
    means = {code: rules.judge_exit(code, False, classes).verdict for code in (1, 7, 8, 9, 137)}
    assert means == {1: "again", 7: "again", 8: "failed", 9: "failed", 137: "again"}
    both = ErrorClasses(("EXIT_8",), ("EXIT_8",), "retryable_first")
    assert rules.judge_exit(8, False, both).verdict == "again"


def test_exit_codes_have_names_and_readable_texts() -> None:
    assert [failure_code(code) for code in (0, 75, 137, 255)] == [
        "EXIT_0",
        "EXIT_75",
        "SIGNAL_KILL",
        "EXIT_255",
    ]
    assert format_exit_code(75) == "exit code 75"
    assert format_exit_code(137) == "signal SIGKILL (exit code 137)"


def test_lists_of_exit_codes_are_parsed_and_malformed_ones_refused() -> None:
    assert parse_exit_codes("--x", "1, 75,100-102") == {1, 75, 100, 101, 102}
    assert parse_exit_codes("--x", "any") == ANY_EXIT
    for wrong in ("", "a", "256", "-1", "5-3", "1,,2", "1-2-3"):
        with pytest.raises(UsageError, match="--x is"):
            parse_exit_codes("--x", wrong)
    check_disjoint({"--a": frozenset({1}), "--b": frozenset({2}), "--c": ANY_EXIT})
    with pytest.raises(UsageError, match="1 is in --a and in --b"):
        check_disjoint({"--a": frozenset({1}), "--b": frozenset({1, 2})})


# What is kept of output.


def read_all(spool: OutputSpool) -> bytes:
    return b"".join(iter(lambda: spool.read(100), b""))


@given(st.integers(0, 40), st.lists(st.binary(max_size=60), max_size=12))
def test_a_spool_keeps_everything_or_beginning_and_end(most: int, parts: list[bytes]) -> None:
    spool, whole = OutputSpool(most), b"".join(parts)
    for part in parts:
        spool.write(part)
    kept = read_all(spool)
    spool.close()
    assert spool.total_bytes == len(whole)
    if len(whole) <= most:
        assert (kept, spool.omitted_bytes) == (whole, 0)
    else:
        tail = most // 2
        note = b"\n[oncemore: %d bytes are left out here]\n" % (len(whole) - most)
        assert kept == whole[: most - tail] + note + whole[len(whole) - tail :]


# Expressions.


def looked(patterns: list[str], *frames: tuple[int, bytes]) -> int:
    sent = json.dumps({"patterns": patterns}).encode() + b"\n"
    sent += b"".join(bytes([number]) + len(data).to_bytes(4, "big") + data for number, data in frames)
    return output_match.search_stream(io.BytesIO(sent))


def test_lines_are_matched_per_stream_even_without_a_line_end() -> None:
    assert looked(["^ab$"], (0, b"x\na"), (0, b"b\n")) == output_match.EXIT_MATCH
    assert looked(["^ab$"], (0, b"a"), (1, b"b\n")) == output_match.EXIT_NO_MATCH  # two streams are two texts
    assert looked(["nope", "b$"], (1, b"ab")) == output_match.EXIT_MATCH
    assert looked(["^ab$"], (0, b"ab\r\n")) == output_match.EXIT_MATCH
    assert looked(["\ufffd"], (0, b"\xff\n")) == output_match.EXIT_MATCH
    assert looked(["a"]) == output_match.EXIT_NO_MATCH


def test_a_line_without_an_end_is_searched_in_overlapping_pieces() -> None:
    needle, filler = b"try again", b"x" * (output_match.MAX_LINE_LENGTH - 5)
    assert looked(["try again"], (0, filler), (0, needle), (0, filler * 3)) == output_match.EXIT_MATCH
    assert (
        looked(["try again"], (0, filler * 2 + needle[:4]), (0, needle[4:] + filler * 2))
        == output_match.EXIT_MATCH
    )
    assert looked(["try again"], (0, filler * 9)) == output_match.EXIT_NO_MATCH


# What is written down of a command line.


def test_secrets_of_a_command_are_not_shown() -> None:
    word = "hunter2hunter2"
    url = f"postgresql://me:{word}@host/db"
    shown = mask_command(["psql", url, "--password", word, f"--api-key={word}", f"x{word}y", "-v"], (word,))
    assert "hunter2" not in " ".join(shown)
    assert (shown[0], shown[2], shown[3], shown[6]) == ("psql", "--password", "***", "-v")


def test_a_command_without_secrets_is_shown_as_it_is_and_a_long_one_is_shortened() -> None:
    plain = ["python", "-c", "a = 1\nprint(a)\t# tab", "", "ü", "--pass", "-"]
    assert mask_command(plain[:5], ()) == plain[:5]
    assert mask_command([os.fsdecode(b"caf\xe9")], ()) == ["caf\\xe9"]
    assert mask_command(["x" * 5000], ()) == ["x" * 200 + "… 5000 characters"]
    many = mask_command(list(map(str, range(1000))), ())
    assert (len(many), many[-1]) == (MAX_WORDS + 1, "… and 800 more words")


# Where a command is.


def test_a_command_is_found_as_a_shell_finds_it(tmp_path: Path) -> None:
    script = tmp_path / "tool"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert find_executable("tool", {"PATH": f"/nowhere:{tmp_path}"}, None) == str(script)
    assert find_executable("./tool", {}, str(tmp_path)) == "./tool"
    assert find_executable("tool", {"PATH": "."}, str(tmp_path)) == "./tool"
    assert find_executable("sh", {}, None) in ("/bin/sh", "/usr/bin/sh")
    assert find_executable(sys.executable, {}, None) == sys.executable


@pytest.mark.parametrize(
    ("content", "mode", "code", "message"),
    [
        ("#!/bin/sh\n", 0o644, 126, "may not be executed"),
        ("#!/no/such/shell\n", 0o755, 126, "interpreter '/no/such/shell' does not exist"),
        ("#!/bin/sh\r\n", 0o755, 126, "carriage return"),
        ("#!\n", 0o755, 126, "interpreter '' does not exist"),
        ("echo hello\n", 0o755, 126, "names no interpreter"),
        ("", 0o755, 126, "names no interpreter"),
    ],
)
def test_a_command_that_cannot_be_run_is_refused_with_the_reason(
    tmp_path: Path, content: str, mode: int, code: int, message: str
) -> None:
    file = tmp_path / "tool"
    file.write_text(content, newline="")
    file.chmod(mode)
    for word, env in ((str(file), {}), ("tool", {"PATH": str(tmp_path)})):
        with pytest.raises(CommandNotRunnable, match=message) as refused:
            find_executable(word, env, None)
        assert refused.value.code == code


def test_a_missing_command_is_refused(tmp_path: Path) -> None:
    for word, code in (
        ("", 127),
        ("nonesuch", 127),
        ("/no/such/tool", 127),
        (str(tmp_path), 126),
        ("./a\0b", 127),
    ):
        with pytest.raises(CommandNotRunnable) as refused:
            find_executable(word, {"PATH": str(tmp_path)}, None)
        assert refused.value.code == code
    with pytest.raises(CommandNotRunnable, match="--cwd"):
        find_executable("sh", {}, "/no/such/folder")


# Words.


def test_durations_and_sizes_are_parsed() -> None:
    assert [parse_duration(text) for text in ("90", "1.5h", "2m30s", "500ms", "1d", "5min", "0", "1 h")] == [
        90.0, 5400.0, 150.0, 0.5, 86_400.0, 300.0, 0.0, 3600.0,
    ]  # fmt: skip
    assert [parse_duration(text) for text in ("", "x", "-1", "1h30", "1 x", "h", "1e400")] == [None] * 7
    assert [SIZE.convert(text, None, None) for text in ("10", "10M", "2GiB", "1k")] == [
        10,
        10 << 20,
        2 << 30,
        1024,
    ]
    for wrong in ("", "x", "-1", "1.5M"):
        with pytest.raises(click.BadParameter, match="is not a size"):
            SIZE.convert(wrong, None, None)
    assert PAIR.convert("A=b=c", None, None) == ("A", "b=c")
    for wrong in ("A", "=b"):
        with pytest.raises(click.BadParameter, match="NAME=VALUE"):
            PAIR.convert(wrong, None, None)


def test_descendants_are_found_and_a_process_without_any_has_none() -> None:
    import subprocess

    with subprocess.Popen(["sh", "-c", "sleep 300 & echo $!; wait"], stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        inner = int(shell.stdout.readline())
        assert {shell.pid, inner} <= guardian.find_descendants(os.getpid())
        assert guardian.find_descendants(inner) == set()
        os.kill(inner, 9)


def test_a_signal_that_arrives_with_the_options_is_handled() -> None:
    """Both in one packet: an earlier guardian died of it, and the attempt was held as lost."""
    import socket

    ours, theirs = socket.socketpair()
    order = {"path": "/bin/sleep"}
    ours.sendall(json.dumps(order).encode() + b'\n{"do": "end", "signal": 15}\n')
    assert guardian.receive_options(theirs) == (order, b'{"do": "end", "signal": 15}\n')
    ours.close()
    assert guardian.receive_options(theirs) == (None, b"")
    theirs.close()
