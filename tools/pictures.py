"""Draw the terminal pictures of the docs from a telling of the demo that really happened.

    python tools/pictures.py            draw docs/pictures/*.svg anew from docs/pictures/demo.json
    python tools/pictures.py --record   tell the demo first (half a minute), and keep what happened there

What is kept are the facts that the demo itself shows, so that the pictures are drawn by the very code that
draws the terminal, and a test can say whether they are still what a user sees.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oncemore.cli.svg import escape_xml
from oncemore.demo.pipeline import ending
from oncemore.demo.pipeline.board import OrderBoard
from oncemore.demo.pipeline.live import LiveTerminal
from oncemore.demo.pipeline.plan import PipelinePlan, make_plan
from oncemore.demo.pipeline.story import CALM, PipelineDemo
from oncemore.demo.pipeline.tally import EffectCount, EffectTotals, count_effects
from oncemore.policy import files

if TYPE_CHECKING:
    from oncemore.demo.pipeline.board import Line

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "pictures"
KEPT = "demo.json"
SEED = "7"
COLUMNS = 80
#: Of one character, in pixels; and the frame around all of them.
WIDE, HIGH, EDGE, BAR = 8.4, 19, 16, 30
#: Which of the kills the live picture shows: the one between the table's commit and our record.
KILL = 2

STYLE: Final = """
text { font: 14px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #24292f }
.paper { fill: #ffffff; stroke: #d0d7de } .bar { fill: #f6f8fa } .knob { fill: #d0d7de }
.bold { font-weight: 700 } .dim { fill: #57606a } .red { fill: #cf222e } .green { fill: #116329 }
.yellow { fill: #7d4e00 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .paper { fill: #0d1117; stroke: #30363d } .bar { fill: #161b22 }
  .knob { fill: #30363d } .dim { fill: #9198a1 } .red { fill: #ff7b72 } .green { fill: #7ee787 }
  .yellow { fill: #e3b341 }
}
"""


def picture(title: str, lines: list[Line]) -> str:
    """Return a terminal with these lines as one SVG file that needs nothing else."""
    width, height = 2 * EDGE + COLUMNS * WIDE, BAR + 2 * EDGE + len(lines) * HIGH
    told = "\n".join("".join(text for text, _ in line).rstrip() for line in lines)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" width="{width:g}" '
            f'height="{height}" role="img" aria-labelledby="title desc">',
            f'<title id="title">{escape_xml(title)}</title>',
            f'<desc id="desc">{escape_xml(told)}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect class="paper" x=".5" y=".5" width="{width - 1:g}" height="{height - 1}" rx="8"/>',
            f'<path class="bar" d="M1 {BAR}V9a8 8 0 0 1 8-8h{width - 18:g}a8 8 0 0 1 8 8v{BAR - 9}z"/>',
            *(f'<circle class="knob" cx="{20 + 18 * at}" cy="15" r="5.5"/>' for at in range(3)),
            f'<text class="dim" x="{width / 2:g}" y="20" text-anchor="middle">{escape_xml(title)}</text>',
            *(_line(line, BAR + EDGE + number * HIGH + 14) for number, line in enumerate(lines)),
            "</svg>\n",
        ]
    )


def _line(line: Line, y: int) -> str:
    """Return one line; every part has its place and its length, whatever font there is."""
    parts, column = [], 0
    for text, tint in line:
        said, start = text.strip(), column + len(text) - len(text.lstrip())
        if said:
            kind = f' class="{tint}"' if tint else ""
            parts.append(
                f'<tspan{kind} x="{EDGE + start * WIDE:g}" textLength="{len(said) * WIDE:g}" '
                f'lengthAdjust="spacingAndGlyphs">{escape_xml(said)}</tspan>'
            )
        column += len(text)
    return f'<text y="{y}" xml:space="preserve">{"".join(parts)}</text>'


def live(kept: dict[str, Any]) -> list[Line]:
    """Return the view right after a kill, as it was."""
    plan = make_plan(kept["seed"], kept["pace"])
    board, killed = OrderBoard(order for order, _ in plan.orders), 0
    for fact in kept["facts"]:
        board.add_fact(fact)
        killed += fact["who"] == "stage" and fact["what"] == "kill"
        if killed == KILL:
            return board.frame_lines(COLUMNS, fact["t"] + 0.4)
    raise SystemExit(f"{KEPT} has no kill number {KILL}: record it anew")


def end(kept: dict[str, Any]) -> list[Line]:
    """Return what is said when all is over."""
    plan = make_plan(kept["seed"], kept["pace"])
    board = OrderBoard(order for order, _ in plan.orders)
    for fact in kept["facts"]:
        board.add_fact(fact)
    found = EffectTotals(tuple(EffectCount(*count) for count in kept["counts"]), kept["early"])
    lines, same = ending.explain_decision(kept["proved"], policy_of(plan), COLUMNS)
    if not same:
        raise SystemExit(f"the decision in {KEPT} comes out otherwise today: record it anew")
    return [
        *board.table_lines(COLUMNS, kept["facts"][-1]["t"]),
        [],
        *ending.legend_lines(COLUMNS),
        [],
        *ending.count_lines(found, COLUMNS),
        [],
        *ending.summary_lines(found, plan, board, COLUMNS),
        [],
        *lines,
    ]


def policy_of(plan: PipelinePlan) -> Any:
    """Return the policy that a telling waits by."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "demo.yaml")
        path.write_text(plan.policy_yaml(), encoding="utf-8")
        return files.policy(str(path))


def kept() -> dict[str, Any]:
    """Return what happened in the telling that the pictures are of."""
    return dict(json.loads((FOLDER / KEPT).read_text(encoding="utf-8")))


def pictures(kept: dict[str, Any]) -> dict[str, str]:
    """Return all pictures by their file names."""
    return {
        "demo-live.svg": picture("oncemore demo: right after kill -9", live(kept)),
        "demo-end.svg": picture("oncemore demo: what really happened", end(kept)),
    }


def record() -> dict[str, Any]:
    """Tell the demo, and return what happened."""
    plan = make_plan(SEED, CALM)
    with tempfile.TemporaryDirectory() as folder:
        story = PipelineDemo(plan, Path(folder), LiveTerminal(io.StringIO(), 0, plain=True))
        proofs, ended = story.play_demo()
        found = count_effects(Path(folder), plan.expected_orders)
    proved = ending.choose_decision(proofs)
    if not ended or not found.is_exact or proved is None:
        raise SystemExit(f"that telling went wrong: {found}")
    return {
        "seed": plan.seed, "pace": plan.pace, "facts": story.facts, "proved": proved,
        "counts": found.counts, "early": found.early,
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    """Record if asked to, and draw."""
    FOLDER.mkdir(exist_ok=True)
    if arguments == ["--record"]:
        told = json.dumps(record(), separators=(",", ":")).replace('},{"t"', '},\n{"t"')
        (FOLDER / KEPT).write_text(told + "\n", encoding="utf-8")
    elif arguments:
        raise SystemExit(__doc__)
    for name, drawn in pictures(kept()).items():
        (FOLDER / name).write_text(drawn, encoding="utf-8")
        print(f"docs/pictures/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
