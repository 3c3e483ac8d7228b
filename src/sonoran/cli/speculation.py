"""``--mode``, ``--draft`` and the options of SSD: from the command line to a speculative configuration."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sonoran.errors import ConfigError, nearest

MODES = ("auto", "ar", "sd", "ssd", "ngram")
_METHODS = {"auto": "auto", "sd": "sd", "ssd": "ssd", "ngram": "ngram"}
DEFAULT_TOKENS = 4

ModeOption = Annotated[
    str | None,
    typer.Option(
        help="auto (what is fastest), ar, sd, ssd or ngram; default: ar without --draft, auto with it."
    ),
]
AddressOption = Annotated[
    str | None, typer.Option("--draft-address", help="ssd: a worker that runs already, tcp://HOST:PORT.")
]
KeyFileOption = Annotated[
    str | None, typer.Option("--draft-key-file", help="ssd: client.key for the worker at --draft-address.")
]
FanOutOption = Annotated[
    str | None,
    typer.Option(
        "--fan-out",
        help="ssd: confidence, measured, uniform, geometric, or a list F_0,..,F_K such as 3,2,1,1,4.",
    ),
]
BudgetOption = Annotated[
    str | None, typer.Option(help="ssd: outcomes guessed per round; auto is what the draft finishes in time.")
]
BackupOption = Annotated[
    str | None, typer.Option(help="ssd: what drafts on a miss: auto, draft, ngram, random or none.")
]
LeastChanceOption = Annotated[
    float | None,
    typer.Option(
        help="sd, ssd: end a draft where it is less likely than this to be accepted whole; default 0.5, 0 never."
    ),
]
SaguaroOption = Annotated[
    float | None, typer.Option("--saguaro-c", help="ssd: C of Saguaro sampling, 0 to 1; 1 is off.")
]


def speculative_config(
    mode: str | None,
    draft: str,
    num_speculative_tokens: int | None = None,
    *,
    draft_options: dict[str, Any] | None = None,
    ssd_options: dict[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Return the configuration for a mode; options left at None are not part of it.

    `draft_options` have the names of ``--draft-...``, `ssd_options` those of SSD's own options, both with underscores
    and without ``draft_``. Raises ConfigError for a mode that does not fit the draft, and for options without effect.
    """
    of_draft, of_ssd = _given(draft_options), _given(ssd_options)
    mode = _settle(mode, draft, placed="threads" in of_draft or "cores" in of_draft)
    if mode == "ar":
        of_draft |= {} if num_speculative_tokens is None else {"num_speculative_tokens": 0}
    if mode == "ar" and of_draft:
        names = ", ".join(_OPTION.get(key, f"--draft-{key.replace('_', '-')}") for key in of_draft)
        raise ConfigError(f"{names} without a draft; add --draft auto, ngram, or a model")
    if mode != "ssd" and of_ssd:
        names = ", ".join(_OPTION[key] for key in of_ssd)
        raise ConfigError(f"{names} is for SSD and has no effect in mode {mode!r}; add --mode ssd")
    if mode == "ar":
        return None
    config: dict[str, Any] = {
        "method": _METHODS[mode],
        **{"draft_vocab" if key == "vocab" else key: value for key, value in of_draft.items()},
    }
    if num_speculative_tokens is None and mode != "auto":  # which has a default of its own
        num_speculative_tokens = DEFAULT_TOKENS
    if num_speculative_tokens is not None:
        config["num_speculative_tokens"] = num_speculative_tokens
    if mode == "ssd":
        config |= _ssd(of_ssd)
    if mode != "ngram" and not (draft == "none" and "draft_address" in config):
        config["model"] = "auto" if draft == "none" else draft
    return config


_OPTION = {
    "num_speculative_tokens": "--num-speculative-tokens",
    "address": "--draft-address",
    "key_file": "--draft-key-file",
    "fan_out": "--fan-out",
    "budget": "--budget",
    "backup": "--backup",
    "saguaro_c": "--saguaro-c",
    "least_chance": "--least-chance",
}


def _given(options: dict[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (options or {}).items() if value is not None}


def _settle(mode: str | None, draft: str, placed: bool) -> str:
    """Return the mode that was asked for, or that follows from the draft.

    A draft model leaves the choice to ``auto``, unless it was placed by hand.
    """
    if mode is None:
        return {"none": "ar", "ngram": "ngram"}.get(draft, "sd" if placed else "auto")
    if mode not in MODES:
        raise ConfigError(f"unknown mode {mode!r}{nearest(mode, MODES)}")
    fits = {
        "ar": draft == "none",
        "ngram": draft in ("none", "ngram"),
        "auto": draft != "ngram",
        "sd": draft != "ngram",
        "ssd": draft != "ngram",
    }
    if not fits[mode]:
        raise ConfigError(f"--mode {mode} and --draft {draft} contradict each other; leave one of them out")
    return mode


def _ssd(given: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {
        {"address": "draft_address", "key_file": "draft_key_file"}.get(key, key): value
        for key, value in given.items()
    }
    fan_out = config.get("fan_out")
    if fan_out is not None and any(character.isdigit() for character in fan_out):
        config["fan_out"], config["fan_out_primary"] = "explicit", _numbers(fan_out)
        if "budget" in config:
            raise ConfigError("--budget has no effect beside a list as --fan-out, whose sum is the budget")
    if "budget" in config and config["budget"] != "auto":
        if not str(config["budget"]).isdigit():
            raise ConfigError(f"--budget must be a whole number or auto, got {config['budget']!r}")
        config["budget"] = int(config["budget"])
    return config


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise ConfigError(f"--fan-out must be a rule or numbers such as 3,2,1,1,4, got {text!r}")
    return tuple(int(part) for part in parts)
