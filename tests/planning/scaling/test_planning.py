"""The plan as a whole: numbers, uncertainty, warnings, candidates, the model table."""

import dataclasses
import json

import numpy as np
import pytest

from sonoran.errors import ModelError, PlanError
from sonoran.planning.scaling.candidates import Candidate, parse_candidates
from sonoran.planning.scaling.costs import ParameterCost, measured_cost_from_dict
from sonoran.planning.scaling.models import (
    drafts_for,
    find_model,
    known_models,
    published_laws,
    published_tables,
)
from sonoran.planning.scaling.planning import plan
from sonoran.planning.scaling.sensitivity import bootstrap_size, resampled_planes
from tests.tiny_models import make_gguf


@pytest.fixture(scope="module")
def seventy():
    return plan(70e9, target_tokens=10**12.5, draft_tokens=10**12.5, draws=2000)


def codes(answer):
    return {note.code for note in answer.notes}


def test_seventy_billion(seventy):
    best = seventy.optimum
    assert best.parameters == pytest.approx(287410987.6, rel=1e-7)
    assert best.ratio == pytest.approx(243.6, abs=0.1)
    assert best.speedup == pytest.approx(2.7807, abs=1e-4)
    assert best.num_speculative_tokens == 10
    assert best.within_1_percent == pytest.approx((154e6, 524e6), rel=5e-3)
    assert best.interval.low == pytest.approx(259e6, rel=0.03)
    assert best.interval.high == pytest.approx(316e6, rel=0.03)
    assert best.speedup_range[0] < best.integer_speedup < best.speedup_range[1]
    rules = {rule.name.split(" (")[0]: rule for rule in seventy.rules}
    assert rules["N = M / 200"].relative_error == pytest.approx(350 / 287.41 - 1, abs=1e-4)
    assert rules["N = M / 200"].throughput_kept == pytest.approx(0.9990, abs=5e-5)


def test_variants_of_the_reference(seventy):
    found = {v.name: v.parameters / 1e6 for v in seventy.variants}
    assert found["Hoffmann's loss constants"] == pytest.approx(265.5, abs=0.06)
    assert found["only OPT drafts"] == pytest.approx(260.5, abs=0.06)
    assert found["only Qwen2.5 drafts"] == pytest.approx(310.8, abs=0.06)
    assert found["without OPT targets"] == pytest.approx(313.8, abs=0.12)
    assert found["alpha linear in the logarithms of the perplexities"] > 450


def test_sentence_says_size_interval_and_speed(seventy):
    assert seventy.sentence.startswith(
        "For a 70B target trained on 3.16T tokens, the law puts the best draft at 287M"
    )
    for words in (
        "by the scatter of its data",
        "under other assumptions",
        "no measure of time",
        "K = 10",
        "2.78 times",
        "within 1 %",
        "SSD, hit rate 0.8",
    ):
        assert words in seventy.sentence


def test_extrapolation_is_always_named(seventy):
    assert codes(seventy) == {"target_perplexity", "draft_perplexity", "scatter"}
    far = codes(plan(1e12, target_tokens=5e11, draft_tokens=2e14, draws=0))
    assert {"target_size", "target_tokens", "draft_tokens"} <= far
    assert "alpha_above_one" in codes(plan(1e6, target_tokens=1e12, draws=0))
    assumed = codes(plan(70e9, draws=0))
    assert {"target_tokens_assumed", "draft_tokens_assumed"} <= assumed


def test_plan_is_deterministic_and_json(seventy):
    again = plan(70e9, target_tokens=10**12.5, draft_tokens=10**12.5, draws=2000)
    assert again == seventy
    document = json.dumps(dataclasses.asdict(seventy), allow_nan=False)
    assert json.loads(document)["optimum"]["num_speculative_tokens"] == 10


def test_assumptions_are_varied_at_the_users_costs():
    floor = plan(70e9, target_tokens=15e12, draft_tokens=15e12, cost=ParameterCost(draft_floor=0.12), draws=0)
    found = {v.name: v.parameters / 1e6 for v in floor.variants}
    assert floor.optimum.parameters / 1e6 == pytest.approx(513, abs=2)
    assert found["Hoffmann's loss constants"] == pytest.approx(474, abs=3)
    assert found["alpha linear in the logarithms of the perplexities"] == pytest.approx(864, abs=5)
    assert found["only OPT drafts"] == pytest.approx(466, abs=3)


