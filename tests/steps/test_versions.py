"""What a result depends on besides its arguments: versions and configurations that change."""

from typing import Any

import pytest

import oncemore
from oncemore.audit.events import ConfigDrift
from tests.steps.colours import POLICY, Turns, do, each_colour, in_memory, made


def opened(kind: str, tmp_path: Any, heard: list[Any]) -> oncemore.Engine:
    return oncemore.open(tmp_path / "log.db" if kind == "sqlite" else "memory:", on_event=heard.append)


@pytest.mark.req("IDEM-17")
@pytest.mark.parametrize("kind", ["sqlite", "memory"])
@each_colour
def test_pure_work_of_another_version_or_config_runs_anew(colour: str, kind: str, tmp_path: Any) -> None:
    heard: list[Any] = []
    turns = Turns("first", "second", "third")
    with opened(kind, tmp_path, heard):
        assert do(colour, made(colour, turns, effect="pure")) == "first"
        assert do(colour, made(colour, turns, effect="pure", version="2")) == "second"
        assert do(colour, made(colour, turns, effect="pure", version="2", config={"cut": 5})) == "third"
        run = made(colour, turns, effect="pure", version="2", config={"cut": 5}).last_run()
        assert (run.state.run_number, run.state.attempt) == (3, 3)
    assert (turns.calls, heard) == (3, [])


@pytest.mark.req("IDEM-17")
@pytest.mark.parametrize("effect", ["idempotent", "outbox", "once"])
@each_colour
@pytest.mark.usefixtures("clock")
def test_any_other_effect_returns_the_stored_value_and_says_so_once(
    colour: str, effect: str, tmp_path: Any
) -> None:
    heard: list[Any] = []
    turns = Turns("first", "second")
    with opened("sqlite", tmp_path, heard), oncemore.context(tenant="acme", correlation_id="corr-1"):
        before = made(colour, turns, effect=effect)
        assert do(colour, before) == "first"
        assert do(colour, made(colour, turns, effect=effect, version="2")) == "first"
        key, cfg = before.key(), before.last_run().state.cfg_hash
    assert turns.calls == 1
    (event,) = heard
    assert isinstance(event, ConfigDrift)
    assert (event.operation, event.idempotency_key, event.stored_cfg_hash) == ("work", key, cfg)
    assert (event.tenant_id, event.correlation_id) == ("acme", "corr-1")
    assert event.timestamp.startswith("2027-01-15T08:0")  # when it was found, not when the work was done


@pytest.mark.req("IDEM-17")
@pytest.mark.parametrize(
    ("effect", "do_"),
    [("pure", "reuse"), ("pure", "fail"), ("idempotent", "new"), ("once", "fail"), ("outbox", "reuse")],
)
@each_colour
def test_on_version_change_overrides_what_the_effect_would_do(
    colour: str, effect: str, do_: str, tmp_path: Any
) -> None:
    heard: list[Any] = []
    turns = Turns("first", "second")
    with opened("memory", tmp_path, heard):
        do(colour, made(colour, turns, effect=effect))
        changed = made(colour, turns, effect=effect, version="2", on_version_change=do_)
        if do_ == "fail":
            with pytest.raises(oncemore.ConfigChanged, match="on_version_change is 'fail'") as caught:
                do(colour, changed)
            assert caught.value.run.value == "first"  # type: ignore[attr-defined]
            with pytest.raises(oncemore.ConfigChanged):
                do(colour, changed.run)
        else:
            assert do(colour, changed) == ("second" if do_ == "new" else "first")
    assert turns.calls == (2 if do_ == "new" else 1)
    assert len(heard) == (1 if do_ == "reuse" else 0)


@pytest.mark.req("IDEM-17")
@each_colour
def test_a_change_of_policy_alone_changes_nothing(colour: str, tmp_path: Any) -> None:
    heard: list[Any] = []
    turns = Turns("first", "second")
    with opened("memory", tmp_path, heard):
        do(colour, made(colour, turns, effect="pure"))
        assert (
            do(colour, made(colour, turns, effect="pure", policy=POLICY.replace(max_attempts=9))) == "first"
        )
        assert do(colour, made(colour, turns, effect="pure", policy="standard", timeout=5)) == "first"
    assert (turns.calls, heard) == (1, [])


@pytest.mark.req("IDEM-16")
def test_hashes_of_inputs_and_configuration_stand_beside_the_key() -> None:
    def hashes(x: Any, **options: Any) -> tuple[str, str]:
        with oncemore.open("memory:"):
            state = made("plain", Turns(0), **options).run(x).state
        return state.input_hash, state.cfg_hash

    plain = hashes({"a": 1.0, "b": 2}, config={"x": 1.0, "y": [1]})
    assert hashes({"b": 2, "a": 1.0e0}, config={"y": [1], "x": 1.0e0}) == plain
    other = hashes({"a": 1.0, "b": 3}, config={"x": 1.0, "y": [1]})
    assert (other[0] != plain[0], other[1]) == (True, plain[1])
    other = hashes({"a": 1.0, "b": 2}, config={"x": 2.0, "y": [1]})
    assert (other[0], other[1] != plain[1]) == (plain[0], True)
    assert (
        hashes({"a": 1.0, "b": 2}, config={"x": 1.0, "y": [1]}, policy=POLICY.replace(max_attempts=2))
        == plain
    )


@in_memory
@pytest.mark.usefixtures("engine")
def test_a_configuration_may_be_asked_for_at_each_call() -> None:
    config = {"cut": 1}
    turns = Turns("first", "second")
    step = made("plain", turns, effect="pure", config=lambda: config)
    assert (step(), step()) == ("first", "first")
    config["cut"] = 2
    assert step() == "second"


def test_a_listener_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: Any) -> None:
        raise ValueError("hunter2")

    with oncemore.open("memory:", on_event=broken):
        made("plain", Turns("first"))()
        assert made("plain", Turns("second"), version="2")() == "first"
    assert "on_event failed: ValueError" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_drift_nobody_listens_to_is_no_error() -> None:
    with oncemore.open("memory:"):
        made("plain", Turns("first"))()
        assert made("plain", Turns("second"), version="2")() == "first"
