"""Prints a policy laid out: cost first, then delays, values, classes, and where it all comes from."""

from __future__ import annotations

from collections.abc import Mapping

from oncemore._time_spans import seconds
from oncemore.cli.policy_list import near
from oncemore.cli.ticks import shown
from oncemore.queries.times import shown as at_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncemore.cli.output import Paper
    from oncemore.queries.policies import FoundInLog
    from oncemore.queries.policy_schedule import Delay, Worst
    from oncemore.queries.policy_sheet import Field, Sheet

MOST_DELAYS = 12
MARGIN = "  "


def print_sheet(paper: Paper, sheet: Sheet) -> None:
    """Print everything about a policy."""
    whose = f" for provider {sheet.provider}" if sheet.provider else ""
    paper.line(
        f"{sheet.name}{whose}, version {sheet.version}{', governed' if sheet.governed else ''}", "bold"
    )
    if sheet.description:
        paper.say(sheet.description)
    for text in sheet.warnings:
        paper.say(text, "yellow", "warning: ")
    _print_worst(paper, sheet.worst)
    if sheet.retries:
        _print_delays(paper, sheet)
    _print_fields(paper, "Values", sheet.fields)
    _print_classes(paper, sheet.classes)
    if sheet.tuning:
        _print_fields(paper, "Tuning by carbon, price and deadline", sheet.tuning)
    _print_others(paper, sheet)
    _print_origin(paper, sheet)


def print_recorded(paper: Paper, found: FoundInLog) -> None:
    """Print a policy that a log has recorded."""
    if paper.in_json:
        paper.json(found)
        return
    paper.line(f"{found.name}, version {found.version}, as the log has it", "bold")
    source = f", named {found.source}" if found.source else ""
    paper.say(f"digest {found.digest}, recorded {at_time(found.recorded)}{source}", "dim")
    _print_worst(paper, found.worst)
    _head(paper, "Values")
    paper.table([("name", "value"), *((name, flow(value)) for name, value in found.values.items())], MARGIN)


def _head(paper: Paper, text: str) -> None:
    paper.line()
    paper.line(text, "bold")


def _duration(value: float) -> str:
    """Return seconds, and from two minutes on also as people say it."""
    return f"{shown(value)} s" + (f" ({seconds(value)})" if value >= 120 else "")


def _print_worst(paper: Paper, worst: Worst) -> None:
    _head(paper, "Worst case")
    for text in _worst(worst):
        paper.say(text, "", MARGIN)


def _worst(worst: Worst) -> Iterator[str]:
    if worst.calls == 1:
        yield "1 attempt: no retry, no waits; numbers about delays are kept as data and never used"
    else:
        yield f"{worst.calls} attempts, {_duration(worst.delay_s)} of waiting"
        if worst.tuned_s is not None:
            yield f"{_duration(worst.tuned_s)} of waiting with tuning at its limit, x {worst.stretch:g}"
        if worst.asked_s > worst.delay_s:
            yield f"{_duration(worst.asked_s)} of waiting if Retry-After asks for the cap every time"
    if worst.running_s is not None and worst.together_s is not None:
        yield f"{_duration(worst.together_s)} in all, with every attempt at its limit"
    if worst.within_s is not None:
        yield f"{_duration(worst.within_s)} in all: the limit of the whole call"
    elif worst.running_s is None:
        yield "no limit to the time in all: neither an attempt nor the whole call has one"


def _print_delays(paper: Paper, sheet: Sheet) -> None:
    _head(paper, "Delays, in seconds")
    tuned = sheet.worst.tuned_s is not None
    rows = [("after", "from", "planned", "to", *(("tuned to",) if tuned else ()))]
    rows += [_delay_cells(delay, tuned) for delay in sheet.delays[:MOST_DELAYS]]
    paper.table(rows, MARGIN, right=range(5))
    if len(sheet.delays) > MOST_DELAYS:
        paper.line(f"{MARGIN}and {len(sheet.delays) - MOST_DELAYS} more")
    paper.say(f"The first is {sheet.first_delay}{_draw(sheet)}.", "dim", MARGIN)


