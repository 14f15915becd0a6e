"""The sections of a policy file that steps, workers and the facades of profiles use.

Every field here has an effect, or states a fact and takes no other value, or is refused in a user's own
file (`FieldSpec.inert`). `tests/policy/files/test_effects.py` shows it for each field.
"""

from __future__ import annotations

from oncemore.config import LONGEST_LEASE_S, SHORTEST_LEASE_S
from oncemore.limits.breaker_rules import COUNTS
from oncemore.policy.files.fields import (
    COOLDOWN_FIELDS,
    ENVELOPE_FIELDS,
    MAX_TEXT_LENGTH,
    NAME_PATTERN,
    POLICY_FIELDS,
    FieldSpec,
)
from oncemore.policy.model import STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_MAX_COUNT: Final = 1_000_000
#: Reasons why fields have no effect in a user's own file.
_NO_LEDGER: Final = "this version does not export ledger files; the log holds every entry"
_NO_TELEMETRY: Final = "this version does not write telemetry records"
_NO_MATRIX: Final = "this version has no autonomy matrix for a carbon budget"
_OF_NOVA_CAT: Final = "it describes the facade of nova-cat, which reads it only from the packaged profile"
_OF_LIT: Final = "it describes the facade of lit, which reads it only from the packaged profile"
_OF_EXOARMUR: Final = "it describes the facade of exoarmur, which reads it only from the packaged profile"

