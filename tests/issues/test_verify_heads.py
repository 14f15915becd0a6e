"""`verify` compares heads with entries, and foreign objects in a store's schema are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
import pytest

import oncemore
from oncemore.queries.doctor import check_store
from oncemore.queries.stores import open_read_only

if TYPE_CHECKING:
    from pathlib import Path


@oncemore.step(effect="idempotent", name="heads.pay")
def pay(order: str) -> str:
    return f"paid {order}"


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    path = tmp_path / "log.db"
    with oncemore.open(path) as engine:
        pay("a")
        pay("b")
        engine.switches.on(step="heads.other", reason="maintenance", by="an operator")
    return path


def change_file(path: Path, sql: str) -> None:
    """Run statements on the file of a store, as another program would."""
    database = apsw.Connection(str(path))
    database.execute(sql.replace("LAST", LAST).replace("ALL", ALL))
    database.close()


LAST = "(SELECT max(seq) FROM log WHERE entity LIKE 'run/%')"
ALL = "(SELECT max(seq) FROM log)"
FAULTS = {
    "the last entry of a run is deleted": ("DELETE FROM log WHERE seq=LAST", "not in the log"),
    "the last entry of all is deleted": ("DELETE FROM log WHERE seq=ALL", "not in the log"),
    "a head is repointed": (
        "UPDATE head SET version=version-1, seq=seq-1, hash=(SELECT hash FROM log WHERE seq=LAST-1) "
        "WHERE seq=LAST",
        "behind its last entry",
    ),
    "a head is deleted": ("DELETE FROM head WHERE seq=LAST", "is missing"),
    "a switch is edited": (
        "UPDATE head SET head=CAST(replace(head, 'heads.other', 'heads.never') AS BLOB) WHERE kind='control'",
        "differs from its entries",
    ),
    "an index column is edited": ("UPDATE head SET due=1 WHERE kind='run'", "differs from its entries"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_verify_fails(log_file: Path, fault: str) -> None:
    sql, says = FAULTS[fault]
    with oncemore.open(log_file) as engine:
        assert engine.verify().entities >= 3
    change_file(log_file, sql)
    with oncemore.open(log_file) as engine, pytest.raises(oncemore.StoreError, match=says):
        engine.verify()


TRIGGER = "CREATE TRIGGER theirs AFTER INSERT ON log BEGIN UPDATE head SET state='COMPLETE'; END"
VIEW = "ALTER TABLE head RENAME TO hidden; CREATE VIEW head AS SELECT * FROM hidden"


@pytest.mark.parametrize(("sql", "says"), [(TRIGGER, "trigger theirs"), (VIEW, "head is a view")])
def test_foreign_objects_that_change_what_we_write_are_refused(log_file: Path, sql: str, says: str) -> None:
    change_file(log_file, sql)
    with oncemore.open(log_file), pytest.raises(oncemore.StoreError, match=f"{says}.*another program"):
        pay("c")
    with open_read_only(str(log_file)) as store:
        found = {check.name: check for check in check_store(store).checks}
    assert found["schema"].status == "bad"
    assert says in found["schema"].observation


def test_tables_of_on_commit_are_allowed_and_reported(tmp_path: Path) -> None:
    @oncemore.step(effect="transactional", name="heads.count")
    def count() -> None:
        oncemore.current().on_commit(lambda tx: tx.execute("CREATE TABLE mine(a)"))

    with oncemore.open(tmp_path / "new.db") as engine:
        count()
        engine.verify()
    with open_read_only(str(tmp_path / "new.db")) as store:
        found = {check.name: check for check in check_store(store).checks}
    assert (found["schema"].status, "mine" in found["schema"].observation) == ("ok", True)
