"""Between two steps: a stand-in for vLLM's engine decodes with a real draft side, and nothing changes its texts."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sonoran.engine.trace import SpanLog
from sonoran.errors import ConfigError
from sonoran.sampling.params import SamplingParams
from sonoran.vllm import SSDProposer
from sonoran.vllm.guest import Guest
from sonoran.vllm.options import read_options
from sonoran.vllm.report import Report, line, summary
from tests.engine.helpers import alone, engine, greedy, run
from tests.toy_backend import ToyBackend
from tests.worker.local import LocalDrafter, toy_model

K = 4
WIDTH = 400
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8], [1, 6, 1, 8, 0, 3, 3], [3, 1, 4, 1, 5, 9, 2, 6]]


def make_guest(drafter: LocalDrafter, max_model_len: int = WIDTH) -> Guest:
    drafter._law = "point_mass"
    return Guest(
        drafter, num_speculative_tokens=K, max_model_len=max_model_len, params=SamplingParams(temperature=1.0)
    )


class Engine:
    """Plays vLLM: greedy texts are known beforehand, proposals are verified against them; rows move and vanish."""

    def __init__(
        self,
        guest: Guest,
        texts: list[list[int]],
        chance: random.Random,
        chaos: float = 0.0,
        prompts: list[list[int]] = PROMPTS,
    ) -> None:
        self.prompts = prompts
        self.guest, self.texts, self.chance, self.chaos = guest, texts, chance, chaos
        self.done = [0] * len(texts)
        self.proposed: dict[int, list[int]] = {}
        self.order = list(range(len(texts)))
        self.verifications = self.steps = 0

    def step(self) -> None:
        order = [i for i in self.order if self.done[i] < len(self.texts[i])]
        if self.chaos:
            self.chance.shuffle(order)
            order = [i for i in order if self.chance.random() > self.chaos]
        table, lengths, emitted = np.zeros((len(order) or 1, WIDTH), np.int32), [], []
        for row, i in enumerate(order):
            left = self.texts[i][self.done[i] :]
            proposal = self.proposed.pop(i, []) if self.chance.random() >= self.chaos else []
            taken = 0
            while taken < min(len(proposal), len(left) - 1) and proposal[taken] == left[taken]:
                taken += 1
            new = left[: taken + 1]
            self.done[i] += len(new)
            tokens = [*self.prompts[i], *self.texts[i][: self.done[i]]]
            table[row, : len(tokens)] = tokens
            lengths.append(len(tokens))
            emitted.append(new)
        found = self.guest.step(emitted, lengths, table)
        assert len(found) == len(order)
        assert all(len(proposal) <= K for proposal in found)
        self.proposed = dict(zip(order, found, strict=True))
        self.steps += 1

    def run(self) -> None:
        while any(done < len(text) for done, text in zip(self.done, self.texts, strict=True)):
            self.step()


def texts(length: int = 80) -> list[list[int]]:
    return [list(alone(prompt, greedy(length, ignore_eos=True))[0][0]) for prompt in PROMPTS]


@pytest.mark.parametrize("chaos", [0.0, 0.2])
def test_a_perfect_draft_is_accepted_wherever_the_rows_are(chaos: float) -> None:
    drafter = LocalDrafter(toy_model(salt=0), backup="draft", least_chance=0.0)
    guest = make_guest(drafter)
    playing = Engine(guest, texts(), random.Random(1), chaos)
    playing.run()
    found = guest.stats.speculation
    assert found.num_accepted_draft_tokens > 0
    if not chaos:
        assert playing.steps < 80 / 3
        assert guest.stats.cache.as_dict()["cache_hit_rate"] == 1.0
    for _ in range(20):
        guest.step([], [], np.zeros((1, WIDTH), np.int32))
    drafter.check_invariants()


def test_hit_rates_are_those_of_our_own_engine() -> None:
    """The same pair, prompts and K: what is looked up and found does not depend on who asks."""
    settings: dict[str, Any] = {"backup": "draft", "budget": 8, "fan_out": "geometric", "least_chance": 0.0}
    chance = random.Random(2)
    prompts = [[chance.randrange(1, 60) for _ in range(6)] for _ in range(16)]
    params = greedy(240, ignore_eos=True)
    core = engine(
        ToyBackend(num_blocks=2048), LocalDrafter(toy_model(salt=0, noise=1.0, num_blocks=4096), **settings)
    )
    requests = [run(core, (prompt, params))[0] for prompt in prompts]
    guest = make_guest(LocalDrafter(toy_model(salt=0, noise=1.0, num_blocks=4096), **settings))
    known = [list(request.sequences[0].output_ids) for request in requests]
    Engine(guest, known, random.Random(1), prompts=prompts).run()
    own, found = core.stats.cache.as_dict(), guest.stats.cache.as_dict()
    assert found["num_cache_lookups"] > 900
    assert found["cache_hit_rate"] == pytest.approx(own["cache_hit_rate"], abs=0.02)
    ours, theirs = core.stats.speculation, guest.stats.speculation
    assert theirs.mean_acceptance_length == pytest.approx(ours.mean_acceptance_length, rel=0.03)


def test_a_worker_that_goes_and_comes_back_is_told_again() -> None:
    drafter = LocalDrafter(toy_model(salt=0), backup="draft", least_chance=0.0)
    guest = make_guest(drafter)
    playing = Engine(guest, texts(), random.Random(1))
    for _ in range(5):
        playing.step()
    drafter.worker.state = "down"
    playing.step()
    assert not any(playing.proposed.values())
    drafter.worker.state, drafter.worker.epoch = "up", 2
    playing.step()
    playing.step()
    assert any(playing.proposed.values())
    playing.run()


def test_nothing_is_proposed_beyond_the_longest_text() -> None:
    drafter = LocalDrafter(toy_model(salt=0), backup="draft", least_chance=0.0)
    known = texts(40)
    longest = max(len(prompt) for prompt in PROMPTS) + 40
    playing = Engine(make_guest(drafter, longest), known, random.Random(1))
    while any(done < len(text) for done, text in zip(playing.done, known, strict=True)):
        playing.step()
        for i, proposal in playing.proposed.items():
            assert len(PROMPTS[i]) + playing.done[i] + len(proposal) + 1 <= longest or not proposal


def test_a_report_counts_and_traces(tmp_path: Path) -> None:
    drafter = LocalDrafter(toy_model(salt=0), backup="draft", least_chance=0.0)
    guest = make_guest(drafter)
    report = Report(guest, engine="3", log_every_s=1.0, trace=tmp_path / "trace.json")
    before = summary(guest)
    Engine(guest, texts(), random.Random(1)).run()
    said = line(before, summary(guest), 2.0)
    assert "hit rate 1.00" in said
    assert f"accepted {guest.stats.speculation.num_accepted_draft_tokens} of" in said
    assert "without a speculation" in line(summary(guest), summary(guest) | {"steps": 99}, 2.0)
    report.look()
    report.last_words()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {"target step", "ask the draft worker", "trunk pass"} <= {event["name"] for event in events}


class Config:
    """As much of vLLM's configuration as options are read from."""

    class speculative_config:  # noqa: N801
        num_speculative_tokens = K

    class device_config:  # noqa: N801
        device_type = "cuda"

    class parallel_config:  # noqa: N801
        tensor_parallel_size = 1

    additional_config: dict[str, Any] = {}  # noqa: RUF012


