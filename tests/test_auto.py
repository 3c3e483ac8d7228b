"""Method auto over tiny models: with and without a profile; the same text as AR whatever it chooses."""

import dataclasses
import os
from datetime import datetime, timedelta, timezone

import pytest

from sonoran import _native, auto
from sonoran.assemble import load_models
from sonoran.config import EngineConfig, SpeculativeConfig
from sonoran.drafting.adaptive import AdaptiveDrafter, NoDrafter
from sonoran.drafting.ssd import SsdDrafter
from sonoran.errors import ConfigError
from sonoran.llm import LLM
from sonoran.models import opening
from sonoran.planning.profile.acceptance import LEAST_POSITIONS
from sonoran.planning.profile.pair import open_pair
from sonoran.planning.profile.placement import Workload, placements
from sonoran.planning.profile.predict import predict_all
from sonoran.planning.profile.profile import Profile
from sonoran.planning.profile.store import load_profile, profile_path, save_profile
from sonoran.sampling.params import SamplingParams
from tests.planning.profile.made_up import acceptance, profile
from tests.tiny_models import make_gguf

CORES = tuple(_native.available_cores())
PROMPT = [1, 2, 3, 4, 5]
PARAMS = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
two_cores = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("auto")
    make_gguf(folder / "target.gguf", "qwen2", types="Q8_0")
    make_gguf(folder / "draft.gguf", "qwen2", types="Q8_0", seed=1)
    return folder


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SONORAN_CACHE", str(tmp_path))


def config(models, **options):
    return {"method": "auto", "model": str(models / "draft.gguf"), **options}


def load(models, speculative=None, **options):
    options = {"max_num_seqs": 2, "max_model_len": 256, **options}
    return LLM(str(models / "target.gguf"), speculative_config=speculative, **options)


@pytest.fixture(scope="module")
def plain_text(models):
    with load(models, False) as llm:
        return llm.generate([PROMPT], PARAMS)[0].outputs[0].token_ids


def keep(models, made_up, cores=CORES[:2]):
    """Put a made-up profile of this pair on this machine into the cache."""
    save_profile(placed(open_pair(models / "target.gguf", models / "draft.gguf", cores=cores).key, made_up))


def placed(key, made_up):
    """A made-up profile of cores 0 and 1 under another key."""
    cores = key.machine.cores
    place = {0: cores[0], 1: cores[-1]}

    def mapped(numbers):
        return None if numbers is None else tuple(place[n] for n in numbers)

    passes = tuple(
        dataclasses.replace(c, cores=mapped(c.cores), beside=mapped(c.beside)) for c in made_up.passes
    )
    return dataclasses.replace(made_up, key=key, passes=passes)


def run(llm, plain_text):
    output = llm.generate([PROMPT], PARAMS)[0]
    assert output.outputs[0].token_ids == plain_text
    llm.check_invariants()
    return llm.statistics()["drafter"]["auto"]


def test_without_a_profile_it_measures_and_decodes(models, plain_text):
    with load(models, config(models)) as llm:
        assert isinstance(llm._runner.core.drafter, AdaptiveDrafter)
        assert llm.num_speculative_tokens == 8
        stats = run(llm, plain_text)
        assert "sonoran calibrate knows more" in stats["reason"]
        # A second request goes on with what was learnt.
        assert run(llm, plain_text)["reason"] == stats["reason"]


def the_profile(models, cores=CORES):
    """What is kept of the pair on these cores."""
    return load_profile(open_pair(models / "target.gguf", models / "draft.gguf", cores=cores).key)


def test_a_second_start_does_not_measure_again(models, plain_text, monkeypatch):
    monkeypatch.setattr(Profile, "noisy", False)  # whatever else this machine does now
    monkeypatch.setattr(auto, "READING_S", 1e9)
    with load(models, config(models), cores=CORES) as llm:
        first = run(llm, plain_text)["reason"]
    kept = the_profile(models)
    assert kept.quick and not kept.thin and kept.acceptance[0].positions >= LEAST_POSITIONS

    def refuse(*_):
        raise AssertionError("measured again")

    monkeypatch.setattr(auto, "quick_profile", refuse)
    with load(models, config(models), cores=CORES) as llm:
        assert run(llm, plain_text)["reason"] == first
    # Other weights under the same name and size are another pair, and so is another version of the program.
    os.utime(models / "draft.gguf")
    with pytest.raises(AssertionError, match="measured again"):
        load(models, config(models), cores=CORES)


