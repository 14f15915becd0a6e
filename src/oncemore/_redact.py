"""Redaction: masks secrets in a text, removes control characters, bounds the length.

All texts that leave the program go through this module: messages of errors (`masked_message`), addresses
(`hide_credentials`), values in messages about options (`describe_value`), header fields (`mask_headers`),
lines for terminals (`show_controls`) and for logs (`clean_text`).

Exception texts are untrusted input. They contain connection strings and headers, forge log lines with line
breaks, colour terminals with escape sequences, and some cannot be read at all. `mask_text` works in this
order:

    1. cut a very long text, at a space, so that no half of a secret is left over
    2. remove control characters, which could hide a secret from the patterns
    3. mask secrets, by shape (`MASK_RULES`, in this order) and by the name before them
    4. cut to the limit, now that no secret can be cut in half

Every pattern begins at a fixed word or at the beginning of a run, and every repetition is bounded or
possessive, so that a hostile text costs milliseconds and not minutes. A password in the middle of a sentence
has no shape, and is not masked: masking is the last line of defence, not the first.
"""

from __future__ import annotations

import re
from functools import cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

MASK: Final = "***"
#: Lengths of the longest text that is written, and of the longest that is searched for secrets.
MAX_LENGTH: Final = 500
MAX_CHARACTERS: Final = 8_000
#: Depth and width of a context; beyond them only a class name or nothing is shown.
MAX_DEPTH: Final = 8
MAX_WIDTH: Final = 100

#: Names before a secret; a longer name may end or begin with one (DB_PASSWORD, password_hash).
_NAMES = (
    r"pass(?:word|wd|phrase|code)|(?<![a-z])pass(?![a-z])|pwd|secret|token(?!s)|api[-_ ]?key|access[-_ ]?key|"
    r"private[-_ ]?key|signing[-_ ]?key|account[-_ ]?key|authori[sz]ation|credential|session[-_ ]?(?:id|key)|"
    r"signature|(?<![a-z])(?:jwt|otp|sas)(?![a-z])"
)
#: More names, only for query parameters and header fields: as words of a sentence they would mask too much.
_SHORT_NAMES = r"auth(?!ors?(?![a-z]))|cookie|session|csrf|xsrf|(?<![a-z])(?:keys?|sig|sid)(?![a-z])|\Acode\Z"
#: Header fields that a receiver needs; they are not masked.
_READ_FIELDS = (
    r"content-(?:type|length)|idempotency-key|nats-msg-id|oncemore-[a-z]+|ce-(?:id|source|correlationid)|"
    r"(?:x-)?correlation[-_]?id"
)
#: A value after its name: quoted, in brackets, or up to the end of a word in messages and URLs.
_VALUE = (
    r"""(?:"(?:[^"\\]|\\.)*+"?|'(?:[^'\\]|\\.)*+'?|\\{1,8}["'][^"'\\]*+(?:\\{1,8}["'])?|"""
    r"""[\[({][^\])}]*+[\])}]?|[^\s,;&"')\]}>]++)"""
)
_IS = r"""["']?\s{0,3}(?:=>|[=:])\s{0,3}"""
_SCHEME = r"(?:basic|bearer|digest|negotiate|token|apikey|aws4-hmac-sha256)\s{1,3}"
_PARAMETER = r"""[\w-]{1,40}=(?:"[^"]{0,500}"|[^\s,"']{1,500}+)"""