SECTION_FIELDS: Final = (
    # Statements of the KFM documents, and the end of a run.
    FieldSpec("states", "texts", "the states of a run; always these", choices=STATES, whole=True),
    FieldSpec(
        "classes",
        "texts",
        "the verdicts on a failure; always these; only RETRYABLE is retried",
        choices=("RETRYABLE", "TERMINAL", "QUARANTINE"),
        whole=True,
    ),
    FieldSpec(
        "on_non_retryable",
        "texts",
        "actions after an error that is not retried; default: halt",
        choices=("halt", "quarantine", "ledger"),
        inert=_NO_LEDGER,
        inert_choices=("ledger",),
    ),
    FieldSpec(
        "halt_scope",
        "text",
        "scope of halt: the steps of the pipeline (`step(pipeline=…)`), or the run",
        choices=("pipeline", "run"),
    ),
    FieldSpec(
        "after_failure",
        "text",
        "effect of a new call after a failure: raise the stored failure, or start a new run",
        choices=("raise", "new_run"),
    ),
    # Limits: breaker, rate limit, retry budget and cooldown.
    FieldSpec(
        "circuit_breaker",
        "section",
        "when calls to a provider are refused",
        rows=(
            FieldSpec(
                "max_failures", "count", "consecutive failures that open the breaker", low=1, high=_MAX_COUNT
            ),
            FieldSpec(
                "cooldown_sec", "number", "time that the breaker stays open", ("cooldown_s",), above=True
            ),
            # Exactly one probe: the shared breaker record has room for one holder.
            FieldSpec(
                "half_open_probes",
                "count",
                "probe calls in the half-open state: one for all that share the breaker",
                low=1,
                high=1,
            ),
            FieldSpec(
                "count",
                "text",
                "unit of counting: operations, each once, or all failed attempts",
                choices=COUNTS,
            ),
            FieldSpec(
                "failure_rate",
                "number",
                "instead of max_failures: the share of failed calls that opens the breaker",
                above=True,
                high=1.0,
            ),
            FieldSpec("window_sec", "number", "time window of failure_rate", ("window_s",), above=True),
            FieldSpec(
                "min_calls",
                "count",
                "smallest number of calls in the window for failure_rate",
                low=1,
                high=_MAX_COUNT,
            ),
        ),
    ),
    FieldSpec(
        "rate_limit",
        "section",
        "calls per period, for each provider or for the step",
        rows=(
            FieldSpec("calls", "count", "number of calls", low=1, high=_MAX_COUNT),
            FieldSpec(
                "period_s", "number", "length of the period; default: 1 second", ("period_sec",), above=True
            ),
            FieldSpec(
                "burst", "count", "calls at once after an idle time; default: 1", low=1, high=_MAX_COUNT
            ),
        ),
    ),
    FieldSpec(
        "retry_budget",
        "section",
        "tokens shared by all retries",
        rows=(
            FieldSpec(
                "capacity", "number", "number of tokens at the start, and the maximum", above=True, high=1e6
            ),
            FieldSpec("per_success", "number", "tokens added by a success", high=1e6),
            FieldSpec(
                "at_empty",
                "text",
                "action of a retry without a token",
                choices=("fail", "wait", "park"),
            ),
            FieldSpec("shared", "flag", "whether all processes on one store share the budget"),
            FieldSpec(
                "name",
                "text",
                "name of the shared budget; default: the policy's name",
                pattern=NAME_PATTERN,
            ),
        ),
    ),
    FieldSpec(
        "cooldown",
        "section",
        "pause after a provider's failures: growing, capped, without jitter",
        rows=(
            *COOLDOWN_FIELDS,
            FieldSpec(
                "provider_overrides",
                "map",
                "changes for single providers, as in providers.*.cooldown",
                rows=COOLDOWN_FIELDS,
            ),
        ),
    ),
    # Engine and steps.
    FieldSpec(
        "lease",
        "section",
        "the lease of a process on its runs; an engine with `lease_s` uses its own",
        rows=(
            FieldSpec(
                "ttl_s",
                "number",
                "lease time after the last heartbeat; default: 60 s",
                low=SHORTEST_LEASE_S,
                high=LONGEST_LEASE_S,
            ),
            FieldSpec(
                "renew_every_s",
                "number",
                "interval of the heartbeat; default: a third of ttl_s",
                above=True,
                high=LONGEST_LEASE_S,
            ),
        ),
    ),
    FieldSpec(
        "escalation",
        "section",
        "the policies named in escalation records (GOV-10)",
        rows=(
            FieldSpec(
                "permanent",
                "text",
                "after a permanent failure; default: autonomy-matrix",
                pattern=NAME_PATTERN,
            ),
            FieldSpec(
                "exhausted",
                "text",
                "when attempts or time run out; default: deadline-aware",
                pattern=NAME_PATTERN,
            ),
        ),
    ),
    FieldSpec(
        "idempotency",
        "section",
        "rules for the key of a call",
        rows=(
            FieldSpec(
                "key_from",
                "texts",
                "parts of a node's key; always these",
                choices=("node_id", "inputs", "target_partition"),
                whole=True,
            ),
            FieldSpec(
                "on_config_change",
                "text",
                "action for a finished run with another version or config; "
                "`on_version_change=` of a step overrides it",
                ("on_version_change",),
                choices=("fail", "new", "reuse"),
            ),
            FieldSpec(
                "in_event_payloads",
                "text",
                "whether events contain the key; always never",
                choices=("never",),
            ),
            FieldSpec(
                "poll_bucket",
                "text",
                "time span within which polls count as the same work",
                pattern=r"[1-9][0-9]{0,3}(?:s|min|h|d)",
                profile="nova-cat",
            ),
            FieldSpec(
                "step_keys",
                "texts",
                "steps with a key of their own",
                pattern=NAME_PATTERN,
                inert=_OF_NOVA_CAT,
            ),
            FieldSpec("hash", "text", "the hash of a key", choices=("sha256",)),
            FieldSpec("canonical", "text", "the hashed form", choices=("json",)),
            FieldSpec(
                "legacy_string_form",
                "no",
                "keys of the printed form are computed only if a call asks for them",
            ),
            FieldSpec(
                "store",
                "text",
                "store of the results",
                choices=("sqlite", "jetstream-kv", "memory"),
                inert=_OF_EXOARMUR,
            ),
        ),
    ),
    FieldSpec(
        "effects",
        "text",
        "the retried effects: all as declared, or all but `once`, even if it has `not_applied`",
        choices=("require_idempotent_or_outbox", "declared"),
    ),
    # Fields of parts that this version does not have.
    FieldSpec(
        "telemetry_fields",
        "texts",
        "the fields of a telemetry record",
        pattern=NAME_PATTERN,
        inert=_NO_TELEMETRY,
    ),
    FieldSpec("ledgers", "texts", "the files of the ledgers", pattern=NAME_PATTERN, inert=_NO_LEDGER),
    FieldSpec(
        "carbon_budget",
        "section",
        "carbon budget per period",
        inert=_NO_MATRIX,
        rows=(
            FieldSpec("period", "text", "the period", choices=("day", "week", "month", "year")),
            FieldSpec("cap_kgCO2e", "number", "the budget", above=True, high=1e9),
            FieldSpec("slow_at", "number", "share of the cap from which work is slowed", high=1.0),
        ),
    ),
    # Fields of nova-cat.
    FieldSpec(
        "concurrency",
        "section",
        "concurrency limits by workflow",
        profile="nova-cat",
        rows=(
            FieldSpec("DiscoverSpectraProducts", "count", "providers queried at once", low=1, high=1000),
            FieldSpec("ReferenceReconciliation", "count", "references reconciled at once", low=1, high=1000),
            FieldSpec(
                "AcquireAndValidateSpectra",
                "text",
                "products acquired at once; always this",
                choices=("one data_product_id",),
            ),
        ),
    ),
    FieldSpec(
        "checks",
        "texts",
        "checks before an attempt, and the end of the run if one applies",
        inert=_OF_NOVA_CAT,
    ),
    FieldSpec(
        "correlation_id",
        "text",
        "source of correlation ids; always this",
        choices=("create_if_absent",),
    ),
    # Statements of exoarmur.
    FieldSpec(
        "audit",
        "texts",
        "the written audit events; always these",
        choices=("retry_attempt", "retry_exhausted", "idempotency", "retry_succeeded", "retry_refused"),
        whole=True,
    ),
    FieldSpec(
        "control_state_unknown",
        "text",
        "behaviour if the kill switch cannot be read; always this",
        choices=("deny",),
    ),
    # Fields of lit.
    FieldSpec(
        "actions_never_auto_retried",
        "texts",
        "actions that are sent once",
        pattern=NAME_PATTERN,
        inert=_OF_LIT,
    ),
    FieldSpec(
        "transport",
        "section",
        "the HTTP client",
        inert=_OF_LIT,
        rows=(
            FieldSpec("retry_on", "texts", "retried errors, in the client's words"),
            FieldSpec("never", "texts", "errors that are never retried, in the client's words"),
            FieldSpec("retry_after_cap_s", "number", "longest Retry-After that is waited for"),
            FieldSpec(
                "errors",
                "section",
                "exceptions of the client",
                rows=(
                    FieldSpec("http", "text", "for an answer"),
                    FieldSpec("other", "text", "for every other error"),
                ),
            ),
        ),
    ),
    FieldSpec(
        "persistence",
        "section",
        "the database",
        inert=_OF_LIT,
        rows=(
            FieldSpec("retry_on", "text", "retried errors, in the database's words"),
            FieldSpec("busy_timeout_s", "number", "time that the driver itself waits for a lock"),
        ),
    ),
)

#: Every field of a policy file.
FILE_FIELDS: Final = (*ENVELOPE_FIELDS, *POLICY_FIELDS, *SECTION_FIELDS)

__all__ = ["FILE_FIELDS", "MAX_TEXT_LENGTH", "SECTION_FIELDS"]
