"""The sections of a policy file that steps, workers and the fronts of profiles act on.

They are part of the one table (`fields`). Every field here has an effect, or states what always holds and
takes no other value, or is refused in a user's own file (`Row.inert`); `tests/govern/test_effects.py` shows
which, field by field.
"""

from __future__ import annotations

from oncemore.limits.breaker_rules import COUNTS
from oncemore.policy.files.fields import COOLDOWN, ENVELOPE, LONGEST_TEXT, NAME, POLICIES, Row
from oncemore.policy.model import STATES
from oncemore.settings import LONGEST_LEASE_S, SHORTEST_LEASE_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_COUNT: Final = 1_000_000
#: Why fields have no effect in a user's own file.
_NO_LEDGER: Final = "this version exports no ledger files; the log holds every entry"
_NO_TELEMETRY: Final = "this version writes no telemetry records"
_NO_MATRIX: Final = "this version has no autonomy matrix to keep a carbon budget"
_OF_NOVA_CAT: Final = (
    "it states how the front of nova-cat works, which reads only the packaged profile for it"
)
_OF_LIT: Final = "it states how the front of lit works, which reads only the packaged profile for it"
_OF_EXOARMUR: Final = "it states how the front of exoarmur works, which reads only the packaged profile"

SECTIONS: Final = (
    Row("states", "texts", "the states of a run, which are always these", choices=STATES, whole=True),
    Row("classes", "texts", "what a failure can mean, which is always this; only RETRYABLE is tried again",
        choices=("RETRYABLE", "TERMINAL", "QUARANTINE"), whole=True),
    Row("on_non_retryable", "texts", "what follows an error that is not tried again; halt unless given",
        choices=("halt", "quarantine", "ledger"), inert=_NO_LEDGER, inert_choices=("ledger",)),
    Row("halt_scope", "text", "what such an error halts: the steps of its pipeline (`step(pipeline=…)`), or "
        "its own run", choices=("pipeline", "run")),
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
    Row("lease", "section", "a process's right to its runs; an engine whose `lease_s` is set keeps its own",
        rows=(
            Row("ttl_s", "number", "how long a run stays with a process after its last sign of life; 60 s "
                "unless given", low=SHORTEST_LEASE_S, high=LONGEST_LEASE_S),
            Row("renew_every_s", "number", "how often that sign is given; a third of ttl_s unless given",
                above=True, high=LONGEST_LEASE_S),
        )),
    Row("escalation", "section", "the policies that escalation records name (GOV-10)", rows=(
        Row("permanent", "text", "after a permanent failure; autonomy-matrix unless given", pattern=NAME),
        Row("exhausted", "text", "when attempts or time run out; deadline-aware unless given", pattern=NAME),
    )),
    Row("idempotency", "section", "what makes two calls the same work", rows=(
        Row("key_from", "texts", "what a node's key is made of, which is always this",
            choices=("node_id", "inputs", "target_partition"), whole=True),
        Row("on_config_change", "text", "what a finished run with another version or config means; "
            "`on_version_change=` of a step overrides it", ("on_version_change",),
            choices=("fail", "new", "reuse")),
        Row("in_event_payloads", "text", "whether events carry the key, which they never do",
            choices=("never",)),
        Row("poll_bucket", "text", "the time within which polls are the same work",
            pattern=r"[1-9][0-9]{0,3}(?:s|min|h|d)", profile="nova-cat"),
        Row("step_keys", "texts", "steps that have a key of their own", pattern=NAME, inert=_OF_NOVA_CAT),
        Row("hash", "text", "the hash of a key", choices=("sha256",)),
        Row("canonical", "text", "the form that is hashed", choices=("json",)),
        Row("legacy_string_form", "no", "keys of the printed form are made only where a call asks for them"),
        Row("store", "text", "where results are kept", choices=("sqlite", "jetstream-kv", "memory"),
            inert=_OF_EXOARMUR),
    )),
    Row("effects", "text", "which effects are tried again: all as they declare it, or all but `once`, "
        "whatever its `not_applied` says", choices=("require_idempotent_or_outbox", "declared")),
    Row("telemetry_fields", "texts", "the fields of a telemetry record", pattern=NAME, inert=_NO_TELEMETRY),
    Row("ledgers", "texts", "the files of the ledgers", pattern=NAME, inert=_NO_LEDGER),
    Row("carbon_budget", "section", "how much carbon a period may cost", inert=_NO_MATRIX, rows=(
        Row("period", "text", "the period", choices=("day", "week", "month", "year")),
        Row("cap_kgCO2e", "number", "what it may cost", above=True, high=1e9),
        Row("slow_at", "number", "the part of the cap from which work is slowed", high=1.0),
    )),
    Row("concurrency", "section", "how much may run at once, by workflow", profile="nova-cat", rows=(
        Row("DiscoverSpectraProducts", "count", "providers that are asked at once", low=1, high=1000),
        Row("ReferenceReconciliation", "count", "references that are reconciled at once", low=1, high=1000),
        Row("AcquireAndValidateSpectra", "text", "what is acquired at once, which is always this",
            choices=("one data_product_id",)),
    )),
    Row("checks", "texts", "checks before an attempt, and how the run ends when one holds",
        inert=_OF_NOVA_CAT),
    Row("correlation_id", "text", "where correlation ids come from, which is always this",
        choices=("create_if_absent",)),
    Row("audit", "texts", "the audit events that are written, which are always these",
        choices=("retry_attempt", "retry_exhausted", "idempotency", "retry_succeeded", "retry_refused"),
        whole=True),
    Row("control_state_unknown", "text", "what happens when the kill switch cannot be read, which is always "
        "this", choices=("deny",)),
    Row("actions_never_auto_retried", "texts", "actions that are sent once", pattern=NAME, inert=_OF_LIT),
    Row("transport", "section", "the HTTP client", inert=_OF_LIT, rows=(
        Row("retry_on", "texts", "what is tried again, in the client's words"),
        Row("never", "texts", "what never is, in the client's words"),
        Row("retry_after_cap_s", "number", "how long a Retry-After is waited for"),
        Row("errors", "section", "what the client raises", rows=(
            Row("http", "text", "for an answer"),
            Row("other", "text", "for everything else"),
        )),
    )),
    Row("persistence", "section", "the database", inert=_OF_LIT, rows=(
        Row("retry_on", "text", "what is tried again, in the database's words"),
        Row("busy_timeout_s", "number", "how long the driver itself waits for a lock"),
    )),
)  # fmt: skip

#: Every field of a policy file.
FIELDS: Final = (*ENVELOPE, *POLICIES, *SECTIONS)

__all__ = ["FIELDS", "LONGEST_TEXT", "SECTIONS"]
