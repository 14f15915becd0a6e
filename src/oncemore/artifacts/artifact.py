"""An output of a step as a value: its digest, name, media type and partition.

The digest is the SHA-256 of the bytes: they are stored under it, and every read is verified against it. The
partition is a date, a site and an H3 cell, for listings. All fields are checked when an artifact is created,
also from the log; no name or partition ever becomes part of a path.

The value holds no bytes. It reads them from the artifact store that it came from, or from that of the
current attempt (`CURRENT_READER`).
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from datetime import date as Date  # noqa: N812 - a date is also what its parameter is called
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from unicodedata import normalize

from oncemore._values import FrozenRecord, Value
from oncemore.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.artifacts.store import ArtifactStore
    from oncemore.log.record import ArtifactRecord

MAX_NAME_LENGTH = 200
OCTET_STREAM: Final = "application/octet-stream"
#: The base cells of H3 that are pentagons: one of their seven children is missing.
PENTAGONS: Final = frozenset((4, 14, 24, 38, 49, 58, 63, 72, 83, 97, 107, 117))
_BASE_CELLS, _DIGITS, _UNUSED_DIGIT = 122, 15, 7
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CELL = re.compile(r"[0-9a-f]{15}")
_DATE_SUFFIXES = {4: "-01-01", 7: "-01", 10: ""}
_MEDIA_TYPE = re.compile(r"[\w.+-]{1,100}/[\w.+-]{1,100}(; ?[\w.+-]{1,60}=[\w.+-]{1,60}){0,4}", re.ASCII)


class ArtifactLabel(Value):
    """The name, media type and partition of an artifact; parts that are not set are empty."""

    name: str
    media_type: str = OCTET_STREAM
    date: str = ""
    site: str = ""
    h3: str = ""


def make_label(
    name: Any, media_type: Any = None, date: Any = None, site: Any = None, h3: Any = None
) -> ArtifactLabel:
    """Return a checked label; raise `UsageError` naming the first invalid part."""
    return ArtifactLabel(
        check_name(name),
        OCTET_STREAM if media_type is None else check_media_type(media_type),
        "" if date is None else format_date(date),
        "" if site is None else check_segment("site", site),
        "" if h3 is None else check_cell(h3),
    )


def check_name(name: Any) -> str:
    """Return a name in Unicode NFC: segments between slashes, and none of them can leave a folder."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_LENGTH:
        raise UsageError(
            f"name is {name!r:.80}; the name of an artifact takes a text of 1 to {MAX_NAME_LENGTH} characters"
        )
    return "/".join(check_segment("name", segment) for segment in name.split("/"))


def check_segment(part: str, text: Any) -> str:
    """Return one segment of a name: printable, not empty, and without a path separator."""
    if not isinstance(text, str) or not 1 <= len(text) <= MAX_NAME_LENGTH or not text.isprintable():
        raise UsageError(
            f"{part} is {text!r:.80}; it takes printable text of 1 to {MAX_NAME_LENGTH} characters"
        )
    # A leading $ is reserved for names that no step may use, such as `$result`.
    if text in (".", "..") or text.startswith("$") or text != text.strip() or set(text) & set("/\\:"):
        raise UsageError(
            f"{part} is {text!r}; it may not be . or .., begin with $, hold \\ or :, or have spaces around it"
        )
    # Normalised, because two spellings of one character must be one name.
    return normalize("NFC", text)


def format_date(date: Any) -> str:
    """Return a day, a month or a year in ISO 8601: 2026-11-15, 2026-11, 2026."""
    # A datetime is a date too, but its day depends on a time zone.
    if isinstance(date, Date) and not isinstance(date, datetime):
        return date.isoformat()
    if isinstance(date, str) and re.fullmatch(r"[0-9]{4}(-[0-9]{2}){0,2}", date):
        try:
            Date.fromisoformat(date + _DATE_SUFFIXES[len(date)])
        except ValueError:
            pass
        else:
            return date
    raise UsageError(
        f"date is {date!r:.80}; it takes a datetime.date, or a text: 2026-11-15, 2026-11 or 2026"
    )


