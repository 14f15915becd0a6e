"""Every field of a policy file, and what it changes; a field without a row fails.

A row shows what a file with the field does that a file without it does not (`Change`), that a field takes no
other value than the one that always holds (`Statement`), or that a user's own file may not hold it, with its
place (`Refusal`).
"""

from __future__ import annotations

import contextlib
import io
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import PolicyError, PolicyViolation, cli
from oncemore.errors import ConfigChanged, UsageError
from oncemore.limits.cooldown_rules import Cooldown
from oncemore.log.entry_codec import decode_head
from oncemore.log.record import WorkerRecord
from oncemore.policy import files
from oncemore.policy.decide import Situation, decide_retry
from oncemore.policy.files.fields import CLASSIFY_FIELDS, COOLDOWN_FIELDS, RETRY_FIELDS
from oncemore.policy.files.loader import step_settings
from oncemore.policy.files.sections import FILE_FIELDS
from oncemore.policy.model import Failure
from oncemore.policy.tuning import Signals
from oncemore.policy.verdict import UNMATCHED, decide_verdict
from oncemore.profiles.nova_cat import NovaCat
from oncemore.queries.ledger_reports import build_reports, write_reports
from oncemore.telemetry.autonomy_rules import AutonomyRecord, decide_level
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncemore.policy.files.fields import FieldSpec

    Observe = Callable[[Path], Any]

ALONE = 'version: "1"\n'
BASE = f"{ALONE}extends: standard\n"
NOVA = f"{ALONE}extends: nova-cat\n"
VIOLATION = PolicyViolation("SCHEMA_INVALID")
DIRTY = Signals(grid_intensity=400.0, energy_price=0.2)


# What can be seen of a file -------------------------------------------------------------------------------


def of_policy(name: str, address: str = "") -> Observe:
    return lambda path: getattr(files.policy(f"{path}{address}"), name)


def prints(text: str) -> Observe:
    """Whether `oncemore policy show` prints a text."""

    def observe(path: Path) -> bool:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            cli.run_command(["policy", "show", str(path)])
        return text in out.getvalue()

    return observe


def warns(text: str) -> Observe:
    """Whether `oncemore policy check` prints a text as a warning or as an error."""

    def observe(path: Path) -> bool:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            cli.run_command(["policy", "check", str(path)])
        return text in out.getvalue()

    return observe


def delay(attempt: int = 1, seed: str = "seed", **known: Any) -> Observe:
    """Observe the action after a failed attempt, and its delay."""

    def observe(path: Path) -> Any:
        at = Situation(
            attempt, Failure("transient", code="HTTP_503"), "RETRYABLE", 1000.0, seed, 0.0, **known
        )
        found = decide_retry(files.policy(path), at)
        return found.action, round(found.delay_s, 3)

    return observe


def verdict(code: str, kind: Any = "transient", rule: str = "http") -> Observe:
    return lambda path: decide_verdict(Failure(kind, code=code, rule=rule), files.policy(path), "pure")


def ended(error: Exception, **options: Any) -> Observe:
    """Observe the end of a failing run: state, attempts, hold reason and active switches."""

    def observe(path: Path) -> Any:
        told: Any = {"effect": "idempotent", "name": "work", "policy": path, "pipeline": "mine", **options}

        @oncemore.step(**told)
        def work() -> None:
            raise error

        with FakeClock(), oncemore.open("memory:") as engine:
            run = work.run()
            return run.status, len(run.attempts), run.held_for, [one.name for one in engine.switches.status()]

    return observe


def rules(name: str) -> Observe:
    """A rule of the file's autonomy matrix; `tests/telemetry/test_autonomy.py` shows what each does."""

    def observe(path: Path) -> Any:
        matrix = step_settings(path).autonomy
        return None if matrix is None else getattr(matrix.rules, name)

    return observe


def level(values: dict[str, float]) -> Observe:
    """The level of the file's autonomy matrix by signals, while work is slowed already."""

    def observe(path: Path) -> Any:
        matrix = step_settings(path).autonomy
        if matrix is None:
            return None
        slowed = AutonomyRecord(state="SLOW", name=matrix.name, number=1)
        readings = {name: {"value": value} for name, value in values.items()}
        return decide_level(matrix.rules, slowed, readings, 1e9)[0].level

    return observe


