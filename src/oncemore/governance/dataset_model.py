"""Datasets and escalations as values, and the rules of the gate; no I/O.

A dataset is registered with labels, rights and permitted operations (`governance.datasets`). The gate
compares them with an attempt before it begins. The first rule that applies decides:

    the dataset is not registered       refused under a governed policy, permitted under any other
    its status is blocked or withdrawn  GOVERNANCE_BLOCKED
    its rights are not granted          RIGHTS_VIOLATION
    its status is restricted, or it has a list of operations, and the operation is not in the list
                                        GOVERNANCE_VIOLATION
    the attempt masks less than the dataset requires, or less than an earlier attempt of the key did
                                        GOVERNANCE_VIOLATION

A care label that begins with the word of a status ("Restricted · Tribal council only") counts as that status,
if it is stricter than the status itself.
"""

from __future__ import annotations

from functools import lru_cache

from oncemore._values import Value
from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

#: The states of a dataset, from the least to the most strict.
OPEN, RESTRICTED, BLOCKED, WITHDRAWN = "OPEN", "RESTRICTED", "BLOCKED", "WITHDRAWN"
STATUSES: Final = (OPEN, RESTRICTED, BLOCKED, WITHDRAWN)
#: What is known about the rights to use a dataset. Only granted rights pass the gate.
RIGHTS_GRANTED, RIGHTS_UNCLEAR, RIGHTS_DENIED = "granted", "unclear", "denied"
RIGHTS: Final = (RIGHTS_GRANTED, RIGHTS_UNCLEAR, RIGHTS_DENIED)
LEVELS: Final = ("Low", "Moderate", "High")
MAX_MASKING_LEVEL = 100
#: Codes of the gate; all are violations that no policy retries (CLASS-2).
GOVERNANCE_BLOCKED, RIGHTS_VIOLATION, GOVERNANCE_VIOLATION = (
    "GOVERNANCE_BLOCKED",
    "RIGHTS_VIOLATION",
    "GOVERNANCE_VIOLATION",
)
#: The reasons of a run that the gate holds, by code.
GATE_HOLDS: Final = {
    code: code.lower() for code in (GOVERNANCE_BLOCKED, RIGHTS_VIOLATION, GOVERNANCE_VIOLATION)
}
#: The role that decides about conflicts with governance (GOV-5), and the one that decides about the rest.
COUNCIL, OPERATORS = "FAIR+CARE Council", "operators"
CARE_ESCALATION, TICKET = "CARE_ESCALATION", "TICKET"
ACKNOWLEDGED = "ACKNOWLEDGED"
_SENSITIVE = "sensitive"


#: The text in the place of a dataset or a label that a run does not have (GOV-6).
NO_DATASET, NO_LABEL = "none: the step names no dataset", "none: the dataset is not registered"


class DatasetRecord(Value):
    """A registered dataset (GOV-16).

    state                   OPEN, RESTRICTED (only the listed operations), BLOCKED or WITHDRAWN
    care_label              label of the FAIR+CARE review, for example "Public · Low-Risk"
    sensitivity             for example General or Sensitive
    sensitivity_level       Low, Moderate or High
    public_exposure_risk    Low, Moderate or High
    indigenous_rights_flag  whether rights of an indigenous community are concerned
    redaction_required      whether every attempt must mask the data, at level 1 or more
    rights                  granted, unclear or denied
    operations              the permitted operations; empty: all of an open dataset, none of a restricted one
    masking_level           the lowest level at which an attempt may mask the data; it never falls
    by, reason, changed_at  who changed the dataset last, why and when
    """

    state: str = OPEN
    dataset_id: str = ""
    care_label: str = ""
    sensitivity: str = ""
    sensitivity_level: str = ""
    public_exposure_risk: str = ""
    classification: str = ""
    jurisdiction: str = ""
    indigenous_rights_flag: bool = False
    redaction_required: bool = False
    fair_category: str = ""
    risk_category: str = ""
    data_steward: str = ""
    governance_ref: str = ""
    ethics_ref: str = ""
    sovereignty_policy: str = ""
    licence: str = ""
    rights: str = RIGHTS_GRANTED
    operations: list[str] = []  # noqa: RUF012 - never changed in place
    masking_level: int = 0
    by: str = ""
    reason: str = ""
    changed_at: float = 0.0


class EscalationRecord(Value):
    """A piece of work for a person: a ticket, or an escalation to the FAIR+CARE Council (GOV-5, GOV-9).

    state            OPEN, or ACKNOWLEDGED after a named person has recorded a decision
    kind             CARE_ESCALATION or TICKET
    role             the role that it is addressed to
    policy           the policy of the escalation (GOV-10)
    error_classes    codes of the errors of the run, in order, each once
    requires_review  whether the run may not be run again before a decision (GOV-11)
    by, reason, acknowledged_at  the decision
    """

    state: str = OPEN
    kind: str = TICKET
    role: str = OPERATORS
    policy: str = ""
    run_entity: str = ""
    run_version: int = 0
    run_id: str = ""
    step: str = ""
    tenant: str = ""
    correlation_id: str = ""
    cause: str = ""
    attempts: int = 0
    error_classes: list[str] = []  # noqa: RUF012 - never changed in place
    dataset: str = ""
    care_label: str = ""
    requires_review: bool = False
    opened_at: float = 0.0
    by: str = ""
    reason: str = ""
    acknowledged_at: float = 0.0


