"""`oncemore completion`: print the completion script of a shell."""

from __future__ import annotations

import click

from oncemore.cli.commands import documented_command

EXAMPLES = """
eval "$(oncemore completion bash)"
oncemore completion zsh > ~/.zfunc/_oncemore
oncemore completion fish > ~/.config/fish/completions/oncemore.fish
"""


@documented_command("completion", EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    It completes commands, options, run ids, step names and policies.
    """
    from click.shell_completion import get_completion_class

    from oncemore.cli.commands import root

    script_class = get_completion_class(shell)
    assert script_class is not None, shell
    click.echo(script_class(root, {}, "oncemore", "_ONCEMORE_COMPLETE").source())