@two_cores
def test_a_noisy_measurement_is_remembered_for_a_day(models, plain_text, monkeypatch):
    pair = open_pair(models / "target.gguf", models / "draft.gguf", cores=CORES[:2])
    calls = []

    def found(loaded, pair, settings=None):
        calls.append(pair)
        noisy = placed(pair.key, profile(both_cores=0.5, spread=0.5))
        now = datetime.now(timezone.utc).isoformat()
        return dataclasses.replace(noisy, quick=True, made_for=pair.state, created=now)

    monkeypatch.setattr(auto, "quick_profile", found)
    for _ in range(2):
        with load(models, config(models), cores=CORES[:2]) as llm:
            assert "too noisy" in run(llm, plain_text)["reason"]
    assert len(calls) == 1
    yesterday = (datetime.now(timezone.utc) - timedelta(days=1, hours=1)).isoformat()
    save_profile(dataclasses.replace(load_profile(pair.key), created=yesterday))
    with load(models, config(models), cores=CORES[:2]) as llm:
        run(llm, plain_text)
    assert len(calls) == 2


@two_cores
def test_without_a_profile_ssd_is_a_candidate(models):
    pair = open_pair(models / "target.gguf", models / "draft.gguf", cores=CORES[:2])
    settings = EngineConfig(cores=CORES[:2], max_num_seqs=1, max_model_len=256)
    sd = SpeculativeConfig("sd", model=str(models / "draft.gguf"))
    loaded = load_models(models / "target.gguf", settings, sd)
    try:
        found = auto.quick_profile(loaded, pair)
        assert loaded.backend.threads == 2  # where it was before
    finally:
        loaded.close()
    assert {place.kind for place in placements(found)} == {"alone", "shared", "split"}
    assert {p.mode for p in predict_all(found, Workload())} == {"ar", "sd", "ssd"}


@two_cores
def test_a_first_start_that_finds_ssd_fastest_moves_the_target_and_starts_a_worker(
    models, plain_text, monkeypatch
):
    def found(loaded, pair, settings=None):
        return placed(pair.key, profile(both_cores=0.97))

    monkeypatch.setattr(auto, "quick_profile", found)
    with load(models, config(models, num_speculative_tokens=3), cores=CORES[:2]) as llm:
        assert isinstance(llm._runner.core.drafter.inner, SsdDrafter)
        assert run(llm, plain_text)["reason"].startswith("SSD, K = ")


@two_cores
def test_ssd_that_gives_up_decodes_on_all_cores(models, plain_text):
    keep(models, profile(both_cores=0.97))
    with load(models, config(models, num_speculative_tokens=3), cores=CORES[:2]) as llm:
        core, seen = llm._runner.core, []
        place = core.drafter._place

        def watch(speculates):
            place(speculates)
            seen.append((speculates, core.target.threads))

        core.drafter._place = watch
        run(llm, plain_text)
        core.drafter.policy.k = 0
        run(llm, plain_text)
        assert set(seen) >= {(True, 1), (False, 2)} and set(seen) <= {(True, 1), (False, 2)}


@two_cores
def test_a_thin_profile_is_filled_up_and_says_so(models, plain_text):
    few = acceptance(0.0, texts=1, length=4)
    keep(models, profile(both_cores=0.5, acceptances=(few,)))
    with load(models, config(models), cores=CORES[:2]) as llm:
        reason = run(llm, plain_text)["reason"]
    # By four positions, none of them accepted, it would not speculate.
    assert reason.startswith("SD, K = ") and "only 4 positions were measured" in reason


@two_cores
def test_what_is_announced_as_ar_begins_with_ar(models, plain_text, monkeypatch):
    # On one core AR is faster than on both, and so faster than what speculates there is compared with.
    hopeless = profile(both_cores=1.3, draft=(39.0, 5.0), target=(40.0, 30.0), acceptances=(acceptance(0.3),))
    monkeypatch.setattr(auto, "quick_profile", lambda loaded, pair, settings=None: placed(pair.key, hopeless))
    with load(models, config(models), cores=CORES[:2]) as llm:
        policy = llm._runner.core.drafter.policy
        assert policy.k == 0 and max(policy.speeds(1)) == policy.speeds(1)[0]
        assert run(llm, plain_text)["reason"].startswith("do not speculate: AR on")


