"""Prints a schedule as a drawing, or writes it as a picture."""

from __future__ import annotations

from pathlib import Path

from oncemore._time_spans import seconds
from oncemore.cli.charts import LEGEND, chart
from oncemore.cli.svg import picture

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.cli.output import Paper
    from oncemore.queries.policy_graph import Graph


def draw(paper: Paper, graph: Graph, svg: str | None) -> None:
    """Draw: as JSON numbers, into a file, or with blocks."""
    if svg is not None:
        _write(paper, graph, svg)
    elif paper.in_json:
        paper.json(graph)
    else:
        _print(paper, graph)


def heading(graph: Graph) -> str:
    """Return whose schedule it is."""
    whose = f" for {graph.provider}" if graph.provider else ""
    return f"{graph.name}{whose}, version {graph.version}"


def below(graph: Graph) -> str:
    """Return what it comes to."""
    worst = graph.worst
    if worst.calls == 1:
        return "1 attempt: no retry"
    return f"{worst.calls} attempts, at most {seconds(worst.delay_s)} of waiting in all"


def _write(paper: Paper, graph: Graph, svg: str) -> None:
    text = picture(heading(graph), below(graph), graph.delays, graph.samples)
    if svg == "-":
        paper.raw(text.encode())
        return
    Path(svg).write_text(text, encoding="utf-8")
    if paper.in_json:
        paper.json({"svg": svg, "graph": graph})
    else:
        paper.line(f"drawn into {svg}")


def _print(paper: Paper, graph: Graph) -> None:
    paper.line(heading(graph), "bold")
    paper.line(below(graph))
    if not graph.delays:
        return
    paper.line()
    for line in chart(graph.delays, graph.samples, paper.width):
        paper.line(line)
    paper.line()
    paper.line(LEGEND + ("   • sample runs" if graph.samples else "") + "   (seconds)")
    for sample in graph.samples:
        paper.line(f"seed {sample.seed}: {', '.join(f'{delay:.3f}' for delay in sample.delays_s)}", "dim")
