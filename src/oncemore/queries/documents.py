"""Documents of headings, paragraphs, tables and charts: one list of blocks, as text, Markdown or HTML.

An HTML page is one self-contained file: it loads nothing, runs no script, and follows the light or dark theme
of the reader. Markdown has its charts as text in code blocks, because most viewers show no inline SVG.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.queries.charts import escape_xml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeAlias

    Block: TypeAlias = "HeadingBlock | TextBlock | TableBlock | ChartBlock"


class HeadingBlock(Value):
    """A heading; level 1 is the title of the document."""

    text: str
    level: int = 2


class TextBlock(Value):
    """A paragraph; one that is a command line is shown as code."""

    text: str
    is_code: bool = False


class TableBlock(Value):
    """A table; the numbers in `right` are the right-aligned columns."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()


class ChartBlock(Value):
    """A chart, as SVG and as a function that draws it in a number of columns."""

    svg: str
    draw_text: Callable[[int], Sequence[str]]


MARKDOWN_WIDTH = 100
_RIGHT = ' class="right"'

PAGE_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #24292f; background: #ffffff }
h1 { font-size: 1.6rem } h2 { font-size: 1.25rem; margin-top: 2rem } h3 { font-size: 1.05rem }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #d0d7de; text-align: left; vertical-align: top }
td.right, th.right { text-align: right; font-variant-numeric: tabular-nums }
pre { background: #f6f8fa; padding: .6rem .8rem; overflow-x: auto }
svg { max-width: 100%; height: auto }
@media (prefers-color-scheme: dark) {
  body { color: #e6edf3; background: #0d1117 } th, td { border-color: #30363d } pre { background: #161b22 }
}
"""


def render_markdown(blocks: Iterable[Block]) -> str:
    """Return a document as Markdown."""
    return "\n\n".join(_render_markdown_block(block) for block in blocks) + "\n"


def _render_markdown_block(block: Block) -> str:
    if isinstance(block, HeadingBlock):
        return f"{'#' * block.level} {_escape_markdown(block.text)}"
    if isinstance(block, TextBlock):
        return f"```sh\n{block.text}\n```" if block.is_code else _escape_markdown(block.text)
    if isinstance(block, ChartBlock):
        # No line of a chart has a backquote, so that it cannot end the block of code.
        return "\n".join(["```text", *block.draw_text(MARKDOWN_WIDTH), "```"])
    dashes = ["---:" if number in block.right else "---" for number in range(len(block.head))]
    rows = [block.head, tuple(dashes), *block.rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in map(_escape_cells, rows))


def _escape_cells(cells: Sequence[str]) -> list[str]:
    # A name of a step or a tenant comes from a user: it must not end its cell or its line.
    return [_escape_markdown(cell).replace("|", "\\|").replace("\n", " ") for cell in cells]


def _escape_markdown(text: str) -> str:
    """Return text that Markdown shows as it is; a name in it cannot become HTML or a link."""
    escaped = text.replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;")
    for mark in "*_[]`":
        escaped = escaped.replace(mark, f"\\{mark}")
    return escaped


def render_html(title: str, blocks: Iterable[Block]) -> str:
    """Return a document as one self-contained HTML page."""
    # Every text is escaped where it is placed: names of steps and tenants come from users.
    body = "\n".join(_render_html_block(block) for block in blocks)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Nothing is loaded and nothing runs, even if a name in the log contains markup.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{escape_xml(title)}</title>\n<style>{PAGE_STYLE}</style>\n</head>\n<body>\n{body}\n"
        "</body>\n</html>\n"
    )


def _render_html_block(block: Block) -> str:
    if isinstance(block, HeadingBlock):
        return f"<h{block.level}>{escape_xml(block.text)}</h{block.level}>"
    if isinstance(block, TextBlock):
        kind = "pre" if block.is_code else "p"
        return f"<{kind}>{escape_xml(block.text)}</{kind}>"
    if isinstance(block, ChartBlock):
        return f"<figure>\n{block.svg}</figure>"
    rows = [
        _render_row("th", block.head, block.right),
        *(_render_row("td", r, block.right) for r in block.rows),
    ]
    return f"<table>\n{''.join(rows)}</table>"


def _render_row(tag: str, cells: Sequence[str], right: Sequence[int]) -> str:
    parts = [
        f"<{tag}{_RIGHT if number in right else ''}>{escape_xml(cell)}</{tag}>"
        for number, cell in enumerate(cells)
    ]
    return f"<tr>{''.join(parts)}</tr>\n"
