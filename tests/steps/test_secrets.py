"""Nothing secret reaches the store: canaries wherever errors hold texts, then all bytes are read."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

import pytest

import oncemore
from oncemore import Secret
from tests.steps.colours import SOON, Turns, do, each_colour, made

if TYPE_CHECKING:
    from pathlib import Path


def canary(n: int) -> str:
    return f"kanarie{n:03d}vogel"


JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJrYW5hcmllMDEydm9nZWwifQ.kanarie012vogelkanarie012vogel"
TEXTS = [
    f"https://ada:{canary(1)}@example.org/path",
    f"GET https://example.org/x?api_key={canary(2)}&page=2 failed",
    f"https://example.org/x?sig={canary(3)}",
    f"https://example.org/x?X-Amz-Signature={canary(4)}",
    f"Authorization: Bearer {canary(5)}",
    f"{{'Authorization': 'Basic {canary(6)}'}}",
    f"headers: X-Api-Key: {canary(7)}",
    f"Cookie: session={canary(8)}; other={canary(8)}",
    f"postgresql://ada:{canary(9)}@db/main",
    f"host=db password={canary(10)} dbname=main",
    f"-----BEGIN RSA {'PRIVATE'} KEY-----\n{canary(11)}\n-----END RSA {'PRIVATE'} KEY-----",
    f"bad token {JWT}",
    f"redis://:{canary(13)}@cache:6379/0",
    f"amqp://guest:{canary(14)}@queue//",
    f'{{"password": "{canary(15)}"}}',
    f"client_secret={canary(16)}",
    f"--password {canary(17)} given",
    f"DB_PASSWORD={canary(18)}",
    f"access_token => {canary(19)}",
    f"pwd:{canary(20)}",
    f"AccountKey={canary(21)};EndpointSuffix=core",
    f"sk-{canary(22)}{canary(22)}",
    f"ghp_{canary(23)}{canary(23)}",
    f"xoxb-{canary(24)}-{canary(24)}",
    f"refresh_token='{canary(25)}'",
    f"passphrase: {canary(26)}",
    f"https://{canary(27)}@example.org/",
    "x" * 480 + f" password={canary(28)}",
    "x" * 7_990 + f" secret={canary(29)}",
    f"mongodb+srv://ada:{canary(30)}@cluster/db",
    f"Proxy-Authorization: Digest username=ada, response={canary(31)}",
    f"jwt={canary(32)}",
]


def bytes_of(folder: Path) -> bytes:
    """Return all bytes below a folder: the log, its write-ahead log, whatever else lies there."""
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def causing(text: str, how: str) -> Exception:
    """Return an error that holds a text in one of the places an error has."""
    error = ValueError(text if how == "message" else "outer")
    if how == "cause":
        error.__cause__ = KeyError(text)
    elif how == "context":
        error.__context__ = OSError(text)
    elif how == "note":
        error.add_note(text)
    elif how == "group":
        return ExceptionGroup("several", [ValueError(text)])
    elif how == "attribute":
        error.request = {"headers": text}  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize("how", ["message", "cause", "context", "note", "group", "attribute"])
def test_no_known_shape_of_a_secret_reaches_the_store(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    assert len(TEXTS) >= 30
    shown: list[str] = []
    with oncemore.open(tmp_path / "log.db"):
        for at, text in enumerate(TEXTS):
            step = made("plain", Turns(causing(text, how)), effect="pure", policy="standard")
            for _ in range(2):
                with pytest.raises(oncemore.PermanentFailure) as caught:
                    step(at)
                shown.append(str(caught.value))
            shown.append(step.last_run(at).explain())
        found = bytes_of(tmp_path)  # while the write-ahead log is still there
    found += bytes_of(tmp_path)
    assert b"ValueError" in found
    for text in (found.decode(errors="replace"), "".join(shown), caplog.text):
        assert [n for n in range(1, 40) if canary(n) in text] == []


HUNTER = "hunter2 with spaces/and+signs'\n"


@each_colour
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_secret_argument_never_reaches_the_store_though_the_error_echoes_it(
    colour: str, wrapped: bool, tmp_path: Path
) -> None:
    echoes = [
        HUNTER, repr(HUNTER), quote(HUNTER), quote(HUNTER, ""), quote_plus(HUNTER), HUNTER.strip(),
        json.dumps([HUNTER]), str({"headers": {"x": HUNTER}}), f"user:{HUNTER}@host", "x" * 490 + HUNTER,
        "y" * 7_995 + HUNTER, HUNTER * 50, "z" * 99_990 + HUNTER * 3,
    ]  # fmt: skip

    def echo(x: int, token: Any) -> str:
        assert (token.reveal() if isinstance(token, Secret) else token) == HUNTER
        raise ExceptionGroup("all", [ValueError(echoes[x])]) from KeyError(HUNTER)

    if colour == "plain":

        @oncemore.step(effect="pure", name="plain")
        def work(x: int, token: Secret) -> str:
            return echo(x, token)

    else:

        @oncemore.step(effect="pure", name="async")
        async def work(x: int, token: Secret) -> str:
            return echo(x, token)

    found = b""
    with oncemore.open(tmp_path / "log.db"):
        for x in range(len(echoes)):
            with pytest.raises(oncemore.PermanentFailure) as caught:
                do(colour, work, x, Secret(HUNTER) if wrapped else HUNTER)
            found += str(caught.value).encode()
        found += bytes_of(tmp_path)
    assert found.count(b"ValueError") >= len(echoes)
    for part in (b"hunter2", b"and+signs", b"with spaces", b"and%2Bsigns"):
        assert part not in found


def test_secrets_inside_a_secret_are_found_too(tmp_path: Path) -> None:
    held = {
        "user": "ada",
        "keys": [b"first-canary", ("second-canary", {"x": "third-canary"})],
        "n": 5,
        "pin": "12",
    }

    @oncemore.step(effect="pure", name="nested")
    def work(held: Secret, number: int = 0) -> None:
        raise ValueError(str(held.reveal()))

    with oncemore.open(tmp_path / "log.db"):
        with pytest.raises(oncemore.PermanentFailure):
            work(Secret(held))
        found = bytes_of(tmp_path)
    assert b"ValueError" in found
    assert b"canary" not in found


def test_a_result_that_cannot_be_kept_does_not_quote_itself_into_the_store(tmp_path: Path) -> None:
    class Account:
        def __eq__(self, other: object) -> bool:
            raise ValueError("password=kanarie100vogel of hunter2")

        __hash__ = None  # type: ignore[assignment]

    def work(x: int, token: Secret) -> Account:
        return Account()

    work.__annotations__.update(token=Secret, **{"return": Account})
    with oncemore.open(tmp_path / "log.db"):
        step = oncemore.step(effect="once", name="account")(work)
        with pytest.raises(oncemore.ResultUnavailable):
            step(1, Secret("hunter2"))
        found = bytes_of(tmp_path)
    assert b"result_unavailable" in found
    assert b"kanarie100vogel" not in found
    assert b"hunter2" not in found


def test_secrets_do_not_show_in_refusals_and_held_runs(tmp_path: Path) -> None:
    @oncemore.step(effect="once", name="held", reconcile=lambda token, number: token.reveal())
    def work(token: Secret, number: int = 0) -> None:
        raise SOON

    with oncemore.open(tmp_path / "log.db"):
        with pytest.raises(oncemore.OutcomeUnknown) as caught:
            work(Secret("kanarie101vogel"))
        found = bytes_of(tmp_path)
    assert b"kanarie101vogel" not in found + str(caught.value).encode()
