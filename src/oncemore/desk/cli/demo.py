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
    """Call a flaky local server seven times, and show the waits and the reasons.

    The server is real and runs on this machine only; the table at the end comes from its own log.
    """
    from oncemore.desk.demo import main

    return main(["--fast"] if fast else [])
