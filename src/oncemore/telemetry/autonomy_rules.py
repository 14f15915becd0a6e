"""The autonomy matrix: signals, budget and priority in; run, slow, pause or escalate out.

The matrix has one record per policy (its *scope*). Its level follows from these causes; the highest wins:

    error budget spent                            escalate   hard: at once
    carbon of the period beyond the cap           pause      hard, until the period ends; if only attempts
                                                             that still run reach it, for `recheck_s`
    a permanent failure, if the rules say so      pause      hard, for `recheck_s`
    intensity or price at or above `pause`        pause      soft
    carbon of the period beyond `slow_at`         slow       hard
    the first attempt under a cap still runs      slow       hard: nobody knows yet what an attempt takes
    intensity or price at or above `slow`         slow       soft, back at or below `resume`
    off hours                                     slow       soft

A hard cause acts at once. A soft one changes the level only `min_dwell_s` after the last change, and a level
is kept until every signal is at or below its `resume`: a signal that swings around a threshold changes
nothing (SCEN-6). What a level means for a run depends on its priority (G-10): P0 always runs, P1 is slowed
and never paused, P2 obeys. Nothing here reads a clock or a store.
"""

from __future__ import annotations

from oncemore._values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

RUN, SLOW, PAUSE, ESCALATE = "run", "slow", "pause", "escalate"
#: The levels, lowest first.
LEVELS = (RUN, SLOW, PAUSE, ESCALATE)
#: What a level means for a run, by its priority.
MATRIX: dict[str, dict[str, str]] = {
    "P0": {RUN: RUN, SLOW: RUN, PAUSE: RUN, ESCALATE: RUN},
    "P1": {RUN: RUN, SLOW: SLOW, PAUSE: SLOW, ESCALATE: ESCALATE},
    "P2": {RUN: RUN, SLOW: SLOW, PAUSE: PAUSE, ESCALATE: ESCALATE},
}
PROOF_FORMAT = "oncemore.autonomy/1"
MAX_INBOX = 20
_DAY_S = 86_400.0


class Thresholds(Value):
    """The thresholds of one signal; None if a level does not depend on it."""

    slow: float | None = None
    pause: float | None = None
    resume: float | None = None


class AutonomyRules(Value):
    """The rules of one policy.

    carbon, price     thresholds of grid intensity in g/kWh and of the energy price in USD/kWh
    period            day, week, month or year of the carbon budget; cap_kg is the budget, 0 for none
    slow_at           share of the cap from which work is slowed
    off_hours         first and last hour (UTC) of the time in which work is slowed; empty for none
    escalate_below    share of the error budget at or below which work waits for a person; below 0: never
    on_permanent      "pause": a permanent failure pauses the policy's work for `recheck_s`; or "none"
    min_dwell_s       shortest time between two changes by soft causes
    recheck_s         length of a pause whose end is not known
    slow_factor       factor of retry delays while work is slowed
    slow_concurrency  attempts at once while work is slowed, over all processes
    """

    carbon: Thresholds = Thresholds()
    price: Thresholds = Thresholds()
    period: str = "month"
    cap_kg: float = 0.0
    slow_at: float = 0.9
    off_hours: tuple[int, ...] = ()
    escalate_below: float = -1.0
    on_permanent: str = "none"
    min_dwell_s: float = 900.0
    recheck_s: float = 300.0
    slow_factor: float = 2.0
    slow_concurrency: int = 1


class StepAutonomy(Value):
    """The matrix of a step's policy: its name and its rules."""

    name: str
    rules: AutonomyRules

    @property
    def entity(self) -> str:
        """The entity of the matrix in the log."""
        return autonomy_entity(self.name)


class AutonomyRecord(Value):
    """The matrix of one policy, shared by all workers.

    state         RUN, SLOW, PAUSE or ESCALATE
    number        number of the last change; the id of a decision is `<name>#<number>`
    since         time of that change
    until         end of a pause, as far as it is known; 0: not known
    reason        the cause, in words
    period_start  start of the period that `spent_kg` is of
    spent_kg      carbon of ended attempts of the period
    reserved      expected carbon of running attempts, by run
    largest_kg    largest carbon of one attempt: that is expected of the next one
    hold_until    end of the pause after a permanent failure
    inbox         the last permanent failures that were escalated to the matrix
    is_measured   whether an attempt has ended under the cap, so that `largest_kg` means something
    carried       runs whose reservation is older than the period
    """

    state: str = "RUN"
    name: str = ""
    number: int = 0
    since: float = 0.0
    until: float = 0.0
    reason: str = ""
    period_start: float = 0.0
    spent_kg: float = 0.0
    reserved: dict[str, float] = {}  # noqa: RUF012 - never changed in place
    largest_kg: float = 0.0
    hold_until: float = 0.0
    inbox: tuple[dict[str, Any], ...] = ()
    is_measured: bool = False
    carried: tuple[str, ...] = ()

    @property
    def level(self) -> str:
        """The level in force."""
        return self.state.lower()

    @property
    def decision_id(self) -> str:
        """The id of the decision in force."""
        return f"{self.name}#{self.number}"