def check_cell(cell: Any) -> str:
    """Return an H3 cell as 15 hex digits; raise `UsageError` if it is not the index of a cell.

    The bits: 1 reserved, 4 mode (1: a cell), 3 reserved, 4 resolution, 7 base cell, 15 digits of 3. The
    digits up to the resolution lead from the base cell down, those beyond it are 7.
    """
    text = cell.lower() if isinstance(cell, str) else ""
    if _CELL.fullmatch(text):
        bits = int(text, 16)
        top, resolution, base = bits >> 56, bits >> 52 & 15, bits >> 45 & 127
        digits = [bits >> 3 * (_DIGITS - position) & 7 for position in range(1, _DIGITS + 1)]
        used, unused = digits[:resolution], digits[resolution:]
        # A pentagon has no child 1, so below it the first digit that is not 0 cannot be 1.
        is_missing = base in PENTAGONS and next((digit for digit in used if digit), 0) == 1
        is_valid = _UNUSED_DIGIT not in used and set(unused) <= {_UNUSED_DIGIT} and not is_missing
        if top == 0b1000 and base < _BASE_CELLS and is_valid:
            return text
    raise UsageError(f"h3 is {cell!r:.80}, not an H3 cell; it takes the 15 hex digits of a cell")


def check_media_type(text: Any) -> str:
    """Return a media type: type/subtype, with up to four plain parameters."""
    if not isinstance(text, str) or not _MEDIA_TYPE.fullmatch(text):
        raise UsageError(f"media_type is {text!r:.80}; it takes a media type such as text/csv")
    return text


#: The artifact store of the current attempt or read.
CURRENT_READER: ContextVar[ArtifactStore | None] = ContextVar("oncemore.artifact_reader", default=None)


class _StoredArtifact(FrozenRecord):
    """Base class with the artifact store, which is not part of the value."""

    __slots__ = ("_reader",)
    _reader: ArtifactStore | None


class Artifact(_StoredArtifact):
    """An output of a step: immutable, known by the SHA-256 of its bytes.

    digest      64 hex digits
    size        in bytes
    name        its name, set by the step
    media_type  its media type
    date, site, h3   its partition; empty if the step did not set it
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
        media_type: str = OCTET_STREAM,
        date: str = "",
        site: str = "",
        h3: str = "",
    ) -> None:
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise UsageError(f"digest is {digest!r:.80}; it takes the 64 hex digits of a SHA-256")
        if type(size) is not int or size < 0:
            raise UsageError(f"size is {size!r:.80}; it takes a number of bytes")
        label = make_label(name, media_type, date or None, site or None, h3 or None)
        self.set_fields(
            date=label.date,
            digest=digest,
            h3=label.h3,
            media_type=label.media_type,
            name=label.name,
            site=label.site,
            size=size,
        )
        # Past the frozen fields: equality and repr must not depend on the store.
        object.__setattr__(self, "_reader", CURRENT_READER.get())

    @property
    def partition(self) -> dict[str, str]:
        """Those of date, site and h3 that the step has set, by name."""
        parts = {"date": self.date, "site": self.site, "h3": self.h3}
        return {part: value for part, value in parts.items() if value}

    def open(self) -> BinaryIO:
        """Return its bytes, verified, as a seekable file for reading."""
        reader = self._find_reader()
        self._note_read()
        return reader.open(self.digest, self.size)

    def read(self) -> bytes:
        """Return its bytes, verified."""
        with self.open() as file:
            return file.read()

    def path(self) -> Path:
        """Return the path of its bytes after verifying them; only a local folder has paths."""
        reader = self._find_reader()
        self._note_read()
        return reader.path(self.digest, self.size)

    def _note_read(self) -> None:
        """Record the read as an input of the current attempt, if there is one."""
        # Imported here: an artifact is also read where no step is ever called.
        from oncemore.steps.attempt import CURRENT

        attempt = CURRENT.get()
        if attempt is not None:
            from oncemore.steps.inputs import note_read

            note_read(attempt, self)

    def _find_reader(self) -> ArtifactStore:
        # A copy or an unpickled value has no _reader.
        reader = getattr(self, "_reader", None) or CURRENT_READER.get()
        if reader is None:
            raise UsageError(
                f"{self!r} does not know where its bytes are: it came from another process or was created "
                "directly; read it inside a step, or get it from engine.artifacts"
            )
        return reader


def tag_artifact(artifact: Artifact) -> dict[str, Any]:
    """Return the tagged JSON form of an artifact, without empty fields."""
    fields = {"digest": artifact.digest, "size": artifact.size, "name": artifact.name}
    if artifact.media_type != OCTET_STREAM:
        fields["media_type"] = artifact.media_type
    return {"$artifact": {**fields, **artifact.partition}}


def untag_artifact(fields: dict[str, Any]) -> Artifact:
    """Return the artifact of a tagged JSON form; raise `UsageError` if that is malformed."""
    try:
        return Artifact(**fields)
    except TypeError as error:
        raise UsageError(f"{fields!r:.80} is not an artifact: {error}") from None


def reference_to_artifact(record: ArtifactRecord) -> Artifact:
    """Return the artifact of a reference in the log."""
    partition = {"date": record.date, "site": record.site, "h3": record.h3}
    return Artifact(record.digest, record.size, record.name, media_type=record.media_type, **partition)
