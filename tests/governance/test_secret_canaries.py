"""Forty secrets go through a governed store; none is in any byte on disk, or on a terminal (GUA-14)."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import oncemore
from oncemore import cli
from oncemore.errors import Error, NeedsReview, PermanentError, TransientError
from oncemore.governance.checkpoints import make_checkpoint
from oncemore.governance.identity import decide_as, identify_token
from oncemore.governance.keys import generate_key
from oncemore.governance.ledger_export import export_to_path
from oncemore.governance.signed_decisions import KeySigner
from oncemore.outbox import OutboxRelay
from oncemore.queries.ledger_reports import write_reports
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from oncemore.governance.checkpoints import LedgerSigner

#: The shapes in which secrets appear in the texts of errors.
SHAPES = (
    "password={}", "https://user:{}@db.example/x", "Authorization: Bearer {}", "api_key={}",
    "token={} was refused", '{{"client_secret": "{}"}}', "postgresql://ada:{}@host/db", "X-Api-Key: {}",
    "https://store.example/x?sig={}", "secret: {}",
)  # fmt: skip


def test_forty_secrets_are_in_no_byte_on_disk(
    tmp_path: Path, signer: LedgerSigner, capsys: pytest.CaptureFixture[str]
) -> None:
    canaries: list[str] = []

    def plant(shape: str = "{}") -> str:
        canaries.append(f"kanarie{secrets.token_hex(12)}")
        return shape.format(canaries[-1])

    path = tmp_path / "log.db"
    with FakeClock(), oncemore.open(path) as engine:
        engine.datasets.register("burials", care_label="Sensitive", reason="first", by="council")
        for shape in SHAPES:
            fail_in_each_way(shape, plant)
        assert len(canaries) == 40
        engine.datasets.block("burials", reason="letter 17", by="council")
        make_governed_decisions(engine, tmp_path, canaries)
        make_checkpoint(engine, signer)
        export_to_path(engine, tmp_path / "export.jsonl")
        write_reports(engine, tmp_path / "reports")
    for words in (
        ["quarantine", "list"],
        ["escalations", "list"],
        ["runs"],
        ["control", "roles"],
        ["check", "records"],
    ):
        cli.run_command([*words, "--store", str(path)])
    shown = "".join(capsys.readouterr())
    files = [file for file in tmp_path.rglob("*") if file.is_file() and file.name != "archivist"]
    assert {"log.db", "export.jsonl", "pipeline_retry_log.json"} <= {file.name for file in files}
    found = {
        (canary, file.name) for file in files for canary in canaries if canary.encode() in file.read_bytes()
    }
    assert found == set()
    # The texts are there, with a mask in the place of each secret.
    assert (tmp_path / "export.jsonl").read_bytes().count(b"***") >= 40
    assert not [canary for canary in canaries if canary in shown]


def fail_in_each_way(shape: str, plant: Any) -> None:
    """Let work fail with a secret in its text: retried, for ever, held for review, and at the sink."""
    item = len(shape)

    def call(error: BaseException, name: str) -> None:
        def work(number: int, key: oncemore.Secret[str]) -> int:
            raise error

        step: Any = oncemore.step(effect="idempotent", name=name, dataset="burials", attempts=2)(work)
        with suppress(Error):
            step(item, oncemore.Secret(error.args[-1]))

    call(TransientError(plant(shape)), "retried")
    call(PermanentError(plant(shape)), "failed")
    call(NeedsReview("ODD", plant(shape)), "held")

    def emit(number: int) -> None:
        oncemore.current().emit("news", {"number": number})

    step: Any = oncemore.step(effect="outbox", name="tell")(emit)
    step(item)
    refusal = PermanentError(plant(shape))

    def refuse(message: object) -> None:
        raise refusal

    OutboxRelay(step_engine(), {"news": refuse}).run_once()


def step_engine() -> Any:
    from oncemore.open_engine import find_engine

    return find_engine()


def make_governed_decisions(engine: Any, folder: Path, canaries: list[str]) -> None:
    """Make decisions by token and by signature; the token is a canary as well."""
    key = generate_key()
    engine.roles.assign(engine.roles.identity().name, "reviewer", reason="the user of this test")
    engine.roles.add_key("archivist", key.save_files(folder / "archivist"), "reviewer", reason="signs")
    token = engine.roles.create_token("duty", "reviewer", expires=60, reason="dashboard")
    canaries.append(token.split("_", 2)[2])
    with decide_as(identify_token(engine, token)):
        engine.quarantine.reject(engine.quarantine.list()[0], by="duty", reason="not needed")
    with decide_as(KeySigner(key)):
        engine.datasets.release("burials", reason="letter 21")