def test_the_scale_of_perplexities_is_an_assumption_of_its_own():
    answer = plan(target="Llama-3.1/70B", draws=0)
    found = {v.name: v.parameters / 1e6 for v in answer.variants}
    assert found["loss law calibrated to measured perplexities"] == pytest.approx(599, abs=2)
    assert "to 600M under other assumptions" in answer.sentence


def test_one_measured_pair_moves_the_law():
    free = plan(target="Llama-3.1/70B", candidates=["Llama-3.2/1B", "Llama-3.2/3B"], draws=0)
    held = plan(
        target="Llama-3.1/70B", candidates=["Llama-3.2/1B", "Llama-3.2/3B"], measured={"Llama-3.2/1B": "5.03@6"},
        draws=0,
    )  # fmt: skip
    one, three = (next(r for r in held.candidates if r.name == f"Llama-3.2/{n}") for n in ("1B", "3B"))
    assert one.alpha == pytest.approx(0.8872, abs=1e-3) and one.alpha_source == "measured"
    assert three.alpha_source == "anchored" and one.alpha < three.alpha < 0.95
    assert held.optimum.integer_speedup > 1.5 * free.optimum.integer_speedup
    assert held.optimum.alpha_range[1] - held.optimum.alpha_range[0] < 0.12
    assert "anchored" in codes(held) and "anchored" not in codes(free)


@pytest.mark.parametrize("value", ["5.03@", "9@6", "1@6", "0", "1.0", "x", "3@2.5"])
def test_bad_measured_pairs(value):
    with pytest.raises(PlanError, match=r"measured Llama-3\.2/1B"):
        plan(target="Llama-3.1/70B", measured={"Llama-3.2/1B": value})


def test_published_pairs_rank_before_the_law():
    rows = {r.name: r for r in plan(target="Qwen2.5/72B", draws=0).candidates}
    assert rows["Qwen2.5/1.5B"].alpha == 0.7079 and rows["Qwen2.5/1.5B"].alpha_source == "published"
    assert plan(target="Qwen2.5/72B", draws=0).best_candidate == "Qwen2.5/1.5B"
    assert "Qwen1.5/72B" not in rows


def test_a_tie_is_called_one():
    two = [Candidate("a", 5e8, 1e12, alpha=0.7), Candidate("b", 5e8, 1e12, alpha=0.699)]
    assert "(as good as tied with b)" in plan(70e9, candidates=two, draws=0).sentence


def test_passes_of_one_draft_give_no_best_size():
    cost = measured_cost_from_dict(
        {"target": {"1": 15}, "drafts": [{"parameters": 1.2e9, "milliseconds": {"1": 2}}]}
    )
    answer = plan(target="Llama-3.1/70B", candidates=["Llama-3.2/1B"], cost=cost, draws=0)
    assert answer.optimum is None and "one_draft" in codes(answer)
    assert "give no best size" in answer.sentence and "Llama-3.2/1B comes first" in answer.sentence


def test_true_operation_count_says_none_pays():
    answer = plan(70e9, cost=ParameterCost(verify_slope=1.0), candidates=["Qwen2.5/0.5B"])
    assert answer.optimum is None
    assert answer.best_candidate is None
    assert "no draft size that pays" in answer.sentence
    assert "None of the candidates pays" in answer.sentence


def test_named_target_ranks_its_tokenizer():
    answer = plan(target="Llama-3.1/70B", draws=0)
    assert answer.best_candidate == "Llama-3.2/1B"
    # SDSL measured this target: its pairs move the law before candidates that it did not measure are ranked.
    assert answer.candidates[0].gamma == 8
    assert {r.alpha_source for r in answer.candidates} == {"anchored"}
    assert [r.speedup for r in answer.candidates] == sorted(
        (r.speedup for r in answer.candidates), reverse=True
    )
    assert all(r.ssd_speedup >= r.speedup for r in answer.candidates)


