"""A store with one of everything that the dashboard shows: made by real steps, quick enough for a test."""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import oncemore
from oncemore import backoff, errors
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from oncemore.steps.engine import Engine

#: Texts that run a script if one place forgets to escape them.
HOSTILE_TEXTS = (
    "<script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "'><svg onload=window.hacked=1>",
    "</pre></script><script>window.hacked=1</script>",
    "javascript:window.hacked=1",
    "{{ 7*7 }}${7*7}",
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "&lt;script&gt;window.hacked=1&lt;/script&gt;",
)
QUICK = oncemore.Policy(
    "quick",
    max_attempts=4,
    schedule=backoff.exponential(0.02),
    unmatched="retry",
)


class SampleRuns(NamedTuple):
    """The ids of the runs that tests look at."""

    complete: str
    retried: str
    failed: str
    unknown: str
    quarantined: str
    approval: str
    waiting: str
    workflow: str
    workflow_child: str
    escalation: str
    program: str
    storm: tuple[str, ...] = ()


def fill_store(engine: Engine, *, hostile: bool = False) -> SampleRuns:
    """Run one of everything on an engine; with `hostile`, names and texts are those of an attacker."""
    mark = HOSTILE_TEXTS[0] if hostile else ""
    with engine:
        retried = _run_retries(mark)
        failed = _run_failures(mark)
        unknown, quarantined, approval = _hold_runs(mark)
        waiting = _submit_run(mark)
        workflow, child = _run_workflow(engine, mark)
        escalation = _escalate(engine, mark)
        _use_limits(engine, mark)
        _schedule_work(engine, mark)
        _decide_something(engine, mark)
        program = _run_program(engine, mark)
    return SampleRuns(
        complete=retried[0],
        retried=retried[1],
        failed=failed,
        unknown=unknown,
        quarantined=quarantined,
        approval=approval,
        waiting=waiting,
        workflow=workflow,
        workflow_child=child,
        escalation=escalation,
        program=program,
    )


def _run_retries(mark: str) -> tuple[str, str]:
    calls = {"n": 0}

    @oncemore.step(effect="outbox", name=f"shop.confirm{mark}", policy=QUICK)
    def confirm(order: str, text: str) -> dict[str, Any]:
        attempt = oncemore.current()
        attempt.emit(f"order.confirmed{mark}"[:200], {"order": order, "text": text})
        # A digit in front: the name of an artifact is also the name of a file.
        for number, name in enumerate(HOSTILE_TEXTS if mark else ("receipt.txt",)):
            attempt.put(b"a receipt", name=f"{number}{name}")
        return {"order": order, "text": text}

    @oncemore.step(effect="idempotent", name=f"stac.poll{mark}", policy=QUICK, provider="stac-api")
    def poll(day: str) -> dict[str, int]:
        calls["n"] += 1
        if calls["n"] < 3:
            raise ConnectionError("connection refused " + (" ".join(HOSTILE_TEXTS) if mark else ""))
        return {"items": 128}

    first = confirm.run("A-17", " ".join(HOSTILE_TEXTS) if mark else "thank you")
    return first.run_id, poll.run("2026-11-17").run_id


def _run_failures(mark: str) -> str:
    @oncemore.step(effect="idempotent", name=f"tiles.render{mark}", policy=QUICK)
    def render(tile: int) -> None:
        raise TimeoutError(f"the renderer did not answer {mark}")

    @oncemore.step(effect="pure", name="tiles.check")
    def check(tile: int) -> int:
        return tile * tile

    runs = [render.run(tile) for tile in range(2)]
    for tile in range(12):
        check(tile)
    return runs[0].run_id


def _hold_runs(mark: str) -> tuple[str, str, str]:
    @oncemore.step(effect="once", name=f"bank.pay{mark}")
    def pay(invoice: str, amount: float) -> str:
        raise TimeoutError(f"no answer from the bank {mark}")

    @oncemore.step(effect="idempotent", name=f"archive.import{mark}")
    def bring_in(file: str) -> None:
        raise oncemore.NeedsReview("CHECKSUM_DOUBT")

    @oncemore.step(effect="idempotent", name=f"parcels.redraw{mark}", requires_approval=True)
    def redraw(county: str) -> None:
        return None

    return (
        pay.run("2026-118", 1250.0).run_id,
        bring_in.run("scan-4711.fits").run_id,
        redraw.run("Riley").run_id,
    )


