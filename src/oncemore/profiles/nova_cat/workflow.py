"""The workflows of `nova-cat` as one state machine in Amazon States Language.

    CreateCorrelationId -> ChooseWorkflow -> AcquireAndValidateSpectra  one product: cooldown, fetch, validate
                                          -> DiscoverSpectraProducts    a Map over providers, one at a time
                                          -> ReferenceReconciliation    a Map over references, five at a time

Numbers are the profile's, words those of `nova_cat_names`. Tasks are Lambda functions, by placeholders that
whoever deploys fills in (`${AcquireArtifact}`); what each does is in `FUNCTIONS`. States pass their whole
input on, so that every one of them has the correlation id. An execution succeeds when it is done or skipped;
else it fails under the name of its class, after the attempt was recorded.
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
    from oncemore.stepfunctions.export import Block, Translation

#: The functions that the tasks call, and what each of them does with its input, the state of the execution.
FUNCTIONS: Final = {
    "ReadProduct": "refuses malformed input with TerminalError and records nothing of it; else returns the "
    "record of data_product_id, and `now` by the store's clock, in POSIX seconds",
    "AcquireArtifact": "fetches the bytes behind the locator, once per key",
    "ValidateSpectra": "checks integrity, format and domain sanity of what was fetched",
    "RecordAttempt": "writes down how the execution ended: outcome, and what went wrong",
    "SearchProvider": "lists what one provider has of a nova",
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
#: Where the record of a product is in the state of an execution.
PRODUCT: Final = "$.product.Payload"


def workflow(
    profile: str = names.PROFILE, *, only: str | None = None, functions: Mapping[str, str] | None = None
) -> Block:
    """Return the state machine of a profile; `only` gives one workflow alone.

    functions  the names or ARNs of functions, by the names in `FUNCTIONS`
    """
    if only is not None and only not in names.WORKFLOWS:
        raise UsageError(f"workflow is {only!r}; it takes {', '.join(names.WORKFLOWS)}")
    return _Machine(files.profile(profile), functions or {}).made(only)


class _Machine:
    """A definition under way: the profile's numbers, in the language."""

    def __init__(self, profile: Profile, functions: Mapping[str, str]) -> None:
        for name in functions:
            if name not in FUNCTIONS:
                raise UsageError(f"{name!r} is no function here; they are {', '.join(FUNCTIONS)}")
        self._profile = profile
        self._functions = functions
        self._usual = export.translated(profile.policy())
        self._slow = export.translated(profile.policy("acquisition"))
        self._limits = profile.sections["concurrency"]

    def made(self, only: str | None) -> Block:
        """Return the whole definition."""
        starts = {
            names.ACQUIRE: (READ, self._acquisition),
            names.DISCOVER: (names.DISCOVER, self._discovery),
            names.RECONCILE: (names.RECONCILE, self._reconciliation),
        }
        chosen = starts if only is None else {only: starts[only]}
        onward = CHOOSE if only is None else starts[only][0]
        states = _correlated(onward)
        if only is None:
            states |= _choosing({name: start for name, (start, _) in starts.items()})
        for _, make in chosen.values():
            states |= make()
        if only != names.ACQUIRE:
            states |= _summing_up()
        states |= _endings()
        profile = self._profile
        comment = f"{profile.name} {profile.version}, written by oncemore; {export.DEAF}"
        return {"Comment": comment, "StartAt": FIRST, "States": states}

    def _task(self, name: str, made: Translation, path: str, then: Block) -> Block:
        """Return a task under a policy, its result put where it says, its failures into their branches."""
        block = {**self._call(name), **export.limit_of(made), **export.retry_of(made), "ResultPath": path}
        return {**block, **then}

    def _call(self, name: str, payload: Any = "$") -> Block:
        made = export.invoke(self._functions.get(name, "${" + name + "}"))
        del made["OutputPath"]
        if payload != "$":
            made["Parameters"] = {"FunctionName": made["Parameters"]["FunctionName"], "Payload": payload}
        return made

    # One product ------------------------------------------------------------------------------------

    def _acquisition(self) -> Block:
        reading = export.catches(self._usual.errors, RETRY_LATER, REVIEW, TERMINAL)
        states: Block = {
            READ: self._task(READ, self._usual, "$.product", {"Catch": reading, "Next": CHECK}),
            CHECK: {"Type": "Choice", "Choices": _cooldown(), "Default": ACQUIRE},
            ACQUIRE: self._task(
                ACQUIRE, self._slow, "$.artifact", {"Catch": _recorded(self._slow), "Next": VALIDATE}
            ),
            VALIDATE: self._task(
                VALIDATE,
                self._usual,
                "$.validation",
                {"Catch": _recorded(self._usual), "Next": "RecordSuccess"},
            ),
            "RecordSuccess": self._recording(names.SUCCESS, DONE),
            DONE: _ended(names.SUCCESS, {"record.$": "$.record.Payload"}),
        }
        for outcome, name in SKIPS.items():
            states[name] = _ended(outcome, {})
        for outcome, name in RECORD.items():
            states[name] = self._recording(outcome, ENDS[outcome])
        return states

    def _recording(self, outcome: str, then: str) -> Block:
        """Return the task that writes down how an execution ended; it is tried again like any other."""
        made = self._usual
        call = self._call("RecordAttempt", {"outcome": outcome, "execution.$": "$"})
        return {
            **call,
            **export.limit_of(made),
            **export.retry_of(made),
            "ResultPath": "$.record",
            "Next": then,
        }

    # Many of something ------------------------------------------------------------------------------

    def _discovery(self) -> Block:
        return self._map(names.DISCOVER, "SearchProvider", "$.providers", "Provider")

    def _reconciliation(self) -> Block:
        return self._map(names.RECONCILE, "ResolveReference", "$.references", "Reference")

    def _map(self, name: str, task: str, items: str, word: str) -> Block:
        """Return a Map; an item that fails says so, and the others go on."""
        ends = {outcome: f"{word}{end}" for outcome, end in ENDS.items()}
        again, review, over = ends.values()
        caught = {"Catch": export.catches(self._usual.errors, again, review, over), "Next": f"{word}Done"}
        states = {
            task: self._task(task, self._usual, "$.result", caught),
            f"{word}Done": _item(names.SUCCESS, {"result.$": "$.result.Payload"}),
            **{end: _item(outcome, {"error.$": "$.error"}) for outcome, end in ends.items()},
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
                "Catch": [{"ErrorEquals": ["States.ALL"], "ResultPath": "$.error", "Next": TERMINAL}],
                "ResultPath": "$.items",
                "Next": SUMMARY,
            }
        }


