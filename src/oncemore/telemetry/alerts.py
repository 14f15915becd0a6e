"""Alerts about retries: a high rate of retry events, and an elevated share of exhausted operations.

    retry events   more than 20 within any 60 s                          "High retry rate detected"
    exhaustion     more than 5 % of at least 5 operations within 15 min  "Elevated retry exhaustion detected"

One alert stands for one episode: it begins when a threshold is exceeded and ends when it no longer is. The
functions compute from values; `AlertSink` is an audit sink that calls a function when an episode begins.
"""

from __future__ import annotations

from collections import Counter, deque
from threading import Lock
from typing import TYPE_CHECKING

from oncemore._values import Value
from oncemore.audit.events import OUTCOME_EVENTS, RetryAttempt, RetryExhausted, RetryRefused
from oncemore.errors import UsageError
from oncemore.policy.model import Failure
from oncemore.policy.verdict import matches_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from oncemore.audit.events import AuditEvent

RETRY_RATE, EXHAUSTION = "retry_rate", "exhaustion"
RATE_WINDOW_S = 60.0
#: The number of records that an alert names.
MAX_RECORDS = 5
#: The events that a sink keeps: more than any sensible threshold within its window.
MAX_KEPT = 100_000

#: Likely causes by the class of the most frequent error; the first that matches is named.
CAUSES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "database pressure",
        ("IO_CONTENTION", "SQLSTATE_40*", "SQLSTATE_53*", "SQLSTATE_55*", "SQLSTATE_57*", "TIMEOUT_POOL",
         "NEO4J*", "OperationalError", "DatabaseError", "PoolTimeout"),
    ),
    ("throttling by the provider", ("HTTP_429", "THROTTLED", "STAC_SLOWDOWN", "AWS_*")),
    (
        "upstream outage",
        ("HTTP_5xx", "NETWORK_TIMEOUT", "CONNECTION", "TIMEOUT*", "GRPC_*", "NATS_*", "DNS", "ERRNO_E*",
         "TransientError", "TimeoutError", "Connection*", "OSError"),
    ),
    ("fault of the work or its data", ("EXC_*", "SCHEMA_INVALID", "CHECKSUM_MISMATCH")),
)  # fmt: skip
UNKNOWN_CAUSE = "upstream outage or database pressure"


class RetryMoment(Value):
    """One retry event or one ended operation.

    record  where it is recorded: a log entry or a line of an audit file
    """

    at: float
    operation: str
    error_class: str
    record: str
    exhausted: bool = False


class AlertRules(Value):
    """The thresholds of alerts (G-20).

    retries_per_minute  more retry events within 60 s raise an alert
    exhausted_share     a higher share of exhausted operations within `window_s` raises an alert
    minimum_operations  the fewest operations for which a share is meaningful
    """

    retries_per_minute: float = 20.0
    exhausted_share: float = 0.05
    window_s: float = 900.0
    minimum_operations: int = 5


class RetryAlert(Value):
    """One alert.

    kind        retry_rate or exhaustion
    affected    the retry events or exhausted operations of the worst window
    of          the operations of that window; 0 for a rate
    main_error  the most frequent class of error among them
    causes      the likely causes of that error
    records     some of the records behind it
    """

    kind: str
    text: str
    began: float
    ended: float
    affected: int
    of: int
    threshold: float
    main_error: str
    causes: str
    operations: tuple[str, ...]
    records: tuple[str, ...]


def check_rules(rules: AlertRules) -> AlertRules:
    """Return the rules; raise `UsageError` for a threshold that cannot be meant."""
    if not rules.retries_per_minute >= 0:
        raise UsageError(f"retries_per_minute is {rules.retries_per_minute!r}; it must be 0 or more")
    if not 0 <= rules.exhausted_share < 1:
        raise UsageError(f"exhausted_share is {rules.exhausted_share!r}; it must be from 0, and below 1")
    if not 0 < rules.window_s < float("inf"):
        raise UsageError(f"window_s is {rules.window_s!r}; it must be more than 0, and finite")
    if rules.minimum_operations < 1:
        raise UsageError(f"minimum_operations is {rules.minimum_operations!r}; it must be 1 or more")
    return rules