#: Patterns and their replacements, in the order in which they are applied.
MASK_RULES: Final = (
    # A private key in text form, also one that was cut off.
    (r"-----BEGIN [A-Z ]{0,30}KEY-----.*?(?:-----END [A-Z ]{0,30}KEY-----|\Z)", MASK),
    # user:password@ in an address; a password may hold an @ and, where it is no port, a slash.
    (r"(?<=://)[^\s/:@?#\"'<>]{0,100}:(?!\d{1,5}[/?#])[^\s\"'<>]{0,300}@", f"{MASK}@"),
    (r"(?<=://)[^\s/?#\"'<>]{0,300}@", f"{MASK}@"),
    # Headers: with an Authorization its scheme stays, with cookies nothing.
    (
        rf"(authori[sz]ation{_IS}[\"']?{_SCHEME})(?:{_PARAMETER}|[^\s,;\"']++)(?:\s{{0,3}},\s{{0,3}}{_PARAMETER})*+",
        rf"\1{MASK}",
    ),
    (rf"(cookie{_IS}[\"']?)[^\"'<>]++", rf"\1{MASK}"),
    # name=value, name: value, "name": "value", name => value.
    (rf"((?:{_NAMES})[\w.-]{{0,40}}{_IS}(?:{_SCHEME})?){_VALUE}", rf"\1{MASK}"),
    # --password value, as command lines have it.
    (rf"((?<![\w-])--?[\w-]{{0,30}}?(?:{_NAMES})[\w-]{{0,10}}\s{{1,3}}){_VALUE}", rf"\1{MASK}"),
    # Short names in a query: key, sig, auth, code.
    (r"([?&](?:key|sig|auth|code|x-amz-[\w-]{1,40})=)[^\s&#\"'<>]++", rf"\1{MASK}"),
    (r"\b(bearer|basic)\s{1,3}[\w.~+/=-]{8,}+", rf"\1 {MASK}"),
    # Known shapes: JSON web tokens, AWS key ids, GitHub, GitLab, Slack, Google, Stripe, OpenAI and alike.
    (r"(?<![\w-])eyJ[\w-]{5,}+\.[\w-]*+(?:\.[\w-]*+)*+", MASK),
    (r"(?<![A-Z0-9])(?:AKIA|ASIA|AGPA|AIDA|AROA|ANPA)[A-Z0-9]{12,}+", MASK),
    (r"(?<![\w-])(?:gh[pousr]_|github_pat_|glpat-|xox[a-z]-|xapp-|AIza|npm_|hf_|shp\w{2}_)[\w-]{10,}+", MASK),
    (r"(?<![\w-])(?:sk|pk|rk|whsec)[-_][\w-]{16,}+", MASK),
    # Coordinates: a pair of numbers with three decimals or more (about a hundred metres).
    (r"(?<![\d.])-?\d{1,3}\.\d{3,}+\s{0,2}[,;/ ]\s{0,2}-?\d{1,3}\.\d{3,}+(?![\d.])", f"({MASK}, {MASK})"),
    (r"\b(lat(?:itude)?|lon(?:gitude)?|lng)([\"']?\s{0,3}[=:]\s{0,3}[\"']?)-?\d{1,3}\.\d++", rf"\1\2{MASK}"),
)  # fmt: skip


#: Compiled at first use: most programs never need them.
_compiled = cache(re.compile)
_SECRET_FIELDS = f"{_NAMES}|{_SHORT_NAMES}"
_PAIRS = r"(?<=[?&])([^=&\s]{1,200})=([^&\s\"'<>]{1,8000}+)"
#: user:password@ in an address. A password may hold @, and / ? # where host:port cannot be meant.
_USERINFO = r"(?<=://)([^\s/?#@:]*+)(?::?[^\s/?#]*@|:(?!\d{1,5}(?:[/?#,]|$))\S*@)"

_ESCAPES = r"\x1b(?:\[[0-?]{0,40}[ -/]{0,5}[@-~]|\][^\x07\x1b]{0,200}+(?:\x07|\x1b\\)|[@-Z\\-_])"
_BREAKS = "[\t\n\x0b\x0c\r\x1c-\x1e\x85\u2028\u2029]+"
#: Control characters, direction marks, zero-width characters; surrogates are separate.
_CONTROL_ESCAPES = (
    "\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f"
)
_SURROGATES = "[\ud800-\udfff]"


def mask_text(text: str, limit: int = MAX_LENGTH) -> str:
    """Return the text without secrets and control characters, on one line, of at most `limit` characters."""
    text = str.__str__(text)  # a subclass of str could run any code when it is sliced
    if len(text) > MAX_CHARACTERS:
        text = text[:MAX_CHARACTERS].rpartition(" ")[0] + " …"
    text = clean_text(text, MAX_CHARACTERS)
    for pattern, to in MASK_RULES:
        text = _compiled(pattern, re.IGNORECASE | re.DOTALL).sub(to, text)
    return _shorten_text(text, limit)


