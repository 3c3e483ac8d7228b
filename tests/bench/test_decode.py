import pytest

from sonoran.bench.decode import Run, mode_result, paired_ratio, text_differences
from sonoran.bench.decode import measure_modes as measure
from sonoran.errors import ConfigError


def made(ids, seconds, ttft=1.0, **speculation):
    metrics = {"ttft_s": ttft, "e2e_s": ttft + seconds}
    if speculation:
        metrics["speculative_decoding"] = speculation
    return Run(tuple(ids), metrics)


class FakeRunner:
    """Answers each prompt with its own tokens doubled, in a given time per token."""

    def __init__(self, name, per_token, log, change=None):
        self.name, self.per_token, self.log, self.change = name, per_token, log, change

    def run(self, prompt, seed, max_tokens):
        self.log.append((self.name, tuple(prompt), seed, max_tokens))
        ids = [2 * token for token in prompt][:max_tokens]
        if self.change is not None and prompt[0] == self.change:
            ids[-1] += 1
        return made(ids, self.per_token * (len(ids) - 1))


PROMPTS = [[1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_modes_are_interleaved_and_take_turns_at_going_first():
    log = []
    runners = {name: FakeRunner(name, 0.1, log) for name in ("ar", "sd")}
    steps = []
    measure(runners, PROMPTS, max_tokens=50, seed=7, progress=lambda *step: steps.append(step))
    assert log[:2] == [("ar", (1, 2, 3), 7, 16), ("sd", (1, 2, 3), 7, 16)]
    assert [(name, prompt[0], seed) for name, prompt, seed, _ in log[2:]] == [
        ("ar", 1, 7), ("sd", 1, 7), ("sd", 4, 8), ("ar", 4, 8), ("ar", 8, 9), ("sd", 8, 9),
    ]  # fmt: skip
    assert {limit for *_, limit in log[2:]} == {50}
    assert steps[-1] == ("sd", 6, 6)


def test_ratios_and_identical_texts():
    log = []
    runners = {"ar": FakeRunner("ar", 0.2, log), "sd": FakeRunner("sd", 0.1, log)}
    result = measure(runners, PROMPTS, max_tokens=50)
    assert result["modes"]["ar"]["tokens_per_s"] == pytest.approx(5.0)
    assert result["modes"]["ar"]["num_tokens"] == 9
    assert result["ratios"] == {"sd/ar": pytest.approx(2.0)}
    assert result["paired_ratios"]["sd/ar"]["median"] == pytest.approx(2.0)
    assert result["paired_ratios"]["sd/ar"]["count"] == 3
    assert result["identical_texts"]
    assert result["differences"] == []
    assert result["hit_rate"] is None


def test_a_text_that_differs_is_reported():
    log = []
    runners = {"ar": FakeRunner("ar", 0.2, log), "sd": FakeRunner("sd", 0.1, log, change=4)}
    result = measure(runners, PROMPTS, max_tokens=50)
    assert not result["identical_texts"]
    assert result["differences"] == [{"prompt": 1, "mode": "sd", "position": 3}]
    # A mode that is another program need not give the same text.
    assert measure(runners, PROMPTS, max_tokens=50, same_text=["ar"])["identical_texts"]


def test_a_shorter_text_differs_at_its_end():
    assert text_differences({"a": [made([1, 2, 3], 1)], "b": [made([1, 2], 1)]}) == [
        {"prompt": 0, "mode": "b", "position": 2}
    ]


def test_speeds_are_medians_and_counters_are_sums():
    runs = [
        made([0] * 11, 1.0, num_draft_tokens=8, num_accepted_draft_tokens=6, num_spec_steps=2,
             num_emitted_tokens=8, num_cache_hits=1, num_cache_lookups=2),
        made([0] * 11, 2.0, num_draft_tokens=4, num_accepted_draft_tokens=0, num_spec_steps=1,
             num_emitted_tokens=1, num_cache_hits=2, num_cache_lookups=2),
        made([0] * 11, 4.0),
    ]  # fmt: skip
    result = mode_result(runs)
    assert (result["tokens_per_s"], result["tokens_per_s_min"], result["tokens_per_s_max"]) == (
        5.0,
        2.5,
        10.0,
    )
    assert result["e2e_tokens_per_s"] == pytest.approx(11 / 3)
    assert result["ttft_s"] == 1.0
    assert result["acceptance_rate"] == 0.5
    assert result["mean_acceptance_length"] == 3.0
    assert result["hit_rate"] == 0.75
    assert [entry["tokens"] for entry in result["prompts"]] == [11, 11, 11]


def test_answers_of_one_token_have_no_speed():
    assert made([1], 0.0).tokens_per_s is None
    assert mode_result([made([1], 0.0), made([1, 2], 0.5)])["tokens_per_s"] == 2.0
    assert paired_ratio([made([1], 0.0)], [made([1, 2], 1.0)]) is None
    with pytest.raises(ConfigError, match="ended after its first token"):
        mode_result([made([1], 0.0)])


def test_nothing_to_do_is_refused():
    with pytest.raises(ConfigError, match="at least one mode and one prompt"):
        measure({}, PROMPTS, max_tokens=5)
    with pytest.raises(ConfigError, match="at least one mode and one prompt"):
        measure({"ar": FakeRunner("ar", 0.1, [])}, [], max_tokens=5)