def escalation(error: Exception) -> Observe:
    """The policy that the escalation record of a failed run names."""

    def observe(path: Path) -> Any:
        @oncemore.step(effect="idempotent", name="work", policy=path)
        def work() -> None:
            raise error

        with FakeClock(), oncemore.open("memory:"):
            (record,) = [line for line in work.run().records() if line["kind"] == "ESCALATION"]
            return record["escalation"]["policy"]

    return observe


def of_step(name: str) -> Observe:
    """Observe a setting of a step that uses the file."""

    def observe(path: Path) -> Any:
        resting = Cooldown(lambda: "it")
        made = oncemore.step(effect="idempotent", policy=path, provider="eso", cooldown=resting)(lambda: 1)
        found: Any = made._options
        for part in name.split("."):
            found = getattr(found, part, None)
        return found

    return observe


def rests(path: Path) -> Any:
    return {name: tuple(rest) for name, rest in files.load(path).cooldowns.items()}


def calls_of_failed_work(path: Path) -> int:
    calls = []

    @oncemore.step(effect="idempotent", name="work", policy=path)
    def work() -> None:
        calls.append(1)
        raise VIOLATION

    with oncemore.open("memory:"):
        work.run()
        work.run()
    return len(calls)


def after_a_change(path: Path) -> Any:
    """Observe a call whose work was finished under another config."""
    with oncemore.open("memory:"):
        oncemore.step(effect="pure", name="work", policy=path, config=1)(lambda: "old")()
        try:
            return oncemore.step(effect="pure", name="work", policy=path, config=2)(lambda: "new")()
        except ConfigChanged:
            return "refused"


def lease(path: Path) -> float:
    """How long the lease of a worker lasts that runs a step under the file."""
    with oncemore.open("memory:") as engine:
        worker = oncemore.step(effect="pure", name="work", policy=path)(worker_name)()
        head = engine.store.load_head(f"worker/{worker}")
        assert head is not None
        return decode_head(head.head, WorkerRecord).lease_s


def worker_name() -> str:
    return str(oncemore.current().head.record.worker)


def gives_signs_of_life(path: Path) -> bool:
    """Whether a worker renews its lease several times in a moment; once in 20 s is usual."""
    with oncemore.open("memory:") as engine:

        def wait() -> bool:
            entity, ends = f"worker/{worker_name()}", time.monotonic() + 0.5
            while time.monotonic() < ends or engine.lease_s != 60.0:
                if sum(1 for _ in engine.store.read_entries(entity)) > 3:
                    return True
                time.sleep(0.01)
            return False

        return oncemore.step(effect="pure", name="work", policy=path)(wait)()


def _version(path: Path) -> str:
    try:
        return files.load(path).version
    except PolicyError:
        return ""


def _fault(path: Path) -> str:
    try:
        files.load(path)
    except PolicyError as error:
        return str(error)
    return ""


# The rows -------------------------------------------------------------------------------------------------


class Change:
    """The effect of a field: an observation that differs for a file without the field."""

    def __init__(self, text: str, observe: Observe, expected: Any, base: str = BASE) -> None:
        self.text, self.observe, self.expected, self.base = text, observe, expected, base

    def __call__(self, path: Path) -> None:
        path.write_text(self.base)
        assert self.observe(path) != self.expected, "the same is seen without the field"
        files.forget()
        path.write_text(self.base + self.text)
        assert self.observe(path) == self.expected


class Refusal:
    """A field that is refused in a user's own file: the error names the file, the line and the field."""

    def __init__(self, text: str, field: str, why: str = "has no effect") -> None:
        self.text, self.field, self.why = text, field, why

    def __call__(self, path: Path) -> None:
        path.write_text(BASE + self.text)
        with pytest.raises(PolicyError) as caught:
            files.load(path)
        (fault,) = str(caught.value).splitlines()
        assert fault.startswith(f"{path}:3:")
        assert f": {self.field} {self.why}" in fault
        assert "remove " in fault


class Statement:
    """A fixed statement: a file may contain it, but no other value."""

    def __init__(self, text: str, other: str) -> None:
        self.text, self.other = text, other

    def __call__(self, path: Path) -> None:
        path.write_text(BASE + self.text)
        files.load(path)
        files.forget()
        path.write_text(BASE + self.other)
        with pytest.raises(PolicyError, match=r"mine\.yaml:3:.*; it must be "):
            files.load(path)


