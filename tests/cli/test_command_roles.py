"""Every command of the command line, in a store with roles: it reads, asks for a role, or says why not.

The page `docs/reference/roles.md` has the table. A command that is not in it must leave the log as it was,
which is tried for each of them; so a new command that writes fails here until it is on the page.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

import oncemore
from oncemore.cli.commands import root
from oncemore.errors import Error
from oncemore.governance import identity as identities
from oncemore.governance.keys import generate_key
from oncemore.governance.role_model import ProcessUser
from tests.cli import role_parcels as parcels
from tests.shell import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = ROOT / "docs/reference/roles.md"
MODULE = "tests.cli.role_parcels"
FILES = {
    "done.csv": "item\n7\n",
    "runs.jsonl": "",
    "datasets.yaml": "datasets:\n  survey:\n    care_label: Public\n",
    "mine.yaml": "extends: standard\nname: mine\nversion: 1.0.0\n",
}
#: The arguments with which each command is tried; words in capitals are ids of the sample.
LINES = {
    "oncemore exec": "--key report --effect idempotent --rerun --reason x -- false",
    "oncemore workflow signal": "WAITING approved",
    "oncemore runs cancel": f"{MODULE}:pay item=2 --reason x",
    "oncemore runs rerun": f"{MODULE}:break_down item=1 --reason x",
    "oncemore quarantine release": "ODD --by x --reason x",
    "oncemore quarantine reject": "ODD --by x --reason x",
    "oncemore quarantine rerun": "ODD --by x --reason x",
    "oncemore quarantine settle": "LOST --not-applied --by x --reason x",
    "oncemore quarantine escalate": "ODD --reason x",
    "oncemore escalations ack": "TICKET --reason x",
    "oncemore control switch on": "--reason x",
    "oncemore control switch off": "--reason x",
    "oncemore control approve": "ASKED --reason x",
    "oncemore control dataset load": "datasets.yaml --reason x",
    "oncemore control dataset register": "new --set care_label=Public --reason x",
    "oncemore control dataset label": "public --set licence=CC0 --reason x",
    "oncemore control dataset restrict": "public --operation count --reason x",
    "oncemore control dataset block": "public --reason x",
    "oncemore control dataset withdraw": "public --reason x",
    "oncemore control dataset release": "public --reason x",
    "oncemore control roles assign": "second reviewer --reason x",
    "oncemore control roles remove": "auditor --reason x",
    "oncemore control roles key add": "archivist key.pub --role operator --reason x",
    "oncemore control roles key remove": "KEY --reason x",
    "oncemore control roles token create": "duty --role operator --expires 1h --reason x",
    "oncemore control roles token revoke": "1a2b3c4d --reason x",
    "oncemore limits breakers reset": "stac --reason x",
    "oncemore limits cooldowns release": "product-1 --reason x",
    "oncemore store prune": "--older-than 1d",
    "oncemore store erase": "PAID --reason x --yes",
    "oncemore store backup": "copy.db",
    "oncemore store accept-copy": "--acknowledge --reason x",
    "oncemore store move": "log.db moved.db --reason x",
    "oncemore store import": f"--step {MODULE}:pay done.csv",
    "oncemore store import-runs": "runs.jsonl",
    "oncemore runs list": "",
    "oncemore runs key compute": f"{MODULE}:pay item=1",
    "oncemore runs key show": "PAID",
    "oncemore show": "ODD",
    "oncemore explain": "ODD",
    "oncemore replay": "ODD",
    "oncemore watch": "--once",
    "oncemore audit filter": "",
    "oncemore quarantine show": "ODD",
    "oncemore escalations show": "TICKET",
    "oncemore control dataset show": "public",
    "oncemore limits breakers show": "stac",
    "oncemore limits cooldowns show": "product-1",
    "oncemore policy show": "standard",
    "oncemore policy check": "mine.yaml",
    "oncemore policy diff": "standard kfm-rules",
    "oncemore policy plot": "standard --svg plot.svg",
    "oncemore policy keygen": "other --principal lead --no-passphrase",
    "oncemore policy sign": "mine.yaml --key key",
    "oncemore policy verify": "mine.yaml",
    "oncemore export asl": f"{MODULE}:pay",
    "oncemore export runs": "PAID",
    "oncemore control autonomy explain": "kfm-loop",
    "oncemore limits rates show": "stac",
    "oncemore policy propose": "standard --out proposed.yaml",
    "oncemore ledger prove": "PAID --out proof.json",
    "oncemore ledger export": "export.jsonl",
    "oncemore export telemetry": "--release 1.0.0",
    "oncemore lint": "done.csv",
    "oncemore migrate": "tenacity done.csv",
    "oncemore completion": "bash",
}


def list_commands(command: click.Command = root, path: str = "oncemore") -> Iterator[str]:
    """Yield the full name of every command."""
    if not isinstance(command, click.Group):
        yield path
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from list_commands(below, f"{path} {name}")


def read_table(heading: str) -> dict[str, list[str]]:
    """Return the rows of a table of the page: the other cells by the command in the first."""
    section = PAGE.read_text("utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return {
        name.partition(" --")[0]: cells[1:] for cells in rows for name in re.findall(r"`([^`]+)`", cells[0])
    }


NEEDS_ROLE = read_table("Commands that need a role")
NEEDS_NONE = read_table("Commands that write and need no role")
READERS = [name for name in list_commands() if name not in NEEDS_ROLE and name not in NEEDS_NONE]


class Sample:
    """A store with something to decide about for every command, and its users."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log, self._folder, self._patch = folder / "log.db", folder, monkeypatch
        monkeypatch.setenv("ONCEMORE_STORE", str(self.log))
        monkeypatch.chdir(folder)
        self.become("service")
        with oncemore.open(self.log) as engine:
            for step in (parcels.break_down, parcels.find_odd, parcels.lose_reply):
                with suppress(Error):
                    step(1)
            parcels.pay(1)
            parcels.pay.submit(2)
            parcels.wait_for_word.submit(1)
            self.words = {
                "PAID": parcels.pay.key(1),
                "BROKEN": parcels.break_down.last_run(1).run_id,
                "ODD": parcels.find_odd.last_run(1).run_id,
                "LOST": parcels.lose_reply.last_run(1).run_id,
                "WAITING": parcels.wait_for_word.last_run(1).run_id,
            }
            engine.cooldowns.import_record("product-1", {"next_eligible_attempt_at": 9e9}, reason="first")
            with suppress(ConnectionError), oncemore.Breaker("stac", failures=1, shared=True):
                raise ConnectionError("refused")
            engine.datasets.register("public", care_label="Public", reason="first")
            ticket = engine.escalations.open(parcels.find_odd.last_run(1), reason="odd")
            self.words["TICKET"] = ticket.id
            self.become("lead")
            engine.roles.assign("lead", "reviewer", reason="head of the archive")
            engine.roles.assign("duty", "operator", reason="on call")
            engine.roles.assign("auditor", "viewer", reason="audit")
            self.become("service")
            with suppress(Error):
                parcels.delete_all(1)
            self.words["ASKED"] = parcels.delete_all.last_run(1).run_id
        self.run("service", "oncemore exec", "--key report --effect idempotent --attempts 1 -- false")
        generate_key().save_files(folder / "key")
        for name, text in FILES.items():
            (folder / name).write_text(text, "utf-8")

    def become(self, name: str) -> None:
        """Let this process run as another user."""
        user = ProcessUser(name, 2000 + len(name))
        self._patch.setattr(identities, "read_process_user", lambda: user)

    def count_entries(self) -> int:
        """Return the number of entries in the log."""
        with oncemore.open(self.log) as engine:
            return sum(1 for _ in engine.store.read_entries())

    def run(self, user: str, command: str, line: str) -> tuple[int, str]:
        """Run a command as a user; return its exit code and all that it prints."""
        self.become(user)
        args = [self.words.get(word, word) for word in shlex.split(f"{command} {line}")[1:]]
        if command == "oncemore exec":
            # It hands its own file descriptors to the program; the user of this process has no role.
            done = subprocess.run([sys.executable, "-m", "oncemore", *args], capture_output=True, text=True)
            return done.returncode, done.stdout + done.stderr
        result = CliRunner().invoke(root, args, standalone_mode=False)
        error = result.exception
        text = f"{result.output}{'' if error is None else error}"
        code = result.return_value if isinstance(result.return_value, int) else result.exit_code
        return code, text


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    """One store for all commands: those that are refused and those that read leave it as it is."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Sample(tmp_path_factory.mktemp("roles"), monkeypatch)


def test_the_page_names_commands_that_exist_and_every_writing_command_is_tried() -> None:
    known = set(list_commands())
    assert set(NEEDS_ROLE) | set(NEEDS_NONE) <= known
    assert set(NEEDS_ROLE) <= set(LINES)
    assert set(LINES) <= known
    assert len(NEEDS_ROLE) > 30


def test_every_command_of_the_table_refuses_a_role_that_is_too_low(sample: Sample) -> None:
    before, faults = sample.count_entries(), []
    for command, (role, signed) in NEEDS_ROLE.items():
        user = "duty" if role == "reviewer" else "auditor"
        code, text = sample.run(user, command, LINES[command])
        if code == 0 or "needs the role" not in text:
            faults.append(f"{command} as {user}: {code} {text}")
        if sample.count_entries() != before:
            faults.append(f"{command} as {user} has written")
            before = sample.count_entries()
        if "--token-file" not in sample.run("duty", command, "--help")[1] or signed not in ("yes", "no"):
            faults.append(f"{command} has no --token-file")
    assert not faults, "\n".join(faults)


def test_every_other_command_leaves_the_log_as_it_is(sample: Sample) -> None:
    before, faults = sample.count_entries(), []
    for command in READERS:
        # As a reviewer: a command that asks for a role would otherwise be refused, and look as if it reads.
        code, text = sample.run("lead", command, LINES.get(command, ""))
        # Exit code 2, or click's own exception: the command was not run at all.
        if code not in (0, 1) or "Missing " in text or "No such option" in text:
            faults.append(f"{command}: give its arguments in LINES: {code} {text}")
        if sample.count_entries() != before:
            faults.append(f"{command} writes: it needs a row in {PAGE.name}")
            before = sample.count_entries()
    assert not faults, "\n".join(faults)
