"""`oncemore check`: check the records of a store, and the supply chain of a project."""

from __future__ import annotations

import click

from oncemore.cli.commands import CommandReport, LazyGroup, report_command, store_command, value_option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.cli.output import OutputWriter
    from oncemore.governance.record_checks import RecordReport
    from oncemore.steps.engine import Engine
    from oncemore.supply_chain.check import SupplyChainReport

EXAMPLES = """
oncemore check records
oncemore check records --store postgresql://db/oncemore --json
oncemore check supply-chain . --sbom sbom.spdx.json --advisories advisories.json
"""


@click.group(
    "check",
    cls=LazyGroup,
    modules={"records": "checks:records", "supply-chain": "checks:supply_chain"},
    examples=EXAMPLES,
    default_command="records",
)
def check() -> None:
    """Check the records of a store, or the supply chain. The default command is `records`."""


@store_command("records", "oncemore check records\noncemore check records --json")
def records(engine: Engine) -> CommandReport:
    """Check the records of runs and signed decisions.

    Checked of runs: telemetry, forbidden retries, bounds and proofs.

    One line for each finding. Exit code 1 if there is one. `oncemore store verify` checks the hashes.
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


SUPPLY_CHAIN_EXAMPLES = """
oncemore check supply-chain
oncemore check supply-chain requirements/release.txt --sbom sbom.spdx.json
oncemore check supply-chain . --advisories advisories/ --json
"""


@report_command("supply-chain", SUPPLY_CHAIN_EXAMPLES)
@click.argument("paths", nargs=-1, metavar="[PATH]...", help="Files and folders; by default this folder.")
@value_option("--sbom", "FILE", "CycloneDX or SPDX in JSON, which must have all dependencies.", multiple=True)
@value_option("--advisories", "FILE", "Advisories of OSV or pip-audit: a file or folder.", multiple=True)
def supply_chain(paths: tuple[str, ...], sbom: tuple[str, ...], advisories: tuple[str, ...]) -> CommandReport:
    """Check that everything is pinned, and no advisory applies.

    Of images, actions and dependencies.

    Reads Dockerfiles, compose files, Kubernetes manifests, GitHub workflows and requirements files, and
    downloads nothing. One line for each finding. Exit code 1 if there is one, 2 if an input cannot be read.
    """
    from oncemore.supply_chain.check import check_supply_chain

    report = check_supply_chain(paths or (".",), sbom, advisories)
    return CommandReport(report, lambda out: _print_findings(out, report), int(bool(report.findings)))


def _print_findings(out: OutputWriter, report: SupplyChainReport) -> None:
    for finding in report.findings:
        # Path and line first, so that editors and terminals open the place.
        out.write_line(f"{finding.path}:{finding.line}: {finding.rule}: {finding.text}", "red")
    counts = f"{report.files} files, {report.dependencies} dependencies"
    if report.sbom_components:
        counts += f", {report.sbom_components} components of the SBOM"
    if report.advisories:
        counts += f", {report.advisories} advisories"
    if report.findings:
        out.write_line(f"{counts}: {len(report.findings)} findings", "red")
    else:
        out.write_line(f"{counts}: no findings", "green")
