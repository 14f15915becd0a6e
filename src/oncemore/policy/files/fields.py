"""The fields of a policy file: one table, from which everything about them is made.

A row says a field's name, its kind, its range, what it means, and how the source documents spell it
(aliases). The checks, the error messages, the JSON Schema and the reference page come from these rows;
a field that is not here does not exist. The sections that other parts of the house act on are in
`sections`.

    kind      in a file
    text      a text, by `pattern` or one of `choices` where they are given
    date      a day: 2026-01-31
    count     a whole number from `low` to `high`
    number    a finite number from `low` to `high`; `above`: more than `low`
    flag      true or false
    yes       true, and nothing else
    no        false, and nothing else
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
from oncemore.policy.backoff import PLANS, SPREADS
from oncemore.policy.policy import MOST_ATTEMPTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

#: No duration is longer than a year, no list and no group of names has more entries, no text is longer.
YEAR_S: Final = 31_536_000.0
MOST_ITEMS: Final = 200
LONGEST_TEXT: Final = 2000

NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
ADDRESS: Final = r"[A-Za-z0-9][A-Za-z0-9._/@() -]{0,199}"
CLASS: Final = r"[A-Za-z0-9_.:-]{1,100}\*?|\*"
VERSION: Final = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}"
GOVERNED_VERSION: Final = r"retry-loop-v(?:0|[1-9][0-9]{0,5})\.(?:0|[1-9][0-9]{0,5})"


class Row(Value):
    """A field: what it is called, what it holds, what it means."""

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
    rows: tuple[Row, ...] = ()
    #: A spelling that counts retries, one less than calls.
    retries: str = ""
    whole: bool = False
    #: The profile that a file must extend to hold this field: only that profile's own front reads it.
    profile: str = ""
    #: Why the field has no effect in a user's own file, which is refused; packaged profiles hold it because
    #: their documents do. `inert_choices` are choices of which the same holds.
    inert: str = ""
    inert_choices: tuple[str, ...] = ()

    @property
    def spellings(self) -> tuple[str, ...]:
        """All names that a file may use for it."""
        return (self.name, *self.aliases, *((self.retries,) if self.retries else ()))


CLASSIFY: Final = (
    Row("retryable", "texts", "classes of errors that are tried again", ("retryable_exceptions", "retry_on"),
        pattern=CLASS),
    Row("non_retryable", "texts", "classes of errors that never are",
        ("non_retryable_exceptions", "never"), pattern=CLASS),
    Row("unmatched", "text", "what to do with an error that no rule and no class knows",
        choices=("retry", "fail")),
    Row("precedence", "text", "which list wins when an error is in both",
        choices=("non_retryable_first", "retryable_first")),
)  # fmt: skip

RETRY: Final = (
    Row("name", "text", "what records call the policy", ("code",), pattern=ADDRESS),
    Row("description", "text", "what it is for"),
    Row("max_attempts", "count", "calls in all, the first included", ("retry_attempts", "attempts"),
        low=1, high=MOST_ATTEMPTS, retries="max_retries"),
    Row("schedule", "text", "how delays grow", ("backoff",), choices=tuple(PLANS)),
    Row("base_delay_s", "number", "the delay that the others grow from",
        ("base_delay_sec", "base_delay", "retry_backoff_seconds", "base_backoff_s", "interval")),
    Row("factor", "number", "what an exponential delay is multiplied by from attempt to attempt",
        ("backoff_multiplier", "multiplier", "rate"), low=1.0, high=1000.0),
    Row("max_delay_s", "number", "the cap: no delay is longer", ("max_delay_sec", "max_delay", "cap")),
    Row("delays_s", "numbers", "the delays one by one; the last one repeats", ("backoff_s",)),
    Row("exponent", "text", "whether the first delay is base * factor (attempt) or base (attempt-1, unless "
        "base_delay_sec or jitter_seed mean the formula of the KFM documents)",
        choices=("attempt", "attempt-1")),
    Row("jitter", "text", "how delays are spread", choices=(*SPREADS, "decorrelated")),
    Row("jitter_span_s", "number", "what additive jitter adds at most; base_delay_s unless given"),
    Row("jitter_factor", "number", "the fraction that proportional jitter moves a delay by; 0.1 unless given",
        high=1.0),
    Row("jitter_enabled", "flag", "whether there is jitter: proportional, or none"),
    Row("jitter_seed", "text", "what draws are seeded with: <sha256(run_id)>, <sha256(idempotency_key)> or a "
        "literal; without jitter it means additive jitter"),
    Row("timeout_s", "number", "the limit of one attempt", above=True, nullable=True),
    Row("within_s", "number", "the limit of the whole call with its waits", above=True, nullable=True),
    Row("retry_cost", "number", "tokens that a retry takes from the retry budget", high=1e6),
    Row("respect_retry_after", "yes", "a provider's Retry-After is always obeyed; it cannot be switched off"),
    Row("classify", "section", "classes of errors, where they differ from those of the file", rows=CLASSIFY),
)  # fmt: skip

TUNING: Final = (
    Row("enabled", "flag", "whether delays are tuned at all"),
    Row("carbon_intensity_threshold_g_per_kWh", "section", "grid intensity", ("carbon_intensity",), rows=(
        Row("low", "number", "where stretching begins", high=1e6),
        Row("high", "number", "where it is full", high=1e6),
    )),
    Row("energy_price_usd_per_kWh", "section", "energy price", ("energy_price",), rows=(
        Row("peak", "number", "from where on energy is dear", high=1e6),
    )),
    Row("deadline_bias", "section", "haste when a deadline is near", rows=(
        Row("enabled", "flag", "whether a near deadline shortens delays"),
        Row("min_deadline_buffer_s", "number", "the buffer below which haste begins", above=True),
    )),
    Row("max_stretch", "number", "the most that carbon and price may multiply a delay by",
        low=1.0, high=1000.0),
)  # fmt: skip

COOLDOWN: Final = (
    Row("base_s", "number", "the cooldown after the first failure", ("base_delay_s",)),
    Row("multiplier", "number", "what it is multiplied by from failure to failure", ("factor", "rate"),
        low=1.0, high=1000.0),
    Row("cap_s", "number", "the cap: no cooldown is longer", ("max_delay_s", "cap")),
)  # fmt: skip

#: What a file says about itself. None of it is inherited but the marks at the end.
ENVELOPE: Final = (
    Row("profile", "text", "the name of the profile; that of the file unless given", ("name",), pattern=NAME),
    Row("version", "text", "the version; retry-loop-v<major>.<minor> in a governed file, `unversioned` where "
        "another file has none", pattern=VERSION),
    Row("extends", "text", "a profile, or a file beside this one, whose values hold where none are given"),
    Row("description", "text", "what it is for"),
    Row("owner", "text", "who answers for it"),
    Row("reviewer", "text", "who has read it"),
    Row("review_by", "date", "the day by which it must be read again"),
    Row("care_notes", "text", "what it means for data that deserves care"),
    Row("governed", "flag", "whether the stricter rules of governed pipelines hold"),
    Row("kfm_compliant", "flag", "false where the profile does not follow the KFM rules"),
    Row("priority", "text", "what workers do first: P0, then P1, then P2; `priority=` of a step overrides it",
        choices=("P0", "P1", "P2")),
)  # fmt: skip

POLICIES: Final = (
    Row("retry_policy", "section", "the policy called `default`, and the ground of those in policies",
        ("defaults",), rows=RETRY),
    Row("policies", "map", "further policies, each by its name", ("categories", "retry"), rows=RETRY),
    Row("classify", "section", "classes of errors, for every policy of the file", rows=CLASSIFY),
    Row("telemetry_tuning", "section", "how carbon, price and deadlines change delays", rows=TUNING),
    Row("bounds", "ranges", "what fields may be in this file and in every file that extends it"),
    Row("minimums", "floors", "fields that are raised to this value, with a warning, instead of refused"),
    Row("providers", "map", "what differs for single providers", rows=(
        Row("retry_policy", "section", "what differs in every policy", rows=RETRY),
        Row("policies", "map", "what differs in single policies", ("categories", "retry"), rows=RETRY),
        Row("cooldown", "section", "what differs in the cooldown", rows=COOLDOWN),
    )),
)  # fmt: skip

#: What a file says for itself only, however often it is extended.
OWN: Final = frozenset(
    ("profile", "version", "extends", "description", "owner", "reviewer", "review_by", "care_notes")
)


def allowed(row: Row) -> str:
    """Return what a field may hold, as error messages and the reference page say it."""
    text = _KINDS[row.kind]
    if row.kind in ("count", "number", "numbers"):
        low = f"above {row.low:g}, up" if row.above else f"from {row.low:g}"
        text += f" {low} to {row.high:.8g}"
    if row.choices:
        several = "a list with all of " if row.whole else "a list of "
        text = (several if row.kind == "texts" else "one of ") + ", ".join(row.choices)
    return f"{text}, or null" if row.nullable else text


_KINDS: Final = {
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
