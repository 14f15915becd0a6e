"""Rules for SQLite, through the standard library's sqlite3 and through apsw.

Both carry SQLite's own (extended) result code, and only the code decides: sqlite3 raises the same
`OperationalError` for a locked database, a full disk and a missing table. Names are built from the
number here, because an older sqlite3 module does not know the newer ones.

* Locked and busy are "not sent": SQLite did nothing. After SQLITE_BUSY_SNAPSHOT waiting does not help,
  but a new transaction does, and a new attempt starts one.
* A full disk or a file that cannot be opened is transient, with its own code: it passes when an
  operator frees space. SQLite has rolled the statement back.
* An I/O error may have hit the commit itself: maybe sent.
* An error without a code is the client's refusal (closed, wrong thread, wrong parameters): permanent.
"""

from __future__ import annotations

from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Classification
    from oncemore.classifiers.rules import Reading, Table
    from oncemore.policy.model import Kind, Sent

#: Primary result codes, each with its name and the names of its extended codes in numerical order.
_NAMES: Final = {
    1: "ERROR MISSING_COLLSEQ RETRY SNAPSHOT RESERVESIZE KEY UNABLE",
    2: "INTERNAL",
    3: "PERM",
    4: "ABORT - ROLLBACK",
    5: "BUSY RECOVERY SNAPSHOT TIMEOUT",
    6: "LOCKED SHAREDCACHE VTAB",
    7: "NOMEM",
    8: "READONLY RECOVERY CANTLOCK ROLLBACK DBMOVED CANTINIT DIRECTORY",
    9: "INTERRUPT",
    10: "IOERR READ SHORT_READ WRITE FSYNC DIR_FSYNC TRUNCATE FSTAT UNLOCK RDLOCK DELETE BLOCKED NOMEM "
    "ACCESS CHECKRESERVEDLOCK LOCK CLOSE DIR_CLOSE SHMOPEN SHMSIZE SHMLOCK SHMMAP SEEK DELETE_NOENT MMAP "
    "GETTEMPPATH CONVPATH VNODE AUTH BEGIN_ATOMIC COMMIT_ATOMIC ROLLBACK_ATOMIC DATA CORRUPTFS IN_PAGE "
    "BADKEY CODEC",
    11: "CORRUPT VTAB SEQUENCE INDEX",
    12: "NOTFOUND",
    13: "FULL",
    14: "CANTOPEN NOTEMPDIR ISDIR FULLPATH CONVPATH DIRTYWAL SYMLINK",
    15: "PROTOCOL",
    16: "EMPTY",
    17: "SCHEMA",
    18: "TOOBIG",
    19: "CONSTRAINT CHECK COMMITHOOK FOREIGNKEY FUNCTION NOTNULL PRIMARYKEY TRIGGER UNIQUE VTAB ROWID "
    "PINNED DATATYPE",
    20: "MISMATCH",
    21: "MISUSE",
    22: "NOLFS",
    23: "AUTH USER",
    24: "FORMAT",
    25: "RANGE",
    26: "NOTADB",
}

#: The extended code is looked up first, then the primary; all remaining codes are permanent, not sent.
_FACTS: Final[dict[int, tuple[Kind, Sent]]] = {
    5: ("transient", "no"),
    6: ("transient", "no"),
    10: ("transient", "maybe"),
    10 | 32 << 8: ("permanent", "maybe"),  # IOERR_DATA: a checksum is wrong
    10 | 33 << 8: ("permanent", "maybe"),  # IOERR_CORRUPTFS
    11: ("permanent", "maybe"),
    13: ("transient", "no"),
    14: ("transient", "no"),
    14 | 2 << 8: ("permanent", "no"),  # CANTOPEN_ISDIR
    15: ("transient", "no"),  # a race for the WAL's locks
    17: ("transient", "no"),  # the schema changed under the statement
}


def _code_name(number: int) -> str:
    primary, *extended = _NAMES.get(number & 255, f"{number & 255}").split()
    extension = number >> 8
    if extension == 0:
        return f"SQLITE_{primary}"
    # "-" marks a number that SQLite does not use.
    is_known = extension <= len(extended) and extended[extension - 1] != "-"
    return f"SQLITE_{primary}_{extended[extension - 1] if is_known else extension}"


def _make_failure(number: int, rule: str) -> Failure:
    kind, sent = _FACTS.get(number) or _FACTS.get(number & 255) or ("permanent", "no")
    return Failure(kind, sent, None, _code_name(number), rule)


def _classify_sqlite3_error(error: BaseException, _classification: Classification, rule: str) -> Failure:
    number = getattr(error, "sqlite_errorcode", None)
    if isinstance(number, int):
        return _make_failure(number, rule)
    return Failure("permanent", "no", None, f"EXC_{type(error).__name__[:80]}", rule)


def _make_apsw_rule(primary: int) -> Reading:
    """Return the rule for one of apsw's classes; a VFS written in Python may leave out the number."""

    def read(error: BaseException, _classification: Classification, rule: str) -> Failure:
        number = getattr(error, "extendedresult", None)
        return _make_failure(number if isinstance(number, int) and number > 0 else primary, rule)

    return read


#: The primary result code of each exception class of apsw.
_APSW_CODES: Final = {
    "SQLError": 1, "InternalError": 2, "PermissionsError": 3, "AbortError": 4, "BusyError": 5,
    "LockedError": 6, "NoMemError": 7, "ReadOnlyError": 8, "InterruptError": 9, "IOError": 10,
    "CorruptError": 11, "NotFoundError": 12, "FullError": 13, "CantOpenError": 14, "ProtocolError": 15,
    "EmptyError": 16, "SchemaChangeError": 17, "TooBigError": 18, "ConstraintError": 19,
    "MismatchError": 20, "MisuseError": 21, "NoLFSError": 22, "AuthError": 23, "FormatError": 24,
    "RangeError": 25, "NotADBError": 26,
}  # fmt: skip

TABLES: Final[dict[str, Table]] = {
    "sqlite3": {"Error": _classify_sqlite3_error, "Warning": ("permanent", "no", "")},
    "apsw": {
        **{name: _make_apsw_rule(primary) for name, primary in _APSW_CODES.items()},
        "Error": ("permanent", "no", ""),
    },
}