class Cause(Value):
    """One reason for a level; `until` is 0 if its end is not known."""

    level: str
    hard: bool
    reason: str
    until: float = 0.0


def autonomy_entity(name: str) -> str:
    """Return the entity of a policy's matrix in the log."""
    return f"autonomy/{name}"


def act_by_priority(level: str, priority: str) -> str:
    """Return what a level means for a run of a priority."""
    return MATRIX[priority][level]


# The decision ---------------------------------------------------------------------------------------


def decide_level(
    rules: AutonomyRules, record: AutonomyRecord, readings: Mapping[str, Any], now: float
) -> tuple[AutonomyRecord, dict[str, Any]]:
    """Return the record with the level for this moment, and the proof; an unchanged level keeps its number.

    readings  the signals as `describe_reading` gives them: value, source and age, or the reason of none
    """
    record = start_period(rules, record, now)
    causes = list(_list_causes(rules, record, readings, now))
    wanted = max((cause.level for cause in causes), key=LEVELS.index, default=RUN)
    hard = max((cause.level for cause in causes if cause.hard), key=LEVELS.index, default=RUN)
    level = record.level
    if now - record.since >= rules.min_dwell_s or not record.number:
        level = wanted
    elif LEVELS.index(hard) > LEVELS.index(level):
        level = hard
    deciding = next((cause for cause in causes if cause.level == level), None)
    until = 0.0 if deciding is None else deciding.until
    until = until or (now + rules.recheck_s if level == PAUSE else 0.0)
    reason = "no signal asks for less" if deciding is None else deciding.reason
    after = record
    if level != record.level or not record.number:
        after = record._replace(
            state=level.upper(), number=record.number + 1, since=now, reason=reason, until=until
        )
    elif level == PAUSE and record.until <= now:
        after = record._replace(until=until, reason=reason)
    return after, build_proof(rules, record, after, causes, readings, now)


def _list_causes(
    rules: AutonomyRules, record: AutonomyRecord, readings: Mapping[str, Any], now: float
) -> Iterator[Cause]:
    """Yield every reason for a level above run."""
    budget = readings.get("error_budget", {}).get("value")
    if budget is not None and budget <= rules.escalate_below:
        yield Cause(ESCALATE, True, f"the error budget is {budget:g}, at or below {rules.escalate_below:g}")
    if rules.cap_kg:
        yield from _list_budget_causes(rules, record, now)
    if record.hold_until > now:
        last = record.inbox[-1] if record.inbox else {}
        yield Cause(PAUSE, True, f"a permanent failure: {last.get('code', '')}", record.hold_until)
    for name, limits, unit in (
        ("grid_intensity", rules.carbon, "g/kWh"),
        ("energy_price", rules.price, "USD/kWh"),
    ):
        value = readings.get(name, {}).get("value")
        for level, limit in ((PAUSE, limits.pause), (SLOW, limits.slow)):
            if value is not None and limit is not None and value >= limit:
                shown = name.replace("_", " ")
                yield Cause(level, False, f"{shown} {value:g} {unit}, at or above {limit:g}")
                break
        # Hysteresis: work that was slowed or paused goes on as before only at `resume`.
        if value is not None and limits.resume is not None and record.level != RUN and value > limits.resume:
            text = f"{name.replace('_', ' ')} {value:g} {unit}, above {limits.resume:g} at which work resumes"
            yield Cause(SLOW, False, text)
    if rules.off_hours and _is_within(rules.off_hours, now):
        first, last_hour = rules.off_hours
        yield Cause(SLOW, False, f"off hours, {first:02}:00 to {last_hour:02}:00 UTC")


def _list_budget_causes(rules: AutonomyRules, record: AutonomyRecord, now: float) -> Iterator[Cause]:
    # An attempt that began before a larger one was measured may become as large.
    used = record.spent_kg + sum(max(kg, record.largest_kg) for kg in record.reserved.values())
    after = used + record.largest_kg
    text = f"{rules.period} {used:.4g} + {record.largest_kg:.2g}"
    if after > rules.cap_kg:
        # Running attempts may take less than is reserved for them, so that their pause is looked at again.
        is_spent = record.spent_kg + record.largest_kg > rules.cap_kg
        ends = end_of_period(rules.period, now) if is_spent else 0.0
        yield Cause(PAUSE, True, f"{text} > cap {rules.cap_kg:g} kgCO2e", ends)
    elif record.reserved and not record.is_measured:
        yield Cause(SLOW, True, "no attempt under the cap has been measured yet")
    elif after > rules.slow_at * rules.cap_kg:
        yield Cause(SLOW, True, f"{text} > {rules.slow_at:g} of cap {rules.cap_kg:g} kgCO2e")


def _is_within(hours: tuple[int, ...], now: float) -> bool:
    first, last = hours
    hour = now % _DAY_S / 3600
    return first <= hour < last if first < last else hour >= first or hour < last