def test_too_little_memory_to_measure_is_no_reason_not_to_serve(models, plain_text):
    with load(models, config(models), num_kv_blocks=5, max_model_len=64) as llm:
        stats = run(llm, plain_text)
        assert isinstance(llm._runner.core.drafter, NoDrafter)
        assert stats["reason"].startswith("do not speculate: nothing could be measured")


@two_cores
def test_a_profile_that_says_ar(models, plain_text):
    keep(models, profile(acceptances=(acceptance(0.05, guessable=0.05),)))
    with load(models, config(models), cores=CORES[:2]) as llm:
        assert isinstance(llm._runner.core.drafter, NoDrafter)
        assert llm.num_speculative_tokens == 0
        stats = run(llm, plain_text)
        assert stats["reason"].startswith("do not speculate: AR on")
        assert stats["num_speculative_tokens"] == 0


@two_cores
def test_a_profile_that_says_sd(models, plain_text):
    keep(models, profile(both_cores=0.5))
    with load(models, config(models, num_speculative_tokens=3), cores=CORES[:2]) as llm:
        assert llm.num_speculative_tokens == 3
        stats = run(llm, plain_text)
        assert stats["reason"].startswith("SD, K = ")


@two_cores
def test_a_profile_that_says_ssd(models, plain_text):
    keep(models, profile(both_cores=0.97))
    with load(models, config(models, num_speculative_tokens=3), cores=CORES[:2]) as llm:
        assert isinstance(llm._runner.core.drafter.inner, SsdDrafter)
        stats = run(llm, plain_text)
        assert stats["reason"].startswith("SSD, K = ") and "hit rate" in stats["reason"]


@two_cores
def test_a_noisy_profile_says_so(models, plain_text):
    keep(models, profile(both_cores=0.5, spread=0.5))
    with load(models, config(models), cores=CORES[:2]) as llm:
        assert "too noisy" in run(llm, plain_text)["reason"]


def test_a_damaged_profile_is_measured_anew(models, plain_text):
    key = open_pair(models / "target.gguf", models / "draft.gguf", cores=CORES[:1]).key
    path = profile_path(key)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with load(models, config(models), cores=CORES[:1]) as llm:
        assert "sonoran calibrate knows more" in run(llm, plain_text)["reason"]


def test_nothing_asked_for_is_ar_where_no_draft_is_known(models, plain_text):
    with load(models) as llm:
        assert run(llm, plain_text)["reason"].startswith("AR: no draft is known for target.gguf (qwen2)")


def test_nothing_asked_for_is_auto_where_a_draft_is_known(models, plain_text, monkeypatch):
    monkeypatch.setattr(opening, "known_draft", lambda target: str(models / "draft.gguf"))
    with load(models) as llm:
        assert llm.num_speculative_tokens == 8
        assert "acceptance" in run(llm, plain_text)
    with load(models, False) as llm:
        assert llm.num_speculative_tokens == 0 and "drafter" not in llm.statistics()


def test_a_draft_that_memory_has_no_room_for_is_left_out(models, plain_text, monkeypatch):
    monkeypatch.setattr(opening, "known_draft", lambda target: str(models / "draft.gguf"))
    monkeypatch.setattr(auto, "available_memory", lambda: 1 << 28)
    with load(models) as llm:
        assert "are free; use them all the same with --draft auto" in run(llm, plain_text)["reason"]


def test_a_draft_that_would_have_to_be_fetched_is_not(models, plain_text, monkeypatch):
    monkeypatch.setattr(opening, "known_draft", lambda target: "smollm2-135m-instruct")
    with load(models) as llm:
        reason = run(llm, plain_text)["reason"]
        assert reason.startswith("AR: its draft is not at hand: smollm2-135m-instruct is not in the cache")


def test_no_tokens_is_ar(models, plain_text):
    with load(models, config(models, num_speculative_tokens=0), threads=1) as llm:
        assert run(llm, plain_text)["reason"] == "num_speculative_tokens is 0"


def test_more_threads_than_cores_are_refused(models):
    with pytest.raises(ConfigError, match="threads do not fit"):
        load(models, config(models), threads=len(CORES) + 1)
