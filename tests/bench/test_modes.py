import pytest

from sonoran.bench.modes import plan_modes
from sonoran.errors import ConfigError


def by_name(modes):
    return {mode.name: mode for mode in modes}


def test_placement_of_each_mode():
    modes = by_name(plan_modes(["ar", "sd", "ar-all", "sd-all"], cores=(0,), draft_cores=(1, 2)))
    assert modes["sd"].plan.cores == (0,)
    assert modes["sd-all"].plan.cores == (0, 1, 2)
    assert modes["sd"].plan.speculative_config == {
        "method": "sd", "model": "auto", "num_speculative_tokens": 4, "verification": "coupled",
    }  # fmt: skip
    assert (modes["ar"].speculates, modes["sd"].speculates) == (False, True)


def test_autoregressive_decoding_shares_the_engine_of_its_placement():
    modes = by_name(plan_modes(["ar", "ar-all", "sd"], cores=(0,), draft_cores=(1,)))
    assert modes["ar"].plan == modes["sd"].plan
    assert modes["ar-all"].plan.speculative_config is None
    assert modes["ar-all"].plan.cores == (0, 1)
    [alone] = plan_modes(["ar"], cores=(0,))
    assert alone.plan.speculative_config is None


def test_auto_shares_the_cores_out_itself_and_its_engine_with_nobody():
    modes = by_name(plan_modes(["ar", "auto", "auto-all"], cores=(0,), draft_cores=(1,)))
    assert modes["auto"].plan.cores == (0,) and modes["auto-all"].plan.cores == (0, 1)
    assert modes["auto"].plan.speculative_config["method"] == "auto"
    assert "cores" not in modes["auto"].plan.speculative_config
    assert modes["ar"].plan.speculative_config is None


def test_without_cores_everything_may_run_anywhere():
    modes = plan_modes(["ar", "sd-all"])
    assert {mode.plan.cores for mode in modes} == {None}


def test_options_reach_the_modes_they_are_for():
    modes = by_name(
        plan_modes(
            ["sd", "ngram"],
            num_speculative_tokens=2,
            draft_options={"draft_vocab": 100},
            extra={"sd": {"num_speculative_tokens": 6}},
        )
    )
    assert modes["sd"].plan.speculative_config["draft_vocab"] == 100
    assert modes["sd"].plan.speculative_config["num_speculative_tokens"] == 6
    assert modes["ngram"].plan.speculative_config["num_speculative_tokens"] == 2
    assert "draft_vocab" not in modes["ngram"].plan.speculative_config


def test_the_draft_of_ssd_has_cores_of_its_own():
    modes = by_name(
        plan_modes(
            ["ar", "sd", "ssd"],
            cores=(0,),
            draft_cores=(1,),
            draft_options={"draft_vocab": 100},
            extra={"ssd": {"fan_out": "uniform", "budget": 5}},
        )
    )
    assert modes["ssd"].plan.cores == modes["sd"].plan.cores == (0,)
    assert modes["ssd"].plan.speculative_config == {
        "method": "ssd", "model": "auto", "num_speculative_tokens": 4, "verification": "coupled",
        "draft_vocab": 100, "cores": (1,), "fan_out": "uniform", "budget": 5,
    }  # fmt: skip
    assert modes["ar"].plan == modes["sd"].plan


def test_a_worker_that_runs_already_takes_the_place_of_the_draft():
    [mode] = plan_modes(
        ["ssd"],
        draft_cores=(1,),
        draft_options={"quantize": "int8"},
        extra={"ssd": {"draft_address": "tcp://127.0.0.1:5757"}},
    )
    assert mode.plan.speculative_config == {
        "method": "ssd", "num_speculative_tokens": 4, "verification": "coupled",
        "draft_address": "tcp://127.0.0.1:5757",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["arr"], {}, "unknown mode 'arr'; did you mean 'ar'?"),
        (["ssd-all"], {}, "unknown mode 'ssd-all'"),
        (["sd"], {"num_speculative_tokens": 99}, "num_speculative_tokens must be a whole number"),
        (["sd"], {"extra": {"sd": {"fan_outt": 1}}}, "unknown speculative_config key 'fan_outt'"),
        (["ssd"], {"extra": {"ssd": {"prompt_lookup_min": 1}}}, "belongs to method 'ngram'"),
        (["sd"], {"verification": "couple"}, "verification 'couple' is unknown; did you mean 'coupled'?"),
    ],
)
def test_mistakes(names, options, message):
    with pytest.raises(ConfigError) as caught:
        plan_modes(names, **options)
    assert message in str(caught.value)
