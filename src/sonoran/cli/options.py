"""Options of the command line, made from the classes that declare and check them (``sonoran.config.option``), and the
loading of what they name.

A command names the options that it offers and is handed what was given, by class::

    @command
    @offers(options_of(SamplingParams), options_of(EngineConfig, only=("cores",)), temperature=0.0)
    def generate(prompt: str, *, given: Given) -> None: ...

``docs/options.md`` is the output of ``python -m sonoran.cli.options``.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, fields
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer
from rich.markup import escape

from sonoran.cli.common import numbers, remark
from sonoran.cli.progress import load_progress
from sonoran.config import ALIASES, EngineConfig, Mode, SpeculativeConfig, WorkerConfig
from sonoran.errors import ConfigError, nearest
from sonoran.llm import LLM
from sonoran.sampling.params import SamplingParams
from sonoran.sampling.structure import StructuredOutputs

Given = dict[type, dict[str, Any]]
"""What was given on the command line, by class and field."""

F = TypeVar("F", bound=Callable[..., Any])

MODEL = "Model: a name (sonoran models list), org/repo:QUANT of the hub, a GGUF file or a folder."

ModelOption = Annotated[str, typer.Option("--model", "-m", help=MODEL)]


def mode_option(more: str = "") -> Any:
    """Return ``--mode``; `more` goes on with its help."""
    return typer.Option(
        help=f"auto (what is fastest), ar, sd, ssd or ngram{more}.",
        rich_help_panel="Draft",
        autocompletion=lambda incomplete: [mode for mode in get_args(Mode) if mode.startswith(incomplete)],
    )


ModeOption = Annotated[str | None, mode_option("; default: auto")]


@dataclass(frozen=True, slots=True)
class Option:
    """One field of a class as an option."""

    config: type
    field: Field[Any]
    annotation: Any
    flags: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the field."""
        return self.field.name

    @property
    def default(self) -> Any:
        """What the class takes when nothing is given."""
        factory = self.field.default_factory
        return self.field.default if factory is MISSING else factory()

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types that a value may have, None left out."""
        plain = get_origin(self.annotation) in (None, tuple, dict, Literal)
        return (
            (self.annotation,)
            if plain
            else tuple(k for k in get_args(self.annotation) if k is not type(None))
        )

    @property
    def values(self) -> tuple[str, ...]:
        """The words that are valid, where these are given; nothing for a number or a text."""
        return tuple(v for kind in self.kinds if get_origin(kind) is Literal for v in get_args(kind))

    def parameter(self, default: Any) -> Any:
        """Return Typer's annotation; None as `default` leaves the choice to the class, whose default is shown."""
        text = self.field.metadata["help"]
        if not all(value in text for value in self.values):
            text = f"{text.rstrip('.')}: {', '.join(self.values)}."
        text, flags, known = escape(text), self.flags, self.default
        if self.kinds == (bool,) and known:
            flags = (f"{self.flags[0]}/--no-{self.flags[0].removeprefix('--')}", *self.flags[1:])
            known = self.flags[0].removeprefix("--")
        if not (default is not None or known is None or known is False or known == () or "default" in text):
            text += f" [dim]{escape(f'[default: {known}]')}[/dim]"
        completion = (
            (lambda incomplete: [v for v in self.values if v.startswith(incomplete)]) if self.values else None
        )
        kind: Any = {(int,): int, (float,): float, (bool,): bool, (tuple[str, ...],): list[str]}.get(
            self.kinds, str
        )
        panel = self.field.metadata["panel"]
        return Annotated[
            kind | None, typer.Option(*flags, help=text, rich_help_panel=panel, autocompletion=completion)
        ]

    def read(self, value: Any) -> Any:
        """Turn what Typer read into what the class takes. Raises ConfigError."""
        if self.kinds == (int, str) and value.isdigit():
            return int(value)
        if self.kinds == (tuple[int, ...],) and self.name != "cores":  # whose spans the class itself reads
            return tuple(numbers(self.flags[0], value))
        return tuple(value) if isinstance(value, list) else value


def options_of(
    config: type, *, only: Iterable[str] = (), without: Iterable[str] = (), own_names: bool = False
) -> list[Option]:
    """Return the options that a class declares, all that have a flag or those whose fields are named.

    `own_names` calls each by its field, where the class stands for the one thing that the command is about.
    """
    types, wanted, unwanted = get_type_hints(config), tuple(only), tuple(without)
    found = []
    for field in fields(config):
        if "panel" not in field.metadata or field.name in unwanted or (wanted and field.name not in wanted):
            continue
        flags = field.metadata["flags"]
        if flags is None or own_names:
            flags = ("--" + field.name.replace("_", "-"),)
        if flags:
            found.append(Option(config, field, types[field.name], flags))
    return found


