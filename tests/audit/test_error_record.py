"""The record of an error: names, codes, a masked message and frames; building it never fails."""

import json
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from oncemore._redact import MASK, MAX_LENGTH
from oncemore.audit.error_record import MAX_FRAMES, MAX_MEMBERS, MAX_SEARCHED_CHARS, error_to_record
from oncemore.policy.model import Failure


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_a_record_has_type_message_code_and_frames_without_folders_and_locals() -> None:
    hidden = "hunter2"
    kept = error_to_record(
        raised(ValueError("no such file")), Failure("permanent", "maybe", None, "EXC_ValueError", "any")
    )
    (frame,) = kept.pop("frames")
    assert kept == {
        "type": "ValueError",
        "message": "no such file",
        "code": "EXC_ValueError",
        "kind": "permanent",
        "rule": "any",
    }
    assert frame.startswith("test_error_record.py:")
    assert frame.endswith(" raised")
    assert hidden not in str(kept)


def test_an_error_that_was_never_raised_has_no_frames() -> None:
    assert error_to_record(ValueError("x")) == {"type": "ValueError", "message": "x"}


def test_frames_are_the_innermost_ones_outside_of_oncemore() -> None:
    def deeper(levels: int) -> None:
        if levels == 0:
            raise ValueError("deep")
        deeper(levels - 1)

    def caught(call: Any) -> BaseException:
        try:
            call()
        except ValueError as error:
            return error
        raise AssertionError

    frames = error_to_record(caught(lambda: deeper(50)))["frames"]
    assert len(frames) == MAX_FRAMES
    assert all(" deeper" in frame for frame in frames)
    for name, ours in (
        ("oncemore.steps.flow", True),
        ("oncemore", True),
        ("my_oncemore_app", False),
        ("a.oncemore", False),
        (None, False),
    ):
        module: dict[str, Any] = {"__name__": name}
        exec(compile("def work():\n    raise ValueError('x')", "C:\\dir\\work.py", "exec"), module)  # noqa: S102
        shown = str(error_to_record(caught(module["work"]))["frames"])
        assert ("work.py:2 work" in shown) is not ours
        assert "dir" not in shown


def test_causes_are_kept_three_deep_and_contexts_not() -> None:
    error: BaseException = ValueError("0")
    for n in range(1, 6):
        outer = ValueError(str(n))
        outer.__cause__, outer.__context__ = error, KeyError("context")
        error = outer
    kept, depth = error_to_record(error), 0
    while "cause" in kept:
        kept, depth = kept["cause"], depth + 1
    assert depth == 3
    assert kept["message"] == "2"
    assert "context" not in str(error_to_record(error))


def test_members_of_a_group_are_kept_and_bounded() -> None:
    group = ExceptionGroup("many", [ValueError(str(n)) for n in range(20)])
    kept = error_to_record(group)
    assert [member["message"] for member in kept["members"]] == [str(n) for n in range(MAX_MEMBERS)]
    for _ in range(10):
        group = ExceptionGroup("deeper", [group])
    assert str(error_to_record(group)).count("deeper") == 4

    class Own(BaseExceptionGroup[BaseException]):
        exceptions = property(lambda self: 1 / 0)  # type: ignore[assignment]

        def __new__(cls, errors: list[BaseException]) -> "Own":
            return super().__new__(cls, "own", errors)

    assert error_to_record(Own([KeyboardInterrupt()]))["members"] == [
        {"type": "KeyboardInterrupt", "message": ""}
    ]


class Broken(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Strange(Exception):
    """An error whose text misbehaves."""

    def __str__(self) -> str:
        class Text(str):
            __slots__ = ()

            def __getitem__(self, at: object) -> str:
                raise ValueError("do not cut me")

        return Text("strange")


class Hiding(Exception):
    __cause__ = property(lambda self: 1 / 0)  # type: ignore[assignment]
    __traceback__ = property(lambda self: 1 / 0)  # type: ignore[assignment]


@pytest.mark.parametrize("secrets", [(), ("hunter2",)], ids=["without", "with secrets"])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Broken(), "(the message cannot be read: ValueError)"),
        (Strange(), "strange"),
        (Hiding("hiding"), "hiding"),
        (KeyError(), ""),
        (ValueError("a\nb\x1b[31mc\x00"), "a bc"),
        (ValueError("\ud800"), "�"),
        (BaseException("base"), "base"),
    ],
    ids=["broken", "strange", "hiding", "empty", "controls", "half", "base"],
)
def test_a_record_is_made_of_an_error_with_failing_methods(
    error: BaseException, message: str, secrets: tuple[str, ...]
) -> None:
    assert error_to_record(error, None, secrets)["message"] == message


def test_long_messages_are_cut_also_where_they_are_searched() -> None:
    for secrets in ((), ("hunter2",)):
        assert len(error_to_record(ValueError("x" * 10_000_000), None, secrets)["message"]) <= MAX_LENGTH


SECRET = "pa'ss w\\ö/rd\n+x"


@pytest.mark.parametrize(
    "at", [0, 480, MAX_LENGTH - 1, MAX_LENGTH, 7_990, 8_000, MAX_SEARCHED_CHARS - 3, MAX_SEARCHED_CHARS]
)
def test_no_part_of_a_known_secret_is_left_wherever_the_message_is_cut(at: int) -> None:
    for text in ("x" * at + "correcthorse", "x " * (at // 2) + "correcthorse" * 40):
        message = error_to_record(ValueError(text), None, ["correcthorse"])["message"]
        assert "corr" not in message
        assert "horse" not in message


def test_a_quoted_secret_is_removed() -> None:
    for shown in (
        SECRET,
        repr(SECRET),
        json.dumps(SECRET),
        quote(SECRET),
        quote(SECRET, ""),
        quote_plus(SECRET),
        SECRET.strip(),
    ):
        message = error_to_record(ValueError(f"before {shown} after"), None, [SECRET])["message"]
        assert message in (f"before {MASK} after", f"before '{MASK}' after", f'before "{MASK}" after')


def test_of_nested_secrets_the_longer_is_removed_first() -> None:
    message = error_to_record(ValueError("abcd abcdefgh"), None, ["abcd", "abcdefgh"])["message"]
    assert message == f"{MASK} {MASK}"


def test_a_very_short_secret_is_not_removed() -> None:
    assert error_to_record(ValueError("code 123"), None, ["123", "", "  1  "])["message"] == "code 123"


def test_secrets_are_removed_from_causes_and_members() -> None:
    error = ExceptionGroup("hunter2", [ValueError("hunter2")])
    error.__cause__ = KeyError("hunter2")
    kept = error_to_record(error, None, iter(["hunter2"]))
    assert "hunter2" not in str(kept)
    assert str(kept).count(MASK) == 3


def test_a_lone_surrogate_in_a_secret_is_accepted() -> None:
    assert error_to_record(ValueError("x \ud800secret y"), None, ["\ud800secret"])["message"] == f"x {MASK} y"
