"""Draw the terminal pictures of the docs from a recorded run of the demo.

    python tools/pictures.py            draw docs/pictures/*.svg again from docs/pictures/demo.json
    python tools/pictures.py --record   run the demo first (half a minute), and record its facts there

The recorded facts are those that the demo itself shows. The pictures are drawn by the code that draws the
terminal, and a test checks that they are up to date.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oncemore.cli.svg import escape_xml
from oncemore.demo.effect_counts import EffectCount, EffectTotals, count_effects
from oncemore.demo.pipeline import pipeline_summary as summary
from oncemore.demo.pipeline.order_plan import PipelinePlan, make_plan
from oncemore.demo.pipeline.pipeline_demo import NORMAL_PACE, PipelineDemo
from oncemore.demo.pipeline.status_table import StatusTable
from oncemore.demo.summary_lines import count_lines
from oncemore.demo.terminal import LiveTerminal
from oncemore.policy import files

if TYPE_CHECKING:
    from oncemore.demo.terminal import Line

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "pictures"
KEPT = "demo.json"
SEED = "7"
COLUMNS = 80
#: Width and height of a character, margin, and height of the title bar, in pixels.
WIDE, HIGH, EDGE, BAR = 8.4, 19, 16, 30
#: The kill in the live picture: the one between the table's commit and our record.
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
    text = "\n".join("".join(text for text, _ in line).rstrip() for line in lines)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" width="{width:g}" '
            f'height="{height}" role="img" aria-labelledby="title desc">',
            f'<title id="title">{escape_xml(title)}</title>',
            f'<desc id="desc">{escape_xml(text)}</desc>',
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
    """Return one line; every part has its position and length, so that the font does not matter."""
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
    """Return the live view right after a kill."""
    plan = make_plan(kept["seed"], kept["pace"])
    table, killed = StatusTable(order for order, _ in plan.orders), 0
    for fact in kept["facts"]:
        table.add_fact(fact)
        killed += fact.get("event") == "kill"
        if killed == KILL:
            return table.frame_lines(COLUMNS, fact["t"] + 0.4)
    raise SystemExit(f"{KEPT} has no kill number {KILL}: record it again")


def end(kept: dict[str, Any]) -> list[Line]:
    """Return the summary."""
    plan = make_plan(kept["seed"], kept["pace"])
    table = StatusTable(order for order, _ in plan.orders)
    for fact in kept["facts"]:
        table.add_fact(fact)
    totals = EffectTotals(tuple(EffectCount(*count) for count in kept["counts"]), kept["early"])
    lines, same = summary.explain_decision(kept["proved"], policy_of(plan), COLUMNS)
    if not same:
        raise SystemExit(f"the decision in {KEPT} is computed differently today: record it again")
    return [
        *table.table_lines(COLUMNS, kept["facts"][-1]["t"]),
        [],
        *summary.legend_lines(COLUMNS),
        [],
        *count_lines(totals.counts, COLUMNS),
        [],
        *summary.verdict_lines(totals, plan, table, COLUMNS),
        [],
        *lines,
    ]


def policy_of(plan: PipelinePlan) -> Any:
    """Return the policy of a plan."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "demo.yaml")
        path.write_text(plan.policy_yaml(), encoding="utf-8")
        return files.policy(str(path))


def kept() -> dict[str, Any]:
    """Return the recorded facts."""
    return dict(json.loads((FOLDER / KEPT).read_text(encoding="utf-8")))


def pictures(kept: dict[str, Any]) -> dict[str, str]:
    """Return all pictures by their file names."""
    return {
        "demo-live.svg": picture("oncemore demo: right after kill -9", live(kept)),
        "demo-end.svg": picture("oncemore demo: the summary", end(kept)),
    }


def record() -> dict[str, Any]:
    """Run the demo and return its facts."""
    plan = make_plan(SEED, NORMAL_PACE)
    with tempfile.TemporaryDirectory() as folder:
        demo = PipelineDemo(plan, Path(folder), LiveTerminal(io.StringIO(), plain=True))
        proofs, has_finished = demo.run_pipeline()
        totals = count_effects(Path(folder), plan.expected_orders)
    proved = summary.choose_decision(proofs)
    if not has_finished or not totals.is_exact or proved is None:
        raise SystemExit(f"that run went wrong: {totals}")
    return {
        "seed": plan.seed, "pace": plan.pace, "facts": demo.facts, "proved": proved,
        "counts": totals.counts, "early": totals.early,
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    """Record if asked, and draw."""
    FOLDER.mkdir(exist_ok=True)
    if arguments == ["--record"]:
        text = json.dumps(record(), separators=(",", ":")).replace('},{"t"', '},\n{"t"')
        (FOLDER / KEPT).write_text(text + "\n", encoding="utf-8")
    elif arguments:
        raise SystemExit(__doc__)
    for name, drawn in pictures(kept()).items():
        (FOLDER / name).write_text(drawn, encoding="utf-8")
        print(f"docs/pictures/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
