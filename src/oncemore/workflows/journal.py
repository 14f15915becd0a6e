"""The journal of a workflow's run: its sleeps, waits, signals and published values.

The journal is not stored as a whole. It is the fold of the `journal` lists in the bodies of the run's own
entries, from the entry that opened the run:

    {"sleep": id, "until": t}                        a sleep, and when it ends
    {"wait": id, "signal": name, "until": t}         a wait for a signal, and its time-out
    {"wait": id, "signal": name, "taken": version}   the wait took the signal of that entry
    {"wait": id, "signal": name, "timed_out": true}  the wait ended by its time-out
    {"signal": name, "value": …, "id": …, "by": …}   a signal (the entry has the mark SIGNAL)
    {"set": id, "name": name, "value": …}            a published value
    {"inner": key, "step": name, "until": t, "checks": n}   the workflow waits for the run of an inner step
    {"ended": key, "step": name}                     that run has ended

An id is a name and a number: "sleep#2" is the second sleep without a name of its own that the function
reached, "approved#1" the first wait for that signal. A function that runs again reaches the same ids, and
finds what happened to them here.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.log.entry_codec import decode_header, read_body

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oncemore.log.encryption import BodyCipher
    from oncemore.log.store import Store

#: The due time of a workflow that only a signal can continue: the last second of the year 9999.
NEVER = 253_402_300_799.0
#: The largest number of sleeps, waits, signals and values of one run.
MAX_RECORDS = 10_000
#: The reasons of a waiting workflow.
SLEEPING, WAITING_FOR = "sleeping", "waiting for "


class Signal(Value):
    """A signal that a run has received; `value` is in its tagged form."""

    name: str
    value: Any
    version: int
    at: float
    signal_id: str = ""


class WaitRecord(Value):
    """A wait for a signal: its time-out, the entry of the signal that it took, whether it timed out."""

    until: float
    taken: int = 0
    timed_out: bool = False


class Journal:
    """The journal of a run, up to the entry `version`.

    opening   the body of the entry that opened the run
    sleeps    when each sleep ends
    waits     each wait for a signal
    signals   all signals in the order of their arrival, by the version of their entry
    values    the published values by name, in their tagged form; the last one wins
    set_ids   the positions in the function that have published their value
    checks    by the key of an inner run, how often the workflow has found that it must wait for it
    """

    def __init__(self) -> None:
        self.version = 0
        self.start_run({})

    def start_run(self, opening: dict[str, Any]) -> None:
        """Forget the records of an earlier run of the key."""
        self.opening = opening
        self.sleeps: dict[str, float] = {}
        self.waits: dict[str, WaitRecord] = {}
        self.signals: dict[int, Signal] = {}
        self.values: dict[str, Any] = {}
        self.set_ids: set[str] = set()
        self.checks: dict[str, int] = {}

    @property
    def is_full(self) -> bool:
        """Whether the run has as many records as it may have."""
        return len(self.sleeps) + len(self.waits) + len(self.signals) + len(self.set_ids) >= MAX_RECORDS

    @property
    def signal_ids(self) -> set[str]:
        """The ids that senders have given to their signals."""
        return {signal.signal_id for signal in self.signals.values()} - {""}

    def find_signal(self, name: str, until: float) -> Signal | None:
        """Return the first signal of a name that no wait has taken and that came before a time-out."""
        taken = {wait.taken for wait in self.waits.values()}
        for signal in self.signals.values():
            if signal.name == name and signal.version not in taken and signal.at <= until:
                return signal
        return None

    def add_records(self, version: int, at: float, records: Iterable[dict[str, Any]]) -> None:
        """Add the records of the run's next entry."""
        self.version = version
        # By the first name of each form; a form that this version does not know is skipped.
        for record in records:
            if "sleep" in record:
                self.sleeps[record["sleep"]] = record["until"]
            elif "wait" in record:
                # The first record of a wait fixes its time-out; later ones add the outcome.
                before = self.waits.get(record["wait"], WaitRecord(record.get("until", NEVER)))
                self.waits[record["wait"]] = before._replace(
                    taken=record.get("taken", before.taken),
                    timed_out=record.get("timed_out", before.timed_out),
                )
            elif "signal" in record:
                self.signals[version] = Signal(
                    record["signal"], record["value"], version, at, record.get("id", "")
                )
            elif "set" in record:
                self.set_ids.add(record["set"])
                self.values[record["name"]] = record["value"]
            elif "inner" in record:
                self.checks[record["inner"]] = record["checks"]


def load_journal(
    store: Store, entity: str, cipher: BodyCipher | None, journal: Journal | None = None
) -> Journal:
    """Return the journal of the last run of a key, or add the entries to it that came since it was read."""
    journal = Journal() if journal is None else journal
    for entry in store.read_entries(entity, journal.version):
        header = decode_header(entry.header)
        body = read_body(entry, cipher)
        # The entry that opens a run sets its id; a workflow that waits is PENDING again with the same id.
        if "PENDING" in header.marks and "run_id" in header.sets:
            journal.start_run(body)
        journal.add_records(header.version, header.at, body.get("journal", ()))
    return journal


def signal_reason(name: str) -> str:
    """Return the reason of a run that waits for a signal."""
    return f"{WAITING_FOR}signal {name!r}"


def inner_reason(step: str, key: str) -> str:
    """Return the reason of a run that waits for the run of an inner step."""
    return f"{WAITING_FOR}{step} (key {key[:12]})" if key else f"{WAITING_FOR}{step}"


def describe_records(records: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield one line of text for each record of an entry."""
    for record in records:
        if "sleep" in record:
            yield f"sleeps until {_format_time(record['until'])} ({record['sleep']})"
        elif record.get("taken"):
            yield f"took signal {record['signal']!r} of entry {record['taken']} ({record['wait']})"
        elif record.get("timed_out"):
            yield f"no signal {record['signal']!r} came in time ({record['wait']})"
        elif "wait" in record:
            limit = f" until {_format_time(record['until'])}" if record["until"] < NEVER else ""
            yield f"waits for signal {record['signal']!r}{limit} ({record['wait']})"
        elif "signal" in record:
            sender = f" from {record['by']}" if record.get("by") else ""
            yield f"received signal {record['signal']!r}{sender}: {_shorten(record['value'])}"
        elif "set" in record:
            yield f"published {record['name']!r}: {_shorten(record['value'])}"
        elif "inner" in record:
            subject = inner_reason(record["step"], record["inner"])
            yield f"{subject}; looks again at {_format_time(record['until'])}"
        else:
            yield f"{record['step']} (key {record['ended'][:12]}) has ended; goes on"


def _format_time(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
