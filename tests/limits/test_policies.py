"""Policy files say when providers are left alone, how many calls go in a time, what retries may cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.limits.breaker_rules import BreakerRules
from oncemore.policy.files.loader import load_breaker_rules

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.testing import FakeClock

FILE = """
version: "1"
profile: careful
retry_policy: {max_attempts: 5, base_delay_s: 0.1}
circuit_breaker: {max_failures: 2, cooldown_sec: 20, count: attempts}
rate_limit: {calls: 1, period_s: 2}
retry_budget: {capacity: 3, per_success: 0, at_empty: fail}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "careful.yaml"
    path.write_text(FILE)
    return path


def down() -> None:
    raise ConnectionResetError


def test_a_file_s_breaker_rate_and_budget_hold(file: Path, clock: FakeClock) -> None:
    assert load_breaker_rules(file) == BreakerRules(2, 20, "attempts")
    call = oncemore.retrying(down, on="transient", policy=file, breaker="careful-test")
    with pytest.raises(ConnectionResetError):
        call()
    with pytest.raises(oncemore.CircuitOpen):
        call()
    free = oncemore.retrying(down, on="transient", policy=file)
    with pytest.raises(ConnectionResetError) as caught:
        free()
    assert max(clock.delays) > 1.5  # its rate
    reason = oncemore.get_decision(caught.value).reason  # type: ignore[union-attr]
    assert reason == "retry_budget_empty"  # one was spent by the first call
    assert [oncemore.retrying(lambda: 1, on="transient", policy=file, rate="1000/s")() for _ in range(3)] == [
        1
    ] * 3


def test_a_step_goes_by_its_policy_s_rate_and_breaker(
    file: Path, engine: oncemore.Engine, clock: FakeClock
) -> None:
    @oncemore.step(effect="idempotent", name="rated", policy=file, provider="api")
    def rated(n: int) -> int:
        if n > 1:
            raise ConnectionResetError
        return n

    assert [rated(0), rated(1)] == [0, 1]
    assert sum(clock.delays) == pytest.approx(2.0, abs=0.2)
    assert rated.run(2).status == "HARD_FAIL"  # it waited out its cooldowns of 20 s inline
    assert engine.store.load_head("breaker/api") is not None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("circuit_breaker: {max_failures: 0}", r"careful\.yaml:3.*max_failures"),
        ("circuit_breaker: {half_open_probes: 2}", r"careful\.yaml:3.*half_open_probes"),
        ("circuit_breaker: {failure_rate: 1.5}", r"careful\.yaml:3.*failure_rate"),
        ("rate_limit: {calls: none}", r"careful\.yaml:3.*calls"),
        ("retry_budget: {at_empty: stop}", r"careful\.yaml:3.*at_empty"),
        ("rate_limits: {calls: 1}", r"careful\.yaml:3.*rate_limit"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "careful.yaml"
    path.write_text(f'version: "1"\nprofile: careful\n{line}\n')
    with pytest.raises(oncemore.PolicyError, match=says):
        oncemore.retry(on="transient", policy=path)
