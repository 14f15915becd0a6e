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
    count_field,
    flag_field,
    list_field,
    map_field,
    number_field,
    section_field,
    text_field,
)
from oncemore.policy.model import STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

#: Reasons why fields have no effect in a user's own file.
_OF_NOVA_CAT: Final = "it describes the facade of nova-cat, which reads it only from the packaged profile"
_OF_LIT: Final = "it describes the facade of lit, which reads it only from the packaged profile"
_OF_EXOARMUR: Final = "it describes the facade of exoarmur, which reads it only from the packaged profile"

#: The thresholds of one signal of the autonomy matrix.
_THRESHOLD_ROWS: Final = (
    number_field("slow", "slow down at or above", high=1e9),
    number_field("pause", "pause at or above", high=1e9),
    number_field("resume", "go on as before at or below; default: below slow", high=1e9),
)
#: The fields of a retry record (TELEM-1).
TELEMETRY_FIELDS: Final = (
    *("pipeline_id", "stage_name", "attempt", "delay_ms", "error_class"),
    *("retryable", "outcome", "circuit_open", "energy_wh", "co2_g"),
)
#: A path of a ledger file: no part of it begins with a dot, so that it stays below its root.
LEDGER_PATTERN: Final = r"([A-Za-z0-9_-][A-Za-z0-9._-]*/){0,8}(versioning_ledger|pipeline_retry_log)\.json"

