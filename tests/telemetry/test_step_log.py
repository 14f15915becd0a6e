"""The logger `oncemore.steps`: levels, sentences, fields."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
import structlog

import oncemore
from oncemore import events
from oncemore.steps.step_log import _LINES
from oncemore.telemetry import JsonLogFormatter
from tests.telemetry.work import make_step

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncemore.testing import FakeClock


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Lines]:
    with caplog.at_level(logging.DEBUG, "oncemore.steps"):
        yield Lines(caplog)


class Lines:
    """The records of the logger, as level and sentence without the step's name and key."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    @property
    def records(self) -> list[logging.LogRecord]:
        return [record for record in self._caplog.records if record.name == "oncemore.steps"]

    @property
    def warnings(self) -> list[str]:
        return [record.getMessage() for record in self.records if record.levelno == logging.WARNING]

    @property
    def levels(self) -> list[tuple[str, Any]]:
        return [(record.levelname, vars(record)["oncemore_event"]) for record in self.records]


def test_a_retry_names_the_step_the_key_the_attempt_the_error_and_the_wait(
    engine: oncemore.Engine, clock: FakeClock, lines: Lines
) -> None:
    charge = make_step(ConnectionError("refused"), 7)
    charge(5)
    assert lines.levels == [
        ("DEBUG", "RunStarted"),
        ("DEBUG", "AttemptStarted"),
        ("WARNING", "AttemptFailed"),
        ("DEBUG", "AttemptStarted"),
        ("DEBUG", "RunCompleted"),
    ]
    (line,) = lines.warnings
    key = charge.run(5).key
    start = f"shop.charge ({key[:12]}): attempt 1 of 3 failed with ConnectionError: refused "
    assert line.startswith(start + "(CONNECTION_ERROR); next attempt in 0.25 s")
    fields = {name: value for name, value in vars(lines.records[2]).items() if name.startswith("oncemore_")}
    assert {name: fields[f"oncemore_{name}"] for name in ("step", "key", "attempt", "max_attempts")} == {
        "step": "shop.charge",
        "key": key,
        "attempt": 1,
        "max_attempts": 3,
    }
    assert (fields["oncemore_action"], fields["oncemore_exception"]) == ("retry", "ConnectionError")
    assert (fields["oncemore_error_class"], fields["oncemore_kind"]) == ("CONNECTION_ERROR", "transient")
    assert fields["oncemore_error"] == "refused"
    assert (
        lines.records[4].getMessage().startswith(f"shop.charge ({key[:12]}): completed with attempt 2 of 3")
    )