class Broken(Guest):
    def step(self, *_: Any) -> list[list[int]]:
        raise ValueError("a mistake of ours")


def test_a_mistake_of_ours_costs_speed_alone() -> None:
    proposer = SSDProposer(Config)
    drafter = LocalDrafter(toy_model(), backup="draft")
    proposer._guest = Broken(drafter, num_speculative_tokens=K, max_model_len=99, params=SamplingParams())
    assert proposer.propose([[1], []], np.ones(2, np.int32), np.ones((2, 9), np.int32)) == [[], []]
    proposer.close()
    proposer.close()
    assert proposer.propose([[1]], np.ones(1, np.int32), np.ones((1, 9), np.int32)) == [[]]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (None, "--additional-config"),
        ({}, "needs a draft"),
        ({"draft": "a", "draft_address": "tcp://h:1"}, "not both"),
        ({"draft": "a", "core": "1"}, "cores"),
        ({"draft": "a", "num_speculative_tokens": 3}, "unknown"),
        ({"draft": "a", "cores": "x"}, "cores must look like"),
        ({"draft": "a", "least_chance": 2}, "least_chance"),
        ({"draft": "a", "longest_wait_ms": 0}, "longest_wait_ms must lie in 1 to"),
        ({"draft": "a", "temperature": "hot"}, "temperature"),
        ({"draft": "a", "trace": "/nowhere/at/all.json"}, "trace"),
        ({"draft_address": "tcp://h:1", "kv_cache_bytes": 5}, "where the worker was started"),
        ({"draft_address": "tcp://h:1", "threads": 2}, "where the worker at"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(section: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_options({"sonoran": section} if section is not None else {}, K)
    proposer = SSDProposer(type("Given", (Config,), {"additional_config": {"sonoran": section}}))
    with pytest.raises(ConfigError):
        proposer.load_model(None)


def test_options_are_those_of_ssd_and_a_few_of_vllm_s() -> None:
    given = {
        "draft": "d",
        "cores": "3-4",
        "budget": 6,
        "fan_out": "geometric",
        "temperature": 0.7,
        "log_every_s": 0,
    }
    options = read_options({"sonoran": given}, 7)
    assert (options.speculative.model, options.speculative.cores, options.temperature) == ("d", (3, 4), 0.7)
    assert (options.speculative.num_speculative_tokens, options.speculative.budget) == (7, 6)
    assert SpanLog(3).spans() == []
