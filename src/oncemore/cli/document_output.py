"""Write documents of `queries.documents`: as text in the terminal, or as Markdown, HTML and SVG files."""

from __future__ import annotations

from pathlib import Path

import click

from oncemore.cli.commands import combine_options, value_option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.cli.output import OutputWriter
    from oncemore.queries.documents import Block

#: Options of every command that can write its result as a file.
file_options = combine_options(
    value_option("--html", "FILE", "Write one self-contained HTML page; - is standard output."),
    value_option("--markdown", "FILE", "Write Markdown; - is standard output."),
    value_option("--svg", "FILE", "Write the first chart as SVG; - is standard output."),
)


def print_blocks(out: OutputWriter, blocks: Sequence[Block]) -> None:
    """Print a document in the terminal."""
    from oncemore.queries.documents import ChartBlock, HeadingBlock, TableBlock, TextBlock

    # An empty line between blocks, and none before the first.
    for number, block in enumerate(blocks):
        if number:
            out.write_line()
        if isinstance(block, HeadingBlock):
            out.write_line(block.text, "bold")
        elif isinstance(block, TextBlock):
            # A command line is not wrapped, so that it can be copied.
            (out.write_line if block.is_code else out.write_paragraph)(block.text)
        elif isinstance(block, TableBlock):
            out.write_table([block.head, *block.rows], right=block.right)
        elif isinstance(block, ChartBlock):
            for line in block.draw_text(out.width):
                out.write_line(line)


def write_document(
    out: OutputWriter, value: object, blocks: Sequence[Block], files: dict[str, str | None]
) -> None:
    """Write a document to the given files; without any, print it as text, or its value as JSON."""
    from oncemore.queries.documents import ChartBlock, HeadingBlock, render_html, render_markdown

    # An option that is not given is None.
    wanted = {kind: path for kind, path in files.items() if path}
    if list(wanted.values()).count("-") + out.in_json * ("-" in wanted.values()) > 1:
        raise click.UsageError("Only one output can use standard output.", click.get_current_context())
    title = next((block.text for block in blocks if isinstance(block, HeadingBlock)), "oncemore")
    for kind, path in wanted.items():
        if kind == "html":
            text = render_html(title, blocks)
        elif kind == "markdown":
            text = render_markdown(blocks)
        else:
            # The first chart is the one that answers the question of the command.
            text = next(block.svg for block in blocks if isinstance(block, ChartBlock))
        _write_file(out, path, text)
    if out.in_json and "-" not in wanted.values():
        out.write_json(value)
    elif not wanted:
        print_blocks(out, blocks)


def _write_file(out: OutputWriter, path: str, text: str) -> None:
    if path == "-":
        out.write_bytes(text.encode())
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be written: {error.strerror}.") from None
    # With --json, standard output holds one JSON document and nothing else.
    if not out.in_json:
        out.write_line(f"wrote {path}")
