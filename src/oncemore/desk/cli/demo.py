"""`oncemore demo`: see it work."""

from __future__ import annotations

import click

from oncemore.desk.cli.group import leaf

EXAMPLES = """
oncemore demo
oncemore demo --fast
"""


@leaf("demo", EXAMPLES)
@click.option("--fast", is_flag=True, help="Shorter waits: a few seconds in all instead of twenty.")
def demo(fast: bool) -> int:
    """See it work: a flaky server, the waits and the reasons.

    Seven calls are made, then the same ones with the loop that everybody writes first. The server is
    real and runs on this machine only; the table at the end comes from its own log.
    """
    from oncemore.desk.demo import main

    return main(["--fast"] if fast else [])