SECTION_FIELDS: Final = (
    # Statements of the KFM documents, and the end of a run.
    list_field("states", "the states of a run; always these", choices=STATES, whole=True),
    list_field(
        "classes",
        "the verdicts on a failure; always these; only RETRYABLE is retried",
        choices=("RETRYABLE", "TERMINAL", "QUARANTINE"),
        whole=True,
    ),
    list_field(
        "on_non_retryable",
        "actions after an error that is not retried; default: halt. `ledger` states what is always done",
        choices=("halt", "quarantine", "ledger"),
    ),
    text_field(
        "halt_scope",
        "scope of halt: the steps of the pipeline (`step(pipeline=…)`), or the run",
        choices=("pipeline", "run"),
    ),
    text_field(
        "after_failure",
        "effect of a new top-level call after a failure: raise the stored failure (default of a governed "
        "file), or start a new run (default)",
        choices=("raise", "new_run"),
    ),
    # Limits: breaker, rate limit, retry budget and cooldown.
    section_field(
        "circuit_breaker",
        "when calls to a provider are refused",
        (
            count_field("max_failures", "consecutive failures that open the breaker"),
            number_field("cooldown_sec", "time that the breaker stays open", ("cooldown_s",), above=True),
            # Exactly one probe: the shared breaker record has room for one holder.
            count_field(
                "half_open_probes",
                "probe calls in the half-open state: one for all that share the breaker",
                high=1,
            ),
            text_field(
                "count", "unit of counting: operations, each once, or all failed attempts", choices=COUNTS
            ),
            number_field(
                "failure_rate",
                "instead of max_failures: the share of failed calls that opens the breaker",
                above=True,
                high=1.0,
            ),
            number_field("window_sec", "time window of failure_rate", ("window_s",), above=True),
            count_field("min_calls", "smallest number of calls in the window for failure_rate"),
        ),
    ),
    section_field(
        "rate_limit",
        "calls per period, for each provider or for the step",
        (
            count_field("calls", "number of calls"),
            number_field("period_s", "length of the period; default: 1 second", ("period_sec",), above=True),
            count_field("burst", "calls at once after an idle time; default: 1"),
        ),
    ),
    section_field(
        "retry_budget",
        "tokens shared by all retries",
        (
            number_field("capacity", "number of tokens at the start, and the maximum", above=True, high=1e6),
            number_field("per_success", "tokens added by a success", high=1e6),
            text_field("at_empty", "action of a retry without a token", choices=("fail", "wait", "park")),
            flag_field("shared", "whether all processes on one store share the budget"),
            text_field("name", "name of the shared budget; default: the policy's name", pattern=NAME_PATTERN),
        ),
    ),
    section_field(
        "cooldown",
        "pause after a provider's failures: growing, capped, without jitter",
        (
            *COOLDOWN_FIELDS,
            map_field(
                "provider_overrides",
                "changes for single providers, as in providers.*.cooldown",
                COOLDOWN_FIELDS,
            ),
        ),
    ),
    # Engine and steps.
    section_field(
        "lease",
        "the lease of a process on its runs; an engine with `lease_s` uses its own",
        (
            number_field(
                "ttl_s",
                "lease time after the last heartbeat; default: 60 s",
                low=SHORTEST_LEASE_S,
                high=LONGEST_LEASE_S,
            ),
            number_field(
                "renew_every_s",
                "interval of the heartbeat; default: a third of ttl_s",
                above=True,
                high=LONGEST_LEASE_S,
            ),
        ),
    ),
    section_field(
        "escalation",
        "the policies named in escalation records",
        (
            text_field(
                "permanent", "after a permanent failure; default: autonomy-matrix", pattern=NAME_PATTERN
            ),
            text_field(
                "exhausted", "when attempts or time run out; default: deadline-aware", pattern=NAME_PATTERN
            ),
        ),
    ),
    section_field(
        "idempotency",
        "rules for the key of a call",
        (
            list_field(
                "key_from",
                "parts of a node's key; always these",
                choices=("node_id", "inputs", "target_partition"),
                whole=True,
            ),
            text_field(
                "on_config_change",
                "action for a finished run with another version or config; "
                "`on_version_change=` of a step overrides it",
                ("on_version_change",),
                choices=("fail", "new", "reuse"),
            ),
            text_field(
                "in_event_payloads", "whether events contain the key; always never", choices=("never",)
            ),
            text_field(
                "poll_bucket",
                "time span within which polls count as the same work",
                pattern=r"[1-9][0-9]{0,3}(?:s|min|h|d)",
                profile="nova-cat",
            ),
            list_field(
                "step_keys", "steps with a key of their own", pattern=NAME_PATTERN, inert=_OF_NOVA_CAT
            ),
            text_field("hash", "the hash of a key", choices=("sha256",)),
            text_field("canonical", "the hashed form", choices=("json",)),
            FieldSpec(
                "legacy_string_form",
                "no",
                "keys of the printed form are computed only if a call asks for them",
            ),
            text_field(
                "store",
                "store of the results",
                choices=("sqlite", "jetstream-kv", "memory"),
                inert=_OF_EXOARMUR,
            ),
        ),
    ),
    text_field(
        "effects",
        "the retried effects: all as declared, or all but `once`, even if it has `not_applied`",
        choices=("require_idempotent_or_outbox", "declared"),
    ),
    list_field(
        "telemetry_fields", "the fields of a retry record; always these", choices=TELEMETRY_FIELDS, whole=True
    ),
    list_field(
        "ledgers",
        "the files that `oncemore ledger reports --policy` writes: paths below its root, or plain names for "
        "docs/reports/audit",
        pattern=LEDGER_PATTERN,
    ),
    # A field of a part that this version does not have.
    section_field(
        "carbon_budget",
        "carbon budget per period",
        (
            text_field("period", "the period", choices=("day", "week", "month", "year")),
            number_field("cap_kgCO2e", "the budget, which must be given", above=True, high=1e9),
            number_field("slow_at", "share of the cap from which work is slowed; default: 0.9", high=1.0),
        ),
    ),
    section_field(
        "autonomy",
        "when the autonomy matrix slows or pauses this policy's work; P0 always runs, P1 is never paused",
        (
            section_field("carbon_intensity_g_per_kWh", "by grid intensity", _THRESHOLD_ROWS),
            section_field("energy_price_usd_per_kWh", "by energy price", _THRESHOLD_ROWS),
            section_field(
                "off_hours",
                "hours (UTC) in which work is slowed",
                (
                    number_field("from_hour", "first hour", high=23.0),
                    number_field("to_hour", "hour at which they end", high=23.0),
                ),
            ),
            number_field("escalate_below", "error budget at or below which runs wait for a person", high=1.0),
            text_field(
                "on_permanent",
                "effect of a permanent failure on the other runs of the policy; default: none",
                choices=("none", "pause"),
            ),
            number_field("min_dwell_s", "shortest time between two changes by a signal; default: 900"),
            number_field("recheck_s", "length of a pause whose end is not known; default: 300", above=True),
            number_field(
                "slow_factor", "factor of retry delays while slowed; default: 2", low=1.0, high=100.0
            ),
            count_field("slow_concurrency", "attempts at once while slowed; default: 1", high=1000),
        ),
    ),
    # Fields of nova-cat.
    section_field(
        "concurrency",
        "concurrency limits by workflow",
        (
            count_field("DiscoverSpectraProducts", "providers queried at once", high=1000),
            count_field("ReferenceReconciliation", "references reconciled at once", high=1000),
            text_field(
                "AcquireAndValidateSpectra",
                "products acquired at once; always this",
                choices=("one data_product_id",),
            ),
        ),
        profile="nova-cat",
    ),
    list_field(
        "checks", "checks before an attempt, and the end of the run if one applies", inert=_OF_NOVA_CAT
    ),
    text_field("correlation_id", "source of correlation ids; always this", choices=("create_if_absent",)),
    # Statements of exoarmur.
    list_field(
        "audit",
        "the written audit events; always these",
        choices=("retry_attempt", "retry_exhausted", "idempotency", "retry_succeeded", "retry_refused"),
        whole=True,
    ),
    text_field(
        "control_state_unknown", "behaviour if the kill switch cannot be read; always this", choices=("deny",)
    ),
    # Fields of lit.
    list_field(
        "actions_never_auto_retried", "actions that are sent once", pattern=NAME_PATTERN, inert=_OF_LIT
    ),
    section_field(
        "transport",
        "the HTTP client",
        (
            list_field("retry_on", "retried errors, in the client's words"),
            list_field("never", "errors that are never retried, in the client's words"),
            number_field("retry_after_cap_s", "longest Retry-After that is waited for"),
            section_field(
                "errors",
                "exceptions of the client",
                (text_field("http", "for an answer"), text_field("other", "for every other error")),
            ),
        ),
        inert=_OF_LIT,
    ),
    section_field(
        "persistence",
        "the database",
        (
            text_field("retry_on", "retried errors, in the database's words"),
            number_field("busy_timeout_s", "time that the driver itself waits for a lock"),
        ),
        inert=_OF_LIT,
    ),
)

#: Every field of a policy file.
FILE_FIELDS: Final = (*ENVELOPE_FIELDS, *POLICY_FIELDS, *SECTION_FIELDS)

__all__ = ["FILE_FIELDS", "MAX_TEXT_LENGTH", "SECTION_FIELDS"]
