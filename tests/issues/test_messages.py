"""Issue 15, 5: messages that say what happened, at the line that they are about."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.policy import files
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.model import EFFECTS
from oncemore.policy.policy import Policy
from oncemore.profiles.exoarmur.policy import RetryPolicy
from oncemore.profiles.kfm import loop
from oncemore.steps import isolation
from tests.issues import isolated
from tests.steps.colours import POLICY, SOON

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.testing import FakeClock

AT_ONCE = Policy(
    "at-once", max_attempts=3, schedule=Schedule("fixed", delays=(0.0, 0.0)), jitter=Jitter("none")
)


def test_the_help_of_step_lists_every_effect() -> None:
    text = inspect.getdoc(oncemore.step) or ""
    listed = [line.split()[0] for line in text.splitlines() if line.startswith(" " * 21) and line.strip()]
    assert [effect for effect in EFFECTS if effect not in listed] == []


# A result that cannot be stored -----------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["pure", "idempotent"])
def test_a_result_that_cannot_be_stored_gets_advice_about_results(
    effect: Any, engine: oncemore.Engine
) -> None:
    @oncemore.step(effect=effect, name="give")
    def give() -> Any:
        return [object()]

    with pytest.raises(oncemore.Error) as caught:
        give()
    text = str(caught.value)
    assert "the result[0] is an object, which has no form in JSON; return plain values" in text
    assert "annotate the function's return type" in text
    assert "key" not in text.partition("cannot be stored")[2]
    with pytest.raises(oncemore.UsageError, match=r"argument 'x' is an object.* leave it out of the key"):
        oncemore.step(effect=effect)(lambda x: x)(object())


def test_a_checkpoint_that_cannot_be_stored_gets_no_advice_about_keys(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="idempotent", name="keep")
    def keep() -> None:
        oncemore.current().checkpoint(object())

    with pytest.raises(oncemore.StepFailed) as caught:
        keep()
    assert "the value is an object, which has no form in JSON; pass plain values" in str(caught.value)
    assert "of the key" not in str(caught.value)


# The values of a job ----------------------------------------------------------------------------------


def test_the_values_of_a_job_raise_the_failure_of_an_item(engine: oncemore.Engine, clock: FakeClock) -> None:
    @oncemore.step(effect="idempotent", policy=POLICY, name="halve")
    def halve(number: int) -> float:
        if number == 3:
            raise oncemore.PermanentError("it is odd")
        if number == 5:
            raise SOON
        return number / 2

    job = halve.map([2, 3, 5])
    with pytest.raises(
        oncemore.PermanentFailure, match=r"halve: key \w{12} failed after 1 attempt .* it is odd"
    ) as told:
        _ = job.values
    assert told.value.run.key == job.items[1].key  # type: ignore[attr-defined]
    assert told.value.__notes__ == [f"oncemore: this is item 1 of {job!r}"]
    with pytest.raises(oncemore.RetriesExhausted):
        _ = halve.map([2, 5]).values
    assert halve.map([2, 4]).values == [1.0, 2.0]
    with pytest.raises(oncemore.UsageError, match=r"item 0 of .* has no value"):
        _ = halve.map([object()]).values


# isolate="process" ------------------------------------------------------------------------------------


def test_a_function_that_no_other_process_finds_is_refused_where_it_is_decorated() -> None:
    def local(x: int) -> int:
        return x

    for work in (local, lambda x: x):
        with pytest.raises(oncemore.UsageError, match="cannot be found from another process"):
            oncemore.step(effect="pure", isolate="process", name="local")(work)


def hidden(x: int) -> int:
    raise AssertionError("it is found under its name instead of the step")


shadowed = oncemore.step(effect="pure", isolate="process", name="shadowed")(hidden)


def hidden(x: int) -> int:  # type: ignore[no-redef]
    return x


gone = oncemore.step(effect="pure", isolate="process", name="gone")(hidden)
del hidden


@pytest.mark.parametrize("step", [shadowed, gone], ids=lambda step: step.name)
def test_a_function_that_is_not_found_under_its_name_is_refused_before_anything_is_written(
    step: Any, engine: oncemore.Engine
) -> None:
    for call in (step, step.submit):
        with pytest.raises(oncemore.UsageError, match="another process does not find it as"):
            call(1)
    assert list(engine.store.read_entries()) == []


def test_a_function_of_a_program_without_a_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolation.check_importable("outer", isolated.outer.__wrapped__)
    monkeypatch.setattr(isolated.outer.__wrapped__, "__module__", "__main__")
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    with pytest.raises(oncemore.UsageError, match="another process does not find it"):
        isolation.check_importable("outer", isolated.outer.__wrapped__)


# Without file locks -----------------------------------------------------------------------------------


def test_a_file_is_refused_where_there_are_no_file_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(oncemore.UsageError, match="supported on Linux"):
        oncemore.open("log.db")


# Warnings at the user's line --------------------------------------------------------------------------


def _decorate_step() -> Any:
    @oncemore.step(effect="pure", policy=AT_ONCE, name="warned")
    def work() -> None: ...

    return work


def _decorate_retry() -> Any:
    @oncemore.retry(on=OSError, policy=AT_ONCE)
    def work() -> None: ...

    return work


def _change_options() -> Any:
    return oncemore.retry(on=OSError)(lambda: None).with_options(policy=AT_ONCE)


def _call_retrying() -> Any:
    return oncemore.retrying(lambda: None, on=OSError, policy=AT_ONCE)


def _load_file() -> Any:
    return files.policy("mine.yaml")


def _name_file() -> Any:
    return oncemore.step(effect="pure", policy="mine.yaml", name="warned")(_load_file)


def _make_policy() -> Any:
    return RetryPolicy(base_delay=0.0, max_delay=0.0)


class Node:
    """A node of the kfm-loop profile."""

    node_id = "warned"

    def preflight_checkpoint(self, run: Any, key: str) -> None: ...

    def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> None: ...


def _run_node() -> Any:
    with oncemore.open("memory:"):
        return loop.retry_loop(Node(), 1, policy=AT_ONCE)


WAYS = [
    _decorate_step, _decorate_retry, _change_options, _call_retrying, _load_file, _name_file, _make_policy,
    _run_node,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_policy_warning_points_at_the_users_line(way: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "version: '1'\nretry_policy: {max_attempts: 3, delays_s: [0, 0], jitter: none}\n"
    )
    with pytest.warns(oncemore.PolicyWarning) as caught:
        way()
    lines, first = inspect.getsourcelines(way)
    assert caught
    for warning in caught:
        assert warning.filename == __file__
        assert first <= warning.lineno < first + len(lines)
