"""Names and numbers that nobody else has."""

import itertools
import os
import uuid
from pathlib import Path

from oncemore.log.entry_codec import new_nonce, new_uuid7


def test_ids_are_uuids_of_version_7_and_sort_by_time() -> None:
    now = 1_800_000_000.0
    times = [now + step for step in (0.0, 0.000001, 0.00025, 0.0009, 0.001, 0.5, 1.0, 86_400.0, 3e9)]
    for _ in range(50):
        ids = [new_uuid7(time) for time in times]
        assert ids == sorted(ids)
        for made, time in zip(ids, times, strict=True):
            parsed = uuid.UUID(made)
            assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
            assert str(parsed) == made
            assert parsed.int >> 80 == int(time * 1000)


def test_ids_of_one_moment_differ() -> None:
    assert len({new_uuid7(5.0) for _ in range(10_000)}) == 10_000


def test_nonces_are_48_bits_and_differ() -> None:
    drawn = [new_nonce() for _ in range(10_000)]
    assert len(set(drawn)) == 10_000
    assert all(0 <= each < 2**48 for each in drawn)
    assert max(drawn) > 2**47


def test_a_forked_child_draws_its_own(tmp_path: Path) -> None:
    new_nonce()
    pid = os.fork()
    if pid == 0:
        (tmp_path / "child").write_text(" ".join(str(new_nonce()) for _ in range(300)))
        os._exit(0)
    os.waitpid(pid, 0)
    mine = {new_nonce() for _ in range(300)}
    theirs = set(map(int, (tmp_path / "child").read_text().split()))
    assert len(theirs) == 300
    assert not mine & theirs


def test_times_before_and_far_beyond_ours_give_ids_too() -> None:
    for time, other in itertools.pairwise((0.0, 1.0, 2**38)):
        assert new_uuid7(time) < new_uuid7(other)
