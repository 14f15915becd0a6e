"""The parts by themselves: what codes mean, what is kept, what is written down, where a command is."""

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

from oncemore.classifiers.verdict import Classes
from oncemore.cli.params import PAIR, SIZE, duration
from oncemore.errors import UsageError
from oncemore.programs import guardian, output_match
from oncemore.programs.command import MOST_WORDS, words_of
from oncemore.programs.exit_rules import ANY, Rules, check, exits, name_of, said
from oncemore.programs.find_command import CannotRun, find
from oncemore.programs.output_spool import Spool

if TYPE_CHECKING:
    from pathlib import Path

# What an exit code means.

FEW = frozenset({75, 100})


@pytest.mark.parametrize(
    ("rules", "code", "matched", "what", "declared"),
    [
        (Rules("once"), 0, False, "done", True),
        (Rules("once"), 1, False, "unknown", False),
        (Rules("once", retry=FEW), 75, False, "again", True),
        (Rules("once", retry=FEW), 1, False, "unknown", False),
        (Rules("once", fail=FEW), 75, False, "failed", True),
        (Rules("once", outputs=("x",)), 1, True, "again", True),
        (Rules("once", ok=FEW), 100, False, "done", True),
        (Rules("idempotent"), 1, False, "again", False),
        (Rules("idempotent"), 126, False, "failed", False),
        (Rules("idempotent"), 127, False, "failed", False),
        (Rules("pure", retry=FEW), 1, False, "failed", False),
        (Rules("pure", outputs=("x",)), 1, False, "failed", False),
        (Rules("pure", outputs=("x",), fail=FEW), 75, True, "failed", True),
        (Rules("pure", retry=frozenset({0})), 0, False, "again", True),
        (Rules("pure", retry=ANY), 0, False, "done", True),
        (Rules("pure", retry=ANY, fail=FEW), 75, False, "failed", True),
        (Rules("pure", retry=ANY), 127, False, "again", True),
    ],
)
def test_what_an_exit_code_means(rules: Rules, code: int, matched: bool, what: str, declared: bool) -> None:
    meaning = rules.meaning(code, matched, None)
    assert (meaning.what, meaning.declared) == (what, declared)


def test_a_policy_speaks_only_of_codes_that_it_names() -> None:
    rules = Rules("idempotent", retry=frozenset({1}))
    classes = Classes(("Exception", "EXIT_7", "SIGNAL_*"), ("EXIT_7x", "EXIT_8"))
    means = {code: rules.meaning(code, False, classes).what for code in (1, 7, 8, 9, 137)}
    assert means == {1: "again", 7: "again", 8: "failed", 9: "failed", 137: "again"}
    both = Classes(("EXIT_8",), ("EXIT_8",), "retryable_first")
    assert rules.meaning(8, False, both).what == "again"


def test_codes_have_names_and_are_said_as_people_say_them() -> None:
    assert [name_of(code) for code in (0, 75, 137, 255)] == ["EXIT_0", "EXIT_75", "SIGNAL_KILL", "EXIT_255"]
    assert said(75) == "exit code 75"
    assert said(137) == "signal SIGKILL (exit code 137)"


def test_lists_of_codes_are_read_and_what_is_none_is_refused() -> None:
    assert exits("--x", "1, 75,100-102") == {1, 75, 100, 101, 102}
    assert exits("--x", "any") == ANY
    for wrong in ("", "a", "256", "-1", "5-3", "1,,2", "1-2-3"):
        with pytest.raises(UsageError, match="--x is"):
            exits("--x", wrong)
    check({"--a": frozenset({1}), "--b": frozenset({2}), "--c": ANY})
    with pytest.raises(UsageError, match="1 stands in --a and in --b"):
        check({"--a": frozenset({1}), "--b": frozenset({1, 2})})


# What is kept of output.


def read_all(spool: Spool) -> bytes:
    return b"".join(iter(lambda: spool.read(100), b""))


@given(st.integers(0, 40), st.lists(st.binary(max_size=60), max_size=12))
def test_a_spool_keeps_all_or_beginning_and_end_and_counts_the_rest(most: int, parts: list[bytes]) -> None:
    spool, whole = Spool(most), b"".join(parts)
    for part in parts:
        spool.write(part)
    kept = read_all(spool)
    spool.close()
    assert spool.bytes == len(whole)
    if len(whole) <= most:
        assert (kept, spool.left_out) == (whole, 0)
    else:
        tail = most // 2
        note = b"\n[oncemore: %d bytes are left out here]\n" % (len(whole) - most)
        assert kept == whole[: most - tail] + note + whole[len(whole) - tail :]


# Expressions.


def looked(patterns: list[str], *frames: tuple[int, bytes]) -> int:
    sent = json.dumps({"patterns": patterns}).encode() + b"\n"
    sent += b"".join(bytes([number]) + len(data).to_bytes(4, "big") + data for number, data in frames)
    return output_match.look(io.BytesIO(sent))


def test_lines_are_matched_stream_by_stream_whole_or_at_the_end() -> None:
    assert looked(["^ab$"], (0, b"x\na"), (0, b"b\n")) == output_match.MATCH
    assert looked(["^ab$"], (0, b"a"), (1, b"b\n")) == output_match.NONE  # two streams are two texts
    assert looked(["nope", "b$"], (1, b"ab")) == output_match.MATCH
    assert looked(["^ab$"], (0, b"ab\r\n")) == output_match.MATCH
    assert looked(["\ufffd"], (0, b"\xff\n")) == output_match.MATCH
    assert looked(["a"]) == output_match.NONE