def _submit_run(mark: str) -> str:
    @oncemore.step(effect="idempotent", name=f"report.monthly{mark}")
    def report(month: str) -> None:
        return None

    return report.submit("2026-11", at=timedelta(hours=2)).run_id


def _run_workflow(engine: Engine, mark: str) -> tuple[str, str]:
    @oncemore.step(effect="pure", name=f"order.price{mark}")
    def price(order: str) -> float:
        return 12.5

    @oncemore.workflow(name=f"order.fulfil{mark}")
    def fulfil(order: str) -> str:
        price(order)
        return str(oncemore.wait_for("approved"))

    # The run waits for a signal, for which a plain call would not return.
    run = fulfil.submit("A-18")
    # Not the one that it waits for.
    run.signal(f"changed{mark}", {"text": mark})
    oncemore.Worker(engine, [fulfil, price]).run_until_idle()
    inner = price.last_run("A-18")
    assert inner is not None
    return run.run_id, inner.run_id


def _escalate(engine: Engine, mark: str) -> str:
    dataset = f"burial-sites{mark}"
    engine.datasets.register(
        dataset,
        care_label=f"Restricted {mark}",
        sensitivity="Sensitive",
        reason="first delivery",
        by="steward",
    )

    @oncemore.step(effect="idempotent", name=f"sites.publish{mark}", policy=QUICK, dataset=dataset)
    def publish(site: str) -> None:
        raise PermissionError(f"the archive refuses {mark}")

    publish.run("mound-12")
    (escalation,) = engine.escalations.list()[:1]
    return escalation.id


def _use_limits(engine: Engine, mark: str) -> None:
    # The name of a provider is part of the address of its policy, so that it cannot hold every character.
    provider = "kfm-stac"

    @oncemore.step(effect="idempotent", name=f"stac.load{mark}", policy="kfm-rules", provider=provider)
    def load(item: int) -> None:
        raise oncemore.TransientError(f"HTTP 503 {mark}")

    @oncemore.step(
        effect="idempotent",
        name=f"archive.fetch{mark}",
        policy=oncemore.Policy("once", max_attempts=1),
        provider="archive",
        cooldown=oncemore.Cooldown(lambda name: name),
    )
    def fetch(name: str) -> None:
        raise oncemore.TransientError("busy")

    with FakeClock():
        for item in range(6):
            with suppress(errors.Error):
                load(item)
    fetch.run(f"product-7{mark}"[:60])
    engine.switches.on(step=f"legacy.sync{mark}", reason=f"the ledger is wrong {mark}", by="operator")


def _schedule_work(engine: Engine, mark: str) -> None:
    @oncemore.schedule(every=timedelta(days=400), name=f"yearly report{mark}")
    @oncemore.step(effect="idempotent", name=f"report.yearly{mark}")
    def report() -> None:
        return None

    oncemore.Worker(engine, [report]).run_until_idle()


def _decide_something(engine: Engine, mark: str) -> None:
    """Let people decide, with names and reasons of their own."""

    @oncemore.step(effect="idempotent", name=f"scan.read{mark}")
    def read(file: str) -> None:
        raise oncemore.NeedsReview("UNREADABLE")

    run = read.run("page-7")
    item = next(item for item in engine.quarantine.list() if item.id == run.run_id)
    engine.quarantine.reject(item, by=f"operator{mark}", reason=f"torn {mark}")
    engine.escalations.open(item.entity, by=f"operator{mark}", reason=f"look at it {mark}")


def _run_program(engine: Engine, mark: str) -> str:
    """Run a program as `oncemore exec` does; its key and its command line are those of an attacker."""
    from oncemore import cli
    from oncemore.queries.runs import RunFilter, list_runs

    assert engine.open_arguments is not None
    words = ["--key", f"nightly {mark}", "--effect", "idempotent", "--store", engine.open_arguments[0]]
    program = [
        sys.executable,
        "-c",
        "import sys; print(sys.argv[1:])",
        *(HOSTILE_TEXTS if mark else ("fine",)),
    ]
    assert cli.run_command(["exec", *words, "--", *program]) == 0
    return list_runs(engine.store, RunFilter(limit=1))[0].run_id
