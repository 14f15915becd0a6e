"""Every decision in the log and every audit event names a policy that `oncemore policy show` can show."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.audit import AuditFile, AuditStream, event_schema
from oncemore.policy.policy import Policy
from oncemore.profiles.exoarmur import IdempotencyManager, RetryError, RetryManager, RetryPolicy
from oncemore.steps.history import fold_entries
from tests.cli.test_cli_policy import Ran

if TYPE_CHECKING:
    from oncemore.testing import FakeClock

POLICY = 'profile: mine\nversion: "7"\nretry_policy: {max_attempts: 3, delays_s: [1, 2]}\n'
STORE = ("--store", "log.db")


async def refuse_connection() -> None:
    raise ConnectionResetError


async def run_operations(sink: AuditFile, engine: oncemore.Engine) -> None:
    """Let operations fail, succeed, be recorded and cleared: with a log and without, by two policies."""

    async def succeed() -> int:
        return 1

    for manager in (RetryManager(on_event=sink), RetryManager(IdempotencyManager(engine), on_event=sink)):
        await manager.execute_with_retry("NATS_PUBLISH", "send", succeed, idempotency_key="good")
        await manager.execute_with_retry("NATS_PUBLISH", "send", succeed, idempotency_key="good")
        with pytest.raises(RetryError):
            await manager.execute_with_retry("KV_GET", "read", refuse_connection)
        await manager.idempotency_manager.clear_idempotency("good")
    own = RetryPolicy(max_attempts=2)
    with pytest.raises(RetryError):
        await manager.execute_with_retry(
            "KV_PUT", "write", refuse_connection, policy=own, idempotency_key="bad"
        )


@pytest.mark.req("BACKOFF-19")
def test_every_decision_and_event_is_traced_to_a_policy_that_can_be_shown(clock: FakeClock) -> None:
    Path("mine.yaml").write_text(POLICY, encoding="utf-8")

    def fail() -> None:
        raise ConnectionResetError

    with oncemore.open("log.db") as engine, AuditFile("audit.jsonl", version=2) as sink:
        for policy in ("./mine.yaml", "kfm-rules"):
            step = oncemore.step(effect="idempotent", policy=policy, name=policy)(fail)
            assert step.run().status == "HARD_FAIL"
        with pytest.raises(ConnectionResetError):
            oncemore.retry(on="transient", policy="lit", on_event=sink)(fail)()
        asyncio.run(run_operations(sink, engine))
        entries = list(fold_entries(engine.store.read_entries(), engine.cipher))
    Path("mine.yaml").unlink()

    decisions = [(state.policy, body["proof"]["policy"]) for _, state, body in entries if "proof" in body]
    runs = {state.policy for _, state, _ in entries if type(state).__name__ == "Run"}
    assert {name.partition("@")[0] for name, _ in decisions} >= {"mine", "exp_full_jitter"}
    for name, recorded in {(name, tuple(one.items())) for name, one in decisions}:
        shown = Ran("policy", "show", name, *STORE, "--json").json
        assert {key: shown[key] for key in ("name", "version", "digest")} == dict(recorded)
    assert all(Ran("policy", "show", name, *STORE).code == 0 for name in runs)

    lines = [json.loads(line) for line in Path("audit.jsonl").read_text(encoding="utf-8").splitlines()]
    kinds = {"retry_attempt", "retry_exhausted", "retry_succeeded", "idempotency", "idempotency_cleared"}
    assert {line["event_type"] for line in lines} == kinds
    for name in {line["policy"] for line in lines}:
        where = () if Ran("policy", "show", name).code == 0 else STORE
        shown = Ran("policy", "show", name, *where, "--json").json
        id_, _, rest = name.partition("@")
        version, _, digest = rest.rpartition(":")
        assert shown["digest"].startswith(digest)
        assert shown["version"] == version
        assert id_ in (shown["name"], find_name(shown))
    assert [event.to_dict(version=2) for event in AuditStream.read("audit.jsonl")] == lines
    assert all("policy" in event_schema(kind, version=2)["properties"] for kind in kinds)


def find_name(shown: dict[str, object]) -> str:
    """Return a policy's own name: a category of exoarmur is named by its code, and found by its address."""
    return f"RETRY_{str(shown['name']).rpartition('/')[2]}"


def test_a_recorded_policy_is_shown_in_words_and_an_unknown_one_is_refused(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy("made-in-code", "3", max_attempts=2)
    with oncemore.open("log.db"):
        step = oncemore.step(effect="idempotent", policy=policy, name="one")(lambda: 1)
        step()
        name = step.last_run().state.policy
    ran = Ran("policy", "show", name, *STORE)
    assert ran.code == 0
    assert "made-in-code, version 3, as recorded in the log\n" in ran.out
    assert policy.digest in ran.out
    assert "max_attempts" in ran.out
    assert Ran("policy", "show", f"policy/{policy.digest}", *STORE).out == ran.out
    unknown = Ran("policy", "show", "policy/0123456789ab", *STORE)
    assert unknown.code == 2
    assert "this log has no policy policy/0123456789ab; without --store" in " ".join(unknown.err.split())
    monkeypatch.setenv("ONCEMORE_STORE", "log.db")
    nowhere = Ran("policy", "show", "policy/0123456789ab")
    assert nowhere.code == 2
    assert "name its log with --store" in " ".join(nowhere.err.split())
    asked = Ran("policy", "show", name, *STORE, "--attempt", "1")
    assert asked.code == 2
    assert "oncemore explain RUN" in asked.err
