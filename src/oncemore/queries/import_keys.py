"""Import keys that are already done from a file with one key per line.

A CSV file has the names of its columns in the first line; a JSON Lines file has an object in every line.
Columns are parameters of the step. A CSV cell is converted by the annotation of its parameter, because 1 and
"1" make different keys; without an annotation it stays a text.

Lines are read, checked and stored in groups. A group is stored in one batch, and storing it again changes
nothing, so an import that was killed or stopped at a bad line is simply repeated.
"""

from __future__ import annotations

import csv
import inspect
import json
from itertools import islice
from typing import Any

import msgspec

from oncemore._values import Value
from oncemore.errors import Error, NotPermitted, UsageError
from oncemore.governance.identity import Decider, authorize_decider, check_data_role
from oncemore.log.plain_conversion import convert_plain
from oncemore.maintenance.import_keys import build_named_import, mark_keys_done
from oncemore.maintenance.tasks import (
    MaintenanceTask,
    check_text,
    close_abandoned_tasks,
    find_abandoned_tasks,
)
from oncemore.steps.signature import hints_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from oncemore.maintenance.import_keys import ImportedKey
    from oncemore.steps.decorator import Step
    from oncemore.steps.engine import Engine

GROUP_SIZE = 200
MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_SHOWN = 20


class ImportReport(Value):
    """The result of an import.

    lines            the number of lines
    imported         the number of keys that were marked as done
    already_done     the number of keys that were done before, in the log or in an earlier line
    conflicts        the number of keys in another state, which were not changed
    conflicts_shown  the line and the reason of the first conflicts
    """

    lines: int
    imported: int
    already_done: int
    conflicts: int
    conflicts_shown: tuple[tuple[int, str], ...]


class KeyFile(Value):
    """A file of keys: its path, the parameters of its columns, and the column with the result."""

    path: Path
    columns: Mapping[str, str]
    result: str | None = None
    ignored: tuple[str, ...] = ()


def import_key_file(
    engine: Engine,
    step: Step[Any, Any],
    sheet: KeyFile,
    *,
    reason: str,
    by: str | None = None,
    progress: Callable[[int], object] = lambda lines: None,
) -> ImportReport:
    """Mark the keys of a file as done."""
    reason = check_text("reason", reason)
    # Each key has a decision of its own, and a person cannot sign them before the file is read.
    decider = authorize_decider(engine, by).refuse_signature("an import")
    # This import repeats the lines that a killed one has stored, so it also closes its task.
    abandoned = find_abandoned_tasks(engine, "import")
    with MaintenanceTask(engine, "import", reason, decider, {"file": sheet.path.name}) as task:
        report = _mark_groups(
            _read_keys(step, sheet, reason, decider),
            progress,
            lambda group: mark_keys_done(engine, group),
        )
        close_abandoned_tasks(engine, abandoned)
        body = {"file": sheet.path.name, "step": step.name, **report._asdict()}
        task.mark_done(report.imported, {"import": body})
    return report


def check_key_file(
    step: Step[Any, Any], key_file: KeyFile, progress: Callable[[int], object]
) -> ImportReport:
    """Check every line of a file and return the report that an import would return; write nothing."""
    from oncemore.maintenance.import_keys import preview_marks

    earlier: set[str] = set()
    return _mark_groups(
        _read_keys(step, key_file, "", Decider("")), progress, lambda group: preview_marks(group, earlier)
    )


def _mark_groups(
    lines: Iterator[tuple[int, ImportedKey]],
    progress: Callable[[int], object],
    mark_group: Callable[[Sequence[ImportedKey]], list[str]],
) -> ImportReport:
    """Pass keys to `mark_group` in groups, and count its results."""
    counts = {"marked": 0, "present": 0}
    conflicts: list[tuple[int, str]] = []
    total = refused = 0
    while group := list(islice(lines, GROUP_SIZE)):
        for (number, _), result in zip(group, mark_group([key for _, key in group]), strict=True):
            total += 1
            if result in counts:
                counts[result] += 1
            else:
                refused += 1
                if len(conflicts) < MAX_SHOWN:
                    conflicts.append((number, result))
        progress(total)
    return ImportReport(
        lines=total,
        imported=counts["marked"],
        already_done=counts["present"],
        conflicts=refused,
        conflicts_shown=tuple(conflicts),
    )


# Reading --------------------------------------------------------------------------------------------


