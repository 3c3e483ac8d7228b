import pytest

from sonoran.bench.modes import plan_modes
from sonoran.config import METHOD_KEYS
from sonoran.errors import ConfigError


def by_name(modes):
    return {mode.name: mode for mode in modes}


def test_placement_of_each_mode():
    modes = by_name(plan_modes(["ar", "sd", "ar-all", "sd-all"], cores=(0,), draft_cores=(1, 2)))
    assert modes["sd"].plan.cores == (0,)
    assert modes["sd-all"].plan.cores == (0, 1, 2)
    assert modes["sd"].plan.speculative_config == {
        "method": "draft_model", "model": "auto", "num_speculative_tokens": 4, "verification": "coupled",
    }  # fmt: skip
    assert (modes["ar"].speculates, modes["sd"].speculates) == (False, True)


def test_autoregressive_decoding_shares_the_engine_of_its_placement():
    modes = by_name(plan_modes(["ar", "ar-all", "sd"], cores=(0,), draft_cores=(1,)))
    assert modes["ar"].plan == modes["sd"].plan
    assert modes["ar-all"].plan.speculative_config is None
    assert modes["ar-all"].plan.cores == (0, 1)
    [alone] = plan_modes(["ar"], cores=(0,))
    assert alone.plan.speculative_config is None


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


def test_a_method_that_the_engine_lacks_is_refused(monkeypatch):
    monkeypatch.delitem(METHOD_KEYS, "ngram")
    with pytest.raises(ConfigError, match="mode 'ngram': this engine does not know the method 'ngram' yet"):
        plan_modes(["ar", "ngram"])


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["arr"], {}, "unknown mode 'arr'; did you mean 'ar'?"),
        (["ssd-all"], {}, "unknown mode 'ssd-all'"),
        (["sd"], {"num_speculative_tokens": 99}, "num_speculative_tokens must be a whole number"),
        (["sd"], {"extra": {"sd": {"fan_outt": 1}}}, "unknown speculative_config key 'fan_outt'"),
        (["sd"], {"verification": "couple"}, "verification 'couple' is unknown; did you mean 'coupled'?"),
    ],
)
def test_mistakes(names, options, message):
    with pytest.raises(ConfigError) as caught:
        plan_modes(names, **options)
    assert message in str(caught.value)