class Several:
    """Several rows for one field."""

    def __init__(self, *rows: Callable[[Path], None]) -> None:
        self.rows = rows

    def __call__(self, path: Path) -> None:
        for row in self.rows:
            files.forget()
            row(path)


def ledger_files(path: Path) -> Any:
    """Observe the ledger files that a policy has written."""
    root = path.parent / "root"
    with oncemore.open("memory:") as engine:
        try:
            written = write_reports(engine, root, str(path))
        except UsageError as refused:
            return str(refused)
    assert all(Path(file).exists() for file in written)
    return sorted(str(Path(file).relative_to(root)) for file in written)


def outside_root(name: str) -> Callable[[Path], None]:
    """A ledger outside of the root, or of another name, is refused with its line."""

    def check(path: Path) -> None:
        path.write_text(f"{BASE}ledgers: [{name}]\n")
        with pytest.raises(PolicyError, match=r"mine\.yaml:3:.*ledgers"):
            files.load(path)

    return check


def ledger_is_always_written(path: Path) -> None:
    """`ledger` states a fact: a failed run is in the retry log with and without it."""
    for text in ("", "on_non_retryable: [halt, ledger]\n"):
        files.forget()
        path.write_text(BASE + text)
        step: Any = oncemore.step(effect="idempotent", name="work", policy=path)(_raise_violation)
        with FakeClock(), oncemore.open("memory:") as engine:
            assert step.run().status == "HARD_FAIL"
            (entry,) = build_reports(engine)["pipeline_retry_log"]
            assert entry["outcome"] == "failed"


def _raise_violation() -> None:
    raise VIOLATION


EXACT = "  base_delay_s: 4\n  max_delay_s: 100\n  max_attempts: 4\n"


def in_policy(text: str, observe: Observe, expected: Any, ground: str = f"{EXACT}  jitter: none\n") -> Change:
    """A field of a policy, with the fields that make its effect visible."""
    return Change(f"  {text}\n", observe, expected, f"{ALONE}retry_policy:\n{ground}")


def in_tuning(text: str, observe: Observe, expected: Any, ground: str = "") -> Change:
    base = f"{ALONE}retry_policy:\n{EXACT}  jitter: none\ntelemetry_tuning:\n  enabled: true\n{ground}"
    return Change(f"  {text}\n", observe, expected, base)


def in_section(section: str, text: str, observe: Observe, expected: Any, ground: str = "") -> Change:
    """A field of a section, with the fields that it needs."""
    return Change(f"  {text}\n", observe, expected, f"{BASE}{section}:\n{ground}")


GATE = "  max_failures: 3\n  cooldown_sec: 300\n"
SHARE = "  failure_rate: 0.5\n  cooldown_sec: 300\n"
METER = "  calls: 5\n"
PURSE = "  capacity: 7\n"
REST = "  base_s: 300\n"
NOT_SENT = ConnectionRefusedError()
SENSITIVE = "version: retry-loop-v1.0\ngoverned: true\nretry_policy: {timeout_s: 5}\n"