def test_the_fields_have_the_names_of_the_retry_logger(
    engine: oncemore.Engine, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(OSError, match="down"):
        oncemore.retrying(make_step(OSError("down")).__wrapped__, on=OSError)()
    make_step(ConnectionError("refused"), 7)()
    retried, attempted = (
        {name for name in vars(record) if name.startswith("oncemore_")}
        for record in (
            caplog.records[0],
            next(record for record in caplog.records if record.name == "oncemore.steps"),
        )
    )
    only_retry = {"oncemore_name", "oncemore_waited_s", "oncemore_rule", "oncemore_policy_version"}
    assert retried - attempted == only_retry


def test_giving_up_is_one_line(engine: oncemore.Engine, clock: FakeClock, lines: Lines) -> None:
    with pytest.raises(oncemore.StepFailed):
        make_step(ConnectionError("refused"))()
    assert len(lines.warnings) == 3
    assert "failed after attempt 3 of 3, no further attempt: max_attempts_exceeded, " in lines.warnings[-1]
    assert lines.warnings[-1].endswith("ConnectionError: refused (CONNECTION_ERROR)")
    last = [record for record in lines.records if vars(record)["oncemore_event"] == "AttemptFailed"][-1]
    assert last.levelno == logging.DEBUG
    assert last.getMessage().endswith("; no further attempt: max_attempts_exceeded")


def test_a_cancelled_run_that_never_began(engine: oncemore.Engine, lines: Lines) -> None:
    charge = make_step(7)
    charge.submit(1)
    charge.cancel(1, reason="wrong order")
    assert lines.levels == [("DEBUG", "RunSubmitted"), ("WARNING", "RunFailed")]
    assert "failed before its first attempt, no further attempt: cancelled" in lines.warnings[0]


def test_a_held_run_says_where_it_is_listed(engine: oncemore.Engine, lines: Lines) -> None:
    charge = make_step(ConnectionError("cut off"), 7, effect="once")
    with pytest.raises(oncemore.OutcomeUnknown):
        charge()
    (line,) = lines.warnings
    assert "held for an operator after attempt 1 of 3: outcome_unknown, ConnectionError: cut off" in line
    assert line.endswith("; oncemore quarantine list shows it")
    charge.settle(oncemore.not_applied(), reason="looked")
    assert lines.levels[-1] == ("INFO", "RunReleased")


def test_an_interrupted_attempt_and_a_deferral_are_information(engine: oncemore.Engine, lines: Lines) -> None:
    with pytest.raises(KeyboardInterrupt):
        make_step(KeyboardInterrupt())(1)
    assert lines.levels[-1] == ("INFO", "AttemptInterrupted")
    breaker = oncemore.Breaker("bank", failures=1, cooldown_s=600)
    with pytest.raises(oncemore.Deferred):
        make_step(ConnectionError("down"), provider="bank", breaker=breaker)(2)
    with pytest.raises(oncemore.Deferred):
        make_step(7, provider="bank", breaker=breaker)(3)
    assert lines.levels[-1] == ("INFO", "RunDeferred")
    assert "waits 10 min 0 s for its next attempt: circuit_open" in lines.records[-1].getMessage()


def test_a_take_over_is_a_warning_that_names_the_lost_worker(tmp_path: Path, lines: Lines) -> None:
    program = (
        "import oncemore, os\n"
        "oncemore.step(effect='idempotent', name='shop.charge')(lambda order=1: os._exit(9))()\n"
    )
    store = f"sqlite:///{tmp_path / 'log.db'}"
    environment = {"ONCEMORE_STORE": store, "PATH": ""}
    subprocess.run([sys.executable, "-c", program], env=environment, check=False, capture_output=True)
    with oncemore.open(store):
        assert make_step(7)() == 7
    (line,) = lines.warnings
    assert "taken over from worker " in line
    assert line.endswith("which is gone; attempt 1 of 3 is lost with it, crash 1 of 20")


def test_a_long_text_is_cut_in_the_line_and_whole_in_the_field(
    engine: oncemore.Engine, clock: FakeClock, lines: Lines
) -> None:
    make_step(ConnectionError("x" * 400 + " and\nmore"), 7)()
    (line,) = lines.warnings
    assert "x" * 200 + "… (CONNECTION_ERROR)" in line
    assert len(line) < 350
    record = next(record for record in lines.records if record.levelno == logging.WARNING)
    assert "\n" not in vars(record)["oncemore_error"]
    assert len(vars(record)["oncemore_error"]) > 400


def test_secrets_are_masked_in_line_and_field(
    engine: oncemore.Engine, clock: FakeClock, lines: Lines
) -> None:
    error = ConnectionError("GET https://user:hunter2@host/?token=abcdef1234567890 refused")
    with pytest.raises(oncemore.StepFailed):
        make_step(error)()
    shown = str([vars(record) for record in lines.records])
    assert "hunter2" not in shown
    assert "abcdef1234567890" not in shown
    assert "refused" in shown


@pytest.mark.parametrize("kind", events.RunEvent.__args__)
def test_every_event_of_a_run_has_a_line(kind: Any) -> None:
    assert kind in _LINES


def test_no_field_hides_an_attribute_of_log_records(engine: oncemore.Engine, lines: Lines) -> None:
    make_step(7)()
    plain = set(vars(logging.makeLogRecord({})))
    assert plain < set(vars(lines.records[0]))
    assert all(name.startswith("oncemore_") for name in vars(lines.records[0]).keys() - plain - {"message"})


def test_structlog_renders_the_fields(engine: oncemore.Engine, clock: FakeClock) -> None:
    stream, handler = StringIO(), logging.StreamHandler()
    handler.setStream(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logger = logging.getLogger("oncemore.steps")
    logger.addHandler(handler)
    try:
        make_step(ConnectionError("refused"), 7)(5)
    finally:
        logger.removeHandler(handler)
    document = json.loads(stream.getvalue().splitlines()[0])
    assert (document["level"], document["oncemore_step"]) == ("warning", "shop.charge")
    assert (document["oncemore_attempt"], document["oncemore_error"]) == (1, "refused")
    assert document["event"].startswith("shop.charge (")


def test_a_program_without_handlers_shows_warnings_and_a_command_does_not(tmp_path: Path) -> None:
    program = (
        "import oncemore\n"
        "@oncemore.step(effect='pure', name='shop.charge')\n"
        "def charge(): raise ValueError('wrong')\n"
        "try: charge()\n"
        "except oncemore.StepFailed: pass\n"
    )
    environment = {**os.environ, "ONCEMORE_STORE": f"sqlite:///{tmp_path / 'log.db'}"}
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, env=environment, check=True, capture_output=True, text=True)
    assert "shop.charge (" in done.stderr
    assert "ValueError: wrong" in done.stderr
    command = [sys.executable, "-m", "oncemore", "exec", "--key", "k", "--", sys.executable, "-c", "exit(1)"]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert "exec (" not in done.stderr
    assert "oncemore: exec: key" in done.stderr


def test_a_json_line_has_every_field_and_stays_one_line() -> None:
    text = StringIO()
    handler, log = logging.StreamHandler(text), logging.getLogger("oncemore.test_json")
    handler.setFormatter(JsonLogFormatter())
    log.addHandler(handler)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("a\nb %s", 7, extra={"oncemore_step": object, "level": "no", "pairs": {(1, 2): 3}})
    finally:
        log.removeHandler(handler)
    (line,) = text.getvalue().splitlines()
    fields = json.loads(line)
    assert (fields["message"], fields["level"], fields["logger"]) == ("a\nb 7", "ERROR", log.name)
    assert (fields["step"], fields["pairs"]) == ("<class 'object'>", {})
    assert "ValueError: two\nlines" in fields["traceback"]


def test_a_json_line_without_an_error_has_no_traceback() -> None:
    record = logging.LogRecord("oncemore.steps", logging.INFO, __file__, 1, "done", None, None)
    fields = json.loads(JsonLogFormatter().format(record))
    assert (fields["message"], "traceback" in fields) == ("done", False)
