"""`oncemore check`: check the records of a store against the rules that every run follows."""

from __future__ import annotations

import click

from oncemore.cli.commands import CommandReport, LazyGroup, store_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.cli.output import OutputWriter
    from oncemore.governance.record_checks import RecordReport
    from oncemore.steps.engine import Engine

EXAMPLES = """
oncemore check records
oncemore check records --store postgresql://db/oncemore --json
"""


@click.group(
    "check",
    cls=LazyGroup,
    modules={"records": "checks:records"},
    examples=EXAMPLES,
    default_command="records",
)
def check() -> None:
    """Check the records of a store. The default command is `records`."""


@store_command("records", "oncemore check records\noncemore check records --json")
def records(engine: Engine) -> CommandReport:
    """Check the records of all runs, and the signatures of decisions.

    Checked of runs: telemetry, forbidden retries, bounds and proofs.

    One line for each finding. Exit code 1 if there is one. `oncemore verify` checks the hashes.
    """
    from oncemore.governance.record_checks import check_records

    report = check_records(engine.store, engine.cipher)
    return CommandReport(report, lambda out: _print_report(out, report), int(bool(report.findings)))


def _print_report(out: OutputWriter, report: RecordReport) -> None:
    # The rule comes first, so that `sort` and `grep` group the lines.
    for finding in report.findings:
        # A finding about a decision is not always about a run.
        place = f"{f'{finding.step} {finding.run_id}'.strip() or finding.entity} entry {finding.version}"
        out.write_line(f"{finding.rule}: {place}: {finding.text}", "red")
    if report.more:
        out.write_line(f"and {report.more} more", "red")
    counts = f"{report.runs} runs, {report.entries} entries"
    if report.findings:
        out.write_line(f"{counts}: {len(report.findings) + report.more} findings", "red")
    else:
        out.write_line(f"{counts}: no findings", "green")
