"""The workflows of `nova-cat` as one state machine in Amazon States Language.

    CreateCorrelationId -> ChooseWorkflow -> AcquireAndValidateSpectra  one product: cooldown, fetch, validate
                                          -> DiscoverSpectraProducts    a Map over providers, one at a time
                                          -> ReferenceReconciliation    a Map over references, five at a time

The numbers are the profile's, the names those of `nova_cat.names`. Tasks are Lambda functions, written as
placeholders (`${AcquireArtifact}`) that the operator fills in at deployment; `FUNCTIONS` describes each.
States pass on their whole input, so every state has the correlation id. An execution succeeds when its work
is done or skipped; otherwise it fails with the name of its error class, after the attempt was recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oncemore.errors import UsageError
from oncemore.policy import files
from oncemore.profiles.nova_cat import names
from oncemore.stepfunctions import export

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncemore.policy.files import Profile
    from oncemore.stepfunctions.export import Block, PolicyTranslation

#: The functions that the tasks call, and their effect on the input, the state of the execution.
FUNCTIONS: Final = {
    "ReadProduct": "refuses malformed input with TerminalError and records nothing of it; else returns the "
    "record of data_product_id, and `now` by the store's clock, in POSIX seconds",
    "AcquireArtifact": "fetches the bytes behind the locator, once per key",
    "ValidateSpectra": "checks integrity, format and domain sanity of the fetched bytes",
    "RecordAttempt": "records the end of the execution: its outcome and its error",
    "SearchProvider": "lists the products of a nova at one provider",
    "ResolveReference": "finds and links one reference",
}

FIRST, KEEP = "CreateCorrelationId", "KeepGivenCorrelationId"
CHOOSE, UNKNOWN = "ChooseWorkflow", "UnknownWorkflow"
READ, CHECK, ACQUIRE, VALIDATE = "ReadProduct", "CheckCooldown", "AcquireArtifact", "ValidateSpectra"
DONE, SUMMARY, WORST, ALL_DONE = "Done", "Summarise", "HowItWent", "AllDone"
RETRY_LATER, TERMINAL, REVIEW = "RetryableFailure", "TerminalFailure", "Quarantined"
RECORD: Final = {
    names.RETRYABLE_FAILURE: "RecordRetryableFailure",
    names.QUARANTINED: "RecordQuarantine",
    names.TERMINAL_FAILURE: "RecordTerminalFailure",
}
SKIPS: Final = {
    names.SKIPPED_DUPLICATE: "SkippedDuplicate",
    names.SKIPPED_QUARANTINED: "SkippedQuarantined",
    names.SKIPPED_TERMINAL: "SkippedTerminal",
    names.SKIPPED_BACKOFF: "SkippedBackoff",
}
ENDS: Final = {
    names.RETRYABLE_FAILURE: RETRY_LATER,
    names.QUARANTINED: REVIEW,
    names.TERMINAL_FAILURE: TERMINAL,
}
#: The path of a product's record in the state of an execution.
PRODUCT: Final = "$.product.Payload"


def build_workflow(
    profile: str = names.PROFILE, *, only: str | None = None, functions: Mapping[str, str] | None = None
) -> Block:
    """Return the state machine of a profile, or of one of its workflows.

    only       the name of a workflow, to get that one alone
    functions  the names or ARNs of functions, by the names in `FUNCTIONS`
    """
    if only is not None and only not in names.WORKFLOWS:
        raise UsageError(f"workflow is {only!r}; it takes {', '.join(names.WORKFLOWS)}")
    return _StateMachine(files.profile(profile), functions or {}).build_definition(only)


class _StateMachine:
    """Builds the definition of one profile from its numbers."""

    def __init__(self, profile: Profile, functions: Mapping[str, str]) -> None:
        for name in functions:
            if name not in FUNCTIONS:
                raise UsageError(f"{name!r} is not a function of nova-cat; they are {', '.join(FUNCTIONS)}")
        self._profile = profile
        self._functions = functions
        self._default_policy = export.translate_policy(profile.policy())
        self._acquisition_policy = export.translate_policy(profile.policy("acquisition"))
        self._limits = profile.sections["concurrency"]

    def build_definition(self, only: str | None) -> Block:
        """Return the whole definition."""
        starts = {
            names.ACQUIRE: (READ, self._acquisition_states),
            names.DISCOVER: (names.DISCOVER, self._discovery_states),
            names.RECONCILE: (names.RECONCILE, self._reconciliation_states),
        }
        chosen = starts if only is None else {only: starts[only]}
        first_state = CHOOSE if only is None else starts[only][0]
        states = _correlation_states(first_state)
        if only is None:
            states |= _choice_states({name: start for name, (start, _) in starts.items()})
        for _, make in chosen.values():
            states |= make()
        # An acquisition has no Map, so it needs no summary of items.
        if only != names.ACQUIRE:
            states |= _summary_states()
        states |= _failure_states()
        profile = self._profile
        comment = f"{profile.name} {profile.version}, written by oncemore; {export.RETRY_AFTER_NOTE}"
        return {"Comment": comment, "StartAt": FIRST, "States": states}

    def _build_task(self, name: str, translation: PolicyTranslation, path: str, next_state: Block) -> Block:
        """Return a task under a policy, with the path of its result, its catchers and its next state."""
        block = {
            **self._build_call(name),
            **export.timeout_field(translation),
            **export.retry_field(translation),
            "ResultPath": path,
        }
        return {**block, **next_state}

    def _build_call(self, name: str, payload: Any = "$") -> Block:
        task = export.build_lambda_task(self._functions.get(name, "${" + name + "}"))
        # The state is extended by the result, not replaced by it.
        del task["OutputPath"]
        if payload != "$":
            task["Parameters"] = {
                "FunctionName": task["Parameters"]["FunctionName"],
                "Payload": payload,
            }
        return task

    def _acquisition_states(self) -> Block:
        # A failure before the acquisition is not an attempt: it ends the execution without a record.
        reading = export.build_catchers(self._default_policy.errors, RETRY_LATER, REVIEW, TERMINAL)
        states: Block = {
            READ: self._build_task(
                READ, self._default_policy, "$.product", {"Catch": reading, "Next": CHECK}
            ),
            CHECK: {"Type": "Choice", "Choices": _cooldown_choices(), "Default": ACQUIRE},
            ACQUIRE: self._build_task(
                ACQUIRE,
                self._acquisition_policy,
                "$.artifact",
                {"Catch": _record_catchers(self._acquisition_policy), "Next": VALIDATE},
            ),
            VALIDATE: self._build_task(
                VALIDATE,
                self._default_policy,
                "$.validation",
                {"Catch": _record_catchers(self._default_policy), "Next": "RecordSuccess"},
            ),
            "RecordSuccess": self._record_task(names.SUCCESS, DONE),
            DONE: _end_state(names.SUCCESS, {"record.$": "$.record.Payload"}),
        }
        # Skips are successful ends: the execution did all that there was to do.
        for outcome, name in SKIPS.items():
            states[name] = _end_state(outcome, {})
        for outcome, name in RECORD.items():
            states[name] = self._record_task(outcome, ENDS[outcome])
        return states

    def _record_task(self, outcome: str, next_state: str) -> Block:
        """Return the task that records the end of an execution; it is retried like every task."""
        translation = self._default_policy
        call = self._build_call("RecordAttempt", {"outcome": outcome, "execution.$": "$"})
        return {
            **call,
            **export.timeout_field(translation),
            **export.retry_field(translation),
            "ResultPath": "$.record",
            "Next": next_state,
        }

    def _discovery_states(self) -> Block:
        return self._build_map(names.DISCOVER, "SearchProvider", "$.providers", "Provider")

    def _reconciliation_states(self) -> Block:
        return self._build_map(names.RECONCILE, "ResolveReference", "$.references", "Reference")

    def _build_map(self, name: str, task: str, items: str, word: str) -> Block:
        """Return a Map in which a failed item records its outcome and the remaining items continue."""
        ends = {outcome: f"{word}{end}" for outcome, end in ENDS.items()}
        retryable, review, terminal = ends.values()
        # The catchers lead to ends inside the Map, so that one failed item does not end the others.
        caught = {
            "Catch": export.build_catchers(self._default_policy.errors, retryable, review, terminal),
            "Next": f"{word}Done",
        }
        states = {
            task: self._build_task(task, self._default_policy, "$.result", caught),
            f"{word}Done": _item_end_state(names.SUCCESS, {"result.$": "$.result.Payload"}),
            **{end: _item_end_state(outcome, {"error.$": "$.error"}) for outcome, end in ends.items()},
        }
        selector: Block = {
            "correlation_id.$": "$.correlation_id",
            "item.$": "$$.Map.Item.Value",
            "nova_id.$": "$.nova_id",
        }
        return {
            name: {
                "Type": "Map",
                "ItemsPath": items,
                "MaxConcurrency": int(self._limits[name]),
                "ItemSelector": selector,
                "ItemProcessor": {
                    "ProcessorConfig": {"Mode": "INLINE"},
                    "StartAt": task,
                    "States": states,
                },
                # A Map itself fails only for reasons of the service or the definition.
                "Catch": [{"ErrorEquals": ["States.ALL"], "ResultPath": "$.error", "Next": TERMINAL}],
                "ResultPath": "$.items",
                "Next": SUMMARY,
            }
        }


def _correlation_states(next_state: str) -> Block:
    """Return the first states: create a missing correlation id, keep a given one (CORR-1, CORR-2)."""
    # JsonMerge lets the second object win, so the id of the input replaces the new one.
    both = {"new": {"correlation_id.$": "States.UUID()"}, "given.$": "$"}
    merged = {"input.$": "States.JsonMerge($.new, $.given, false)"}
    return {
        FIRST: {"Type": "Pass", "Parameters": both, "Next": KEEP},
        KEEP: {"Type": "Pass", "Parameters": merged, "OutputPath": "$.input", "Next": next_state},
    }


def _choice_states(starts: Mapping[str, str]) -> Block:
    """Return the choice of the workflow; without `workflow` the input is an acquisition."""
    choices: list[Block] = [
        {"Not": {"Variable": "$.workflow", "IsPresent": True}, "Next": starts[names.ACQUIRE]},
        *({"Variable": "$.workflow", "StringEquals": name, "Next": start} for name, start in starts.items()),
    ]
    return {
        CHOOSE: {"Type": "Choice", "Choices": choices, "Default": UNKNOWN},
        UNKNOWN: export.build_fail_state(
            export.TERMINAL_ERROR, f"workflow is one of {', '.join(names.WORKFLOWS)}"
        ),
    }


def _cooldown_choices() -> list[Block]:
    """Return the checks before the provider is asked, in the order of COOL-3 to COOL-5 and COOL-10."""
    eligible, now = f"{PRODUCT}.next_eligible_attempt_at", f"{PRODUCT}.now"
    return [
        _build_choice(SKIPS[names.SKIPPED_DUPLICATE], _equals_test("validation_status", "VALID")),
        _build_choice(
            SKIPS[names.SKIPPED_QUARANTINED],
            _equals_test("last_attempt_outcome", names.QUARANTINED),
            _not_released_test(),
        ),
        _build_choice(
            SKIPS[names.SKIPPED_TERMINAL],
            _equals_test("last_attempt_outcome", names.TERMINAL_FAILURE),
            _not_released_test(),
        ),
        _build_choice(
            SKIPS[names.SKIPPED_BACKOFF],
            [
                {"Variable": eligible, "IsPresent": True},
                # A field that is present may be null, which a numeric comparison would fail on.
                {"Variable": eligible, "IsNumeric": True},
                {"Variable": now, "NumericLessThanPath": eligible},
            ],
        ),
    ]


def _build_choice(next_state: str, *tests: list[Block]) -> Block:
    return {"And": [test for group in tests for test in group], "Next": next_state}


def _equals_test(field: str, value: str) -> list[Block]:
    path = f"{PRODUCT}.{field}"
    return [{"Variable": path, "IsPresent": True}, {"Variable": path, "StringEquals": value}]


def _not_released_test() -> list[Block]:
    """Return the test that no operator has released the product."""
    path = f"{PRODUCT}.released_at"
    is_released = {
        "And": [{"Variable": path, "IsPresent": True}, {"Variable": path, "NumericGreaterThan": 0}]
    }
    return [{"Not": is_released}]


def _record_catchers(translation: PolicyTranslation) -> list[Block]:
    retryable, review, terminal = (RECORD[outcome] for outcome in ENDS)
    return export.build_catchers(translation.errors, retryable, review, terminal)


def _end_state(outcome: str, fields: Block) -> Block:
    """Return a successful end with its outcome."""
    parameters = {
        "outcome": outcome,
        "correlation_id.$": "$.correlation_id",
        "data_product_id.$": "$.data_product_id",
    }
    return {"Type": "Pass", "Parameters": {**parameters, **fields}, "End": True}


def _item_end_state(outcome: str, fields: Block) -> Block:
    parameters = {"outcome": outcome, "correlation_id.$": "$.correlation_id", "item.$": "$.item"}
    return {"Type": "Pass", "Parameters": {**parameters, **fields}, "End": True}


def _summary_states() -> Block:
    """Return the states after a Map: its worst item decides the outcome of the execution."""
    flags: Block = {
        f"{outcome}.$": f"States.ArrayContains($.items[*].outcome, '{outcome}')" for outcome in ENDS
    }
    # The first match of a Choice wins, so the worst outcome comes first.
    worst = (names.QUARANTINED, names.TERMINAL_FAILURE, names.RETRYABLE_FAILURE)
    return {
        SUMMARY: {"Type": "Pass", "Parameters": flags, "ResultPath": "$.found", "Next": WORST},
        WORST: {
            "Type": "Choice",
            "Choices": [
                {"Variable": f"$.found.{outcome}", "BooleanEquals": True, "Next": ENDS[outcome]}
                for outcome in worst
            ],
            "Default": ALL_DONE,
        },
        ALL_DONE: {
            "Type": "Pass",
            "Parameters": {
                "outcome": names.SUCCESS,
                "correlation_id.$": "$.correlation_id",
                "items.$": "$.items",
            },
            "End": True,
        },
    }


def _failure_states() -> Block:
    return {
        RETRY_LATER: export.build_fail_state(
            export.RETRYABLE_ERROR, "all attempts failed; the cooldown says when to try again"
        ),
        TERMINAL: export.build_fail_state(export.TERMINAL_ERROR, "the failure is permanent"),
        REVIEW: export.build_fail_state(export.QUARANTINE_ERROR, "an operator has to review it first"),
    }
