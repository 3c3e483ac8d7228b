"""Counters: vLLM's definitions, counted after truncation."""

from __future__ import annotations

from typing import Any

import pytest

from sonoran.engine.outputs import request_output
from sonoran.engine.sequence import Request
from sonoran.engine.stats import SpeculationStats
from sonoran.sampling.params import SamplingParams
from tests.engine.helpers import alone, engine, greedy, model_drafter, run

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def metrics(request: Request, k: int = 4) -> dict[str, Any]:
    return request_output(request, k).metrics


def test_the_definitions_on_a_small_example() -> None:
    stats = SpeculationStats()
    stats.record(proposed=4, accepted=4, emitted=5)
    stats.record(proposed=4, accepted=1, emitted=2)
    stats.record(proposed=2, accepted=0, emitted=1)
    found = stats.as_dict(4)
    assert found["num_spec_steps"] == 3
    assert found["num_draft_tokens"] == 10
    assert found["num_verified_draft_tokens"] == 4 + 2 + 1
    assert found["num_accepted_draft_tokens"] == 5
    assert found["draft_acceptance_rate"] == 0.5
    assert found["mean_acceptance_length"] == pytest.approx(1 + 5 / 3)
    assert found["acceptance_histogram"] == [1, 1, 0, 0, 1]
    assert found["acceptance_histogram_by_draft_length"] == {"2": [1, 0, 0], "4": [0, 1, 0, 0, 1]}
    assert found["accepted_per_position"] == [2, 1, 1, 1]
    assert found["proposed_per_position"] == [3, 3, 2, 2]
    assert found["num_spec_tokens"] == 4


def test_what_is_cut_off_counts_for_nothing() -> None:
    stats = SpeculationStats()
    stats.record(proposed=4, accepted=4, emitted=2)
    assert (stats.num_accepted_draft_tokens, stats.num_verified_draft_tokens, stats.num_emitted_tokens) == (
        2,
        2,
        2,
    )
    assert stats.as_dict(4)["accepted_per_position"] == [1, 1, 0, 0]
    assert stats.mean_acceptance_length == 2.0


def test_totals_are_sums() -> None:
    parts = [SpeculationStats() for _ in range(2)]
    parts[0].record(4, 2, 3)
    parts[1].record(6, 6, 7)
    parts[1].record(4, 4, 1)
    both, total = SpeculationStats(), SpeculationStats()
    for part in parts:
        total.add(part)
    for record in ((4, 2, 3), (6, 6, 7), (4, 4, 1)):
        both.record(*record)
    assert total == both


@pytest.mark.parametrize("asked", [1, 2, None])
def test_lists_are_as_long_as_the_engines_k_whatever_was_drafted(asked: int | None) -> None:
    core = engine(drafter=model_drafter(least_chance=0.9), k=6)
    params = greedy(20, ignore_eos=True, num_speculative_tokens=asked)
    for found in (
        metrics(run(core, (PROMPT, params))[0], 6)["speculative_decoding"],
        core.statistics()["speculative_decoding"],
    ):
        assert all(int(length) < 6 for length in found["acceptance_histogram_by_draft_length"])
        assert found["num_spec_tokens"] == 6
        assert len(found["acceptance_histogram"]) == 6 + 1
        assert len(found["accepted_per_position"]) == len(found["proposed_per_position"]) == 6
        assert sum(found["acceptance_histogram"]) == found["num_spec_steps"]
        assert found["proposed_per_position"][0] == found["num_spec_steps"]
        assert sum(found["proposed_per_position"]) == found["num_draft_tokens"]
        assert sum(found["accepted_per_position"]) == found["num_accepted_draft_tokens"]


def test_lists_are_as_long_as_the_engines_k_when_nothing_was_drafted() -> None:
    found = SpeculationStats().as_dict(3)
    assert found["acceptance_histogram"] == [0, 0, 0, 0]
    assert found["accepted_per_position"] == found["proposed_per_position"] == [0, 0, 0]