def _read_keys(
    step: Step[Any, Any], sheet: KeyFile, reason: str, decider: Decider
) -> Iterator[tuple[int, ImportedKey]]:
    """Yield the keys of a file with their line numbers; raise `UsageError` for the first wrong line."""
    function = step.__wrapped__
    hints = hints_of(function)
    known = inspect.signature(function).parameters
    # Checked before the first line, so that a wrong option stores nothing.
    wrong = sorted(set(sheet.columns.values()) - set(known))
    if wrong:
        raise UsageError(f"--column names {', '.join(wrong)}, which is not a parameter of {step.name}")
    # JSON has types, so its values must have the annotated type; CSV cells are texts and are converted.
    is_json = sheet.path.suffix.lower() in (".jsonl", ".ndjson")
    for number, row in _read_jsonl(sheet) if is_json else _read_csv(sheet):
        where = f"{sheet.path}:{number}"
        value = None
        arguments: dict[str, Any] = {}
        for column, cell in row.items():
            if column == sheet.result:
                value = _convert_result(where, column, cell, hints.get("return"), is_json)
            elif column not in sheet.ignored:
                name = sheet.columns.get(column, column)
                if name not in known:
                    raise UsageError(
                        f"{where}: column {column!r} is not a parameter of {step.name}; name the parameter "
                        f"(--column PARAMETER={column}), or leave the column out (--ignore-column {column})"
                    )
                arguments[name] = convert_argument(where, column, cell, hints.get(name), is_json)
        try:
            imported = build_named_import(step, arguments, value, reason, decider.actor)
            check_data_role(imported.call.engine, decider, imported.call.dataset)
        except NotPermitted as error:
            raise NotPermitted(f"{where}: {error}", error.reason) from None
        except Error as error:
            raise UsageError(f"{where}: {error}") from error
        yield number, imported


def _read_csv(sheet: KeyFile) -> Iterator[tuple[int, dict[str, Any]]]:
    # The default limit of 128 KiB is too small for recorded results.
    csv.field_size_limit(MAX_LINE_BYTES)
    # Spreadsheet programs write a byte order mark; "utf-8-sig" removes it.
    with sheet.path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, strict=True)
        try:
            names = next(rows, None)
            if not names or len(set(names)) < len(names) or not all(names):
                raise UsageError(f"{sheet.path}:1: the first line must name the columns, each once")
            _check_columns(sheet, names)
            for row in rows:
                if not row:  # an empty line
                    continue
                if len(row) != len(names):
                    raise UsageError(
                        f"{sheet.path}:{rows.line_num}: the line has {len(row)} cells, the file has "
                        f"{len(names)} columns"
                    )
                yield rows.line_num, dict(zip(names, row, strict=True))
        except csv.Error as error:
            raise UsageError(f"{sheet.path}:{rows.line_num}: not CSV: {error}") from None
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{sheet.path}:{rows.line_num + 1} or below: not UTF-8: {error.reason}"
            ) from None


def _check_columns(sheet: KeyFile, names: list[str]) -> None:
    wanted = {*sheet.columns, *sheet.ignored, *([sheet.result] if sheet.result else [])}
    missing = sorted(wanted - set(names))
    if missing:
        raise UsageError(
            f"{sheet.path}:1: there is no column {', '.join(missing)}; it has {', '.join(names)}"
        )


def _read_jsonl(sheet: KeyFile) -> Iterator[tuple[int, dict[str, Any]]]:
    with sheet.path.open("rb") as file:
        number = 0
        # Reading one byte more than the limit shows that a line is too long without reading all of it.
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            where = f"{sheet.path}:{number}"
            if len(line) > MAX_LINE_BYTES:
                raise UsageError(f"{where}: the line is longer than {MAX_LINE_BYTES:,} bytes")
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise UsageError(f"{where}: not JSON: {error}") from None
            if not isinstance(row, dict):
                raise UsageError(f"{where}: expected an object with the step's parameters, not {row!r:.60}")
            yield number, row


def convert_argument(where: str, column: str, cell: Any, hint: Any, exact: bool) -> Any:
    """Return a cell converted by the annotation of its parameter.

    exact  whether the cell must have the annotated type; otherwise texts are converted
    """
    # An annotation that could not be resolved is still a text; such a cell is not converted.
    if hint is None or hint is inspect.Parameter.empty or isinstance(hint, str) or hint is Any:
        return cell
    try:
        # A text on a command line or in a CSV cell that holds a whole object.
        if not exact and isinstance(cell, str) and cell[:1] in ("{", "[") and hint is not str:
            return convert_plain(msgspec.json.decode(cell), hint)
        return convert_plain(cell, hint, exact=exact)
    except (msgspec.MsgspecError, TypeError) as error:
        raise UsageError(f"{where}: {column} is {cell!r:.60}: {error}") from None


def _convert_result(where: str, column: str, cell: Any, hint: Any, exact: bool) -> Any:
    """Return the result in a cell: a text if the step returns one, else JSON; None if it is empty."""
    if cell is None:
        return None
    if hint is str or exact:
        return convert_argument(where, column, cell, hint, exact)
    try:
        plain = json.loads(cell or "null")
    except ValueError as error:
        raise UsageError(f"{where}: {column} is {cell!r:.60}: not JSON: {error}") from None
    return None if plain is None else convert_argument(where, column, plain, hint, exact=True)