def test_a_line_without_end_is_looked_at_in_pieces_that_overlap() -> None:
    needle, filler = b"try again", b"x" * (output_match.LONGEST - 5)
    assert looked(["try again"], (0, filler), (0, needle), (0, filler * 3)) == output_match.MATCH
    assert (
        looked(["try again"], (0, filler * 2 + needle[:4]), (0, needle[4:] + filler * 2))
        == output_match.MATCH
    )
    assert looked(["try again"], (0, filler * 9)) == output_match.NONE


# What is written down of a command line.


def test_secrets_of_a_command_are_not_shown() -> None:
    word = "hunter2hunter2"
    url = f"postgresql://me:{word}@host/db"
    shown = words_of(["psql", url, "--password", word, f"--api-key={word}", f"x{word}y", "-v"], (word,))
    assert "hunter2" not in " ".join(shown)
    assert (shown[0], shown[2], shown[3], shown[6]) == ("psql", "--password", "***", "-v")


def test_a_command_without_secrets_is_shown_as_it_is_and_a_long_one_is_shortened() -> None:
    plain = ["python", "-c", "a = 1\nprint(a)\t# tab", "", "ü", "--pass", "-"]
    assert words_of(plain[:5], ()) == plain[:5]
    assert words_of([os.fsdecode(b"caf\xe9")], ()) == ["caf\\xe9"]
    assert words_of(["x" * 5000], ()) == ["x" * 200 + "… 5000 characters"]
    many = words_of(list(map(str, range(1000))), ())
    assert (len(many), many[-1]) == (MOST_WORDS + 1, "… and 800 more words")


# Where a command is.


def test_a_command_is_found_as_a_shell_finds_it(tmp_path: Path) -> None:
    script = tmp_path / "tool"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert find("tool", {"PATH": f"/nowhere:{tmp_path}"}, None) == str(script)
    assert find("./tool", {}, str(tmp_path)) == "./tool"
    assert find("tool", {"PATH": "."}, str(tmp_path)) == "./tool"
    assert find("sh", {}, None) in ("/bin/sh", "/usr/bin/sh")
    assert find(sys.executable, {}, None) == sys.executable


@pytest.mark.parametrize(
    ("content", "mode", "code", "told"),
    [
        ("#!/bin/sh\n", 0o644, 126, "may not be executed"),
        ("#!/no/such/shell\n", 0o755, 126, "interpreter '/no/such/shell' is not there"),
        ("#!/bin/sh\r\n", 0o755, 126, "carriage return"),
        ("#!\n", 0o755, 126, "interpreter '' is not there"),
        ("echo hello\n", 0o755, 126, "names no interpreter"),
        ("", 0o755, 126, "names no interpreter"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_reason(
    tmp_path: Path, content: str, mode: int, code: int, told: str
) -> None:
    file = tmp_path / "tool"
    file.write_text(content, newline="")
    file.chmod(mode)
    for word, env in ((str(file), {}), ("tool", {"PATH": str(tmp_path)})):
        with pytest.raises(CannotRun, match=told) as refused:
            find(word, env, None)
        assert refused.value.code == code


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    for word, code in (
        ("", 127),
        ("nonesuch", 127),
        ("/no/such/tool", 127),
        (str(tmp_path), 126),
        ("./a\0b", 127),
    ):
        with pytest.raises(CannotRun) as refused:
            find(word, {"PATH": str(tmp_path)}, None)
        assert refused.value.code == code
    with pytest.raises(CannotRun, match="--cwd"):
        find("sh", {}, "/no/such/folder")


# Words.


def test_durations_and_sizes_are_read() -> None:
    assert [duration(text) for text in ("90", "1.5h", "2m30s", "500ms", "1d", "5min", "0", "1 h")] == [
        90.0, 5400.0, 150.0, 0.5, 86_400.0, 300.0, 0.0, 3600.0,
    ]  # fmt: skip
    assert [duration(text) for text in ("", "x", "-1", "1h30", "1 x", "h", "1e400")] == [None] * 7
    assert [SIZE.convert(text, None, None) for text in ("10", "10M", "2GiB", "1k")] == [
        10,
        10 << 20,
        2 << 30,
        1024,
    ]
    for wrong in ("", "x", "-1", "1.5M"):
        with pytest.raises(click.BadParameter, match="is no size"):
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
        assert {shell.pid, inner} <= guardian.descendants(os.getpid())
        assert guardian.descendants(inner) == set()
        os.kill(inner, 9)


def test_a_signal_that_comes_with_the_order_is_obeyed() -> None:
    """Both in one packet: the guard died of it, and the attempt was held as lost."""
    import socket

    ours, theirs = socket.socketpair()
    order = {"path": "/bin/sleep"}
    ours.sendall(json.dumps(order).encode() + b'\n{"do": "end", "signal": 15}\n')
    assert guardian.heard(theirs) == (order, b'{"do": "end", "signal": 15}\n')
    ours.close()
    assert guardian.heard(theirs) == (None, b"")
    theirs.close()
