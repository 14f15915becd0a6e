"""Filters of the templates: times, durations, numbers, ids and JSON as text.

Times are written in UTC, in a `<time>` element; the browser shows them in the local time zone with UTC on
hover. Without scripts the page shows UTC.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from oncemore.policy.explain import format_seconds
from oncemore.queries import to_plain
from oncemore.queries.run_pages import describe_arguments
from oncemore.workflows.journal import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable

#: The longest JSON text that a page shows; the API has the whole value.
MAX_JSON = 20_000
#: What operators see for the states of runs, breakers and other records.
STATE_WORDS = {
    "SOFT_FAIL": "waiting to retry",
    "HARD_FAIL": "failed",
    "COMPLETE": "complete",
    "RUNNING": "running",
    "PENDING": "pending",
    "HALF_OPEN": "half open",
}
STATE_COLORS = {
    "COMPLETE": "good",
    "CLOSED": "good",
    "DELIVERED": "good",
    "STORED": "good",
    "ALIVE": "good",
    "DONE": "good",
    "READY": "good",
    "GRANTED": "good",
    "RUNNING": "busy",
    "SENDING": "busy",
    "PENDING": "calm",
    "SOFT_FAIL": "warn",
    "COOLING": "warn",
    "HALF_OPEN": "warn",
    "EXPIRED": "warn",
    "HELD": "hold",
    "QUARANTINED": "hold",
    "HARD_FAIL": "bad",
    "OPEN": "bad",
    "DEAD": "bad",
    "LOST": "bad",
    "REVOKED": "bad",
}


def format_time(at: float | None, mode: str = "time") -> Markup:
    """Return a moment as a `<time>` element; `mode` "age" counts up from it, "until" counts down to it."""
    if not at or at >= NEVER:
        return Markup('<span class="faint">—</span>')
    moment = datetime.fromtimestamp(at, UTC)
    text = moment.strftime("%Y-%m-%d %H:%M:%S")
    iso = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{iso}" title="{text} UTC" data-mode="{mode}">{text} UTC</time>').format(
        iso=iso, text=text, mode=mode
    )


def format_duration(seconds: float | None) -> str:
    """Return a duration for people; a dash if there is none."""
    return "—" if seconds is None else format_seconds(seconds)


def format_count(value: int, most: int = 0) -> str:
    """Return a number with thousands separators, and a plus sign if it is the largest that was counted."""
    return f"{value:,}+" if most and value >= most else f"{value:,}"


def format_json(value: Any) -> str:
    """Return a value as indented JSON, cut to a length that a page can show."""
    text = json.dumps(to_plain(value), indent=2, ensure_ascii=False)
    return text if len(text) <= MAX_JSON else text[:MAX_JSON] + "\n… cut; the API has the whole value"


def shorten_id(text: str, length: int = 13) -> str:
    """Return the beginning of an id or a digest."""
    return text if len(text) <= length + 1 else text[:length] + "…"


def shorten_text(text: str, length: int = 160) -> str:
    """Return a text, cut to a length."""
    return text if len(text) <= length else text[: length - 1] + "…"


def name_state(state: str) -> str:
    """Return the word for a stored state."""
    return STATE_WORDS.get(state, state.replace("_", " ").lower())


def color_state(state: str) -> str:
    """Return the colour class of a stored state."""
    return STATE_COLORS.get(state, "calm")


def format_percent(share: float | None) -> str:
    """Return a share as a percentage; a dash if there is none."""
    return "—" if share is None else f"{100 * share:.1f} %"


def format_figure(value: float | None) -> str:
    """Return a figure of any size with four digits; a dash if it is not known."""
    if value is None:
        return "—"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def read_field(record: Any, name: str) -> Any:
    """Return a field of a record by its name."""
    return getattr(record, name)


#: The filters by their names in the templates.
FILTERS: dict[str, Callable[..., Any]] = {
    "time": format_time,
    "duration": format_duration,
    "count": format_count,
    "as_json": format_json,
    "short": shorten_id,
    "cut": shorten_text,
    "state_word": name_state,
    "arguments": describe_arguments,
    "state_color": color_state,
    "percent": format_percent,
    "figure": format_figure,
    "field": read_field,
}