def find_alerts(
    retries: Iterable[RetryMoment], ends: Iterable[RetryMoment], rules: AlertRules
) -> tuple[RetryAlert, ...]:
    """Return the alerts of a period in the order of their begin: one for each episode."""
    alerts = [
        *_find_episodes(sorted(retries), RATE_WINDOW_S, rules, _rate_alert),
        *_find_episodes(sorted(ends), rules.window_s, rules, _exhaustion_alert),
    ]
    return tuple(sorted(alerts, key=lambda alert: (alert.began, alert.kind)))


def find_current_alerts(
    retries: Iterable[RetryMoment], ends: Iterable[RetryMoment], now: float, rules: AlertRules
) -> tuple[RetryAlert, ...]:
    """Return the alerts that hold at a time: at most one of each kind."""
    recent = tuple(moment for moment in retries if now - moment.at <= RATE_WINDOW_S)
    ended = tuple(moment for moment in ends if now - moment.at <= rules.window_s)
    found = (
        _rate_alert(recent, rules) if recent else None,
        _exhaustion_alert(ended, rules) if ended else None,
    )
    return tuple(alert for alert in found if alert is not None)


def _find_episodes(
    moments: Sequence[RetryMoment],
    window_s: float,
    rules: AlertRules,
    judge: Callable[[Sequence[RetryMoment], AlertRules], RetryAlert | None],
) -> list[RetryAlert]:
    """Return one alert per episode: windows that follow each other without a gap are one."""
    episodes: list[RetryAlert] = []
    first = 0
    for last, moment in enumerate(moments):
        while moment.at - moments[first].at > window_s:
            first += 1
        alert = judge(moments[first : last + 1], rules)
        if alert is None:
            continue
        if episodes and alert.began <= episodes[-1].ended:
            # The same episode: it lasts longer, and its worst window is the one that is reported.
            known = episodes[-1]
            worst = alert if _severity(alert) > _severity(known) else known
            episodes[-1] = worst._replace(began=known.began, ended=alert.ended)
        else:
            episodes.append(alert)
    return episodes


def _severity(alert: RetryAlert) -> tuple[float, int]:
    # Of two windows with the same share the one with more operations is the worse.
    return alert.affected / alert.of if alert.of else 0.0, alert.affected


def _rate_alert(window: Sequence[RetryMoment], rules: AlertRules) -> RetryAlert | None:
    if len(window) <= rules.retries_per_minute:
        return None
    text = (
        f"High retry rate detected: {len(window):,} retry events within a minute, more than "
        f"{rules.retries_per_minute:g}"
    )
    return _make_alert(RETRY_RATE, text, window, window, rules.retries_per_minute)


def _exhaustion_alert(window: Sequence[RetryMoment], rules: AlertRules) -> RetryAlert | None:
    exhausted = [moment for moment in window if moment.exhausted]
    share = len(exhausted) / len(window)
    if len(window) < rules.minimum_operations or share <= rules.exhausted_share:
        return None
    text = (
        f"Elevated retry exhaustion detected: {len(exhausted):,} of {len(window):,} operations ({share:.0%}) "
        f"used up their attempts within {rules.window_s / 60:g} min, more than {rules.exhausted_share:.0%}"
    )
    return _make_alert(EXHAUSTION, text, exhausted, window, rules.exhausted_share)


