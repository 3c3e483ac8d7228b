"""Configurations for the engine, and predictions compared with runs."""

import itertools
from types import SimpleNamespace

import pytest

from sonoran.config import EngineConfig, SpeculativeConfig
from sonoran.errors import ConfigError
from sonoran.planning.profile.check import check_predictions
from sonoran.planning.profile.choose import engine_options
from sonoran.planning.profile.placement import Workload
from sonoran.planning.profile.predict import predict_all
from sonoran.planning.profile.profile import ModelKey
from tests.planning.profile.made_up import profile

TARGET, DRAFT = ModelKey("t", 1, 1, "int8"), ModelKey("d", 1, 1, "int4", 32768)


def predictions():
    found = predict_all(profile(), Workload(), k_values=(2,), budgets=(4,))
    return {p.mode: p for p in found}


@pytest.mark.parametrize("mode", ["ar", "sd", "ssd"])
def test_options_are_what_the_engine_takes(mode):
    p = predictions()[mode]
    options = engine_options(p, draft="auto", target_key=TARGET, draft_key=DRAFT, verification="rejection")
    assert EngineConfig(**options.engine).cores == p.placement.target_cores
    assert options.engine["quantize"] == "int8"
    if mode == "ar":
        assert options.speculative is None
        return
    config = SpeculativeConfig.from_mapping(options.speculative)
    assert config.method == mode
    assert (config.num_speculative_tokens, config.verification) == (2, "rejection")
    assert (config.quantize, config.draft_vocab) == ("int4", 32768)
    if mode == "ssd":
        assert (config.budget, config.backup, config.cores) == (4, p.backup, p.placement.draft_cores)


def test_a_draft_in_its_files_precision_stays_so():
    key = ModelKey("d", 1, 1, None, 0)
    options = engine_options(predictions()["sd"], draft="auto", target_key=TARGET, draft_key=key)
    assert (options.speculative["quantize"], options.speculative["draft_vocab"]) == ("file", 0)


class Engine:
    """Answers at a given number of tokens per second for each sequence."""

    def __init__(self, rates):
        self.rates, self.calls, self.closed = rates, [], False

    def generate(self, prompts, params):
        self.calls.append((prompts, params))
        outputs = []
        for p in params:
            tokens = list(range(p.max_tokens))
            seconds = (p.max_tokens - 1) / next(self.rates)
            completion = SimpleNamespace(token_ids=tokens)
            outputs.append(
                SimpleNamespace(outputs=[completion], metrics={"e2e_s": 1.0 + seconds, "ttft_s": 1.0})
            )
        return outputs

    def close(self):
        self.closed = True


def test_speeds_are_measured_and_compared():
    wanted = predictions()["sd"]
    engine = Engine(itertools.cycle([10.0]))
    workload = Workload(batch=2, temperature=0.5, verification="rejection")
    [found] = check_predictions(
        [wanted], lambda p: engine, [[1], [2], [3], [4]], workload, max_tokens=9, repeats=2
    )
    assert engine.closed
    assert found.label == wanted.label
    assert (found.measured, found.spread) == (pytest.approx(20.0), pytest.approx(0.0))
    assert found.error == pytest.approx(wanted.tokens_per_s / 20.0 - 1.0)
    # A warm-up, then two groups of two prompts, twice, with seeds of their own.
    assert [len(prompts) for prompts, _ in engine.calls] == [2] * 5
    params = engine.calls[1][1]
    assert all(p.temperature == 0.5 and p.ignore_eos and p.verification == "rejection" for p in params)
    assert len({p.seed for _, group in engine.calls[1:] for p in group}) == 4


def test_few_prompts_are_repeated_to_fill_a_batch():
    engine = Engine(itertools.cycle([5.0]))
    check_predictions(
        [predictions()["ar"]], lambda p: engine, [[1], [2]], Workload(batch=5), max_tokens=4, repeats=1
    )
    assert engine.calls[-1][0] == [[1], [2], [1], [2], [1]]


def test_the_median_and_the_spread():
    engine = Engine(itertools.chain([1.0], itertools.cycle([8.0, 10.0, 14.0])))
    [found] = check_predictions(
        [predictions()["ar"]], lambda p: engine, [[1], [2], [3]], Workload(), max_tokens=4, repeats=1
    )
    assert found.measured == pytest.approx(10.0)
    assert found.spread == pytest.approx(0.6)


def test_an_engine_that_fails_is_closed():
    engine = Engine(iter(()))
    with pytest.raises(StopIteration):
        check_predictions([predictions()["ar"]], lambda p: engine, [[1]], Workload(), max_tokens=4)
    assert engine.closed


@pytest.mark.parametrize("options", [{"max_tokens": 1}, {"repeats": 0}])
def test_refuses(options):
    with pytest.raises(ConfigError, match="checking predictions needs"):
        check_predictions([], lambda p: None, [[1]], Workload(), **options)