def test_counters_of_a_run_add_up() -> None:
    request = run(engine(drafter=model_drafter()), (PROMPT, greedy(50, ignore_eos=True)))[0]
    found = metrics(request)
    speculation = found["speculative_decoding"]
    assert found["num_generated_tokens"] == 50
    # The first token comes from the prompt; then every round of this request speculates but perhaps the last.
    plain = found["num_rounds"] - speculation["num_spec_steps"]
    assert plain in (1, 2)
    assert speculation["num_emitted_tokens"] + plain == 50
    assert sum(speculation["acceptance_histogram"]) == speculation["num_spec_steps"]
    assert sum(speculation["accepted_per_position"]) == speculation["num_accepted_draft_tokens"]
    assert sum(speculation["per_step_drafted"]) == speculation["num_draft_tokens"]
    assert sum(speculation["per_step_accepted"]) == speculation["num_accepted_draft_tokens"]
    assert speculation["mean_acceptance_length"] == pytest.approx(
        1 + speculation["num_accepted_draft_tokens"] / speculation["num_spec_steps"]
    )


def test_a_stop_string_inside_an_accepted_run_ends_everything_at_one_token() -> None:
    options: dict[str, Any] = {"logit_bias": {63: -100.0}}
    text = alone(PROMPT, greedy(40, **options))[0][1]
    for begin in range(3, 20):
        stop = text[begin : begin + 2]
        params = greedy(40, stop=stop, logprobs=0, **options)
        request = run(engine(drafter=model_drafter(salt=0), k=5), (PROMPT, params))[0]
        expected = alone(PROMPT, params)[0]
        sequence = request.sequences[0]
        assert (
            sequence.output_ids,
            sequence.text,
            sequence.finish_reason,
            sequence.stop.stop_reason,
        ) == expected
        assert sequence.text == text[: text.index(stop)]
        assert stop not in sequence.text
        found = metrics(request, 5)
        count = len(sequence.output_ids)
        assert len(sequence.logprobs) == count == found["num_generated_tokens"]
        assert count == text.index(stop) + 2
        speculation = found.get("speculative_decoding")
        if speculation:
            plain = found["num_rounds"] - speculation["num_spec_steps"]
            assert speculation["num_emitted_tokens"] + plain == count


def test_an_end_token_inside_an_accepted_run_ends_everything_at_one_token() -> None:
    ended = 0
    for seed in range(30):
        params = SamplingParams(temperature=1.3, seed=seed, max_tokens=60)
        core = engine(drafter=model_drafter(salt=0), k=6)
        request = run(core, (PROMPT, params))[0]
        sequence = request.sequences[0]
        if sequence.finish_reason != "stop":
            continue
        ended += 1
        assert sequence.output_ids[-1] == 63
        assert 63 not in sequence.output_ids[:-1]
        assert core.stats.num_generated_tokens == len(sequence.output_ids)
    assert ended > 3


def test_times_and_totals_cover_the_run() -> None:
    core = engine(drafter=model_drafter())
    requests = run(core, (PROMPT, greedy(20)), (PROMPT[:4], greedy(10, n=2)))
    totals = core.statistics()
    assert totals["num_requests"] == 2
    assert totals["num_prompt_tokens"] == 12
    assert totals["num_generated_tokens"] == sum(len(s.output_ids) for r in requests for s in r.sequences)
    assert totals["speculative_decoding"]["num_spec_steps"] == sum(
        s.stats.speculation.num_spec_steps for r in requests for s in r.sequences
    )
    assert totals["time_s"]["total"] == sum(v for k, v in totals["time_s"].items() if k != "total")
    assert all(totals["time_s"][name] > 0 for name in ("draft", "verification", "sampling", "rest"))
    for request in requests:
        found = metrics(request)
        assert 0 < found["ttft_s"] <= found["e2e_s"]
        assert found["queue_s"] <= found["ttft_s"]
        assert found["tpot_s"] > 0


def test_a_single_token_has_no_time_per_output_token() -> None:
    found = metrics(run(engine(), (PROMPT, greedy(1)))[0])
    assert found["tpot_s"] is None
    assert "speculative_decoding" not in found
