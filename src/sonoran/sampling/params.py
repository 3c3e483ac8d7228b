"""What a request asks of the sampler: one frozen, validated value with the names of OpenAI and vLLM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, get_args

from sonoran.config import Verification, option
from sonoran.errors import ConfigError, check_unicode, nearest, shown
from sonoran.sampling.structure import StructuredOutputs

GREEDY_BELOW = 1e-5
MIN_TEMPERATURE = 1e-4  # below this, say 0: greedy decoding is a case of its own, not a limit
MAX_TEMPERATURE = 1e4
MAX_LOGPROBS = 1024
MAX_N = 1024
MAX_COUNT = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """Sampling parameters of one request; everything is checked when the value is made.

    ``temperature`` 0, or less than 0.00001, is greedy. ``top_k`` 0 or -1 and ``top_p`` 1 and ``min_p`` 0 are
    off. ``seed`` None, or -1 as in vLLM and llama.cpp, lets the engine draw one; other negative numbers are
    seeds. As in vLLM, ``top_p`` 0 (no token would be left) and ``max_tokens`` 0 (there would be nothing to
    return) are errors. Numbers may be NumPy's. ``max_tokens`` None generates until an end token, a stop rule
    or the end of the context. ``min_tokens`` forbids end tokens and ignores stop strings before that many
    tokens. ``stop`` cuts the text before the stop string, and the name of a special token stops at that
    token; ``stop_token_ids`` end like end-of-sequence tokens, also with ``ignore_eos``. ``logprobs`` n asks
    for the log-probability of each token and of the n most likely ones, under the model, before any parameter
    here is applied; ``prompt_logprobs`` the same for the prompt. ``bad_words`` are kept from being completed as the
    tokenizer writes them, at the beginning of a text and after a space, ``bad_word_ids`` as they are.
    ``repetition_penalty`` looks at prompt and output, ``presence_penalty`` and ``frequency_penalty`` at the output.
    ``structured_outputs``, or a mapping for it, is the form that the text must have (`StructuredOutputs`): tokens
    that do not fit are forbidden, whatever the other parameters say, and an end token fits only when the text is
    whole, so that ``min_tokens`` and ``ignore_eos`` contradict it.
    ``n`` texts, at most 1024, are generated, each with a seed derived from ``seed``.

    ``speculative`` False, or ``num_speculative_tokens`` 0, turns speculation off for this request; a positive
    ``num_speculative_tokens`` lowers K for it. ``verification`` names the rule (see docs/exactness.md).

    Raises ConfigError for a value of the wrong type or out of range, and for an unknown name (with the nearest).
    """

    temperature: float = option(1.0, "Sampling", "0 takes the most likely token.")
    top_p: float = option(1.0, "Sampling", "Keep the most likely tokens with this total probability.")
    top_k: int = option(0, "Sampling", "Keep this many most likely tokens; 0 keeps all.")
    min_p: float = option(0.0, "Sampling", "Drop tokens less likely than this share of the best.")
    seed: int | None = option(None, "Sampling", "The same seed gives the same text; drawn if not given.")
    max_tokens: int | None = option(
        None,
        "Sampling",
        "Most tokens to generate, within what the context holds.",
        flags=("--max-tokens", "-n"),
    )
    min_tokens: int = option(0, "Sampling", "No end before this many tokens.")
    stop: tuple[str, ...] = option((), "Sampling", "End before this text; may be repeated.")
    stop_token_ids: tuple[int, ...] = option((), "Sampling", "Tokens that end the text: 1,2.")
    ignore_eos: bool = option(False, "Sampling", "Go on after the end token.")
    logprobs: int | None = option(
        None, "Sampling", "Log-probabilities of each token and of so many likeliest ones.", flags=()
    )
    presence_penalty: float = option(0.0, "Sampling", "Lower what occurred, -2 to 2.")
    frequency_penalty: float = option(0.0, "Sampling", "Lower what occurred, per time, -2 to 2.")
    repetition_penalty: float = option(1.0, "Sampling", "Divide the logits of what occurred.")
    logit_bias: dict[int, float] = option(
        {}, "Sampling", "Added to the logits, by token id, -100 to 100.", flags=()
    )
    include_stop_str_in_output: bool = option(
        False, "Sampling", "Keep the stop string, or the text of the stop token, at the end.", flags=()
    )
    skip_special_tokens: bool = option(True, "Sampling", "Leave special tokens out of the text.", flags=())
    bad_words: tuple[str, ...] = option((), "Sampling", "Texts that must not be generated.", flags=())
    bad_word_ids: tuple[tuple[int, ...], ...] = option(
        (), "Sampling", "The same as sequences of token ids.", flags=()
    )
    allowed_token_ids: tuple[int, ...] | None = option(
        None, "Sampling", "The only tokens that may be generated.", flags=()
    )
    prompt_logprobs: int | None = option(
        None, "Sampling", "The same for the tokens of the prompt, which is then read afresh.", flags=()
    )
    structured_outputs: StructuredOutputs | None = option(
        None,
        "Sampling",
        "The form that the text must have: json, regex, choice, grammar, json_object.",
        flags=(),
    )
    n: int = option(1, "Sampling", "Texts to generate.", flags=())
    speculative: bool = option(True, "Sampling", "Whether this request may speculate.", flags=())
    num_speculative_tokens: int | None = option(None, "Sampling", "Lowers K for this request.", flags=())
    verification: Verification = option(
        "coupled", "Sampling", "Rule: coupled, or rejection as in the papers."
    )

    def __new__(cls, *args: object, **given: object) -> SamplingParams:
        """Refuse unknown names before the constructor does, which does not say what was meant."""
        if args:
            raise ConfigError(
                f"sampling parameters have names, such as temperature=0.8; got {shown(args[0])}"
            )
        _check_names(given)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        _number(self, "temperature", 0.0, MAX_TEMPERATURE)
        if self.temperature < GREEDY_BELOW:
            _set(self, "temperature", 0.0)
        if 0.0 < self.temperature < MIN_TEMPERATURE:
            raise ConfigError(
                f"temperature is {self.temperature!r}; it must be 0 (greedy) or at least {MIN_TEMPERATURE}"
            )
        _number(self, "top_p", 0.0, 1.0)
        if self.top_p == 0.0:
            raise ConfigError("top_p is 0; it must be above 0 and at most 1 (use temperature 0 for greedy)")
        _integer(self, "top_k", -1)
        if self.top_k == -1:
            _set(self, "top_k", 0)
        _number(self, "min_p", 0.0, 1.0)
        if self.seed is not None:
            _integer(self, "seed", -(2**63), 2**64 - 1)
            if self.seed == -1:
                _set(self, "seed", None)
        if self.max_tokens is not None:
            _integer(self, "max_tokens", 1)
        _integer(self, "min_tokens", 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ConfigError(
                f"min_tokens is {self.min_tokens}; it must be at most max_tokens, {self.max_tokens}"
            )
        _set(self, "stop", _strings("stop", self.stop))
        _set(self, "stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        if self.logprobs is not None:
            _integer(self, "logprobs", 0, MAX_LOGPROBS)
        _number(self, "presence_penalty", -2.0, 2.0)
        _number(self, "frequency_penalty", -2.0, 2.0)
        _number(self, "repetition_penalty", 0.01, 100.0)
        _set(self, "logit_bias", _bias(self.logit_bias))
        _integer(self, "n", 1, MAX_N)
        _set(self, "bad_words", _strings("bad_words", self.bad_words))
        _set(self, "bad_word_ids", _sequences("bad_word_ids", self.bad_word_ids))
        if self.allowed_token_ids is not None:
            _set(self, "allowed_token_ids", _token_ids("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise ConfigError("allowed_token_ids is empty; name at least one token, or leave it out")
        if self.prompt_logprobs is not None:
            _integer(self, "prompt_logprobs", 0, MAX_LOGPROBS)
        if self.structured_outputs is not None:
            _set(self, "structured_outputs", StructuredOutputs.from_value(self.structured_outputs))
            if self.min_tokens or self.ignore_eos:
                name = "min_tokens" if self.min_tokens else "ignore_eos"
                raise ConfigError(
                    f"{name} contradicts structured_outputs, which say when a text may end; leave it out"
                )
        for name in ("ignore_eos", "speculative", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {shown(getattr(self, name))}; it must be true or false")
        if self.num_speculative_tokens is not None:
            _integer(self, "num_speculative_tokens", 0)
        if self.verification not in get_args(Verification):
            raise ConfigError(
                f"unknown verification {self.verification!r}"
                + nearest(str(self.verification), get_args(Verification))
            )

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> SamplingParams:
        """Build from parsed JSON; for an unknown key, ConfigError names the nearest known one."""
        if not isinstance(mapping, Mapping):
            raise ConfigError(f"sampling parameters must be a dictionary, got {shown(mapping)}")
        _check_names(mapping)
        return cls(**mapping)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ConfigError when a token id named here is not below ``vocab_size``."""
        named: tuple[tuple[str, Iterable[int]], ...] = (
            ("stop_token_ids", self.stop_token_ids),
            ("logit_bias", self.logit_bias),
            ("allowed_token_ids", self.allowed_token_ids or ()),
            *(("bad_word_ids", ids) for ids in self.bad_word_ids),
        )
        for name, ids in named:
            for token in ids:
                if token >= vocab_size:
                    raise ConfigError(f"{name} names token {token}; the largest token id is {vocab_size - 1}")

    @property
    def greedy(self) -> bool:
        """Whether the token is the most likely one, without noise."""
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether what is added to the logits depends on which tokens came before."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def reads_prefix(self) -> bool:
        """Whether the distribution depends on which tokens came before."""
        return self.has_penalties or any(len(ids) > 1 for ids in self.bad_word_ids)