def test_measured_alpha_of_the_paper_ranks_as_the_reference():
    tables, laws = published_tables(), published_laws()
    own = {p.draft: p.alpha for p in laws.measurements if p.target == "OPT-13B"}
    entries = [Candidate(name, tables["draft_parameters"][name], alpha=alpha) for name, alpha in own.items()]
    answer = plan(tables["target_parameters"]["OPT-13B"], target_tokens=1.8e11, candidates=entries, draws=0)
    assert [r.name for r in answer.candidates][:3] == ["OPT-125M", "OPT-350M", "Qwen1.5-0.5B"]
    assert answer.candidates[-1].name == "Qwen1.5-4B"
    assert answer.candidates[0].speedup == pytest.approx(2.280, abs=0.005)
    assert all(r.alpha_source == "measured" and r.speedup_range is None for r in answer.candidates)


def test_unusable_candidates_are_explained():
    entries = [Candidate("huge", 90e9), Candidate("poor", 6e10, 1e12), Candidate("fine", 1e9, 1e12)]
    rows = {r.name: r for r in plan(70e9, candidates=entries, draws=0).candidates}
    assert "not smaller than the target" in rows["huge"].note
    assert rows["poor"].note == "does not pay"
    assert (rows["poor"].gamma, rows["poor"].speedup) == (0, 1.0)
    assert rows["fine"].pays


def test_other_tokenizers_are_ranked_last_and_never_win():
    answer = plan(target="Llama-3.1/70B", candidates=["Qwen2.5/0.5B"], draws=0)
    assert answer.candidates[0].compatible is False
    assert answer.best_candidate is None


def test_measured_perplexities_need_the_targets():
    entries = [Candidate("a", 5e8, perplexity=15.0)]
    with pytest.raises(PlanError, match="--target-perplexity"):
        plan(70e9, candidates=entries, draws=0)
    row = plan(70e9, candidates=entries, target_perplexity=10.0, draws=0).candidates[0]
    assert row.alpha == pytest.approx(-0.0067 * 15 + 0.12971 + 0.642084)
    assert row.alpha_source == "perplexity"


def test_measured_latencies_warn_where_they_are_extended():
    cost = measured_cost_from_dict(
        {"target": {"1": 40, "3": 41}, "drafts": [{"parameters": 5e8, "milliseconds": {"1": 9, "8": 10}}],
         "floor_ms": 0}
    )  # fmt: skip
    answer = plan(1.5e9, target_tokens=18e12, cost=cost, draws=50)
    assert answer.cost_unit == "ms"
    assert {"draft_latency", "target_latency"} <= codes(answer)
    assert answer.optimum.interval.draws <= 50


def test_candidates_from_json():
    mine = '{"name": "mine", "parameters": 3e8, "alpha": 0.7}'
    text = f'["Qwen2.5/0.5B", {mine}, {{"name": "opt/125m", "alpha": 0.6}}]'
    first, second, third = parse_candidates(text)
    assert (first.parameters, first.tokenizer) == (494032768, "qwen2")
    assert (second.alpha, second.tokens) == (0.7, None)
    assert (third.parameters, third.alpha) == (125239296, 0.6)


@pytest.mark.parametrize(
    "text,words",
    [
        ("[]", "at least one"),
        ("{", "not valid JSON"),
        ('[{"parameters": 5e8}]', "needs a 'name'"),
        ("[5]", "name or an object"),
        ('[{"name": "a", "parameters": -5}]', "a: parameters"),
        ('[{"name": "a", "parameters": 5e8, "alpha": 1}]', "alpha"),
        ('[{"name": "a", "params": 5e8}]', "did you mean 'parameters'"),
        ('["Qwen2.5/0.5B", "Qwen2.5/0.5B"]', "2 times"),
        ('[{"name": "a", "parameters": 5e8, "perplexity": 0.5}]', "above 1"),
        ('["Qwen2.6/0.5B"]', "did you mean 'Qwen2.5'"),
    ],
)
def test_bad_candidates(text, words):
    with pytest.raises(PlanError, match=words):
        parse_candidates(text)


