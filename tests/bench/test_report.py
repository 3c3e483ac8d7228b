"""The report of measured modes: numbers from known counters, files that load nothing, batches in turns."""

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from sonoran.bench.decode import mode_result
from sonoran.bench.report import MADE, acceptance_by_position, ms_per_token, report_files
from sonoran.bench.together import check_batches, measure_together
from sonoran.errors import ConfigError
from tests.bench.test_decode import made

TIMES = {"draft": 0.1, "verification": 0.3, "sampling": 0.02, "rest": 0.08, "total": 0.5}


def timed(ids, seconds, **speculation):
    run = made(ids, seconds, **speculation)
    run.metrics["time_s"] = TIMES
    return run


@pytest.fixture
def result():
    drafted = timed(
        [0] * 10, 1.0, num_draft_tokens=8, num_accepted_draft_tokens=5, num_spec_steps=4, num_emitted_tokens=9,
        accepted_per_position=[4, 1], proposed_per_position=[4, 4],
    )  # fmt: skip
    return {
        "model": "target <1B>", "draft": "d", "dataset": "humaneval", "num_prompts": 1, "max_tokens": 10,
        "temperature": 0.0, "identical_texts": True, "differences": [], "verdict": "Fastest here: sd & co.",
        "processor": {"model": "A processor", "kernels": "avx2", "available_cores": [0, 1]},
        "modes": {"ar": mode_result([timed([0] * 10, 2.0)]), "sd": mode_result([drafted, drafted])},
        "throughput": [
            {"mode": m, "batch": b, "tokens_per_s": 10.0 * b, "min": 1, "max": 2, "spread": 0.1, "count": 2}
            for m in ("ar", "sd")
            for b in (1, 4)
        ],
    }  # fmt: skip


def test_positions_and_times_are_sums(result):
    assert acceptance_by_position(result["modes"]["sd"]) == [(1, 1.0), (2, 0.25)]
    assert acceptance_by_position(result["modes"]["ar"]) == []
    assert ms_per_token(result["modes"]["sd"]) == {
        "draft": pytest.approx(10), "verification": pytest.approx(30), "sampling": pytest.approx(2),
        "rest": pytest.approx(8),
    }  # fmt: skip
    assert ms_per_token(mode_result([made([0] * 10, 1.0)])) == {}


def test_positions_of_lists_that_differ_in_length():
    runs = [
        made([0, 1], 1.0, num_spec_steps=1, accepted_per_position=[1], proposed_per_position=[2]),
        made([0, 1], 1.0, num_spec_steps=1, accepted_per_position=[1, 1], proposed_per_position=[1, 3]),
    ]
    assert acceptance_by_position(mode_result(runs)) == [(1, pytest.approx(2 / 3)), (2, pytest.approx(1 / 3))]


def test_files(result):
    pytest.importorskip("matplotlib")
    files = report_files(result, "sonoran bench decode --report out")
    assert set(files) == {"results.json", "report.svg", "report.png", "report.html", "report.md"}
    assert json.loads(files["results.json"])["modes"]["sd"]["tokens_per_s"] == 9.0
    assert files["report.png"].startswith(b"\x89PNG\r\n")
    assert ElementTree.fromstring(files["report.svg"]).tag.endswith("svg")
    page = files["report.html"].decode()
    assert not re.search(r"""(src|href)=["'](?!#)|@import|url\((?!#)|<script""", page)
    assert "sd &amp; co." in page and "target &lt;1B&gt;" in page and page.count("<svg") == 1
    text = files["report.md"].decode()
    assert text.startswith(MADE[0]) and MADE[1] in text
    assert "| sd | 9.0 | 0% | 2.00 | 1.00 | 62% | 2.25 |  |" in text
    assert "| sd | 4 | 40.0 | 10% | 2 |" in text
    assert "A processor, 2 cores, kernels avx2" in text


class Clocked:
    """Takes a second per token of each prompt, all prompts at once."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def run_together(self, prompts, seed, max_tokens):
        self.log.append((self.name, [p[0] for p in prompts], seed))
        return max_tokens * len(prompts), float(max_tokens)


def test_batches_take_turns_on_the_same_prompts():
    log, steps = [], []
    runners = {name: Clocked(name, log) for name in ("ar", "sd")}
    found = measure_together(
        runners,
        [[i] for i in range(5)],
        (1, 2),
        max_tokens=4,
        seed=7,
        progress=lambda *step: steps.append(step),
    )
    assert [(e["mode"], e["batch"], e["tokens_per_s"], e["count"]) for e in found] == [
        ("ar", 1, 1.0, 3), ("sd", 1, 1.0, 3), ("ar", 2, 2.0, 2), ("sd", 2, 2.0, 2),
    ]  # fmt: skip
    assert log[6:] == [("ar", [0, 1], 7), ("sd", [0, 1], 7), ("sd", [2, 3], 9), ("ar", [2, 3], 9)]
    assert steps[-1] == ("ar, batch 2", 10, 10)


def test_batches_need_prompts():
    assert check_batches([4, 1], 4) == (1, 4)
    for wrong in ([5], [0], [2, 2]):
        with pytest.raises(ConfigError, match="--batch"):
            check_batches(wrong, 4)
