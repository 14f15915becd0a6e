"""Keys that were done elsewhere, read from a file: one line, one key.

A CSV file has the names of its columns in the first line; a JSON Lines file has an object in each. Columns
are parameters of the step, by name. The text of a CSV cell becomes what the parameter's annotation says,
because 1 and "1" are two keys: a parameter without one gets the text as it is.

Lines are read, checked and marked in groups; a group is stored whole or not at all, and marking it again
changes nothing. So an import that was killed, or that stopped at a bad line, is simply run again.
"""

from __future__ import annotations

import csv
import inspect
import json
from itertools import islice
from typing import Any

import msgspec

from oncemore._values import Value
from oncemore.errors import Error, UsageError
from oncemore.maintenance.import_keys import mark
from oncemore.maintenance.tasks import Doing, close, left_open, somebody, told
from oncemore.steps.options import hints_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from oncemore.maintenance.import_keys import Moved
    from oncemore.steps.decorator import Step
    from oncemore.steps.engine import Engine

GROUP = 200
MOST_LINE = 16 * 1024 * 1024
MOST_SHOWN = 20


class Imported(Value):
    """What an import came to.

    lines      how many lines were read
    marked     how many keys were marked as done
    present    how many were done already, here or further up in the file
    conflicts  how many were something else, and stayed so
    shown      the first of them: line and why
    """

    lines: int
    marked: int
    present: int
    conflicts: int
    shown: tuple[tuple[int, str], ...]


class Sheet(Value):
    """A file of keys: its path, which column is which parameter, and which one holds the result."""

    path: Path
    columns: Mapping[str, str]
    result: str | None = None
    ignored: tuple[str, ...] = ()


def bring_in(
    engine: Engine,
    step: Step[Any, Any],
    sheet: Sheet,
    *,
    reason: str,
    by: str | None = None,
    progress: Callable[[int], object] = lambda lines: None,
) -> Imported:
    """Mark the keys of a file as done."""
    why, who = told("reason", reason), somebody(by)
    left = left_open(engine, "import")
    with Doing(engine, "import", why, who) as doing:
        found = _tallied(_read(step, sheet, why, who), progress, lambda group: mark(engine, group))
        close(engine, left)
        body = {"file": sheet.path.name, "step": step.name, **found._asdict()}
        doing.done(found.marked, {"import": body})
    return found


def would_bring_in(step: Step[Any, Any], sheet: Sheet, progress: Callable[[int], object]) -> Imported:
    """Return what an import would come to; every line is checked, nothing is written."""
    from oncemore.maintenance.import_keys import would_mark

    seen: set[str] = set()
    return _tallied(_read(step, sheet, "", ""), progress, lambda group: would_mark(group, seen))


def _tallied(
    lines: Iterator[tuple[int, Moved]],
    progress: Callable[[int], object],
    marks: Callable[[Sequence[Moved]], list[str]],
) -> Imported:
    count = {"marked": 0, "present": 0}
    conflicts: list[tuple[int, str]] = []
    total = refused = 0
    while group := list(islice(lines, GROUP)):
        for (number, _), came_to in zip(group, marks([moved for _, moved in group]), strict=True):
            total += 1
            if came_to in count:
                count[came_to] += 1
            else:
                refused += 1
                if len(conflicts) < MOST_SHOWN:
                    conflicts.append((number, came_to))
        progress(total)
    return Imported(total, count["marked"], count["present"], refused, tuple(conflicts))


# Reading --------------------------------------------------------------------------------------------