@pytest.mark.parametrize(
    "arguments,words",
    [
        ({}, "exactly one"),
        ({"target_params": 7e10, "target": "Qwen2.5/72B"}, "exactly one"),
        ({"target_params": 0}, "must lie in"),
        ({"target_params": float("nan")}, "finite"),
        ({"target_params": float("inf")}, "finite"),
        ({"target_params": 1e20}, "nearest: 1e"),
        ({"target_params": 7e10, "target_tokens": -1}, "target_tokens"),
        ({"target_params": 7e10, "draft_tokens": 3}, "15T"),
        ({"target_params": 7e10, "hit_rate": 2}, "hit_rate"),
        ({"target_params": 7e10, "draws": -1}, "draws"),
        ({"target_params": 7e10, "target_perplexity": 0.3}, "above 1"),
        ({"target_params": True}, "must be a number"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(PlanError, match=words):
        plan(**arguments)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Qwen/Qwen2.5-7B-Instruct-GGUF", "Qwen2.5/7B"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "Mistral/7B-v0.3"),
        ("mistralai/Mistral-Nemo-Instruct-2407", "Mistral/Nemo-12B"),
        ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "Llama-3.1/8B"),
        ("Qwen/Qwen3-4B-Instruct-2507", "Qwen3/4B"),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "TinyLlama/1.1B"),
        ("mistral-7b-instruct-v0.2.Q4_K_M.gguf", "Mistral/7B-v0.1"),
        ("meta-llama/Llama-2-7b-chat-hf", "Llama-2/7B"),
    ],
)
def test_names_as_people_have_them(name, key):
    assert find_model(name).key == key


def test_a_target_of_ones_own(tmp_path):
    make_gguf(tmp_path / "mine.gguf", hidden_size=64, intermediate_size=128)
    answer = plan(target=str(tmp_path / "mine.gguf"), target_tokens=1e9, draws=0)
    assert answer.target_parameters < 1e6 and answer.candidates == ()
    with pytest.raises(ModelError, match=r"missing\.gguf"):
        plan(target=str(tmp_path / "missing.gguf"))


def test_model_table_is_sound():
    models = known_models()
    assert len({m.key for m in models}) == len(models) >= 60
    for model in models:
        assert 1e7 < model.parameters < 1e12
        assert model.tokens is None or 1e11 <= model.tokens <= 1e14
        assert model.vocabulary > 10_000
        assert model.context >= 2048
        assert model.source
    paper = published_tables()["target_parameters"]
    assert find_model("OPT/66B").parameters == paper["OPT-66B"]
    assert find_model("Seed-OSS/36B").parameters == paper["Seed-OSS-36B"]


@pytest.mark.parametrize("text", ["Qwen2.5/72B", "Qwen/Qwen2.5-72B-Instruct", "qwen2.5-72b", "QWEN2.5/72b"])
def test_spellings(text):
    assert find_model(text).key == "Qwen2.5/72B"


@pytest.mark.parametrize(
    "text,words",
    [
        ("Lama-3.1/70B", "did you mean 'Llama-3.1'"),
        ("Qwen2.5/70B", "Qwen2.5/72B"),
        ("", "empty"),
        ("zzz", "known families"),
    ],
)
def test_unknown_models(text, words):
    with pytest.raises(PlanError, match=words):
        find_model(text)


def test_code_models_keep_to_themselves():
    assert {m.family for m in drafts_for(find_model("Qwen2.5-Coder/32B"))} == {"Qwen2.5-Coder"}
    assert all("Coder" not in m.family for m in drafts_for(find_model("Qwen2.5/72B")))


def test_bootstrap_needs_three_targets():
    laws = published_laws()
    few = tuple(p for p in laws.measurements if p.target in ("OPT-13B", "OPT-66B"))
    assert resampled_planes(few, 100, 0) is None
    assert bootstrap_size(laws, ParameterCost(), 70e9, 1e12, 1e12, draws=0) is None
    planes = resampled_planes(laws.measurements, 400, 0)
    assert np.mean(planes.a) == pytest.approx(-0.0067, abs=3e-4)
    assert np.std(planes.b) > 0.0015  # wider than the published standard error


def test_laws_without_data_have_no_interval():
    bare = published_laws()
    bare = dataclasses.replace(bare, measurements=())
    answer = plan(70e9, target_tokens=1e12, laws=bare)
    assert answer.optimum.interval is None
    assert "scatter of its data" not in answer.sentence