SAMPLING = options_of(SamplingParams)
SPECULATION = options_of(SpeculativeConfig)
ENGINE = options_of(EngineConfig)


def offers(*groups: list[Option], **defaults: Any) -> Callable[[F], F]:
    """Add options to a command, in the place of its parameter ``given``, in which what was given arrives.

    A flag that two classes declare is one option and is handed to both. `defaults` are by parameter (the flag with
    underscores) and count as given; other options that were not given do not appear.
    """
    by_flag: dict[str, list[Option]] = {}
    for option in (option for group in groups for option in group):
        by_flag.setdefault(option.flags[0].removeprefix("--").replace("-", "_"), []).append(option)

    def decorate(function: F) -> F:
        signature = inspect.signature(function, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            if parameter.name != "given":
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
                continue
            for name, options in by_flag.items():
                default = defaults.get(name)
                annotation = options[0].parameter(default)
                kind = inspect.Parameter.KEYWORD_ONLY
                parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))

        @functools.wraps(function)
        def wrapped(**values: Any) -> Any:
            given: Given = {option.config: {} for group in groups for option in group}
            for name, options in by_flag.items():
                value = values.pop(name)
                if value is None or value == []:
                    continue
                for option in options:
                    given[option.config][option.name] = option.read(value)
            return function(given=given, **values)

        wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return wrapped  # type: ignore[return-value]

    return decorate


def decoding(mode: str | None, given: Given) -> tuple[SamplingParams, SpeculativeConfig | None]:
    """Return how tokens are sampled and what speculates. Raises ConfigError, also for options without effect."""
    params = sampling(given[SamplingParams])
    speculative = speculation(mode, given[SpeculativeConfig])
    sampled = params.verification == "rejection" and not params.greedy
    if speculative is not None and speculative.saguaro_c < 1.0 and not sampled:
        raise ConfigError(
            f"--saguaro-c {speculative.saguaro_c:g} has no effect here; it needs --verification rejection and "
            "a temperature above 0"
        )
    return params, speculative


def sampling(given: dict[str, Any]) -> SamplingParams:
    """Return how tokens are sampled. Raises ConfigError."""
    with named_by_flag(SAMPLING):
        return SamplingParams(**given)


def speculation(mode: str | None, given: dict[str, Any]) -> SpeculativeConfig | None:
    """Return the configuration of a mode; None is ``ar``. Without a mode it follows from the draft, and without either
    it is ``auto``, which finds a draft or does without one.

    Raises ConfigError for a mode that does not fit the draft, and for options without effect.
    """
    config = dict(given)
    model = config.pop("model", None)
    mode = _settle(mode, model, placed="threads" in config or "cores" in config)
    # The rule of verification is the sampler's, too, and so has an effect in every mode.
    refuse_idle(mode, (name for name in config if name != "verification"))
    if mode == "ar":
        return None
    config["method"] = mode
    read_fan_out(config)
    found = mode == "auto" and model is None and not asks_for_a_draft(config)  # or done without
    if mode != "ngram" and not found and not (model is None and "draft_address" in config):
        config["model"] = "auto" if model is None else model
    with named_by_flag(SPECULATION):
        return SpeculativeConfig.from_mapping(config)


@contextmanager
def named_by_flag(options: list[Option]) -> Iterator[None]:
    """Let an error that begins with the name of a field begin with its flag: threads of the draft, not the target's."""
    flags = {option.name: option.flags[0] for option in options}
    try:
        yield
    except ConfigError as error:
        name, _, rest = str(error).partition(" ")
        raise ConfigError(f"{flags.get(name, name)} {rest}") from error


def asks_for_a_draft(given: Iterable[str]) -> bool:
    """Whether options of a draft were given, by field, which would have no effect without one."""
    return any(name not in ("method", "verification") for name in given)


def read_fan_out(config: dict[str, Any]) -> None:
    """Take ``fan_out`` for a list where it has numbers. Raises ConfigError for what contradicts a list."""
    fan_out = config.get("fan_out", "")
    if fan_out == "explicit":
        raise ConfigError("--fan-out explicit is a list: write the numbers themselves, such as 3,2,1,1,4")
    if any(character.isdigit() for character in fan_out):
        if "budget" in config:
            raise ConfigError("--budget has no effect beside a list as --fan-out, whose sum is the budget")
        config["fan_out"], config["fan_out_primary"] = "explicit", tuple(numbers("--fan-out", fan_out))
    elif "fan_out_backup" in config:
        raise ConfigError("--fan-out-backup needs a list as --fan-out beside it")


