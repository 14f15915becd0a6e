"""Texts for logs: no secrets, no control characters, bounded length and time."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemore._redact import (
    MASK,
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_LENGTH,
    MAX_WIDTH,
    clean_text,
    error_class_name,
    mask_context,
    mask_text,
    masked_message,
)

#: Never to be seen in what is written.
HIDDEN = "hunter2hunter2"
WEB_TOKEN = "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxIn0" + ".abc-DEF_123"
AWS_ID = "AKIA" + "IOSFODNN7EXAMPLE"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (f"no postgresql://app:{HIDDEN}@db:5432/x today", "no postgresql://***@db:5432/x today"),
        (f"redis://:{HIDDEN}@cache/0", "redis://***@cache/0"),
        (f"amqp://app:p@ss/{HIDDEN}@mq/v", "amqp://***@mq/v"),
        (f"https://{HIDDEN}@host/path", "https://***@host/path"),
        (f"host=db password={HIDDEN} dbname=x", "host=db password=*** dbname=x"),
        (f"Server=db;User Id=app;Pwd={HIDDEN};Port=1", "Server=db;User Id=app;Pwd=***;Port=1"),
        (f"PGPASSWORD='{HIDDEN} with spaces' psql", "PGPASSWORD=*** psql"),
        (f'{{"api_key": "{HIDDEN}", "page": 2}}', '{"api_key": ***, "page": 2}'),
        (f'{{"note": "secret=\\"{HIDDEN}\\""}}', '{"note": "secret=***"}'),
        (f"api_keys = ['{HIDDEN}', '{HIDDEN}'] of 2", "api_keys = *** of 2"),
        (f"client_secret => {HIDDEN}", "client_secret => ***"),
        (f"for Authorization: Basic {HIDDEN}==, try again", "for Authorization: Basic ***, try again"),
        (f"authorization={HIDDEN}", "authorization=***"),
        (
            f'Authorization: Digest username="{HIDDEN}", response="{HIDDEN}" refused',
            "Authorization: Digest *** refused",
        ),
        (f"{{'Authorization': 'Bearer {HIDDEN}'}}", "{'Authorization': ***}"),
        (f"Set-Cookie: id={HIDDEN}; csrf={HIDDEN}", "Set-Cookie: ***"),
        (f"sent Bearer {HIDDEN}", "sent Bearer ***"),
        (f"GET https://api/x?key={HIDDEN}&sig={HIDDEN}&page=2", "GET https://api/x?key=***&sig=***&page=2"),
        (f"?X-Amz-Security-Token={HIDDEN}&x=1", "?X-Amz-Security-Token=***&x=1"),
        (f"mysql --password {HIDDEN} -h db", "mysql --password *** -h db"),
        (f"token {WEB_TOKEN} expired", "token *** expired"),
        (f"no such key {AWS_ID}", "no such key ***"),
        ("bad ghp_" + "a1" * 18, "bad ***"),
        ("bad sk-proj-" + "a1" * 18, "bad ***"),
        ("-----BEGIN RSA PRIVATE" + " KEY-----\nMIIE\n-----END RSA PRIVATE" + " KEY----- then", "*** then"),
        ("-----BEGIN PRIVATE" + " KEY-----\nMIIE", "***"),
        ("nest at 38.8977, -77.0365 seen", "nest at (***, ***) seen"),
        ('{"lat": 38.9, "lon": -77.04}', '{"lat": ***, "lon": ***}'),
    ],
)  # fmt: skip
def test_secrets_are_masked_and_the_rest_stays(text: str, written: str) -> None:
    assert mask_text(text) == written
    assert HIDDEN not in mask_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "attempt 3 of 5 took 10.5 s, 2.25 s of it waiting",
        "version 1.2.3.4 at 10.0.0.1:5432",
        "https://host:8080/path@x and https://host/a?email=a@b.example&page=2",
        "used 4096 tokens, max_tokens: 4096",
        "compass: 3, passengers: 5, footprint: 7, basic auth is off",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "0193a000-0000-7000-8000-000000000001",
        "naïve café, 東京, 🙂",
    ],
)
def test_texts_without_secrets_stay_unchanged(text: str) -> None:
    assert mask_text(text) == text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("one\r\ntwo\nthree\u2028four", "one two three four"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07done", "red done"),
        ("a\x00b\x7fc\x9bd", "abcd"),
        ("safe\u202egnp.exe\u200b", "safegnp.exe"),
        ("half \ud800 a character", "half � a character"),
        (f"pass\x00wo\u200brd\x1b[0m={HIDDEN}", "password=***"),
    ],
)
def test_controls_cannot_forge_lines_colour_terminals_or_hide_secrets(text: str, written: str) -> None:
    assert mask_text(text) == written
    assert clean_text(text) == written.replace(MASK, HIDDEN)


def test_a_text_is_masked_before_it_is_cut() -> None:
    text = "x" * (MAX_LENGTH - 20) + f" password={HIDDEN} and more"
    assert mask_text(text).endswith("password=*** and m…")
    assert len(mask_text(text)) == MAX_LENGTH == len(mask_text("y" * MAX_LENGTH))
    assert mask_text(text, 12) == "x" * 11 + "…"


def test_no_half_of_a_secret_is_left_over_where_a_long_text_is_cut() -> None:
    long = f"password={HIDDEN} " * 2_000 + AWS_ID
    assert len(long) > MAX_CHARACTERS
    assert HIDDEN[:5] not in mask_text(long, MAX_CHARACTERS)
    assert mask_text("z" * 3 * MAX_CHARACTERS) == " …"


@pytest.mark.parametrize(
    "piece",
    [
        "a", "1", '"', "'", "\\", "-", "-a", " -", "--a ", "://", "://a:", "://a@", "password", "password=",
        'password="\\', "password=[", "eyJ", "eyJaaaaaa.", "\x1b[", "\x1b]", "1.111 ", "1.111,", "bearer ",
        "sk-", "token ", "api", "lat", "lon=1.1", "AKIA", "authorization : token ", "cookie=",
        "Authorization: basic x , a=b", "-----BEGIN KEY-----", "A" * 40,
    ],
)  # fmt: skip
def test_a_hostile_text_costs_little_time(piece: str) -> None:
    text = (piece * MAX_CHARACTERS)[:MAX_CHARACTERS]
    started = time.process_time()
    mask_text(text)
    assert time.process_time() - started < 0.5


@pytest.mark.unmeasured
@given(st.text(st.characters()) | st.from_regex(r"(?:password|token|://|eyJ|[ =:@\"'.\x1b-]|[a-z0-9]){1,60}"))
def test_any_text_comes_out_short_on_one_line_and_encodable(text: str) -> None:
    written = mask_text(text, 40)
    assert len(written) <= 40
    assert written.isprintable() or " " in written or not written.isascii()
    assert not set("\r\n\x1b\x00") & set(written)
    written.encode()


class Broken(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError("no")


class Untrue(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class Sly(str):
    __slots__ = ()

    def __getitem__(self, at: Any) -> Any:
        raise ZeroDivisionError

    def __len__(self) -> int:
        return 0


class Nameless(type):
    @property
    def __name__(cls) -> str:
        raise ZeroDivisionError


class Odd(Exception, metaclass=Nameless):
    pass


def test_an_error_without_a_usable_text_does_no_harm() -> None:
    assert masked_message(Broken()) == "(the message cannot be read: ZeroDivisionError)"
    assert masked_message(Untrue()) == "(the message cannot be read: TypeError)"
    assert masked_message(ValueError(Sly(f"token={HIDDEN}"))) == "token=***"
    assert masked_message(None) == ""
    assert masked_message(KeyError("a\nb")) == "'a\\nb'"
    assert error_class_name(Odd()) == "Exception"
    assert error_class_name(type("Bad\nName" + "x" * 200, (Exception,), {})()).startswith("Bad Namexx")


def test_a_context_is_masked_by_its_names_and_in_its_texts() -> None:
    context = {
        "user": "ada", "password": HIDDEN, "nested": [{"api-key": [HIDDEN], "url": f"https://u:{HIDDEN}@h"}],
        "number": 7, "share": 0.5, "flag": True, "nothing": None, "object": object(), 5: ("a", b"bytes"),
    }  # fmt: skip
    assert mask_context(context) == {
        "user": "ada", "password": MASK, "nested": [{"api-key": MASK, "url": "https://***@h"}],
        "number": 7, "share": 0.5, "flag": True, "nothing": None, "object": "<object>", "5": ["a", "<bytes>"],
    }  # fmt: skip


def test_a_context_has_its_limits() -> None:
    deep: Any = "end"
    for _ in range(MAX_DEPTH + 5):
        deep = [deep]
    assert "end" not in str(mask_context(deep))
    assert len(mask_context(list(range(MAX_WIDTH + 5)))) == MAX_WIDTH  # type: ignore[arg-type]
    assert len(mask_context({n: n for n in range(MAX_WIDTH + 5)})) == MAX_WIDTH  # type: ignore[arg-type]
