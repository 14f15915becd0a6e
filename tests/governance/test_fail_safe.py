"""In doubt nothing is executed, or nothing again, and each doubt leaves an event (SEC-5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

import oncemore
from oncemore.errors import NotPermitted, PolicyError, Quarantined
from oncemore.events import AttemptFailed, ExecutionRefused, RunHeld
from oncemore.policy import files
from tests.governance.test_accepted_policies import write_policy

if TYPE_CHECKING:
    from oncemore.steps.engine import Engine
    from oncemore.testing import FakeClock
    from tests.signed_policies import PolicySigners


class Unheard(Exception):
    pass


def make_work(policy: Any, calls: list[int], error: BaseException | None = None) -> Any:
    def work(item: int) -> int:
        calls.append(item)
        if error is not None:
            raise error
        return item

    return oncemore.step(effect="idempotent", name="work", policy=policy, timeout=5)(work)


@pytest.mark.req("SEC-5")
def test_each_doubt_stops_the_work_and_leaves_an_event(
    engine: Engine, policy_signers: PolicySigners, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, seen = list[int](), list[Any]()
    with oncemore.on_event(seen.append):
        # A policy that cannot be verified: zero calls.
        path = write_policy(policy_signers, "1.1")
        assert make_work(path, calls)(1) == 1
        text = path.read_bytes()
        path.write_bytes(text + b"# changed\n")
        files.forget()
        with pytest.raises(PolicyError):
            make_work(path, calls)(2)
        write_policy(policy_signers, "1.0")
        with pytest.raises(PolicyError, match="older version"):
            make_work(path, calls)(2)
        refused = [event for event in seen if isinstance(event, ExecutionRefused)]
        assert [event.reason for event in refused] == ["policy_unverifiable"] * 2
        assert all(event.subject == str(path) for event in refused)
        assert "signed" in refused[0].text
        # Control state that cannot be read: zero calls.
        seen.clear()
        work = make_work("kfm-rules", calls)
        load = engine.store.load_head

        def fail(entity: str) -> Any:
            if entity == "control/switches":
                raise OSError("no answer from db.internal password=hunter2secret")
            return load(entity)

        monkeypatch.setattr(engine.store, "load_head", fail)
        engine.permissions.drop_cached()
        with pytest.raises(NotPermitted) as unknown:
            work(3)
        assert unknown.value.reason == "control_state_unknown"
        monkeypatch.undo()
        unread = [event for event in seen if isinstance(event, ExecutionRefused)]
        # Once for each time that the switches were asked for.
        assert {(event.reason, event.subject) for event in unread} == {("control_state_unknown", "work")}
        assert not [event for event in unread if "hunter2secret" in event.text]
        assert calls == [1]
        # An error that no rule of a governed policy knows: no further call.
        seen.clear()
        with pytest.raises(Quarantined):
            make_work("kfm-rules", calls, Unheard("?"))(4)
        assert calls == [1, 4]
        (failed,) = (event for event in seen if isinstance(event, AttemptFailed))
        assert (failed.action, failed.error_type) == ("quarantine", "Unheard")
        assert [type(event) for event in seen if isinstance(event, RunHeld)] == [RunHeld]


def test_an_error_that_the_policy_does_not_list_halts_the_pipeline_and_says_so(
    engine: Engine, clock: FakeClock
) -> None:
    """ADR 0060: a doubt stops a governed pipeline; the reason tells it from a forbidden class."""
    response = httpx.Response(404, request=httpx.Request("GET", "https://stac.example/items/7"))
    missing = httpx.HTTPStatusError("404", request=response.request, response=response)
    forbidden = oncemore.PolicyViolation("SCHEMA_INVALID", "no geometry")
    calls: list[int] = []
    for error, text in ((missing, "HTTP_404, which the policy does not list"),
                        (forbidden, "SCHEMA_INVALID, which is not retryable")):  # fmt: skip
        with pytest.raises(Quarantined):
            make_work("kfm-rules", calls, error)(len(calls))
        (halt,) = engine.switches.status()
        assert halt.reason == f"work failed with {text}"
        engine.switches.off(pipeline=halt.name.partition(":")[2], reason="looked at it", by="operator")
    assert len(calls) == 2