ROWS: dict[str, Callable[[Path], None]] = {
    # The file.
    "profile": Change("profile: ours\n", lambda path: files.load(path).name, "ours"),
    "version": Change('version: "2"\n', _version, "2", "extends: standard\n"),
    "extends": Change("extends: lit\n", of_policy("max_attempts"), 2, f"{ALONE}retry_policy: {{}}\n"),
    "description": Change("description: for reports\n", prints("for reports"), True),
    "owner": Change("owner: data team\n", prints("data team"), True),
    "reviewer": Change("reviewer: the council\n", prints("the council"), True),
    "review_by": Change("review_by: 2027-01-31\n", prints("2027-01-31"), True),
    "reviewed": Change("reviewed: 2026-01-31\n", warns("its review is overdue since 2026-05-03"), True),
    "released": Change("released: 2020-02-29\n", warns("time to live ended on 2022-02-28"), True),
    "ttl_months": Change(
        "ttl_months: 1\n",
        warns("time to live ended on 2024-02-29"),
        True,
        f"{BASE}released: 2024-01-31\n",
    ),
    "expires": Change("expires: 2026-01-31\n", warns("it expired on 2026-01-31"), True),
    "classification": Change("classification: Sensitive\n", warns("care_notes is missing"), True, SENSITIVE),
    "indigenous_rights_flag": Change(
        "indigenous_rights_flag: true\n", warns("care_notes is missing"), True, SENSITIVE
    ),
    "change_reason": Change("change_reason: fewer calls\n", prints("fewer calls"), True),
    "care_notes": Change("care_notes: masked first\n", prints("masked first"), True),
    "governed": Change(
        "governed: true\n",
        lambda path: files.inspect_file(path).warnings != (),
        True,
        "version: retry-loop-v1.0\nretry_policy: {timeout_s: 5}\n",
    ),
    "kfm_compliant": Change("kfm_compliant: false\n", prints("kfm_compliant"), True),
    "priority": Change("priority: P0\n", of_step("priority"), "P0"),
    # Policies.
    "retry_policy": Change("retry_policy: {max_attempts: 5}\n", of_policy("max_attempts"), 5),
    "retry_policy.name": in_policy("name: ours", of_policy("name"), "ours"),
    "retry_policy.description": in_policy("description: for reports", prints("for reports"), True),
    "retry_policy.max_attempts": in_policy(
        "max_attempts: 2", delay(2), ("stop", 0.0), "  base_delay_s: 4\n  max_delay_s: 100\n  jitter: none\n"
    ),
    "retry_policy.max_crashes": in_policy("max_crashes: 2", of_policy("max_crashes"), 2),
    "retry_policy.schedule": in_policy("schedule: linear", delay(3), ("retry", 12.0)),
    "retry_policy.base_delay_s": in_policy("base_delay_s: 7", delay(), ("retry", 7.0), "  jitter: none\n"),
    "retry_policy.factor": in_policy("factor: 3", delay(2), ("retry", 12.0)),
    "retry_policy.max_delay_s": in_policy(
        "max_delay_s: 5", delay(3), ("retry", 5.0), "  base_delay_s: 4\n  jitter: none\n  max_attempts: 4\n"
    ),
    "retry_policy.delays_s": in_policy("delays_s: [9]", delay(), ("retry", 9.0), "  jitter: none\n"),
    "retry_policy.exponent": in_policy("exponent: attempt", delay(), ("retry", 8.0)),
    "retry_policy.jitter": in_policy("jitter: none", delay(), ("retry", 4.0), EXACT),
    "retry_policy.jitter_span_s": in_policy(
        "jitter_span_s: 0", delay(), ("retry", 4.0), f"{EXACT}  jitter: additive\n"
    ),
    "retry_policy.jitter_factor": in_policy(
        "jitter_factor: 0", delay(), ("retry", 4.0), f"{EXACT}  jitter: proportional\n"
    ),
    "retry_policy.jitter_enabled": in_policy("jitter_enabled: false", delay(), ("retry", 4.0), EXACT),
    "retry_policy.jitter_seed": in_policy("jitter_seed: ours", of_policy("jitter_seed"), "ours", EXACT),
    "retry_policy.timeout_s": in_policy("timeout_s: 5", of_policy("timeout_s"), 5.0),
    "retry_policy.total_timeout_s": in_policy("total_timeout_s: 5", of_policy("total_timeout_s"), 5.0),
    "retry_policy.retry_cost": in_policy("retry_cost: 3", delay(1, budget_tokens=2.0), ("stop", 0.0)),
    "retry_policy.respect_retry_after": Statement(
        "retry_policy: {respect_retry_after: true}\n", "retry_policy: {respect_retry_after: false}\n"
    ),
    "retry_policy.classify": in_policy(
        "classify: {non_retryable: [HTTP_503]}", verdict("HTTP_503"), "TERMINAL"
    ),
    "policies": Change(
        "policies: {slow: {max_attempts: 7}}\n",
        lambda path: sorted(files.load(path).policies),
        ["default", "slow"],
    ),
    "classify": Change("classify: {non_retryable: [HTTP_503]}\n", verdict("HTTP_503"), "TERMINAL"),
    "classify.retryable": Change(
        "classify: {retryable: [HTTP_409]}\n", verdict("HTTP_409", "permanent"), "RETRYABLE"
    ),
    "classify.non_retryable": Change(
        "classify: {non_retryable: [HTTP_503]}\n", verdict("HTTP_503"), "TERMINAL"
    ),
    "classify.unmatched": Change(
        "classify: {unmatched: retry}\n", verdict("EXC_KeyError", "permanent", UNMATCHED), "RETRYABLE"
    ),
    "classify.precedence": Change(
        "  precedence: retryable_first\n",
        verdict("HTTP_503"),
        "RETRYABLE",
        f"{BASE}classify:\n  retryable: [HTTP_503]\n  non_retryable: [HTTP_503]\n",
    ),
    "telemetry_tuning": Change(
        "telemetry_tuning: {}\n",
        delay(signals=DIRTY),
        ("retry", 6.4),
        f"{ALONE}retry_policy:\n{EXACT}  jitter: none\n",
    ),
    "telemetry_tuning.enabled": Change(
        "telemetry_tuning: {enabled: false}\n",
        lambda path: files.inspect_file(path).policy().tuning,
        None,
        "version: retry-loop-v1.0\nextends: kfm-loop\n",
    ),
    "telemetry_tuning.carbon_intensity_threshold_g_per_kWh": in_tuning(
        "carbon_intensity_threshold_g_per_kWh: {low: 100, high: 400}", delay(signals=DIRTY), ("retry", 8.0)
    ),
    "telemetry_tuning.carbon_intensity_threshold_g_per_kWh.low": in_tuning(
        "carbon_intensity_threshold_g_per_kWh: {low: 300}", delay(signals=DIRTY), ("retry", 6.0)
    ),
    "telemetry_tuning.carbon_intensity_threshold_g_per_kWh.high": in_tuning(
        "carbon_intensity_threshold_g_per_kWh: {high: 400}", delay(signals=DIRTY), ("retry", 8.0)
    ),
    "telemetry_tuning.energy_price_usd_per_kWh": in_tuning(
        "energy_price_usd_per_kWh: {peak: 0.1}", delay(signals=DIRTY), ("retry", 8.4)
    ),
    "telemetry_tuning.energy_price_usd_per_kWh.peak": in_tuning(
        "energy_price_usd_per_kWh: {peak: 0.15}", delay(signals=DIRTY), ("retry", 8.4)
    ),
    "telemetry_tuning.deadline_bias": in_tuning(
        "deadline_bias: {enabled: false}", delay(deadline=1900.0), ("retry", 4.0)
    ),
    "telemetry_tuning.deadline_bias.enabled": in_tuning(
        "deadline_bias: {enabled: false}", delay(deadline=1900.0), ("retry", 4.0)
    ),
    "telemetry_tuning.deadline_bias.min_deadline_buffer_s": in_tuning(
        "deadline_bias: {min_deadline_buffer_s: 900}", delay(deadline=1900.0), ("retry", 4.0)
    ),
    "telemetry_tuning.max_stretch": in_tuning("max_stretch: 1.25", delay(signals=DIRTY), ("retry", 5.0)),
    "bounds": Change(
        "bounds: {max_attempts: [1, 2]}\n",
        lambda path: _fault(path).partition("max_attempts ")[2],
        "is 3; the bounds of this profile allow 1 to 2",
    ),
    "minimums": Change("minimums: {max_attempts: 5}\n", of_policy("max_attempts"), 5),
    "providers": Change(
        "providers: {eso: {retry_policy: {max_attempts: 5}}}\n", of_policy("max_attempts", "@eso"), 5
    ),
    "providers.*.retry_policy": Change(
        "providers: {eso: {retry_policy: {max_attempts: 6}}}\n", of_policy("max_attempts", "@eso"), 6
    ),
    "providers.*.policies": Change(
        "providers: {eso: {policies: {default: {max_attempts: 6}}}}\n", of_policy("max_attempts", "@eso"), 6
    ),
    "providers.*.cooldown": Change(
        "providers: {eso: {cooldown: {base_s: 9}}}\n", rests, {"eso": (9.0, 2.0, 86400.0)}
    ),
    # Sections.
    "states": Statement(
        "states: [PENDING, RUNNING, SOFT_FAIL, HARD_FAIL, COMPLETE]\n", "states: [PENDING, COMPLETE]\n"
    ),
    "classes": Statement("classes: [RETRYABLE, TERMINAL, QUARANTINE]\n", "classes: [RETRYABLE]\n"),
    "on_non_retryable": Several(
        Change("on_non_retryable: [quarantine]\n", ended(VIOLATION), ("SOFT_FAIL", 1, "quarantined", [])),
        ledger_is_always_written,
    ),
    "halt_scope": Several(
        Change("halt_scope: pipeline\n", ended(VIOLATION), ("HARD_FAIL", 1, "", ["pipeline:mine"])),
        Change(
            "halt_scope: pipeline\n",
            lambda path: "halt_scope is pipeline, and on_non_ret" in _fault(path),
            True,
            f"{BASE}on_non_retryable: [quarantine]\n",
        ),
    ),
    "after_failure": Change("after_failure: raise\n", calls_of_failed_work, 1),
    "circuit_breaker": Change("circuit_breaker: {max_failures: 2}\n", of_step("_provider_rules.failures"), 2),
    "circuit_breaker.max_failures": in_section(
        "circuit_breaker", "max_failures: 9", of_step("_provider_rules.failures"), 9, "  cooldown_sec: 1\n"
    ),
    "circuit_breaker.cooldown_sec": in_section(
        "circuit_breaker",
        "cooldown_sec: 9",
        of_step("_provider_rules.cooldown_s"),
        9.0,
        "  max_failures: 3\n",
    ),
    "circuit_breaker.half_open_probes": Statement(
        "circuit_breaker: {half_open_probes: 1}\n", "circuit_breaker: {half_open_probes: 2}\n"
    ),
    "circuit_breaker.count": in_section(
        "circuit_breaker", "count: attempts", of_step("_provider_rules.counts"), "attempts", GATE
    ),
    "circuit_breaker.failure_rate": in_section(
        "circuit_breaker", "failure_rate: 0.5", of_step("_provider_rules.rate"), 0.5, "  cooldown_sec: 1\n"
    ),
    "circuit_breaker.window_sec": in_section(
        "circuit_breaker", "window_sec: 9", of_step("_provider_rules.window_s"), 9.0, SHARE
    ),
    "circuit_breaker.min_calls": in_section(
        "circuit_breaker", "min_calls: 9", of_step("_provider_rules.minimum_calls"), 9, SHARE
    ),
    "rate_limit": Change("rate_limit: {calls: 9}\n", of_step("_rate.rate_limit.per"), 9),
    "rate_limit.calls": in_section(
        "rate_limit", "calls: 9", of_step("_rate.rate_limit.per"), 9, "  burst: 1\n"
    ),
    "rate_limit.period_s": in_section(
        "rate_limit", "period_s: 9", of_step("_rate.rate_limit.period_s"), 9.0, METER
    ),
    "rate_limit.burst": in_section("rate_limit", "burst: 3", of_step("_rate.rate_limit.burst"), 3, METER),
    "retry_budget": Change("retry_budget: {capacity: 3}\n", of_step("retry_budget.budget.capacity"), 3.0),
    "retry_budget.capacity": in_section(
        "retry_budget", "capacity: 3", of_step("retry_budget.budget.capacity"), 3.0, "  per_success: 0.1\n"
    ),
    "retry_budget.per_success": in_section(
        "retry_budget", "per_success: 2", of_step("retry_budget.budget.per_success"), 2.0, PURSE
    ),
    "retry_budget.at_empty": in_section(
        "retry_budget", "at_empty: park", of_step("retry_budget.budget.at_empty"), "park", PURSE
    ),
    "retry_budget.shared": in_section(
        "retry_budget", "shared: true", lambda path: of_step("retry_budget.entity")(path) != "", True, PURSE
    ),
    "retry_budget.name": in_section(
        "retry_budget", "name: ours", of_step("retry_budget.entity"), "quota/ours", f"{PURSE}  shared: true\n"
    ),
    "cooldown": Change("cooldown: {base_s: 9}\n", rests, {"": (9.0, 2.0, 86400.0)}),
    "cooldown.base_s": in_section(
        "cooldown", "base_s: 9", rests, {"": (9.0, 3.0, 86400.0)}, "  multiplier: 3\n"
    ),
    "cooldown.multiplier": in_section("cooldown", "multiplier: 3", rests, {"": (300.0, 3.0, 86400.0)}, REST),
    "cooldown.cap_s": in_section("cooldown", "cap_s: 900", rests, {"": (300.0, 2.0, 900.0)}, REST),
    "cooldown.provider_overrides": in_section(
        "cooldown",
        "provider_overrides: {eso: {base_s: 9}}",
        rests,
        {"": (300.0, 2.0, 86400.0), "eso": (9.0, 2.0, 86400.0)},
        REST,
    ),
    "lease": Several(
        Change("lease: {ttl_s: 7}\n", lease, 7.0),
        Change("lease: {renew_every_s: 60}\n", lambda path: "not less than ttl_s, 60" in _fault(path), True),
    ),
    "lease.ttl_s": in_section("lease", "ttl_s: 7", lease, 7.0, "  renew_every_s: 5\n"),
    "lease.renew_every_s": in_section(
        "lease", "renew_every_s: 0.01", gives_signs_of_life, True, "  ttl_s: 30\n"
    ),
    "escalation": Change("escalation: {permanent: council}\n", escalation(VIOLATION), "council"),
    "escalation.permanent": Change("escalation: {permanent: council}\n", escalation(VIOLATION), "council"),
    "escalation.exhausted": Change(
        "escalation: {exhausted: on-call}\n", escalation(TimeoutError()), "on-call"
    ),
    "idempotency": Change("idempotency: {on_config_change: reuse}\n", after_a_change, "old"),
    "idempotency.key_from": Statement(
        "idempotency: {key_from: [node_id, inputs, target_partition]}\n",
        "idempotency: {key_from: [inputs]}\n",
    ),
    "idempotency.on_config_change": Several(
        Change("idempotency: {on_config_change: reuse}\n", after_a_change, "old"),
        Change("idempotency: {on_config_change: fail}\n", after_a_change, "refused"),
    ),
    "idempotency.in_event_payloads": Statement(
        "idempotency: {in_event_payloads: never}\n", "idempotency: {in_event_payloads: always}\n"
    ),
    "idempotency.poll_bucket": Several(
        Change(
            "idempotency: {poll_bucket: 2h}\n",
            lambda path: NovaCat(profile=str(path)).discover_provider._options.keys.bucket_name(
                (), {}, 7200.0
            ),  # type: ignore[misc]
            "2:00:00 from 7200",
            NOVA,
        ),
        Refusal(
            "idempotency: {poll_bucket: 2h}\n",
            "idempotency.poll_bucket",
            "is read only by the facade of nova-cat",
        ),
    ),
    "idempotency.step_keys": Refusal("idempotency: {step_keys: [linking]}\n", "idempotency.step_keys"),
    "idempotency.hash": Statement("idempotency: {hash: sha256}\n", "idempotency: {hash: md5}\n"),
    "idempotency.canonical": Statement(
        "idempotency: {canonical: json}\n", "idempotency: {canonical: text}\n"
    ),
    "idempotency.legacy_string_form": Statement(
        "idempotency: {legacy_string_form: false}\n", "idempotency: {legacy_string_form: true}\n"
    ),
    "idempotency.store": Refusal("idempotency: {store: sqlite}\n", "idempotency.store"),
    "effects": Change(
        "effects: require_idempotent_or_outbox\n",
        ended(NOT_SENT, effect="once", not_applied=(ConnectionRefusedError,)),
        ("HARD_FAIL", 1, "", []),
    ),
    "telemetry_fields": Statement(
        "telemetry_fields: [pipeline_id, stage_name, attempt, delay_ms, error_class, retryable, outcome, "
        "circuit_open, energy_wh, co2_g]\n",
        "telemetry_fields: [attempt]\n",
    ),
    "ledgers": Several(
        Change("ledgers: [audit/versioning_ledger.json]\n", ledger_files, ["audit/versioning_ledger.json"]),
        Change(
            "ledgers: [pipeline_retry_log.json]\n",
            ledger_files,
            ["docs/reports/audit/pipeline_retry_log.json"],
        ),
        *(
            outside_root(name)
            for name in ("../versioning_ledger.json", "/x/versioning_ledger.json", "a.json")
        ),
    ),
    "carbon_budget": Change("carbon_budget: {cap_kgCO2e: 3}\n", rules("cap_kg"), 3.0),
    "carbon_budget.cap_kgCO2e": Change("carbon_budget: {cap_kgCO2e: 5}\n", rules("cap_kg"), 5.0),
    "carbon_budget.period": Change("carbon_budget: {cap_kgCO2e: 3, period: day}\n", rules("period"), "day"),
    "carbon_budget.slow_at": Change("carbon_budget: {cap_kgCO2e: 3, slow_at: 0.5}\n", rules("slow_at"), 0.5),
    "autonomy": Change("autonomy: {min_dwell_s: 900}\n", level({}), "run"),
    **{
        f"autonomy.{section}{field}": Change(
            f"autonomy: {{{section}: {{slow: 100, {text}}}}}\n".replace(", }", "}"), level(values), expected
        )
        for section, signal in (
            ("carbon_intensity_g_per_kWh", "grid_intensity"),
            ("energy_price_usd_per_kWh", "energy_price"),
        )
        for field, text, values, expected in (
            ("", "", {signal: 120}, "slow"),
            (".slow", "", {signal: 100}, "slow"),
            (".pause", "pause: 200", {signal: 250}, "pause"),
            (".resume", "resume: 50", {signal: 60}, "slow"),
        )
    },
    "autonomy.off_hours": Change("autonomy: {off_hours: {from_hour: 0, to_hour: 0}}\n", level({}), "slow"),
    "autonomy.off_hours.from_hour": Change(
        "autonomy: {off_hours: {from_hour: 7, to_hour: 3}}\n", rules("off_hours"), (7, 3)
    ),
    "autonomy.off_hours.to_hour": Change(
        "autonomy: {off_hours: {from_hour: 7, to_hour: 8}}\n", rules("off_hours"), (7, 8)
    ),
    "autonomy.escalate_below": Change(
        "autonomy: {escalate_below: 0.1}\n", level({"error_budget": 0.1}), "escalate"
    ),
    "autonomy.on_permanent": Change("autonomy: {on_permanent: pause}\n", rules("on_permanent"), "pause"),
    "autonomy.min_dwell_s": Change("autonomy: {min_dwell_s: 5}\n", rules("min_dwell_s"), 5.0),
    "autonomy.recheck_s": Change("autonomy: {recheck_s: 5}\n", rules("recheck_s"), 5.0),
    "autonomy.slow_factor": Change("autonomy: {slow_factor: 5}\n", rules("slow_factor"), 5.0),
    "autonomy.slow_concurrency": Change("autonomy: {slow_concurrency: 5}\n", rules("slow_concurrency"), 5),
    "concurrency": Refusal(
        "concurrency: {ReferenceReconciliation: 3}\n", "concurrency", "is read only by the facade"
    ),
    "concurrency.DiscoverSpectraProducts": Change(
        "concurrency: {DiscoverSpectraProducts: 2}\n",
        lambda path: NovaCat(profile=str(path))._discover_concurrency,
        2,
        NOVA,
    ),
    "concurrency.ReferenceReconciliation": Change(
        "concurrency: {ReferenceReconciliation: 2}\n",
        lambda path: NovaCat(profile=str(path))._reconcile_concurrency,
        2,
        NOVA,
    ),
    "concurrency.AcquireAndValidateSpectra": Change(
        "concurrency: {AcquireAndValidateSpectra: two}\n",
        lambda path: "it must be one of one data_product_id" in _fault(path),
        True,
        NOVA,
    ),
    "checks": Refusal("checks: [VALID -> SKIPPED_DUPLICATE]\n", "checks"),
    "correlation_id": Statement("correlation_id: create_if_absent\n", "correlation_id: required\n"),
    "audit": Statement(
        "audit: [retry_attempt, retry_exhausted, idempotency, retry_succeeded, retry_refused]\n",
        "audit: [retry_attempt]\n",
    ),
    "control_state_unknown": Statement("control_state_unknown: deny\n", "control_state_unknown: allow\n"),
    "actions_never_auto_retried": Refusal("actions_never_auto_retried: [a]\n", "actions_never_auto_retried"),
    "transport": Refusal("transport: {retry_after_cap_s: 3}\n", "transport"),
    "persistence": Refusal("persistence: {busy_timeout_s: 3}\n", "persistence"),
}


def fields(rows: tuple[FieldSpec, ...] = FILE_FIELDS, inside: str = "") -> Iterator[str]:
    """Every field of the schema by its path; groups that stand in several places are walked once.

    What is inside of a section that a user's own file may not hold is refused with it.
    """
    for row in rows:
        path = f"{inside}{row.name}"
        yield path
        shared = row.rows in (RETRY_FIELDS, CLASSIFY_FIELDS, COOLDOWN_FIELDS) and path not in (
            "retry_policy",
            "classify",
        )
        if row.rows and not shared and not row.inert:
            yield from fields(row.rows, f"{path}." + ("*." if row.kind == "map" else ""))


def test_every_field_has_a_row() -> None:
    assert sorted(ROWS) == sorted(set(fields()))


@pytest.mark.filterwarnings("ignore::oncemore.PolicyWarning")
@pytest.mark.parametrize("path", ROWS)
def test_what_a_field_changes(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ROWS[path](tmp_path / "mine.yaml")
