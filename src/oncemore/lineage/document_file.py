"""Write the documents of an export: whole or not at all, and in bounded memory.

`open_document` replaces a file in one step. `RecordSpool` holds records by id in a temporary database: a
record that comes twice is stored once, and records come out in the order of their ids.
"""

from __future__ import annotations

import io
import json
from contextlib import contextmanager

from oncemore._replace_file import open_replacement, read_default_mode
from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any, TextIO

#: Pages of the temporary database that are kept in memory: 8 MB of 4 kB each.
CACHED_PAGES = 2000


@contextmanager
def open_document(path: Path) -> Iterator[TextIO]:
    """Open a text file that replaces the one at a path when the block ends without an error.

    It has the permissions of a new file. `UsageError` if it cannot be written.
    """
    try:
        with open_replacement(path, read_default_mode()) as file:
            text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace")
            yield text
            # Detached after the flush: closing the text would close the file before it is on the disk.
            text.flush()
            text.detach()
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error


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
