"""`oncemore init workflows`: write the ready-made workflow files into a project."""

from __future__ import annotations

from pathlib import Path

import click

from oncemore._values import Value
from oncemore._version import __version__
from oncemore.cli.commands import CommandReport, LazyGroup, flag_option, report_command, value_option
from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.cli.output import OutputWriter

EXAMPLES = "oncemore init workflows"
#: The files, with what each of them checks.
WORKFLOWS = {
    "kfm-ci.yml": "code, policies and supply chain of a change; records of dev, staging and production",
    "telemetry-export.yml": "the telemetry files of each release",
    "faircare-validate.yml": "signatures of policies, chain of the log and records, every day",
}
SOURCE = Path(__file__).parent / "workflow_files"


class WrittenFile(Value):
    """A file of the project, and whether it was written or was the same already."""

    path: str
    written: bool
    checks: str


@click.group("init", cls=LazyGroup, modules={"workflows": "init:workflows"}, examples=EXAMPLES)
def init() -> None:
    """Add ready-made files to a project."""


@report_command("workflows", "oncemore init workflows\noncemore init workflows --folder ci --replace")
@value_option("--folder", "PATH", "Folder of the files.", default=".github/workflows", show_default=True)
@flag_option("--replace", "Replace files that differ.")
def workflows(folder: str, replace: bool) -> CommandReport:
    """Write the workflows of the KFM rules.

    They are kfm-ci.yml, telemetry-export.yml and faircare-validate.yml.

    They call commands of oncemore that also run locally. A file that exists and differs is not replaced
    without --replace, and then none is written.
    """
    target = Path(folder)
    contents = {
        name: (SOURCE / name).read_text(encoding="utf-8").replace("VERSION", __version__)
        for name in WORKFLOWS
    }
    changed = {name for name, text in contents.items() if _differs(target / name, text)}
    # Decided before the first write, so that a refusal leaves the folder as it was.
    existing = sorted(name for name in changed if (target / name).exists())
    if existing and not replace:
        raise UsageError(f"{target / existing[0]} exists and differs; give --replace, or another --folder")
    target.mkdir(parents=True, exist_ok=True)
    for name in changed:
        (target / name).write_text(contents[name], encoding="utf-8")
    files = [WrittenFile(str(target / name), name in changed, WORKFLOWS[name]) for name in WORKFLOWS]
    return CommandReport(files, lambda out: _print_files(out, files))


def _differs(path: Path, text: str) -> bool:
    return not path.exists() or path.read_text(encoding="utf-8") != text


def _print_files(out: OutputWriter, files: list[WrittenFile]) -> None:
    for file in files:
        out.write_line(f"{'wrote' if file.written else 'unchanged'} {file.path}: {file.checks}")
    out.write_line("Set the secret ONCEMORE_STORE in each environment: the URL of its store.")
