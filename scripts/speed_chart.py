"""Draw docs/speed.svg, speed by mode and kind of processor, from docs/data/speed.json.

    python scripts/speed_chart.py

The data file holds measured numbers only, each with its processor and the command that measured it. Bars of another
run than the processor's first one are marked, because runs of different hours should not be compared closely.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from card import Card

WIDTH, LEFT, RIGHT = 800, 262, 150
BAR, ROW = 16, 24
DOCS = Path(__file__).resolve().parents[1] / "docs"


def kind_of(mode: str) -> str:
    """Return the colour of a mode."""
    return mode.partition(",")[0].lower()


def picture(data: dict[str, Any]) -> str:
    """Return the SVG of the data."""
    largest = max(
        speed
        for processor in data["processors"]
        for run in processor["runs"]
        for speed in run["tokens_per_s"].values()
    )
    scale = (WIDTH - LEFT - RIGHT) / largest
    card = Card(WIDTH, data["title"])
    card.text(20, 30, data["title"], "title")
    y = 48
    marked = False
    for processor in data["processors"]:
        y += 14
        card.text(20, y, processor["name"], "strong")
        card.text(WIDTH - 20, y, processor["machine"], "small", "end")
        y += 10
        first = next(iter(processor["runs"][0]["tokens_per_s"].values()))
        for number, run in enumerate(processor["runs"]):
            for mode, speed in run["tokens_per_s"].items():
                card.text(LEFT - 10, y + 13, mode, "", "end")
                card.boxes([(LEFT, speed * scale)], y, BAR, kind_of(mode))
                ratio = f"  ({speed / first:.2f} x)" if not number and speed != first else ""
                card.text(LEFT + speed * scale + 8, y + 13, f"{speed:.1f}{ratio}{' *' if number else ''}")
                y += ROW
            marked |= number > 0
        y += 10
    card.text(20, y + 10, data["note"] + (" * another run." if marked else ""), "small")
    return card.svg(y + 28)


def main() -> None:
    """Read the data and write the chart."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DOCS / "data" / "speed.json")
    parser.add_argument("--out", type=Path, default=DOCS / "speed.svg", help="default: docs/speed.svg")
    options = parser.parse_args()
    options.out.write_text(picture(json.loads(options.data.read_text())), encoding="utf-8")
    sys.stdout.write(f"{options.out}: {options.out.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
