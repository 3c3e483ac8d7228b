"""Stop rules: one checker, token by token, that says where ids, text, log-probabilities and counters end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sonoran.sampling.logits import end_tokens
from sonoran.sampling.params import SamplingParams
from sonoran.types import FinishReason


class Detokenizer(Protocol):
    """Turns tokens into text one by one; keeps incomplete characters back."""

    def push(self, token_id: int) -> str:
        """Take a token; return the text that it completes, which may be empty."""
        ...

    def flush(self) -> str:
        """Return what is left of an incomplete character."""
        ...


@dataclass(frozen=True, slots=True)
class Advance:
    """What became of some tokens: the first ``kept`` count, the rest do not exist; ``text`` can be shown."""

    kept: int
    text: str
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class StopChecker:
    """Stop state of one generated text.

    Per token, in this order: a token that ends the request (``finish_reason`` "stop"; ``stop_reason`` None
    for an end-of-sequence token, the id for one of ``stop_token_ids``) is kept as an id but adds no text; a
    stop string ends the request at the token that completes it and cuts the text before it (``stop_reason``
    is the string); the last token allowed ends with "length". With ``include_stop_str_in_output`` the text of the token
    and the stop string stay. Of several stop strings the one completed first
    counts, then the longest. Before ``min_tokens`` tokens neither end tokens nor stop strings end anything.

    ``limit`` is the number of tokens there is room for; ``max_tokens`` may be lower. Text that could still
    become the beginning of a stop string is held back until that is decided. The tokens after the end are
    never looked at.
    """

    def __init__(
        self, params: SamplingParams, eos_ids: Sequence[int], detokenizer: Detokenizer, limit: int
    ) -> None:
        self._params = params
        self._eos_ids = frozenset(eos_ids)
        self._end_tokens = frozenset(end_tokens(params, eos_ids))
        self._detokenizer = detokenizer
        self.limit = limit if params.max_tokens is None else min(limit, params.max_tokens)
        self.count = 0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self._shown: list[str] = []
        self._held = ""  # end of the text; a proper beginning of some stop string

    @property
    def text(self) -> str:
        """All text so far: what was shown and, unless finished, what is held back."""
        return "".join(self._shown) + self._held

    @property
    def remaining(self) -> int:
        """Tokens that may still be generated."""
        return 0 if self.finish_reason else self.limit - self.count

    def advance(self, tokens: Iterable[int]) -> Advance:
        """Take the tokens of one round, as many as the rules allow."""
        kept = 0
        start = len(self._shown)
        for token in tokens:
            if self.finish_reason is not None:
                break
            kept += 1
            self._take(token)
        return Advance(kept, "".join(self._shown[start:]), self.finish_reason, self.stop_reason)

    def cancel(self) -> Advance:
        """End the text where it is, with reason "cancelled", and release what was held back."""
        start = len(self._shown)
        if self.finish_reason is None:
            self._end("cancelled", None, self._held + self._detokenizer.flush())
        return Advance(0, "".join(self._shown[start:]), self.finish_reason, self.stop_reason)

    def _take(self, token: int) -> None:
        self.count += 1
        may_stop = self.count >= self._params.min_tokens
        if may_stop and token in self._end_tokens:
            eos = token in self._eos_ids and not self._params.ignore_eos
            text = self._detokenizer.push(token) if self._params.include_stop_str_in_output else ""
            self._end("stop", None if eos else token, self._held + text + self._detokenizer.flush())
            return
        text = self._held + self._detokenizer.push(token)
        at_limit = self.count >= self.limit
        if at_limit:
            text += self._detokenizer.flush()
        # A match inside what was held back before was complete too early to count.
        match = first_stop(text, self._params.stop, len(self._held)) if may_stop else None
        if match is not None:
            begin, stop = match
            kept = len(stop) if self._params.include_stop_str_in_output else 0
            self._end("stop", stop, text[: begin + kept])
        elif at_limit:
            self._end("length", None, text)
        else:
            held = held_length(text, self._params.stop)
            self._show(text[: len(text) - held])
            self._held = text[len(text) - held :]

    def _end(self, finish: FinishReason, reason: int | str | None, text: str) -> None:
        self._show(text)
        self._held = ""
        self.finish_reason, self.stop_reason = finish, reason

    def _show(self, text: str) -> None:
        if text:
            self._shown.append(text)


def first_stop(text: str, stops: Sequence[str], after: int = 0) -> tuple[int, str] | None:
    """Return (begin, stop string) of the match that is complete first, the longest of several.

    A match that ends within the first ``after`` characters does not count.
    """
    best: tuple[int, int, str] | None = None
    for stop in stops:
        begin = text.find(stop, max(0, after - len(stop) + 1))
        if begin >= 0:
            candidate = (begin + len(stop), begin, stop)
            best = candidate if best is None else min(best, candidate)
    return None if best is None else best[1:]


def held_length(text: str, stops: Sequence[str]) -> int:
    """Return the length of the longest end of ``text`` that is a proper beginning of a stop string."""
    longest = max((len(stop) for stop in stops), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        tail = text[-length:]
        if any(len(stop) > length and stop.startswith(tail) for stop in stops):
            return length
    return 0