def clean_text(text: str, limit: int = MAX_LENGTH) -> str:
    """Return the text on one line without control characters, of at most `limit` characters; unmasked."""
    text = str.__str__(text)[: 2 * MAX_CHARACTERS]
    for pattern, to in ((_ESCAPES, ""), (_BREAKS, " "), (f"[{_CONTROL_ESCAPES}]+", ""), (_SURROGATES, "�")):
        text = _compiled(pattern).sub(to, text)
    return _shorten_text(text, limit)


def show_controls(text: str) -> str:
    """Return the text with every character that could control a terminal written as an escape."""
    return _compiled(f"[{_CONTROL_ESCAPES}\ud800-\udfff]").sub(_escape_sign, text)


def _escape_sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def hide_credentials(address: str, *, keeps_user: bool = False) -> str:
    """Return an address without its passwords, tokens and secret parameters.

    keeps_user  keep the user name before a password; a name without a password may be a token
    """

    def hide_user(found: re.Match[str]) -> str:
        return f"{found[1]}@" if keeps_user and found[1] else f"{MASK}@"

    def hide_value(found: re.Match[str]) -> str:
        return f"{found[1]}={MASK if is_secret_name(found[1]) else found[2]}"

    return _compiled(_PAIRS).sub(hide_value, _compiled(_USERINFO).sub(hide_user, address, count=1))


def is_secret_name(name: str) -> bool:
    """Return whether a parameter or header field of this name holds a secret; the name may be URL-quoted."""
    plain = _compiled("%([0-9a-fA-F]{2})").sub(lambda found: chr(int(found[1], 16)), name)
    return _compiled(_SECRET_FIELDS, re.IGNORECASE).search(plain) is not None


def describe_value(value: object, limit: int = 80) -> str:
    """Return the value of an option as a message shows it: without secrets, and short."""
    if isinstance(value, str):
        return repr(mask_text(hide_credentials(value[:MAX_CHARACTERS]), limit))
    return clean_text(repr(mask_context(value)), limit)


def mask_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return header fields without secrets; fields that a receiver needs stay unchanged."""
    return {
        name: value
        if _compiled(_READ_FIELDS).fullmatch(name)
        else MASK
        if is_secret_name(name)
        else mask_text(value, MAX_CHARACTERS)
        for name, value in headers.items()
    }


def _shorten_text(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def masked_message(error: BaseException | None, limit: int = MAX_LENGTH) -> str:
    """Return the redacted message of an error; an empty text for None."""
    return "" if error is None else mask_text(read_message(error), limit)


def read_message(error: BaseException) -> str:
    """Return the message of an error unredacted; a replacement if its `__str__` raises."""
    try:
        return str.__str__(str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as fault:  # noqa: BLE001 - the error's own __str__ is broken
        return f"(the message cannot be read: {error_class_name(fault)})"


def error_class_name(error: BaseException) -> str:
    """Return the name of an error's class, without control characters."""
    try:
        return clean_text(type(error).__name__, 100)
    except Exception:  # noqa: BLE001 - a metaclass can make even the name raise
        return "Exception"


def mask_context(value: object, depth_left: int = MAX_DEPTH) -> object:
    """Return plain data with secrets masked: by shape in texts, by name in dictionaries.

    An object of another type is replaced by the name of its class, because its text could hold anything.
    """
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return mask_text(value)
    if depth_left and isinstance(value, dict):
        return {
            mask_text(str(name), 100): MASK
            if _compiled(_NAMES, re.IGNORECASE).search(str(name))
            else mask_context(inner, depth_left - 1)
            for name, inner in list(value.items())[:MAX_WIDTH]
        }
    if depth_left and isinstance(value, (list, tuple)):
        return [mask_context(inner, depth_left - 1) for inner in value[:MAX_WIDTH]]
    return f"<{clean_text(type(value).__name__, 100)}>"