# States that need no numbers ------------------------------------------------------------------------


def _correlated(then: str) -> Block:
    """Return the first states: a missing id is made, one that is given stays (CORR-1, CORR-2)."""
    both = {"new": {"correlation_id.$": "States.UUID()"}, "given.$": "$"}
    merged = {"input.$": "States.JsonMerge($.new, $.given, false)"}
    return {
        FIRST: {"Type": "Pass", "Parameters": both, "Next": KEEP},
        KEEP: {"Type": "Pass", "Parameters": merged, "OutputPath": "$.input", "Next": then},
    }


def _choosing(starts: Mapping[str, str]) -> Block:
    """Return the choice between the workflows; without a word it is an acquisition."""
    asked: list[Block] = [
        {"Not": {"Variable": "$.workflow", "IsPresent": True}, "Next": starts[names.ACQUIRE]},
        *({"Variable": "$.workflow", "StringEquals": name, "Next": start} for name, start in starts.items()),
    ]
    return {
        CHOOSE: {"Type": "Choice", "Choices": asked, "Default": UNKNOWN},
        UNKNOWN: export.fail(export.TERMINAL_ERROR, f"workflow is one of {', '.join(names.WORKFLOWS)}"),
    }


def _cooldown() -> list[Block]:
    """Return the checks before anybody is asked, in their order (COOL-3 … COOL-5, COOL-10)."""
    eligible, now = f"{PRODUCT}.next_eligible_attempt_at", f"{PRODUCT}.now"
    return [
        _when(SKIPS[names.SKIPPED_DUPLICATE], _is("validation_status", "VALID")),
        _when(SKIPS[names.SKIPPED_QUARANTINED], _is("last_attempt_outcome", names.QUARANTINED), _held()),
        _when(SKIPS[names.SKIPPED_TERMINAL], _is("last_attempt_outcome", names.TERMINAL_FAILURE), _held()),
        _when(
            SKIPS[names.SKIPPED_BACKOFF],
            [
                {"Variable": eligible, "IsPresent": True},
                {"Variable": eligible, "IsNumeric": True},
                {"Variable": now, "NumericLessThanPath": eligible},
            ],
        ),
    ]


def _when(then: str, *tests: list[Block]) -> Block:
    return {"And": [one for some in tests for one in some], "Next": then}


def _is(field: str, value: str) -> list[Block]:
    at = f"{PRODUCT}.{field}"
    return [{"Variable": at, "IsPresent": True}, {"Variable": at, "StringEquals": value}]


def _held() -> list[Block]:
    """Return the test that nobody has released a product."""
    at = f"{PRODUCT}.released_at"
    let_go = {"And": [{"Variable": at, "IsPresent": True}, {"Variable": at, "NumericGreaterThan": 0}]}
    return [{"Not": let_go}]


def _recorded(made: Translation) -> list[Block]:
    again, review, over = (RECORD[outcome] for outcome in ENDS)
    return export.catches(made.errors, again, review, over)


def _ended(outcome: str, more: Block) -> Block:
    """Return a successful end with its outcome."""
    told = {
        "outcome": outcome,
        "correlation_id.$": "$.correlation_id",
        "data_product_id.$": "$.data_product_id",
    }
    return {"Type": "Pass", "Parameters": {**told, **more}, "End": True}


def _item(outcome: str, more: Block) -> Block:
    told = {"outcome": outcome, "correlation_id.$": "$.correlation_id", "item.$": "$.item"}
    return {"Type": "Pass", "Parameters": {**told, **more}, "End": True}


def _summing_up() -> Block:
    """Return what ends a Map: the worst of its items is how the execution went."""
    found: Block = {
        f"{outcome}.$": f"States.ArrayContains($.items[*].outcome, '{outcome}')" for outcome in ENDS
    }
    worst = (names.QUARANTINED, names.TERMINAL_FAILURE, names.RETRYABLE_FAILURE)
    return {
        SUMMARY: {"Type": "Pass", "Parameters": found, "ResultPath": "$.found", "Next": WORST},
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


def _endings() -> Block:
    return {
        RETRY_LATER: export.fail(
            export.RETRYABLE_ERROR, "all tries are used; the cooldown says when to come back"
        ),
        TERMINAL: export.fail(export.TERMINAL_ERROR, "it failed in a way that does not pass"),
        REVIEW: export.fail(export.QUARANTINE_ERROR, "a person has to look at it first"),
    }
