"""The sections of a policy file that other parts of the house act on.

They are part of the one table (`fields`), so that a misspelt key is an error on the day it is written,
whether or not the part that reads it is built. What they hold is kept as data in the loaded profile.
"""

from __future__ import annotations

from oncemore.core.gate import COUNTS
from oncemore.core.model import STATES
from oncemore.govern.fields import COOLDOWN, ENVELOPE, LONGEST_TEXT, NAME, POLICIES, Row

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_COUNT: Final = 1_000_000

SECTIONS: Final = (
    Row("states", "texts", "the states of a run", choices=STATES),
    Row("classes", "texts", "what a failure can mean; only RETRYABLE is tried again",
        choices=("RETRYABLE", "TERMINAL", "QUARANTINE")),
    Row("on_non_retryable", "texts", "what follows an error that is not tried again",
        choices=("halt", "quarantine", "ledger", "escalate")),
    Row("halt_scope", "text", "what such an error halts", choices=("pipeline", "run")),
    Row("after_failure", "text", "what a new call of failed work does: raise the failure, or begin a new run",
        choices=("raise", "new_run")),
    Row("circuit_breaker", "section", "when calls to a provider are cut off", rows=(
        Row("max_failures", "count", "consecutive failures that open it", low=1, high=_COUNT),
        Row("cooldown_sec", "number", "how long it stays open", ("cooldown_s",), above=True),
        Row("half_open_probes", "count", "calls let through to see whether it may close: one, for all who "
            "share it", low=1, high=1),
        Row("count", "text", "what a failure is counted by: operations, each once, or all failed attempts",
            choices=COUNTS),
        Row("failure_rate", "number", "instead of max_failures: the part of calls whose failure opens it",
            above=True, high=1.0),
        Row("window_sec", "number", "the time over which that part is taken", ("window_s",), above=True),
        Row("min_calls", "count", "how many calls there must be in it", low=1, high=_COUNT),
    )),
    Row("rate_limit", "section", "how many calls in a time: of each provider, or of the step", rows=(
        Row("calls", "count", "how many", low=1, high=_COUNT),
        Row("period_s", "number", "in how much time; 1 second unless given", ("period_sec",), above=True),
        Row("burst", "count", "how many at once after a rest; 1 unless given", low=1, high=_COUNT),
    )),
    Row("retry_budget", "section", "what retries may cost together", rows=(
        Row("capacity", "number", "tokens at the start and at most", above=True, high=1e6),
        Row("per_success", "number", "tokens that a success earns back", high=1e6),
        Row("at_empty", "text", "what a retry does for which no token is left",
            choices=("fail", "wait", "park")),
        Row("shared", "flag", "whether all who share a store have it together, not each process its own"),
        Row("name", "text", "whose budget it is then; the policy's own name unless given", pattern=NAME),
    )),
    Row("cooldown", "section", "how long a provider is left alone: capped, growing, without jitter", rows=(
        *COOLDOWN,
        Row("provider_overrides", "map", "what differs for single providers, as in providers.*.cooldown",
            rows=COOLDOWN),
    )),
    Row("lease", "section", "a worker's right to its runs", rows=(
        Row("ttl_s", "number", "how long it holds", above=True),
        Row("renew_every_s", "number", "how often it is renewed", above=True),
    )),
    Row("escalation", "section", "who is told", rows=(
        Row("permanent", "text", "of a permanent failure", pattern=NAME),
        Row("exhausted", "text", "when attempts run out", pattern=NAME),
    )),
    Row("idempotency", "section", "what makes two calls the same work", rows=(
        Row("key_from", "texts", "what the key is made of", pattern=NAME),
        Row("on_config_change", "text", "what a finished run with another configuration means",
            ("on_version_change",), choices=("fail", "new", "reuse")),
        Row("in_event_payloads", "text", "whether events carry the key", choices=("never", "always")),
        Row("poll_bucket", "text", "the time within which polls are the same work",
            pattern=r"[1-9][0-9]{0,3}(?:s|min|h|d)"),
        Row("step_keys", "texts", "steps that have a key of their own", pattern=NAME),
        Row("hash", "text", "the hash of a key", choices=("sha256",)),
        Row("canonical", "text", "the form that is hashed", choices=("json",)),
        Row("legacy_string_form", "flag", "whether keys of the printed form are made, for those stored so"),
        Row("store", "text", "where results are kept", choices=("sqlite", "jetstream-kv", "memory")),
    )),
    Row("effects", "text", "which effects may be retried",
        choices=("require_idempotent_or_outbox", "declared")),
    Row("telemetry_fields", "texts", "the fields of a telemetry record", pattern=NAME),
    Row("ledgers", "texts", "the files of the ledgers", pattern=NAME),
    Row("carbon_budget", "section", "how much carbon a period may cost", rows=(
        Row("period", "text", "the period", choices=("day", "week", "month", "year")),
        Row("cap_kgCO2e", "number", "what it may cost", above=True, high=1e9),
        Row("slow_at", "number", "the part of the cap from which work is slowed", high=1.0),
    )),
    Row("concurrency", "values", "how much may run at once, by workflow"),
    Row("checks", "texts", "checks before an attempt, and how the run ends when one holds"),
    Row("correlation_id", "text", "where correlation ids come from",
        choices=("create_if_absent", "required")),
    Row("audit", "texts", "the audit events that are written",
        choices=("retry_attempt", "retry_exhausted", "idempotency", "retry_succeeded", "retry_refused")),
    Row("control_state_unknown", "text", "what happens when the kill switch cannot be read",
        choices=("deny", "allow")),
    Row("actions_never_auto_retried", "texts", "actions that are sent once", pattern=NAME),
    Row("transport", "section", "the HTTP client", rows=(
        Row("retry_on", "texts", "what is tried again, in the client's words"),
        Row("never", "texts", "what never is, in the client's words"),
        Row("retry_after_cap_s", "number", "how long a Retry-After is waited for"),
        Row("errors", "section", "what the client raises", rows=(
            Row("http", "text", "for an answer"),
            Row("other", "text", "for everything else"),
        )),
    )),
    Row("persistence", "section", "the database", rows=(
        Row("retry_on", "text", "what is tried again, in the database's words"),
        Row("busy_timeout_s", "number", "how long the driver itself waits for a lock"),
    )),
)  # fmt: skip

#: Every field of a policy file.
FIELDS: Final = (*ENVELOPE, *POLICIES, *SECTIONS)

__all__ = ["FIELDS", "LONGEST_TEXT", "SECTIONS"]