def _set(params: SamplingParams, name: str, value: object) -> None:
    object.__setattr__(params, name, value)  # the class is frozen; only __post_init__ normalises


def _check_names(given: Mapping[str, object]) -> None:
    names = [item.name for item in fields(SamplingParams)]
    for key in given:
        if key not in names:
            raise ConfigError(f"unknown sampling parameter {shown(key)}" + nearest(str(key), names))


def _number(params: SamplingParams, name: str, low: float, high: float) -> None:
    value = getattr(params, name)
    number = _as_number(name, value, low, high)
    if not isinstance(value, int | float):  # one of NumPy's
        _set(params, name, number)


def _as_number(name: str, value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or value != value:
        raise ConfigError(f"{name} is {shown(value)}; it must be a number from {low:g} to {high:g}")
    number: Any = value  # not a float yet, for which it may be too large
    if not low <= number <= high:
        bound = low if number < low else high
        raise ConfigError(
            f"{name} is {shown(value)}; it must be from {low:g} to {high:g}; the nearest is {bound:g}"
        )
    return float(number)


def _integer(params: SamplingParams, name: str, low: int, high: int = MAX_COUNT) -> None:
    value = getattr(params, name)
    whole = _as_integer(name, value, low, high)
    if whole is not value:
        _set(params, name, whole)


def _as_integer(name: str, value: object, low: int, high: int = MAX_COUNT) -> int:
    limits = f"at least {low}" if high == MAX_COUNT else f"from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigError(f"{name} is {shown(value)}; it must be a whole number, {limits}")
    whole = int(value)
    if not low <= whole <= high:
        bound = low if whole < low else high
        raise ConfigError(f"{name} is {shown(value)}; it must be {limits}; the nearest is {bound}")
    return whole


def _strings(name: str, value: object) -> tuple[str, ...]:
    items: tuple[object, ...]
    if value is None:
        items = ()
    elif isinstance(value, str):
        items = (value,)
    elif isinstance(value, Iterable):
        items = tuple(value)
    else:
        raise ConfigError(f"{name} is {value!r}; it must be a string or a list of strings")
    for item in items:
        if not isinstance(item, str) or not item:
            raise ConfigError(f"{name} has {item!r}; every entry must be a string that is not empty")
    return tuple(check_unicode(str(item), f"an entry of {name}") for item in items)


def _token_ids(name: str, value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ConfigError(f"{name} is {shown(value)}; it must be a list of token ids")
    ids = tuple(value)
    return tuple(_as_integer(f"an entry of {name}", token, 0) for token in ids)


def _sequences(name: str, value: object) -> tuple[tuple[int, ...], ...]:
    if value is None:
        return ()
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ConfigError(f"{name} is {shown(value)}; it must be a list of lists of token ids")
    sequences = tuple(_token_ids(f"an entry of {name}", ids) for ids in value)
    if not all(sequences):
        raise ConfigError(f"{name} has an empty entry; every one must name at least one token")
    return sequences


def _bias(value: object) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"logit_bias is {value!r}; it must map token ids to numbers from -100 to 100")
    bias: dict[int, float] = {}
    for key, amount in value.items():
        # JSON has no integer keys, so the OpenAI API writes token ids as strings.
        named = int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 20 else key
        token = _as_integer("a key of logit_bias", named, 0)
        bias[token] = _as_number(f"logit_bias[{token}]", amount, -100.0, 100.0)
    return bias