def _make_alert(
    kind: str, text: str, counted: Sequence[RetryMoment], window: Sequence[RetryMoment], threshold: float
) -> RetryAlert:
    # Of equally frequent errors the first by name, so that the same log gives the same alert.
    errors = Counter(moment.error_class for moment in counted if moment.error_class)
    main_error = min(errors, key=lambda name: (-errors[name], name)) if errors else ""
    causes = name_causes(main_error)
    details = f"; main error class {main_error}" if main_error else ""
    return RetryAlert(
        kind=kind,
        text=f"{text}{details}; likely {causes}.",
        began=window[0].at,
        ended=window[-1].at,
        affected=len(counted),
        of=len(window) if kind == EXHAUSTION else 0,
        threshold=threshold,
        main_error=main_error,
        causes=causes,
        operations=tuple(dict.fromkeys(moment.operation for moment in counted))[:MAX_RECORDS],
        records=tuple(moment.record for moment in counted[-MAX_RECORDS:]),
    )


def name_causes(error_class: str) -> str:
    """Return the likely causes of errors of a class, in words."""
    failure = Failure("permanent", code=error_class)
    for cause, classes in CAUSES:
        if error_class and matches_class(failure, classes):
            return cause
    return UNKNOWN_CAUSE


# Audit events ---------------------------------------------------------------------------------------


def read_moments(events: Iterable[AuditEvent]) -> tuple[list[RetryMoment], list[RetryMoment]]:
    """Return the retry events and the ended operations of an audit stream."""
    retries, ends = [], []
    for number, event in enumerate(events, 1):
        record = f"event {number}"
        if isinstance(event, RetryAttempt):
            retries.append(RetryMoment(event.posix_time, event.operation, event.exception_type, record))
        elif isinstance(event, OUTCOME_EVENTS):
            ends.append(_read_end(event, record))
    return retries, ends


def _read_end(event: AuditEvent, record: str) -> RetryMoment:
    error = ""
    if isinstance(event, RetryExhausted):
        error = event.final_exception_type
    elif isinstance(event, RetryRefused):
        error = event.exception_type
    is_exhausted = isinstance(event, RetryExhausted)
    return RetryMoment(event.posix_time, event.operation, error, record, is_exhausted)


class AlertSink:
    """An audit sink that calls `on_alert` with a `RetryAlert` once when an episode begins.

    It keeps the events of its windows in memory. `active` holds the alerts of the episodes that last; an
    episode ends with the first event at which its threshold is no longer exceeded.
    """

    def __init__(
        self,
        on_alert: Callable[[RetryAlert], object],
        rules: AlertRules = AlertRules(),  # noqa: B008
    ) -> None:
        self._on_alert, self.rules = on_alert, check_rules(rules)
        self._lock = Lock()
        self._retries: deque[RetryMoment] = deque(maxlen=MAX_KEPT)
        self._ends: deque[RetryMoment] = deque(maxlen=MAX_KEPT)
        self._count = 0
        self.active: dict[str, RetryAlert] = {}

    def __call__(self, event: AuditEvent) -> None:
        """Count an event; call `on_alert` if it exceeds a threshold that was not exceeded before."""
        with self._lock:
            self._count += 1
            retries, ends = read_moments([event])
            self._retries.extend(moment._replace(record=f"event {self._count}") for moment in retries)
            self._ends.extend(moment._replace(record=f"event {self._count}") for moment in ends)
            now = event.posix_time
            begun = [
                *self._judge(RETRY_RATE, self._retries, now, RATE_WINDOW_S, _rate_alert),
                *self._judge(EXHAUSTION, self._ends, now, self.rules.window_s, _exhaustion_alert),
            ]
        # Outside of the lock: the function may itself retry something that this sink audits.
        for alert in begun:
            self._on_alert(alert)

    def _judge(
        self,
        kind: str,
        moments: deque[RetryMoment],
        now: float,
        window_s: float,
        judge: Callable[[Sequence[RetryMoment], AlertRules], RetryAlert | None],
    ) -> list[RetryAlert]:
        while moments and now - moments[0].at > window_s:
            moments.popleft()
        alert = judge(tuple(moments), self.rules) if moments else None
        if alert is None:
            self.active.pop(kind, None)
            return []
        is_new = kind not in self.active
        self.active[kind] = alert
        return [alert] if is_new else []