def _draw(sheet: Sheet) -> str:
    spread = next(field.value for field in sheet.fields if field.name == "jitter")
    return "" if spread == "none" else ", with 0 <= u < 1 drawn from the seed and the attempt's number"


def _delay_cells(delay: Delay, tuned: bool) -> tuple[str, ...]:
    cells = (f"{delay.after}", shown(delay.low_s), shown(delay.planned_s), shown(delay.high_s))
    return (*cells, shown(delay.tuned_s or 0.0)) if tuned else cells


def _print_fields(paper: Paper, title: str, fields: Sequence[Field]) -> None:
    _head(paper, title)
    rows = [("name", "value", "meaning")]
    rows += [(field.name, flow(field.value), f"{field.meaning}{_aside(field)}") for field in fields]
    paper.table(rows, MARGIN)


def _aside(field: Field) -> str:
    """Say how the file spells it and what stands beside it, if anything."""
    told = [f"{field.spelled} in the file"] if field.spelled else []
    told += [field.remark] if field.remark else []
    told += [] if field.given_in else ["not in the file"]
    return f" [{'; '.join(told)}]" if told else ""


def _print_classes(paper: Paper, classes: Mapping[str, object]) -> None:
    _head(paper, "Errors")
    listed = bool(classes.get("retryable"))
    passing = "transient and throttled failures"
    lasting = "what no policy may retry" + ("" if listed else ", conflicts and permanent failures")
    rows = {"retried": _names(classes.get("retryable"), passing)}
    rows["never"] = _names(classes.get("non_retryable"), lasting)
    others = "retried" if classes["unmatched"] == "retry" else "not retried"
    rows["all others" if listed else "unknown"] = f"{others} (unmatched: {classes['unmatched']})"
    if "precedence" in classes:
        rows["in both"] = f"{str(classes['precedence']).removesuffix('_first')} wins"
    for name, text in rows.items():
        paper.say(text, "", f"{MARGIN}{name:<12}")


def _names(names: object, otherwise: str) -> str:
    return ", ".join(map(str, names)) if isinstance(names, (list, tuple)) and names else otherwise


def _print_others(paper: Paper, sheet: Sheet) -> None:
    """Print what other parts act on, and what else stands in the file."""
    sections = {**sheet.sections, **({"cooldown": sheet.cooldown} if sheet.cooldown else {})}
    if sections:
        _head(paper, "What other parts act on")
        for name, value in sections.items():
            paper.say(flow(value), "", f"{MARGIN}{name}: ")
    if sheet.siblings:
        _head(paper, f"Other policies of {sheet.profile}, with their attempts")
        told = [
            f"{one.name} {'1 (no retry)' if one.attempts == 1 else one.attempts}" for one in sheet.siblings
        ]
        paper.say(", ".join(told), "", MARGIN)
        paper.line(
            f"{MARGIN}`oncemore policy show {sheet.profile}/{sheet.siblings[-1].name}` shows one", "dim"
        )
    if sheet.providers:
        _head(paper, "Providers with numbers of their own")
        paper.say(", ".join(sheet.providers) + " (--provider NAME shows them)", "", MARGIN)


def _print_origin(paper: Paper, sheet: Sheet) -> None:
    _head(paper, "Where it comes from")
    if sheet.origin:
        paper.say(sheet.origin, "", MARGIN)
    rows = [("file", near(sheet.source))]
    rows += [("extends", ", then ".join(sheet.extends))] if sheet.extends else []
    rows += [(name, flow(value)) for name, value in sheet.metadata.items()]
    rows += [("signature", sheet.signature), ("sha256", sheet.file_digest), ("digest", sheet.digest)]
    for name, text in rows:
        paper.line(f"{MARGIN}{name}: {text}")


def flow(value: object) -> str:
    """Return a value on one line, as a policy file would have it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_nested(inner)}" for name, inner in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(flow(item) for item in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return shown(value)
    return "none" if value is None else str(value)


def _nested(value: object) -> str:
    return f"({flow(value)})" if isinstance(value, (Mapping, list, tuple)) else flow(value)
