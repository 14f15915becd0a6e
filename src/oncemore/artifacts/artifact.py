"""ARTIFACT: an output of a step as a value: the digest of its bytes, what it is called, what it is about.

An artifact is addressed twice. By its content: the SHA-256 of its bytes, which is where they are kept and
what every reading is held against. And by its partition: the date, the site and the H3 cell that it is
about, which is what it is listed by. All of them are checked when an artifact is made, also one that is
read from the log; no name or partition ever becomes a part of a path.

The value is data only. Where its bytes are is known by the shelf that it came from, or by the shelf of the
attempt around the line that reads it (`SHELF`).
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from datetime import date as Date  # noqa: N812 - a date is also what its parameter is called
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol
from unicodedata import normalize

from oncemore._values import Record, Value
from oncemore.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.log.record import Kept

LONGEST_NAME = 200
BYTES: Final = "application/octet-stream"
#: The base cells of H3 that are pentagons: one of their seven children is missing.
PENTAGONS: Final = frozenset((4, 14, 24, 38, 49, 58, 63, 72, 83, 97, 107, 117))
_BASE_CELLS, _DIGITS, _NONE = 122, 15, 7
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CELL = re.compile(r"[0-9a-f]{15}")
_DATES = {4: "-01-01", 7: "-01", 10: ""}
_MEDIA_TYPE = re.compile(r"[\w.+-]{1,100}/[\w.+-]{1,100}(; ?[\w.+-]{1,60}=[\w.+-]{1,60}){0,4}", re.ASCII)


class Label(Value):
    """What an artifact is called and what it is about; empty where nobody said."""

    name: str
    media_type: str = BYTES
    date: str = ""
    site: str = ""
    h3: str = ""


def label(name: Any, media_type: Any = None, date: Any = None, site: Any = None, h3: Any = None) -> Label:
    """Return a checked label; what is ill-formed is refused by the name of its part."""
    return Label(
        name_of(name),
        BYTES if media_type is None else media_type_of(media_type),
        "" if date is None else date_of(date),
        "" if site is None else segment_of("site", site),
        "" if h3 is None else cell_of(h3),
    )


def name_of(name: Any) -> str:
    """Return a name in Unicode NFC: segments between slashes, none of which leads out of a folder."""
    if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME:
        raise UsageError(
            f"name is {name!r:.80}; an artifact's takes a text of 1 to {LONGEST_NAME} characters"
        )
    return "/".join(segment_of("name", segment) for segment in name.split("/"))


def segment_of(part: str, text: Any) -> str:
    """Return one segment of a name: printable, and neither empty nor a way to somewhere else."""
    if not isinstance(text, str) or not 1 <= len(text) <= LONGEST_NAME or not text.isprintable():
        raise UsageError(f"{part} is {text!r:.80}; it takes printable text of 1 to {LONGEST_NAME} characters")
    if text in (".", "..") or text.startswith("$") or text != text.strip() or set(text) & set("/\\:"):
        raise UsageError(
            f"{part} is {text!r}; it may not be . or .., begin with $, hold \\ or :, or have spaces around it"
        )
    return normalize("NFC", text)


def date_of(date: Any) -> str:
    """Return a day, a month or a year as ISO 8601 has it: 2026-11-15, 2026-11, 2026."""
    if isinstance(date, Date) and not isinstance(date, datetime):
        return date.isoformat()
    if isinstance(date, str) and re.fullmatch(r"[0-9]{4}(-[0-9]{2}){0,2}", date):
        try:
            Date.fromisoformat(date + _DATES[len(date)])
        except ValueError:
            pass
        else:
            return date
    raise UsageError(
        f"date is {date!r:.80}; it takes a datetime.date, or a text: 2026-11-15, 2026-11 or 2026"
    )


def cell_of(cell: Any) -> str:
    """Return an H3 cell as 15 hex digits; an index that no cell has is refused.

    The bits: 1 reserved, 4 mode (1: a cell), 3 reserved, 4 resolution, 7 base cell, 15 digits of 3. The
    digits up to the resolution lead from the base cell down, those beyond it are 7. Below a pentagon the
    first digit that is not 0 cannot be 1: that child is missing.
    """
    text = cell.lower() if isinstance(cell, str) else ""
    if _CELL.fullmatch(text):
        bits = int(text, 16)
        top, resolution, base = bits >> 56, bits >> 52 & 15, bits >> 45 & 127
        digits = [bits >> 3 * (_DIGITS - at) & 7 for at in range(1, _DIGITS + 1)]
        down, beyond = digits[:resolution], digits[resolution:]
        missing = base in PENTAGONS and next((digit for digit in down if digit), 0) == 1
        fits = _NONE not in down and set(beyond) <= {_NONE} and not missing
        if top == 0b1000 and base < _BASE_CELLS and fits:
            return text
    raise UsageError(f"h3 is {cell!r:.80}, which is no H3 cell; it takes the 15 hex digits of one")


def media_type_of(text: Any) -> str:
    """Return a media type: type/subtype, with up to four plain parameters."""
    if not isinstance(text, str) or not _MEDIA_TYPE.fullmatch(text):
        raise UsageError(f"media_type is {text!r:.80}; it takes one like text/csv")
    return text


class Shelf(Protocol):
    """Where artifacts are kept: gives out nothing that it has not held against its digest."""

    def open(self, digest: str, size: int) -> BinaryIO:
        """Return a verified, seekable file for reading."""

    def path(self, digest: str, size: int) -> Path:
        """Return the path of a verified file of this machine."""


#: The shelf of the attempt or the reading around this line.
SHELF: ContextVar[Shelf | None] = ContextVar("oncemore.shelf", default=None)


class _Shelved(Record):
    """Knows its shelf, which is no part of the value."""

    __slots__ = ("_shelf",)
    _shelf: Shelf | None


class Artifact(_Shelved):
    """An output of a step: immutable, known by the SHA-256 of its bytes.

    digest      64 hex digits
    size        in bytes
    name        what the step called it
    media_type  what kind of bytes they are
    date, site, h3   what it is about; empty where the step did not say
    """

    __slots__ = ("date", "digest", "h3", "media_type", "name", "site", "size")
    date: str
    digest: str
    h3: str
    media_type: str
    name: str
    site: str
    size: int

    def __init__(
        self,
        digest: str,
        size: int,
        name: str = "artifact",
        *,
        media_type: str = BYTES,
        date: str = "",
        site: str = "",
        h3: str = "",
    ) -> None:
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise UsageError(f"digest is {digest!r:.80}; it takes the 64 hex digits of a SHA-256")
        if type(size) is not int or size < 0:
            raise UsageError(f"size is {size!r:.80}; it takes a number of bytes")
        told = label(name, media_type, date or None, site or None, h3 or None)
        self.fill(told.date, digest, told.h3, told.media_type, told.name, told.site, size)
        object.__setattr__(self, "_shelf", SHELF.get())

    @property
    def partition(self) -> dict[str, str]:
        """What it is about, by name: those of date, site and h3 that the step said."""
        parts = {"date": self.date, "site": self.site, "h3": self.h3}
        return {part: value for part, value in parts.items() if value}

    def open(self) -> BinaryIO:
        """Return its bytes as a seekable file for reading; not one of them is given out unverified."""
        return self._found().open(self.digest, self.size)

    def read(self) -> bytes:
        """Return its bytes, verified."""
        with self.open() as file:
            return file.read()

    def path(self) -> Path:
        """Return the path of its bytes, verified just now; only a local folder has paths."""
        return self._found().path(self.digest, self.size)

    def _found(self) -> Shelf:
        shelf = getattr(self, "_shelf", None) or SHELF.get()
        if shelf is None:
            raise UsageError(
                f"{self!r} does not know where its bytes are: it came from another process or was made by "
                "hand; read it inside a step, or get it from engine.artifacts"
            )
        return shelf


def plain_of(artifact: Artifact) -> dict[str, Any]:
    """Return the tagged form of an artifact: its fields, without those that are empty."""
    fields = {"digest": artifact.digest, "size": artifact.size, "name": artifact.name}
    if artifact.media_type != BYTES:
        fields["media_type"] = artifact.media_type
    return {"$artifact": {**fields, **artifact.partition}}


def artifact_of(fields: dict[str, Any]) -> Artifact:
    """Return the artifact that a tagged form stands for; what is ill-formed is refused."""
    try:
        return Artifact(**fields)
    except TypeError as fault:
        raise UsageError(f"{fields!r:.80} is no artifact: {fault}") from None


def as_artifact(kept: Kept) -> Artifact:
    """Return what a reference in the log refers to."""
    about = {"date": kept.date, "site": kept.site, "h3": kept.h3}
    return Artifact(kept.digest, kept.size, kept.name, media_type=kept.media_type, **about)
