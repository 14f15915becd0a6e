"""What the errors of SQLite mean, through the standard library's sqlite3 and through apsw.

Both carry SQLite's own (extended) result code; only that tells, since sqlite3 raises the one class
`OperationalError` for a locked database, a full disk and a missing table. Names are made from the
number here, because an older sqlite3 module does not know the newer ones.

* Locked and busy are "not sent": SQLite did nothing. After SQLITE_BUSY_SNAPSHOT waiting does not help,
  but beginning the transaction again does, which is what a new attempt is.
* A full disk or a file that cannot be opened is transient, with its own code: it passes when
  somebody makes room. SQLite has rolled the statement back.
* An I/O error may have hit the commit itself: maybe sent.
* Without a code it is the client's refusal (closed, wrong thread, wrong parameters): permanent.
"""

from __future__ import annotations

from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Look
    from oncemore.classifiers.rules import Reading, Table
    from oncemore.policy.model import Kind, Sent

#: Primary result codes, and after each the names of its extended codes, in the order of their numbers.
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

#: Extended code first, then primary; every other code is permanent, and SQLite did nothing.
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
    15: ("transient", "no"),  # a race for the locks of the WAL
    17: ("transient", "no"),  # the schema changed under the statement
}


def _name(number: int) -> str:
    primary, *extended = _NAMES.get(number & 255, f"{number & 255}").split()
    place = number >> 8
    if place == 0:
        return f"SQLITE_{primary}"
    known = place <= len(extended) and extended[place - 1] != "-"
    return f"SQLITE_{primary}_{extended[place - 1] if known else place}"


def _failure(number: int, rule: str) -> Failure:
    kind, sent = _FACTS.get(number) or _FACTS.get(number & 255) or ("permanent", "no")
    return Failure(kind, sent, None, _name(number), rule)


def _stdlib(error: BaseException, _look: Look, rule: str) -> Failure:
    number = getattr(error, "sqlite_errorcode", None)
    if isinstance(number, int):
        return _failure(number, rule)
    return Failure("permanent", "no", None, f"EXC_{type(error).__name__[:80]}", rule)


def _apsw(primary: int) -> Reading:
    """Make the rule for one of apsw's classes; a VFS written in Python may leave the number out."""

    def read(error: BaseException, _look: Look, rule: str) -> Failure:
        number = getattr(error, "extendedresult", None)
        return _failure(number if isinstance(number, int) and number > 0 else primary, rule)

    return read


_APSW: Final = {
    "SQLError": 1, "InternalError": 2, "PermissionsError": 3, "AbortError": 4, "BusyError": 5,
    "LockedError": 6, "NoMemError": 7, "ReadOnlyError": 8, "InterruptError": 9, "IOError": 10,
    "CorruptError": 11, "NotFoundError": 12, "FullError": 13, "CantOpenError": 14, "ProtocolError": 15,
    "EmptyError": 16, "SchemaChangeError": 17, "TooBigError": 18, "ConstraintError": 19,
    "MismatchError": 20, "MisuseError": 21, "NoLFSError": 22, "AuthError": 23, "FormatError": 24,
    "RangeError": 25, "NotADBError": 26,
}  # fmt: skip

TABLES: Final[dict[str, Table]] = {
    "sqlite3": {"Error": _stdlib, "Warning": ("permanent", "no", "")},
    "apsw": {
        **{name: _apsw(primary) for name, primary in _APSW.items()},
        "Error": ("permanent", "no", ""),
    },
}
