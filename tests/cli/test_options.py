"""Options: which there are, how they are shown, and what follows from those that are given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sonoran.cli.common import command
from sonoran.cli.main import load
from sonoran.cli.options import (
    ENGINE,
    SAMPLING,
    SPECULATION,
    Given,
    decoding,
    offers,
    options_of,
    reference,
    speculation,
)
from sonoran.config import EngineConfig, SpeculativeConfig, option
from sonoran.errors import ConfigError
from sonoran.sampling.params import SamplingParams


def collected(*groups: Any, **defaults: Any) -> Callable[..., Given]:
    """Return what a command with these options is handed for arguments; an exit code of 2 is a ConfigError."""
    handed: list[Given] = []
    app = typer.Typer()

    @app.command()
    @command
    @offers(*groups, **defaults)
    def show(name: str = "x", *, given: Given, last: bool = False) -> None:
        handed.append(given)

    def call(*arguments: str) -> Given:
        result = CliRunner().invoke(app, list(arguments))
        if result.exit_code:
            raise ConfigError(" ".join(result.output.split()))
        return handed[-1]

    return call


@pytest.mark.parametrize(
    ("mode", "given", "config"),
    [
        (None, {}, {"method": "auto", "num_speculative_tokens": 8}),
        (None, {"model": "none"}, None),
        (
            None,
            {"num_speculative_tokens": 3},
            {"method": "auto", "model": "auto", "num_speculative_tokens": 3},
        ),
        ("ar", {}, None),
        ("ar", {"verification": "rejection"}, None),
        (None, {"model": "ngram"}, {"method": "ngram", "num_speculative_tokens": 4}),
        ("ngram", {}, {"method": "ngram", "num_speculative_tokens": 4}),
        ("ngram", {"prompt_lookup_max": 3}, {"method": "ngram", "prompt_lookup_max": 3}),
        ("sd", {}, {"method": "sd", "num_speculative_tokens": 4, "model": "auto"}),
        ("draft_model", {}, {"method": "sd", "model": "auto"}),
        ("ssd", {"model": "x.gguf"}, {"method": "ssd", "model": "x.gguf"}),
        (
            "ssd",
            {"verification": "rejection"},
            {"method": "ssd", "model": "auto", "verification": "rejection"},
        ),
        ("auto", {}, {"method": "auto", "num_speculative_tokens": 8}),
        (None, {"model": "auto"}, {"method": "auto", "model": "auto", "num_speculative_tokens": 8}),
        (None, {"model": "x.gguf"}, {"method": "auto", "model": "x.gguf", "num_speculative_tokens": 8}),
        (None, {"model": "x.gguf", "cores": "1"}, {"method": "sd", "model": "x.gguf", "cores": (1,)}),
    ],
)
def test_modes(mode: str | None, given: dict[str, Any], config: dict[str, Any] | None) -> None:
    found = speculation(mode, given)
    assert found == (None if config is None else SpeculativeConfig(**config))


def test_options_of_ssd() -> None:
    call = collected(SPECULATION)
    given = call(
        "--fan-out", "2, 1,1,4", "--fan-out-backup", "1,1", "--backup", "ngram", "--saguaro-c", "0.5",
        "--no-top-up", "--least-chance", "0.3", "-k", "3", "--draft-cores", "1", "--draft-vocab", "500",
    )  # fmt: skip
    assert speculation("ssd", given[SpeculativeConfig]) == SpeculativeConfig(
        "ssd", model="auto", num_speculative_tokens=3, cores=(1,), draft_vocab=500, least_chance=0.3,
        fan_out="explicit", fan_out_primary=(2, 1, 1, 4), fan_out_backup=(1, 1), backup="ngram", saguaro_c=0.5,
        top_up=False,
    )  # fmt: skip
    found = speculation("ssd", call("--fan-out", "geometric", "--budget", "12")[SpeculativeConfig])
    assert found is not None and (found.fan_out, found.budget) == ("geometric", 12)


def test_a_worker_that_runs_already_has_its_own_model() -> None:
    given = {"draft_address": "tcp://127.0.0.1:5757", "draft_key_file": "client.key"}
    assert speculation("ssd", given) == SpeculativeConfig("ssd", **given)


@pytest.mark.parametrize(
    ("mode", "given", "text"),
    [
        (
            "ngram",
            {"threads": 1, "least_chance": 0.1},
            "--draft-threads, --least-chance are for mode sd or ssd and have no effect in",
        ),
        (
            "sd",
            {"prompt_lookup_min": 1},
            "--prompt-lookup-min is for mode ngram and has no effect in mode 'sd'",
        ),
        ("sd", {"top_up": False}, "--top-up is for SSD and has no effect in mode 'sd'; add --mode ssd"),
        ("ssd", {"fan_out_backup": (1,)}, "--fan-out-backup needs a list as --fan-out"),
        ("ar", {"num_speculative_tokens": 3}, "--num-speculative-tokens without a draft"),
    ],
)
def test_options_without_effect_are_refused_by_their_flags(
    mode: str, given: dict[str, Any], text: str
) -> None:
    ordered = {o.name: given[o.name] for o in SPECULATION if o.name in given}
    with pytest.raises(ConfigError, match=text):
        speculation(mode, ordered)


def test_saguaro_sampling_needs_rejection_at_a_temperature() -> None:
    call = collected(SAMPLING, SPECULATION)
    given = call("--saguaro-c", "0.5", "--temperature", "1", "--verification", "rejection")
    params, speculative = decoding("ssd", given)
    assert speculative is not None and speculative.saguaro_c == 0.5
    # One flag is heard by both: the sampler of the request, and what drafts for it.
    assert params.verification == speculative.verification == "rejection"
    with pytest.raises(ConfigError, match=r"--saguaro-c 0\.5 has no effect here"):
        decoding("ssd", call("--saguaro-c", "0.5", "--temperature", "1"))


def test_only_what_is_given_arrives() -> None:
    call = collected(SAMPLING, ENGINE, temperature=0.0)
    assert call("--threads", "2") == {SamplingParams: {"temperature": 0.0}, EngineConfig: {"threads": 2}}
    given = call("--stop", "a", "--stop", "b", "--stop-token-ids", "1,2", "--ignore-eos", "-n", "3")
    assert given[SamplingParams] == {
        "temperature": 0.0, "stop": ("a", "b"), "stop_token_ids": (1, 2), "ignore_eos": True, "max_tokens": 3,
    }  # fmt: skip
    with pytest.raises(ConfigError, match="--stop-token-ids '1,b': cannot read 'b'"):
        call("--stop-token-ids", "1,b")


def test_an_option_is_made_of_its_declaration() -> None:
    @dataclasses.dataclass
    class Oven:
        heat: float = option(1.5, "Machine", "How hot [it] gets.", flags=("--oven-heat", "-h"))
        fan: bool = option(True, "Machine", "Whether air moves.")
        light: bool = option(False, "Machine", "Whether it is lit.")
        inner: int = option(3, "Machine", "Not for the command line.", flags=())
        plain: int = 3

    Oven.__annotations__.update(heat=float, fan=bool, light=bool, inner=int, plain=int)
    call = collected(options_of(Oven))
    assert call("-h", "2", "--no-fan", "--light") == {Oven: {"heat": 2.0, "fan": False, "light": True}}
    with pytest.raises(ConfigError, match="No such option"):
        call("--inner", "1")
    app = typer.Typer()
    app.command()(offers(options_of(Oven))(lambda *, given: None))
    shown = " ".join(CliRunner().invoke(app, ["--help"]).output.split())
    assert "How hot [it] gets. [default: 1.5]" in shown
    assert "[default: fan]" in shown and "--no-fan" in shown and "--no-light" not in shown


@pytest.mark.parametrize("name", ["generate", "trace"])
def test_no_command_lacks_an_option(name: str) -> None:
    have = {flag for parameter in load(name).params for flag in parameter.opts}
    assert {flag for o in (*SAMPLING, *SPECULATION, *ENGINE) for flag in o.flags} <= have
    assert {"-k", "-d", "-m", "-n", "-f"} <= have


def test_every_value_is_offered_and_checked_by_one_list() -> None:
    for each in (*SAMPLING, *SPECULATION, *ENGINE):
        for value in each.values:
            assert value in str(each.parameter(None).__metadata__[0].help), (each.name, value)


def test_the_reference_is_what_the_classes_say() -> None:
    file = Path(__file__).parents[2] / "docs" / "options.md"
    assert file.read_text(encoding="utf-8") == reference(), (
        "write it again: python -m sonoran.cli.options > docs/options.md"
    )


def test_errors_of_values_are_those_of_the_classes_under_the_names_of_flags() -> None:
    with pytest.raises(ConfigError, match=r"^--backup 'drft' is unknown; did you mean 'draft'"):
        speculation("ssd", {"backup": "drft"})
    with pytest.raises(ConfigError, match=r"^--draft-threads must be a whole number from 1 to 1024, got 0"):
        speculation("sd", {"threads": 0})
    with pytest.raises(ConfigError, match=r"^--top-p is "):
        decoding("ar", {SamplingParams: {"top_p": 2.0}, SpeculativeConfig: {}})
    with pytest.raises(ConfigError, match="--fan-out explicit is a list"):
        speculation("ssd", {"fan_out": "explicit"})
