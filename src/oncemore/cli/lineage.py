"""`oncemore export prov | openlineage | stac | dcat | cloudevents | telemetry`: lineage for other systems."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path

import click

from oncemore.cli.commands import (
    CommandReport,
    choice_option,
    combine_options,
    flag_option,
    store_command,
    value_option,
)
from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TextIO

    from oncemore.cli.output import OutputWriter
    from oncemore.lineage.exports import ExportOptions
    from oncemore.lineage.history import RunHistory
    from oncemore.log.store import Store

#: The form of a file by its suffix, where --format does not say it.
FORMS = {".ttl": "turtle", ".jsonld": "json-ld", ".json": "prov-json"}

run_options = combine_options(
    click.argument("names", metavar="[RUN]...", nargs=-1),
    value_option("--step", "NAME", "Only runs of this step."),
    value_option("--since", "TIME", "Only runs that changed since: 2h, 7d, 2026-11-16T08:00Z."),
    value_option("--until", "TIME", "Only runs that changed until this time."),
    value_option(
        "--conforms-to",
        "NAME",
        "Name a profile that the export follows, such as 'KFM-PROV v11'.",
        multiple=True,
    ),
)
out_option = value_option(
    "--out file",
    "FILE",
    "Write to this file, which is replaced whole; default: standard output.",
    type=click.Path(dir_okay=False, path_type=Path),
)
namespace_option = value_option(
    "--namespace", "NAME", "The namespace of jobs and datasets.", default="oncemore", show_default=True
)
base_option = value_option(
    "--base-url", "URL", "Address below which the artifacts are found; default: the artifact store."
)


@store_command(
    "prov",
    """
    oncemore export prov 0193a000
    oncemore export prov --since 7d --out lineage.ttl
    oncemore export prov --step fetch --plan --out lineage.json
    """,
    opener="open_read_only",
)
@run_options
@choice_option(
    "--format form",
    ["turtle", "json-ld", "prov-json"],
    "turtle, json-ld or prov-json; default: by the suffix of --out, else turtle.",
)
@flag_option("--plan with_plan", "Link every run to the version of its policy, as prov:Plan.")
@out_option
def prov(store: Store, form: str | None, with_plan: bool, file: Path | None, **wanted: Any) -> CommandReport:
    """Export lineage as W3C PROV.

    PROV-O in Turtle or JSON-LD, or PROV-JSON: for each run its activity, its inputs (prov:used), its outputs
    (prov:wasGeneratedBy) and the derivations between them. Ids follow from keys and digests and are equal
    when work is run again.
    """
    from oncemore.lineage import exports

    # A file named lineage.ttl that holds JSON would surprise its reader.
    form = form or FORMS.get(file.suffix.lower() if file else "", "turtle")
    options = _make_options(wanted, with_plan=with_plan)
    histories = _read(store, wanted)
    return _write(file, "runs", lambda out: exports.write_prov(histories, out, form, options))


@store_command(
    "openlineage",
    """
    oncemore export openlineage --since 1d --out events.jsonl
    oncemore export openlineage --to http://localhost:5000/api/v1/lineage
    """,
    opener="open_read_only",
)
@run_options
@namespace_option
@out_option
@value_option("--to receiver", "URL", "Post the events to this address, each once; failed posts are retried.")
@value_option(
    "--sent log",
    "FILE",
    "Log of delivered events; default: .oncemore/lineage-sent.db.",
    type=click.Path(dir_okay=False, path_type=Path),
)
@value_option("--token-env", "NAME", "Environment variable with the bearer token of the receiver.")
def openlineage(
    store: Store,
    file: Path | None,
    receiver: str | None,
    log: Path | None,
    token_env: str | None,
    **wanted: Any,
) -> CommandReport:
    """Export lineage as OpenLineage run events.

    Each run has a START event, a RUNNING event for each failed attempt that was tried again, and COMPLETE,
    FAIL or ABORT at its end. Written as JSON Lines, or posted with --to. An event that was delivered to an
    address is not sent to it again.
    """
    from oncemore.lineage import exports

    # Two targets would need two passes over the store.
    if receiver is not None and file is not None:
        raise click.UsageError("Give --out or --to, not both.", click.get_current_context())
    options = _make_options(wanted)
    histories = _read(store, wanted)
    if receiver is None:
        return _write(file, "events", lambda out: exports.write_open_lineage(histories, out, options))
    from oncemore.lineage.send_events import send_events

    report = send_events(
        exports.read_open_lineage(histories, options),
        receiver,
        log or Path(".oncemore/lineage-sent.db"),
        token=_read_token(token_env),
    )
    text = f"sent {report.sent:,} events to {receiver}; {report.present:,} had been delivered before."
    return CommandReport(report, lambda out: out.write_paragraph(text))


@store_command(
    "stac",
    """
    oncemore export stac --out items.json
    oncemore export stac --step sample --base-url https://data.example.org/artifacts
    """,
    opener="open_read_only",
)
@run_options
@base_option
@value_option("--extension", "URL", "Where you publish the schema of our extension; default: its URN.")
@out_option
def stac(store: Store, file: Path | None, extension: str | None, **wanted: Any) -> CommandReport:
    """Export artifacts as STAC 1.0.0 items.

    One item for each artifact of a complete run, with checksum and size, and with processing:attempt,
    processing:energy_kWh and processing:carbon_kgCO2e. The schema of these three fields is
    oncemore/lineage/schemas/stac-processing-v1.json in the package.
    """
    from oncemore.lineage import exports

    options = _make_options(wanted)
    # A URN cannot be fetched; validators that follow addresses need a published schema.
    if extension is not None:
        options = options._replace(extension=extension)
    histories = _read(store, wanted)
    return _write(file, "items", lambda out: exports.write_stac(histories, out, options))


@store_command(
    "dcat",
    """
    oncemore export dcat --out catalogue.ttl
    oncemore export dcat --publisher "Survey office" --out catalogue.jsonld
    """,
    opener="open_read_only",
)
@run_options
@base_option
@value_option("--publisher", "NAME", "The publisher of the catalogue.", default="oncemore", show_default=True)
@choice_option(
    "--format form", ["turtle", "json-ld"], "turtle or json-ld; default: by the suffix of --out, else turtle."
)
@namespace_option
@out_option
def dcat(store: Store, form: str | None, file: Path | None, publisher: str, **wanted: Any) -> CommandReport:
    """Export artifacts as a DCAT 3 catalogue.

    One dataset for each artifact of a complete run, with a distribution that has its checksum, size and
    address, and with the attempts, energy and carbon of its run.
    """
    from oncemore.lineage import exports

    suffix = file.suffix.lower() if file else ""
    form = form or ("json-ld" if suffix in (".json", ".jsonld") else "turtle")
    options = _make_options(wanted)._replace(publisher=publisher)
    histories = _read(store, wanted)
    return _write(file, "datasets", lambda out: exports.write_dcat(histories, out, form, options))


@store_command(
    "cloudevents",
    "oncemore export cloudevents --since 1h --out events.jsonl",
    opener="open_read_only",
)
@run_options
@namespace_option
@out_option
def cloudevents(store: Store, file: Path | None, **wanted: Any) -> CommandReport:
    """Export the transitions of runs as CloudEvents 1.0.

    One JSON document per line, of the type oncemore.run.STATE.v1. The id of an event is the same in every
    export.
    """
    from oncemore.lineage import exports

    options = _make_options(wanted)
    histories = _read(store, wanted)
    return _write(file, "events", lambda out: exports.write_cloud_events(histories, out, options))


@store_command(
    "telemetry",
    """
    oncemore export telemetry --release v1.4.0
    oncemore export telemetry --release v1.4.0 --since 2026-11-01 --folder site
    """,
    opener="open_read_only",
)
@run_options
@value_option("--release", "VERSION", "The release whose files are written.", required=True)
@value_option(
    "--folder",
    "PATH",
    "Folder that contains releases/; default: the working directory.",
    type=click.Path(file_okay=False, path_type=Path),
    default=".",
)
def telemetry(store: Store, release: str, folder: Path, **wanted: Any) -> CommandReport:
    """Write the telemetry files of a release.

    releases/VERSION/focus-telemetry.json has a record for each attempt and a compliance record for each
    finished run; patterns-telemetry.json has the transitions of runs under a policy of the retry loop;
    energy-telemetry.json has the energy and the carbon of each attempt. A file that exists is merged: no
    record is in it twice.
    """
    from oncemore.lineage import exports

    report = exports.write_telemetry(_read(store, wanted), folder, release, _make_options(wanted))

    def print_text(out: OutputWriter) -> None:
        for name, path in report.paths.items():
            totals = report.totals[name]
            # A missing figure makes a sum null, so the gap is named.
            unmeasured = totals["unmeasured_attempts"]
            remark = f", {unmeasured:,} of them without a measured energy" if unmeasured else ""
            out.write_paragraph(f"wrote {path}: {totals['attempts']:,} attempts{remark}.")

    return CommandReport(report, print_text)


# Parts of all exports -------------------------------------------------------------------------------


def _read(store: Store, wanted: dict[str, Any]) -> Iterator[RunHistory]:
    """Return the wanted runs; single runs and a selection exclude each other."""
    from oncemore.queries.run_histories import HistoryFilter, read_histories
    from oncemore.queries.times import parse_instant

    # Ages count back from the store's clock, which all processes that share it agree on.
    since, until = (
        None if wanted[name] is None else parse_instant(wanted[name], store.now())
        for name in ("since", "until")
    )
    # A named run outside of the selection would be dropped in silence.
    if wanted["names"] and (wanted["step"] or since is not None or until is not None):
        raise click.UsageError(
            "Give RUN, or a selection (--step, --since, --until), not both.", click.get_current_context()
        )
    return read_histories(store, HistoryFilter(wanted["names"], wanted["step"], since, until))


def _make_options(wanted: dict[str, Any], *, with_plan: bool = False) -> ExportOptions:
    from oncemore.lineage.exports import ExportOptions

    options = ExportOptions(conforms_to=wanted["conforms_to"], with_plan=with_plan)
    if wanted.get("namespace"):
        options = options._replace(namespace=wanted["namespace"])
    # Only the exports of a catalogue have addresses; the others do not open the artifact store.
    if "base_url" in wanted:
        options = options._replace(base=wanted["base_url"] or _find_artifacts())
    return options


def _find_artifacts() -> str:
    """Return the address of the artifact store that the settings name for the store of this command."""
    from oncemore.queries.stores import artifact_store_of

    url = click.get_current_context().params.get("store")
    artifacts = artifact_store_of(url)
    # A path is a local folder; STAC and DCAT want an address.
    address = artifacts.backend.url if artifacts.is_configured else "artifacts"
    return Path(address).absolute().as_uri() if address.startswith("/") else address


def _read_token(name: str | None) -> str:
    # A variable and not an option: arguments of a process are visible to every user of the machine.
    if name is None:
        return ""
    token = os.environ.get(name, "")
    if not token:
        raise UsageError(f"--token-env is {name}, and that environment variable is not set")
    return token


def _write(file: Path | None, unit: str, write: Callable[[TextIO], int]) -> CommandReport:
    """Write an export to a file that is replaced whole, or to standard output.

    unit  the name of what `write` counts
    """
    context = click.get_current_context()
    if file is None:
        if context.params.get("in_json"):
            raise click.UsageError("--json reports on a file; give --out too.", context)
        _write_to_stdout(write)
        # Nothing follows a document on standard output.
        return CommandReport(None, lambda out: None)
    from oncemore.lineage.document_file import open_document

    # The file is complete before it gets its name, so that an error leaves the old one.
    with open_document(file) as out:
        count = write(out)
    text = f"wrote {count:,} {unit} to {file}."
    return CommandReport({"file": str(file), unit: count}, lambda out: out.write_paragraph(text))


def _write_to_stdout(write: Callable[[TextIO], int]) -> None:
    """Write in UTF-8, whatever the terminal has; the rest is discarded if the reader closes the pipe."""
    out = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", errors="backslashreplace")
    try:
        write(out)
        out.flush()
    except BrokenPipeError:
        from oncemore.cli.output import discard_output

        discard_output(sys.stdout)
    finally:
        # Standard output stays open: it belongs to the process.
        with suppress(OSError, ValueError):
            out.detach()
