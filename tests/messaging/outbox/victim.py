"""Processes that are killed: python -m tests.messaging.outbox.victim WHAT STORE MARK WHEN [URL]

`give` runs a step that gives three events away; `relay` delivers what is due to a URL, `loop` does so until
it is killed from outside. The moment at which a process kills itself is one of `tests.storm.points`; around a
send it is `sending` or `sent`.
"""

from __future__ import annotations

import sys
from threading import Event

import oncemore
from oncemore.outbox import EventMessage, OutboxRelay, WebhookSink
from tests.storm.points import Point, arm, here, watch

TOPICS = ("one", "two", "three")


@oncemore.step(effect="outbox", name="victim.give")
def give(name: str) -> str:
    for topic in TOPICS:
        oncemore.current().emit(topic, f"{name} {topic}")
        here(f"emitted {topic}")
    return name


def main(what: str, store: str, mark: str, when: str, url: str = "") -> None:
    with oncemore.open(store) as engine:
        watch(engine.store)
        arm(Point(mark, when) if mark else None)
        if what == "give":
            give("a")
            return
        hook = WebhookSink(url)

        def sink(message: EventMessage) -> None:
            here("sending")
            hook(message)
            here("sent")

        relay = OutboxRelay(engine, {"*": sink}, poll_s=0.05)
        print("ready", flush=True)
        relay.run(Event()) if what == "loop" else relay.run_once()


if __name__ == "__main__":
    main(*sys.argv[1:])