def build_proof(
    rules: AutonomyRules,
    before: AutonomyRecord,
    after: AutonomyRecord,
    causes: list[Cause],
    readings: Mapping[str, Any],
    now: float,
) -> dict[str, Any]:
    """Return every input, threshold and cause of a decision as plain values."""
    fields = {name: value for name, value in before._asdict().items() if name not in ("name", "inbox")}
    return {
        "format": PROOF_FORMAT,
        "id": after.decision_id,
        "inputs": {
            "now": now,
            "readings": dict(readings),
            "record": {**fields, "inbox": list(before.inbox)},
        },
        "thresholds": {**rules._asdict(), "carbon": rules.carbon._asdict(), "price": rules.price._asdict()},
        "causes": [cause._asdict() for cause in causes],
        "action": after.level,
        "until": after.until,
        "sentence": describe_decision(after),
    }


def recompute_proof(proof: Mapping[str, Any]) -> dict[str, Any]:
    """Return the proof of the same decision, made again from the inputs and thresholds of a recorded one."""
    fields = {**proof["thresholds"], "off_hours": tuple(proof["thresholds"]["off_hours"])}
    fields["carbon"], fields["price"] = Thresholds(**fields["carbon"]), Thresholds(**fields["price"])
    inputs = proof["inputs"]
    name = proof["id"].rpartition("#")[0]
    # JSON has lists only; the record has tuples.
    lists = {field: tuple(value) for field, value in inputs["record"].items() if isinstance(value, list)}
    record = AutonomyRecord(**{**inputs["record"], **lists, "name": name})
    return decide_level(AutonomyRules(**fields), record, inputs["readings"], inputs["now"])[1]


def describe_decision(record: AutonomyRecord) -> str:
    """Return one sentence about the decision in force."""
    return f"{record.level}: {record.reason}"


# The carbon budget ----------------------------------------------------------------------------------


def start_of_period(period: str, now: float) -> float:
    """Return the start of the day, week, month or year (UTC) of a time."""
    day = now // _DAY_S
    if period == "day":
        return day * _DAY_S
    if period == "week":
        # 1970-01-01 was a Thursday, and weeks begin on Monday.
        return (day - (day + 3) % 7) * _DAY_S
    year, month = _civil_month(int(day))
    return _days_to(year, month if period == "month" else 1) * _DAY_S


def end_of_period(period: str, now: float) -> float:
    """Return the end of the day, week, month or year (UTC) of a time."""
    start = start_of_period(period, now)
    # A little longer than any such period, and shorter than two of them.
    days = {"day": 1.5, "week": 8.0, "month": 35.0, "year": 380.0}[period]
    return start_of_period(period, start + days * _DAY_S)


def _days_to(year: int, month: int) -> int:
    """Return the days from 1970-01-01 to the first of a month."""
    before = year - 1
    february = 29 if year % 4 == 0 and (year % 100 or year % 400 == 0) else 28
    lengths = (31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30)
    return before * 365 + before // 4 - before // 100 + before // 400 + sum(lengths[: month - 1]) - 719_162


def _civil_month(day: int) -> tuple[int, int]:
    """Return the year and the month of a day that is counted from 1970-01-01."""
    year = 1970 + day // 366
    while _days_to(year + 1, 1) <= day:
        year += 1
    month = 12
    while _days_to(year, month) > day:
        month -= 1
    return year, month


def start_period(rules: AutonomyRules, record: AutonomyRecord, now: float) -> AutonomyRecord:
    """Return the record with a fresh budget if a new period has begun.

    A reservation that is older than a whole period is dropped: its process died and its run was never
    continued. Otherwise such runs would take a part of every later budget.
    """
    start = start_of_period(rules.period, now)
    if not rules.cap_kg or start == record.period_start:
        return record
    reserved = {run: kg for run, kg in record.reserved.items() if run not in record.carried}
    return record._replace(period_start=start, spent_kg=0.0, reserved=reserved, carried=tuple(reserved))


def reserve_carbon(record: AutonomyRecord, run: str) -> AutonomyRecord:
    """Return the record with the expected carbon of an attempt that begins.

    An attempt of the same run that was lost with its process counts with its expected carbon.
    """
    return record._replace(
        reserved={**record.reserved, run: record.largest_kg},
        carried=tuple(name for name in record.carried if name != run),
        spent_kg=record.spent_kg + record.reserved.get(run, 0.0),
    )


def settle_carbon(record: AutonomyRecord, run: str, carbon_kg: float) -> AutonomyRecord:
    """Return the record with the measured carbon of an attempt that ended."""
    reserved = {name: kg for name, kg in record.reserved.items() if name != run}
    return record._replace(
        reserved=reserved,
        spent_kg=record.spent_kg + carbon_kg,
        largest_kg=max(record.largest_kg, carbon_kg),
        is_measured=True,
    )


def receive_failure(
    rules: AutonomyRules, record: AutonomyRecord, failure: dict[str, Any], now: float
) -> AutonomyRecord:
    """Return the record with a permanent failure in its inbox (AUTO-4)."""
    hold = now + rules.recheck_s if rules.on_permanent == "pause" else record.hold_until
    return record._replace(inbox=(*record.inbox, failure)[-MAX_INBOX:], hold_until=hold)
