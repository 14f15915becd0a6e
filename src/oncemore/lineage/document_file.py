"""Write the documents of an export: whole or not at all, and in bounded memory.

`open_replacement` replaces a file in one step. `RecordSpool` holds records by id in a temporary database: a
record that comes twice is stored once, and records come out in the order of their ids.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

from oncemore._platform import sync_folder
from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TextIO

#: Pages of the temporary database that are kept in memory: 8 MB of 4 kB each.
CACHED_PAGES = 2000


@contextmanager
def open_replacement(path: Path) -> Iterator[TextIO]:
    """Open a file for writing that replaces the one at a path when the block ends without an error.

    A reader finds the old or the new content, also after a crash. The temporary file is in the same folder,
    because a replacement across file systems is not atomic.
    """
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # It gets the rights of a new file, not those of a private temporary one.
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.fchmod(descriptor, 0o666 & ~_read_umask())
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
        # The name itself is durable only after the folder is.
        sync_folder(path.parent)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        if temporary:
            with suppress(OSError):
                Path(temporary).unlink()


def _read_umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


class RecordSpool:
    """Records by section and id, in a temporary database that is deleted when it is closed."""

    def __init__(self) -> None:
        import apsw

        # An empty name is a private file that SQLite deletes itself; small ones stay in memory.
        self._database = apsw.Connection("")
        self._database.execute(f"pragma cache_size = {CACHED_PAGES}")
        self._database.execute(
            "create table record (section text, id text, body text, primary key (section, id)) without rowid"
        )
        self._database.execute("begin")

    def __enter__(self) -> RecordSpool:
        return self

    def __exit__(self, *error: object) -> None:
        self._database.close()

    def add(self, section: str, id_: str, record: dict[str, Any], *, keep: bool = False) -> None:
        """Store a record; of two with the same id the later one stays, or the earlier one with `keep`."""
        body = json.dumps(record, ensure_ascii=False)
        replace = "insert or replace into record values (?, ?, ?)"
        ignore = "insert or ignore into record values (?, ?, ?)"
        self._database.execute(ignore if keep else replace, (section, id_, body))

    def read(self, section: str) -> Iterator[dict[str, Any]]:
        """Yield the records of a section in the order of their ids."""
        for _, body in self.read_texts(section):
            yield json.loads(body)

    def read_texts(self, section: str) -> Iterator[tuple[str, str]]:
        """Yield ids and records as JSON, in the order of their ids."""
        query = "select id, body from record where section = ? order by id"
        yield from self._database.execute(query, (section,))

    def list_sections(self) -> list[str]:
        """Return the names of the sections."""
        query = "select distinct section from record order by section"
        return [str(section) for (section,) in self._database.execute(query)]
