"""The table of policy file fields, from which checks, messages, JSON Schema and reference page are made.

A row holds a field's name, kind, range, meaning and alternative spellings (aliases) of the source
documents. A field that is not in the table is refused. `sections` holds the rows for the sections that
other parts of the package use.

    kind      in a file
    text      a text; limited by `pattern` or `choices` where given
    date      a day: 2026-01-31
    count     a whole number from `low` to `high`
    number    a finite number from `low` to `high`; `above`: more than `low`
    flag      true or false
    yes       only true
    no        only false
    texts     a list of texts, each as for text; `whole`: all of `choices`
    numbers   a list of numbers, each as for number
    range     a list of two numbers, low and high
    section   the fields in `rows`
    map       names, each with the fields in `rows`
    ranges    names of retry fields, each with a range; `jitter` with a list of kinds
    floors    names of retry fields, each with a number
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.policy.backoff import SCHEDULES, SPREADS
from oncemore.policy.policy_checks import MAX_ATTEMPTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

#: Limits: the longest duration, the entries of a list or a group of names, the length of a text,
#: and a count.
YEAR_S: Final = 31_536_000.0
MAX_ITEMS: Final = 200
MAX_TEXT_LENGTH: Final = 2000
MAX_COUNT: Final = 1_000_000

NAME_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
ADDRESS_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._/@() -]{0,199}"
CLASS_PATTERN: Final = r"[A-Za-z0-9_.:-]{1,100}\*?|\*"
VERSION_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}"
#: The version of a file without one.
UNVERSIONED: Final = "unversioned"
GOVERNED_VERSION_PATTERN: Final = r"retry-loop-v(?:0|[1-9][0-9]{0,5})\.(?:0|[1-9][0-9]{0,5})"


class FieldSpec(Value):
    """One field of a policy file: its name, its kind, its meaning and its limits."""

    name: str
    kind: str
    meaning: str
    aliases: tuple[str, ...] = ()
    low: float = 0.0
    high: float = YEAR_S
    above: bool = False
    nullable: bool = False
    choices: tuple[str, ...] = ()
    pattern: str = ""
    rows: tuple[FieldSpec, ...] = ()
    #: A spelling that counts retries; calls are one more.
    retries: str = ""
    whole: bool = False
    #: The profile that a file must extend to contain this field: only that profile's facade reads it.
    profile: str = ""
    #: Why the field has no effect. A user's file with it is refused; packaged profiles contain it because
    #: their documents do.
    inert: str = ""

    @property
    def spellings(self) -> tuple[str, ...]:
        """All names that a file may use for the field."""
        return (self.name, *self.aliases, *((self.retries,) if self.retries else ()))


def text_field(name: str, meaning: str, aliases: tuple[str, ...] = (), **limits: Any) -> FieldSpec:
    """Return a field with a text, one of `choices`, or a text that matches `pattern`."""
    return FieldSpec(name, "text", meaning, aliases, **limits)


def list_field(name: str, meaning: str, aliases: tuple[str, ...] = (), **limits: Any) -> FieldSpec:
    """Return a field with a list of texts."""
    return FieldSpec(name, "texts", meaning, aliases, **limits)


def count_field(
    name: str, meaning: str, aliases: tuple[str, ...] = (), high: int = MAX_COUNT, retries: str = ""
) -> FieldSpec:
    """Return a field with a whole number from 1."""
    return FieldSpec(name, "count", meaning, aliases, low=1, high=high, retries=retries)


def number_field(name: str, meaning: str, aliases: tuple[str, ...] = (), **limits: Any) -> FieldSpec:
    """Return a field with a number, by default from 0 to a year in seconds."""
    return FieldSpec(name, "number", meaning, aliases, **limits)


def flag_field(name: str, meaning: str) -> FieldSpec:
    """Return a field with true or false."""
    return FieldSpec(name, "flag", meaning)


def section_field(name: str, meaning: str, rows: tuple[FieldSpec, ...], **more: Any) -> FieldSpec:
    """Return a group of fields."""
    return FieldSpec(name, "section", meaning, rows=rows, **more)


def map_field(name: str, meaning: str, rows: tuple[FieldSpec, ...], **more: Any) -> FieldSpec:
    """Return a field with names, each with a group of fields."""
    return FieldSpec(name, "map", meaning, rows=rows, **more)


# Aliases are the spellings of the source documents, so that their files load unchanged.

CLASSIFY_FIELDS: Final = (
    list_field(
        "retryable",
        "error classes that are retried",
        ("retryable_exceptions", "retry_on"),
        pattern=CLASS_PATTERN,
    ),
    list_field(
        "non_retryable",
        "error classes that are never retried",
        ("non_retryable_exceptions", "never"),
        pattern=CLASS_PATTERN,
    ),
    text_field(
        "unmatched", "the verdict on an error that matches no rule and no class", choices=("retry", "fail")
    ),
    text_field(
        "precedence",
        "the list that wins if an error is in both",
        choices=("non_retryable_first", "retryable_first"),
    ),
)

#: One policy: `retry_policy`, each entry of `policies`, and those of `providers`.
RETRY_FIELDS: Final = (
    text_field("name", "the policy's name in records", ("code",), pattern=ADDRESS_PATTERN),
    text_field("description", "purpose"),
    count_field(
        "max_attempts",
        "number of calls that may fail, the first included",
        ("retry_attempts", "attempts"),
        high=MAX_ATTEMPTS,
        retries="max_retries",
    ),
    FieldSpec(
        "max_crashes",
        "count",
        "durable steps: number of attempts that may be lost with their process; null: such an attempt counts "
        "in max_attempts, as always in a governed file; default: 20",
        low=1,
        high=MAX_ATTEMPTS,
        nullable=True,
    ),
    text_field("schedule", "how delays grow", ("backoff",), choices=tuple(SCHEDULES)),
    number_field(
        "base_delay_s",
        "the first delay, from which the next ones grow",
        ("base_delay_sec", "base_delay", "retry_backoff_seconds", "base_backoff_s", "interval"),
    ),
    number_field(
        "factor",
        "factor of an exponential delay from attempt to attempt",
        ("backoff_multiplier", "multiplier", "rate"),
        low=1.0,
        high=1000.0,
    ),
    number_field("max_delay_s", "the cap: no delay is longer", ("max_delay_sec", "max_delay", "cap")),
    FieldSpec("delays_s", "numbers", "the list of delays; the last one repeats", ("backoff_s",)),
    text_field(
        "exponent",
        "whether the first delay is base * factor (attempt) or base (attempt-1, unless "
        "base_delay_sec or jitter_seed mean the formula of the KFM documents)",
        choices=("attempt", "attempt-1"),
    ),
    text_field("jitter", "how delays are spread", choices=(*SPREADS, "decorrelated")),
    number_field("jitter_span_s", "the most that additive jitter adds; default: base_delay_s"),
    number_field(
        "jitter_factor", "the fraction by which proportional jitter moves a delay; default: 0.1", high=1.0
    ),
    flag_field("jitter_enabled", "true for proportional jitter, false for none"),
    text_field(
        "jitter_seed",
        "seed of the jitter: <sha256(run_id)>, <sha256(idempotency_key)> or a "
        "literal; without `jitter` it implies additive jitter",
    ),
    number_field("timeout_s", "time limit of one attempt", above=True, nullable=True),
    number_field("total_timeout_s", "time limit of the whole call with its waits", above=True, nullable=True),
    number_field("retry_cost", "tokens that one retry takes from the retry budget", high=1e6),
    FieldSpec(
        "respect_retry_after", "yes", "a provider's Retry-After is always obeyed; it cannot be switched off"
    ),
    section_field("classify", "error classes that differ from those of the file", CLASSIFY_FIELDS),
)

#: `telemetry_tuning`; the defaults are those of `Tuning`.
TUNING_FIELDS: Final = (
    flag_field("enabled", "whether delays are tuned at all"),
    section_field(
        "carbon_intensity_threshold_g_per_kWh",
        "grid intensity",
        (
            number_field("low", "intensity at which stretching starts", high=1e6),
            number_field("high", "intensity of full stretching", high=1e6),
        ),
        aliases=("carbon_intensity",),
    ),
    section_field(
        "energy_price_usd_per_kWh",
        "energy price",
        (number_field("peak", "price from which delays are stretched", high=1e6),),
        aliases=("energy_price",),
    ),
    section_field(
        "deadline_bias",
        "shorter delays near a deadline",
        (
            flag_field("enabled", "whether a near deadline shortens delays"),
            number_field(
                "min_deadline_buffer_s", "time to the deadline below which delays become shorter", above=True
            ),
        ),
    ),
    number_field("max_stretch", "largest factor of a delay for carbon and price", low=1.0, high=1000.0),
)

#: `cooldown`, also inside `providers`; the defaults are those of `CooldownSchedule`.
COOLDOWN_FIELDS: Final = (
    number_field("base_s", "the cooldown after the first failure", ("base_delay_s",)),
    number_field(
        "multiplier",
        "factor of the cooldown from failure to failure",
        ("factor", "rate"),
        low=1.0,
        high=1000.0,
    ),
    number_field("cap_s", "the cap: no cooldown is longer", ("max_delay_s", "cap")),
)

#: Fields about the file itself; those in `NOT_INHERITED` hold for one file only.
ENVELOPE_FIELDS: Final = (
    text_field(
        "profile", "name of the profile; default: the name of the file", ("name",), pattern=NAME_PATTERN
    ),
    text_field(
        "version",
        "version; retry-loop-v<major>.<minor> in a governed file; default in other files: `unversioned`",
        pattern=VERSION_PATTERN,
    ),
    text_field("extends", "a profile or a relative path; its values are the defaults of this file"),
    text_field("description", "purpose"),
    text_field("owner", "person or team responsible for it"),
    text_field("reviewer", "person who reviewed it"),
    FieldSpec("reviewed", "date", "day of the last review; the next one is due a quarter later"),
    FieldSpec("review_by", "date", "day of the next review; afterwards the file has a warning"),
    FieldSpec("released", "date", "day from which its time to live counts"),
    count_field(
        "ttl_months", "time to live; afterwards the file has a warning; default: 24 months", high=600
    ),
    FieldSpec("expires", "date", "first day, in UTC, on which a governed file is refused"),
    text_field(
        "classification",
        "class of the pipelines that use it; a governed file for Sensitive ones needs care_notes",
        choices=("Public", "Internal", "Restricted", "Sensitive"),
    ),
    flag_field(
        "indigenous_rights_flag", "whether its pipelines touch indigenous rights; then it needs care_notes"
    ),
    text_field("care_notes", "how it treats sensitive data (CARE)"),
    text_field("change_reason", "why it differs from the version before; recorded when a store accepts it"),
    flag_field("governed", "whether the stricter rules of governed pipelines apply"),
    flag_field("kfm_compliant", "false if the profile does not follow the KFM rules"),
    text_field(
        "priority",
        "priority for workers: P0, then P1, then P2; `priority=` of a step overrides it",
        choices=("P0", "P1", "P2"),
    ),
)

#: The policies of a file, and the rules that apply to all of them.
POLICY_FIELDS: Final = (
    section_field(
        "retry_policy",
        "the policy `default`, and the defaults of those in policies",
        RETRY_FIELDS,
        aliases=("defaults",),
    ),
    map_field("policies", "further policies by name", RETRY_FIELDS, aliases=("categories", "retry")),
    section_field("classify", "error classes for every policy of the file", CLASSIFY_FIELDS),
    section_field("telemetry_tuning", "how carbon, price and deadlines change delays", TUNING_FIELDS),
    FieldSpec("bounds", "ranges", "allowed ranges of fields, in this file and in every file that extends it"),
    FieldSpec(
        "minimums", "floors", "fields that are raised to this value, with a warning, instead of being refused"
    ),
    map_field(
        "providers",
        "changes for single providers",
        (
            section_field("retry_policy", "changes in every policy", RETRY_FIELDS),
            map_field(
                "policies", "changes in single policies", RETRY_FIELDS, aliases=("categories", "retry")
            ),
            section_field("cooldown", "changes in the cooldown", COOLDOWN_FIELDS),
        ),
    ),
)

#: Fields that apply only to the file they are in.
NOT_INHERITED: Final = frozenset(
    (
        *("profile", "version", "extends", "description", "owner", "reviewer", "reviewed", "review_by"),
        *("released", "ttl_months", "expires", "care_notes", "change_reason"),
    )
)


def describe_allowed(row: FieldSpec) -> str:
    """Return the allowed values of a field, for error messages and the reference page."""
    text = _KIND_TEXTS[row.kind]
    if row.kind in ("count", "number", "numbers"):
        low = f"above {row.low:g}, up" if row.above else f"from {row.low:g}"
        text += f" {low} to {row.high:.8g}"
    if row.choices:
        several = "a list with all of " if row.whole else "a list of "
        text = (several if row.kind == "texts" else "one of ") + ", ".join(row.choices)
    return f"{text}, or null" if row.nullable else text


_KIND_TEXTS: Final = {
    "text": "a text",
    "date": "a day such as 2026-01-31",
    "count": "a whole number",
    "number": "a number",
    "flag": "true or false",
    "yes": "true",
    "no": "false",
    "texts": "a list of texts",
    "numbers": "a list of numbers",
    "section": "a group of fields",
    "map": "names, each with a group of fields",
    "ranges": "names of fields, each with a list of two numbers, low and high; of jitter, a list of kinds",
    "floors": "names of fields, each with a number",
}