def refuse_idle(mode: str, given: Iterable[str]) -> None:
    """Raise ConfigError for options of speculation, by field, that have no effect in a mode."""
    wrong: dict[tuple[str, ...], list[str]] = {}
    options = {option.name: option for option in SPECULATION}
    for name in given:
        methods = options[name].field.metadata["methods"]
        if mode == "ar" or (methods and mode not in methods):
            wrong.setdefault(methods if methods == ("ssd",) or mode != "ar" else (), []).append(
                options[name].flags[0]
            )
    for methods, flags in wrong.items():
        if not methods:
            raise ConfigError(f"{', '.join(flags)} without a draft; add --draft auto, ngram, or a model")
        be, have = ("is", "has") if len(flags) == 1 else ("are", "have")
        told = f"{', '.join(flags)} {be} for {{}} and {have} no effect in mode {mode!r}"
        if methods == ("ssd",):
            raise ConfigError(told.format("SSD") + "; add --mode ssd")
        raise ConfigError(told.format(f"mode {' or '.join(methods)}"))


def _settle(mode: str | None, draft: str | None, placed: bool) -> str:
    """Return the mode that was asked for, or that follows from the draft.

    The choice is left to ``auto``, unless a draft was placed by hand.
    """
    if mode is None:
        return {None: "auto", "none": "ar", "ngram": "ngram"}.get(draft, "sd" if placed else "auto")
    mode = ALIASES.get(mode, mode)
    if mode not in get_args(Mode):
        raise ConfigError(f"unknown mode {mode!r}{nearest(mode, get_args(Mode))}")
    drafts = {"ar": draft in (None, "none"), "ngram": draft in (None, "ngram")}
    if not drafts.get(mode, draft not in ("none", "ngram")):
        raise ConfigError(f"--mode {mode} and --draft {draft} contradict each other; leave one of them out")
    return mode


def load(model: str, speculative: Mapping[str, Any] | SpeculativeConfig | None, **engine: Any) -> LLM:
    """Load the models with progress bars, None for AR. Method auto says in one line what it chose, and why."""
    config = None if speculative is None else SpeculativeConfig.from_mapping(speculative)
    with load_progress() as reporting:
        llm = LLM(
            model, speculative_config=False if config is None else config, reporting=reporting, **engine
        )
    if config is not None and config.method == "auto":
        chosen = llm.statistics().get("drafter", {}).get("auto", {})
        remark(f"auto: {chosen.get('reason', 'AR')}")
    return llm


def reference() -> str:
    """Return docs/options.md: one table for each class."""
    return "".join(
        (
            "# Options\n\nWritten from the classes that declare them, by `python -m sonoran.cli.options`. The key is the "
            "name in Python, the flag that on the command line; a dash stands for none.\n",
            _table("Sampling: `SamplingParams`", SamplingParams),
            _table("Speculation: `speculative_config`", SpeculativeConfig),
            "\nAn option has a meaning for the methods beside it, and is refused for others.\n",
            _table("Engine: keywords of `LLM`", EngineConfig),
            _table("Draft worker: `sonoran draft-worker`", WorkerConfig),
            "\nThe other options of a draft are those above, without `draft` in their flags: `--model`, `--cores`, "
            "`--threads`, `--quantize`.\n",
        )
    )


def _table(title: str, config: type) -> str:
    """Return the options that a class declares, those of its bases only where nothing else tells of them."""
    types, inherited = get_type_hints(config), config is not WorkerConfig
    options = [
        Option(config, field, types[field.name], field.metadata.get("flags") or ())
        for field in fields(config)
        if inherited or field.name in config.__annotations__
    ]
    shown = {option.name: option.flags for option in options_of(config)}
    has_methods = any(option.field.metadata.get("methods") for option in options)
    titles = ["key", "flag", "default", "values", "meaning", *(["methods"] if has_methods else [])]
    rows = [titles, ["---"] * len(titles)]
    for option in options:
        flags = shown.get(option.name, option.flags)
        values = ", ".join(f"`{value}`" for value in option.values)
        row = [
            f"`{option.name}`",
            ", ".join(f"`{flag}`" for flag in flags) or "-",
            "-" if option.default in (None, MISSING, (), {}) else f"`{option.default}`",
            values or " or ".join(_KINDS[kind] for kind in option.kinds),
            option.field.metadata["help"],
        ]
        rows.append([*row, ", ".join(option.field.metadata.get("methods", ())) or "all"][: len(titles)])
    return f"\n## {title}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


_KINDS = {
    StructuredOutputs: "mapping",
    int: "whole number", float: "number", str: "text", bool: "yes or no", tuple[int, ...]: "whole numbers",
    tuple[str, ...]: "texts", dict[int, float]: "numbers by token id",
    tuple[tuple[int, ...], ...]: "lists of whole numbers",
}  # fmt: skip


if __name__ == "__main__":
    sys.stdout.write(reference())