class GateRequest(Value):
    """An attempt as the gate sees it.

    operation      the operation that the step declares; the name of the step unless given
    masking        the level at which the attempt masks the data
    masked_before  the highest level of the earlier attempts of its key
    governed       whether its policy is governed
    """

    operation: str
    masking: int
    masked_before: int
    governed: bool


class GateObjection(Value):
    """Why the gate refuses an attempt: the code of the violation, a text, and the dataset."""

    code: str
    text: str
    dataset: str
    care_label: str


def dataset_entity(dataset: str) -> str:
    """Return the entity of a dataset."""
    return f"dataset/{dataset}"


def escalation_entity(run_id: str, version: int) -> str:
    """Return the entity of the escalation that the entry of a run with this version opens."""
    return f"escalation/{run_id}-{version}"


def is_sensitive(dataset: DatasetRecord | None) -> bool:
    """Return whether failures of a dataset's runs need a person's review (GOV-11)."""
    if dataset is None:
        return False
    labels = (dataset.sensitivity, dataset.classification, dataset.care_label)
    return dataset.indigenous_rights_flag or any(_first_word(label) == _SENSITIVE for label in labels)


def effective_status(dataset: DatasetRecord) -> str:
    """Return the stricter one of a dataset's status and the status that its care label begins with."""
    word = _first_word(dataset.care_label).upper()
    return max(dataset.state, word, key=STATUSES.index) if word in STATUSES else dataset.state


def check_masking(level: Any) -> int:
    """Return a masking level; refuse anything but a whole number from 0 to 100."""
    # bool is a subclass of int, and True would pass as level 1.
    if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level <= MAX_MASKING_LEVEL:
        raise UsageError(f"masking is {level!r:.80}; it takes a whole number from 0 to {MAX_MASKING_LEVEL}")
    return level


def required_masking(dataset: DatasetRecord) -> int:
    """Return the lowest level at which an attempt may mask the data."""
    return max(dataset.masking_level, 1 if dataset.redaction_required else 0)


def find_gate_objection(
    dataset: str, record: DatasetRecord | None, request: GateRequest
) -> GateObjection | None:
    """Return why the gate refuses an attempt on a dataset; None if it permits the attempt.

    dataset  the id of the dataset; empty for an attempt that masks data of no dataset
    """
    code, text = _judge_dataset(dataset, record, request) if dataset else ("", "")
    if not code and request.masking < request.masked_before:
        code = GOVERNANCE_VIOLATION
        text = (
            f"the attempt masks at level {request.masking}, and an earlier attempt masked at level "
            f"{request.masked_before}; a level may stay or rise, and not fall"
        )
    if not code:
        return None
    return GateObjection(code, text, dataset, "" if record is None else record.care_label)


def find_block(record: DatasetRecord) -> tuple[str, str]:
    """Return code and text if a dataset permits no attempt at all; empty if it permits some."""
    status = effective_status(record)
    if status in (BLOCKED, WITHDRAWN):
        return (
            GOVERNANCE_BLOCKED,
            f"dataset {record.dataset_id} is {status.lower()}{_describe_change(record)}",
        )
    if record.rights != RIGHTS_GRANTED:
        text = f"the rights to use dataset {record.dataset_id} are {record.rights}{_describe_change(record)}"
        return RIGHTS_VIOLATION, text
    return "", ""


def _judge_dataset(dataset: str, record: DatasetRecord | None, request: GateRequest) -> tuple[str, str]:
    """Return code and text of a dataset's objection; empty if it has none."""
    if record is None:
        if not request.governed:
            return "", ""
        return GOVERNANCE_VIOLATION, (
            f"dataset {dataset} is not registered, and the policy of the step is governed; register it "
            "(oncemore control dataset register)"
        )
    code, text = find_block(record)
    if code:
        return code, text
    status = effective_status(record)
    # A restricted dataset without a list permits nothing; an open one without a list permits everything.
    is_limited = status == RESTRICTED or record.operations
    if is_limited and request.operation not in record.operations:
        permitted = f"only {', '.join(record.operations)}, and not {request.operation or 'other operations'}"
        return GOVERNANCE_VIOLATION, (
            f"dataset {dataset} is {status.lower()} and permits "
            f"{permitted if record.operations else 'no operation'}{_describe_change(record)}"
        )
    if request.masking < required_masking(record):
        return GOVERNANCE_VIOLATION, (
            f"dataset {dataset} must be masked at level {required_masking(record)} or more, and the attempt "
            f"masks at level {request.masking}"
        )
    return "", ""


def _describe_change(record: DatasetRecord) -> str:
    return f" ({record.by}: {record.reason})" if record.by else ""


@lru_cache(maxsize=1000)
def _first_word(label: str) -> str:
    """Return the first word of a label in lower case, without punctuation."""
    words = label.replace("·", " ").replace("/", " ").replace(",", " ").replace(":", " ").split()
    return words[0].strip("-.;()").lower() if words else ""


def describe_dataset(record: DatasetRecord) -> dict[str, Any]:
    """Return the metadata of a dataset as it is set: without the fields of the last change."""
    fields = record._asdict()
    for name in ("by", "reason", "changed_at"):
        del fields[name]
    return fields