def _read(step: Step[Any, Any], sheet: Sheet, why: str, who: str) -> Iterator[tuple[int, Moved]]:
    """Return the keys of a file with their lines; the first line that is wrong ends it, by its number."""
    work = step.__wrapped__
    hints = hints_of(work)
    known = inspect.signature(work).parameters
    wrong = sorted(set(sheet.columns.values()) - set(known))
    if wrong:
        raise UsageError(f"--column names {', '.join(wrong)}, which is no parameter of {step.name}")
    rows = _jsonl(sheet) if sheet.path.suffix.lower() in (".jsonl", ".ndjson") else _csv(sheet)
    exact = sheet.path.suffix.lower() in (".jsonl", ".ndjson")
    for number, row in rows:
        where = f"{sheet.path}:{number}"
        value = None
        named: dict[str, Any] = {}
        for column, cell in row.items():
            if column == sheet.result:
                value = _result(where, column, cell, hints.get("return"), exact)
            elif column not in sheet.ignored:
                name = sheet.columns.get(column, column)
                if name not in known:
                    raise UsageError(
                        f"{where}: column {column!r} is no parameter of {step.name}; say which it is "
                        f"(--column PARAMETER={column}), or leave it out (--ignore-column {column})"
                    )
                named[name] = argument_of(where, column, cell, hints.get(name), exact)
        try:
            yield number, step.moved(named, value, why, who)
        except Error as fault:
            raise UsageError(f"{where}: {fault}") from fault


def _csv(sheet: Sheet) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(MOST_LINE)
    with sheet.path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, strict=True)
        try:
            names = next(rows, None)
            if not names or len(set(names)) < len(names) or not all(names):
                raise UsageError(f"{sheet.path}:1: the first line takes the names of the columns, each once")
            _all_there(sheet, names)
            for row in rows:
                if not row:
                    continue
                if len(row) != len(names):
                    raise UsageError(
                        f"{sheet.path}:{rows.line_num}: there are {len(row)} cells, and {len(names)} columns"
                    )
                yield rows.line_num, dict(zip(names, row, strict=True))
        except csv.Error as fault:
            raise UsageError(f"{sheet.path}:{rows.line_num}: this is no CSV: {fault}") from None
        except UnicodeDecodeError as fault:
            raise UsageError(
                f"{sheet.path}:{rows.line_num + 1} or below: it is not UTF-8: {fault.reason}"
            ) from None


def _all_there(sheet: Sheet, names: list[str]) -> None:
    wanted = {*sheet.columns, *sheet.ignored, *([sheet.result] if sheet.result else [])}
    missing = sorted(wanted - set(names))
    if missing:
        raise UsageError(
            f"{sheet.path}:1: there is no column {', '.join(missing)}; it has {', '.join(names)}"
        )


def _jsonl(sheet: Sheet) -> Iterator[tuple[int, dict[str, Any]]]:
    with sheet.path.open("rb") as file:
        number = 0
        while line := file.readline(MOST_LINE + 1):
            number += 1
            where = f"{sheet.path}:{number}"
            if len(line) > MOST_LINE:
                raise UsageError(f"{where}: the line is longer than {MOST_LINE:,} bytes")
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as fault:
                raise UsageError(f"{where}: this is no JSON: {fault}") from None
            if not isinstance(row, dict):
                raise UsageError(f"{where}: it takes an object with the step's parameters, not {row!r:.60}")
            yield number, row


def argument_of(where: str, column: str, cell: Any, hint: Any, exact: bool) -> Any:
    """Return the argument that a cell stands for, as the parameter's annotation says."""
    if hint is None or hint is inspect.Parameter.empty or isinstance(hint, str) or hint is Any:
        return cell
    try:
        return msgspec.convert(cell, hint, strict=exact)
    except (msgspec.ValidationError, TypeError) as fault:
        raise UsageError(f"{where}: {column} is {cell!r:.60}: {fault}") from None


def _result(where: str, column: str, cell: Any, hint: Any, exact: bool) -> Any:
    """Return the value that a cell stands for: text where the step returns text, else JSON; None if empty."""
    if cell is None:
        return None
    if hint is str or exact:
        return argument_of(where, column, cell, hint, exact)
    try:
        plain = json.loads(cell or "null")
    except ValueError as fault:
        raise UsageError(f"{where}: {column} is {cell!r:.60}: this is no JSON: {fault}") from None
    return None if plain is None else argument_of(where, column, plain, hint, exact=True)
