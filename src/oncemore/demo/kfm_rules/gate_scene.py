"""The CARE gate in the demo: a dataset is relabelled while a retry waits, and the retry is not made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.demo.kfm_rules.demo_output import STAGE_WIDTH
from oncemore.demo.kfm_rules.stac_pipeline import STAGE, poll_stac_api
from oncemore.demo.kfm_rules.stac_server import COLLECTION, SENSITIVE_COLLECTION, SLOW_DOWN
from oncemore.errors import CallRefused
from oncemore.governance.dataset_model import CARE_ESCALATION, COUNCIL

if TYPE_CHECKING:
    import oncemore
    from oncemore.demo.kfm_rules.scenes import KfmRulesDemo

GATE_DAY = "2026-10-06"
PUBLIC_LABEL, RESTRICTED_LABEL = "Public · Low-Risk", "Restricted · Council only"
STEWARD, RELABEL_REASON = "data steward", "letter of the community"


def register_datasets(engine: oncemore.Engine) -> None:
    """Register the datasets of the demo: a governed policy refuses work on a dataset without labels."""
    for dataset in (COLLECTION, SENSITIVE_COLLECTION):
        engine.datasets.register(
            dataset, care_label=PUBLIC_LABEL, sensitivity="General", licence="CC-BY-4.0",
            reason="first delivery", by=STEWARD,
        )  # fmt: skip


def play_gate(demo: KfmRulesDemo) -> None:
    """Relabel a dataset during a delay; the next attempt is not made, and the Council has an escalation."""
    demo.server.queue_faults(SLOW_DOWN)
    run, sent = demo.poll_live(GATE_DAY, SENSITIVE_COLLECTION, during_wait=lambda: restrict_dataset(demo))
    next_attempt = f"attempt {run.state.attempt + 1}/{run.state.max_attempts}"
    for item in demo.engine.quarantine:
        if item.dataset == SENSITIVE_COLLECTION:
            text = f"{next_attempt}  not made: {item.error['message']}"
            demo.output.write_row(text, "red", f"{STAGE:<{STAGE_WIDTH}}")
    demo.output.expect("held for", run.held_for, "governance_violation")
    demo.output.expect("attempts before the gate", run.state.attempt_count, 1)
    check_escalation(demo)
    sent += call_again(demo)
    demo.output.count("CARE gate: the relabelled dataset", sent, 1)


def restrict_dataset(demo: KfmRulesDemo) -> None:
    """Give the dataset a stricter label, as a steward would do at any time."""
    demo.engine.datasets.label(
        SENSITIVE_COLLECTION, care_label=RESTRICTED_LABEL, reason=RELABEL_REASON, by=STEWARD
    )
    demo.output.write_row(
        f'now "{RESTRICTED_LABEL}", by {STEWARD}: {RELABEL_REASON}', "yellow",
        f"dataset {SENSITIVE_COLLECTION}  ",
    )  # fmt: skip


def check_escalation(demo: KfmRulesDemo) -> None:
    """Print the open escalation; there must be one, and it must be for the Council."""
    escalations = [one for one in demo.engine.escalations if one.dataset == SENSITIVE_COLLECTION]
    for one in escalations:
        demo.output.write_row(
            f"{one.state} for the {one.role}: attempts {one.attempts}, {', '.join(one.error_classes)}, "
            f'care "{one.care_label}"', "red", f"{one.kind}  ",
        )  # fmt: skip
    seen = [(one.kind, one.role, one.state) for one in escalations]
    demo.output.expect("escalations", seen, [(CARE_ESCALATION, COUNCIL, "OPEN")])


def call_again(demo: KfmRulesDemo) -> int:
    """Call the refused work again; return the number of requests that the server got."""
    before, refused = len(demo.server.requests), False
    try:
        poll_stac_api(demo.server.url, GATE_DAY, SENSITIVE_COLLECTION)
    except CallRefused:
        refused = True
    sent = len(demo.server.requests) - before
    demo.output.write_row(
        f"called again: refused ({sent} requests sent)", "yellow", f"{STAGE:<{STAGE_WIDTH}}"
    )
    demo.output.expect("refused by the gate", refused, True)
    return sent
