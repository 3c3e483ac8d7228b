"""Draw the race of AR, SD and SSD from `sonoran demo --json`, as docs/race.svg.

    python scripts/race_picture.py                         runs the demo, then draws it
    sonoran demo --json > race.json
    python scripts/race_picture.py --from race.json --caption "AMD EPYC (AVX512-VNNI), 2 cores"

Each lane is as long as it took to write the same text. A slice is one round, drawn at the mean length of its lane.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from card import Card

WIDTH, LEFT, RIGHT = 800, 150, 178
LANE, BAR = 58, 18
DOCS = Path(__file__).resolve().parents[1] / "docs"


def run_demo() -> dict[str, Any]:
    """Run the demo with its defaults and return its document."""
    command = [sys.executable, "-c", "from sonoran.cli.start import main; main()", "demo", "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def rounds_of(mode: dict[str, Any]) -> tuple[int, float, float, float]:
    """Return rounds after the first token, their seconds, and the shares of drafting before and beside the target."""
    metrics = mode["metrics"]
    seconds = (mode["num_tokens"] - 1) / mode["tokens_per_s"]
    rounds = max(1, metrics["num_rounds"] - 1)
    before = metrics["time_s"]["draft"] / seconds
    hidden = metrics.get("speculative_decoding", {}).get("draft_hidden_s", 0.0) / seconds
    return rounds, seconds, min(before, 1.0), min(hidden, 1.0)


def picture(race: dict[str, Any], caption: str) -> str:
    """Return the SVG of a race."""
    lanes = {name: (mode, *rounds_of(mode)) for name, mode in race["modes"].items()}
    longest = max(seconds for _, _, seconds, _, _ in lanes.values())
    scale = (WIDTH - LEFT - RIGHT) / longest
    card = Card(WIDTH, "AR, SD and SSD write the same text; the lane that ends first is the fastest")
    tokens = next(iter(race["modes"].values()))["num_tokens"]
    card.text(20, 30, f"The same {tokens} tokens in every mode", "title")
    x = LEFT
    for kind, label in (("target", "target verifies"), ("draft", "draft guesses"), ("idle", "target waits")):
        card.boxes([(x, 11)], 44, 11, kind)
        card.text(x + 17, 54, label, "small")
        x += 130
    top = 70
    for number, (name, (mode, rounds, seconds, before, hidden)) in enumerate(lanes.items()):
        y, step = top + number * LANE, seconds * scale / rounds
        starts = [LEFT + n * step for n in range(rounds)]
        gap = min(0.6, 0.15 * step)
        beside = hidden > 0.0
        card.text(20, y + 14, name, "strong")
        card.text(20, y + 29, where(mode["place"]), "small")
        verify = [(start + before * step, (1.0 - before) * step - gap) for start in starts]
        card.boxes(verify, y, BAR, "target")
        if before > 0.005:
            card.boxes([(start, before * step) for start in starts], y, BAR, "idle" if beside else "draft")
        if beside:
            card.boxes(
                [(s, min(before + hidden, 1.0) * step - gap) for s in starts], y + BAR + 3, BAR, "draft"
            )
        end = LEFT + seconds * scale + 10
        ratio = f", {mode['speed_up']:.2f} x AR" if number else ""
        card.text(end, y + 14, f"{mode['tokens_per_s']:.1f} tokens/s{ratio}", "strong" if beside else "")
        card.text(end, y + 29, f"{seconds:.1f} s, {rounds} rounds", "small")
    y = top + len(lanes) * LANE + 12
    same = "All texts identical" if race["identical_texts"] else "The texts differ"
    sha = next(iter(race["modes"].values()))["sha256"][:16]
    card.text(20, y, f"{same}: SHA-256 {sha}.. of the token ids. {caption}".strip(), "small")
    return card.svg(y + 18)


def where(place: str) -> str:
    """Return a short form of a lane's place."""
    return (
        place.replace("target and draft on ", "both on ")
        .replace(", in turns", "")
        .replace(", at the same time", "")
        .replace("target on ", "")
        .replace("draft on core", "draft on")
    )


def main() -> None:
    """Read or run a race, and write the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="source", type=Path, help="what `sonoran demo --json` printed")
    parser.add_argument("--out", type=Path, default=DOCS / "race.svg", help="default: docs/race.svg")
    parser.add_argument("--caption", default="", help="processor and cores, written below the lanes")
    options = parser.parse_args()
    race = json.loads(options.source.read_text()) if options.source else run_demo()
    options.out.write_text(picture(race, options.caption), encoding="utf-8")
    sys.stdout.write(f"{options.out}: {options.out.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
