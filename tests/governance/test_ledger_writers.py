"""Honest concurrency is no alarm: eight writers, while checkpoints are made and verified, on every store."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.governance.checkpoints import LedgerSigner, make_checkpoint, read_checkpoints
from oncemore.governance.ledger_verify import verify_ledger
from tests.governance.sample_log import announce, book

if TYPE_CHECKING:
    from collections.abc import Callable

WRITERS, RUNS, ROUNDS = 8, 12, 6


@pytest.mark.parametrize("store_url", ["sqlite", "postgres", "nats"], indirect=True)
def test_eight_writers_cause_no_alarm(
    store_url: str, signer: LedgerSigner, record_property: Callable[[str, object], None]
) -> None:
    engines = [oncemore.open(store_url, artifacts="memory:") for _ in range(WRITERS + 2)]
    barrier, done, errors = threading.Barrier(WRITERS + 2), threading.Event(), []
    verified = checkpoints = 0

    def write_runs(number: int) -> None:
        steps = book.bind(engines[number]), announce.bind(engines[number])
        barrier.wait()
        try:
            for run in range(RUNS):
                steps[run % 2](f"{number}-{run}")
        except BaseException as error:
            errors.append(error)

    def sign_log() -> None:
        # A second process that makes checkpoints: the two race for each of them.
        barrier.wait()
        try:
            while not done.is_set():
                make_checkpoint(engines[WRITERS], signer)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write_runs, args=(number,)) for number in range(WRITERS)]
    threads.append(threading.Thread(target=sign_log))
    for thread in threads:
        thread.start()
    barrier.wait()
    engine, keys = engines[-1], [signer.key.public]
    notes: list[tuple[str, str]] = []
    try:
        while any(thread.is_alive() for thread in threads[:-1]) or verified < ROUNDS:
            notes.append((f"kept {len(notes)}", make_checkpoint(engine, signer).note))
            verify_ledger(engine, keys, notes, signer.place)
            verified += 1
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert errors == []
    make_checkpoint(engine, signer)
    report = verify_ledger(engine, keys, notes, signer.place)
    checkpoints = len(list(read_checkpoints(engine)))
    for each in engines:
        each.close()
    assert report.uncovered <= WRITERS + 3  # the last checkpoint, and the ends of workers
    assert report.entities >= WRITERS * RUNS
    assert checkpoints > 2
    record_property("ledger verifications beside eight writers", verified)
