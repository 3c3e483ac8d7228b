"""What clients are sent: chat completions and text completions, whole or in chunks, as OpenAI and vLLM shape them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sonoran.sampling.stops import Detokenizer
from sonoran.server.errors import ApiError
from sonoran.server.protocol import Job
from sonoran.server.service import Entry, Service
from sonoran.server.tools import Call, ToolReader
from sonoran.types import RequestDelta, RoundEvent, SampleDelta, TokenLogprob

Document = dict[str, Any]


@dataclass(slots=True)
class Choice:
    """One text as far as it has come."""

    index: int
    pieces: Detokenizer  # for the text of each single token
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    offset: int = 0  # characters before the next token, for completions
    started: bool = False
    reader: ToolReader | None = None  # of calls, when there may be any
    calls: list[Document] = field(default_factory=list)

    def read(self, sample: SampleDelta) -> tuple[str, list[Document]]:
        """Take news; return the text that they add, and the calls."""
        if self.reader is None:
            return sample.text, []
        items = self.reader.push(sample.text)
        if sample.finish_reason is not None:
            items += self.reader.flush()
        calls = []
        for item in items:
            if isinstance(item, Call):
                function = {"name": item.name, "arguments": item.arguments}
                calls.append(
                    {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}
                )
        return "".join(item for item in items if isinstance(item, str)), calls


class News(NamedTuple):
    """What one round brought for one text."""

    choice: Choice
    sample: SampleDelta
    text: str
    calls: list[Document]


class Writer:
    """Makes the documents of one request out of its news."""

    def __init__(self, service: Service, entry: Entry) -> None:
        self.job: Job = entry.job
        self._entry, self._service, self._tokenizer = entry, service, service.llm.tokenizer
        self._created = int(time.time())
        self._choices = [
            Choice(i, self._tokenizer.detokenizer(continuation=True), reader=self._tool_reader())
            for i in range(self.job.num_samples)
        ]
        self._metrics: list[Document] = []
        self._prompt_logprobs: dict[int, list[TokenLogprob | None]] = {}
        self._echoes: dict[int, str] = {}

    @property
    def id(self) -> str:
        """The response's id."""
        return ("chatcmpl-" if self.job.kind == "chat" else "cmpl-") + self._entry.id

    def _tool_reader(self) -> ToolReader | None:
        tools, form = self.job.tools, self._entry.tool_format
        return None if tools is None or form is None else ToolReader.of(form, tools.callable)

    def take(self, prompt: int, delta: RequestDelta) -> list[News]:
        """Add news; return them with the choices that they are of."""
        found = []
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs[prompt] = delta.prompt_logprobs
        for sample in delta.samples:
            choice = self._choices[prompt * self.job.params.n + sample.index]
            text, calls = choice.read(sample)
            choice.text.append(text)
            choice.calls += calls
            choice.token_ids += sample.token_ids
            choice.logprobs += sample.logprobs or ()
            if sample.finish_reason is not None:
                choice.finish_reason = (
                    "abort" if sample.finish_reason == "cancelled" else sample.finish_reason
                )
                choice.stop_reason = sample.stop_reason
                if choice.calls and choice.finish_reason == "stop":
                    choice.finish_reason = "tool_calls"
            found.append(News(choice, sample, text, calls))
        if delta.finished:
            self._metrics.append(delta.metrics)
        return found

    def chunks(self, prompt: int, delta: RequestDelta) -> Iterator[Document]:
        """Yield the chunks of a stream for some news."""
        job = self.job
        for choice, sample, text, calls in self.take(prompt, delta):
            first, choice.started = not choice.started, True
            if job.kind == "chat" and first:
                yield self._chunk(self._chat_chunk(choice, {"role": "assistant", "content": ""}, None, None))
            for document in self._call_deltas(choice, calls):
                yield self._chunk(self._chat_chunk(choice, document, None, None))
            if job.kind == "completion" and first and job.echo:
                text = self._echo(prompt) + text
            logprobs = self._logprobs(choice, prompt, list(sample.logprobs or ()), first)
            told = job.token_ids or job.continuous_usage or job.include_speculation
            if not (text or sample.finish_reason or logprobs or told):
                continue
            if job.kind == "chat":
                said: Document = {"content": text} if text or not choice.calls else {}
                part = self._chat_chunk(choice, said, logprobs, sample)
            else:
                part = {
                    "index": choice.index,
                    "text": text,
                    "logprobs": logprobs,
                    "finish_reason": choice.finish_reason,
                    "stop_reason": choice.stop_reason,
                }
            if job.token_ids:
                part["token_ids"] = list(sample.token_ids)
                if first:
                    part["prompt_token_ids"] = self._prompt_ids(prompt)
            chunk = self._chunk(part)
            if job.include_speculation:
                chunk["speculation"] = self._speculation(choice, sample, delta.event)
            if job.continuous_usage:
                chunk["usage"] = self.usage()
            yield chunk

    def _call_deltas(self, choice: Choice, calls: list[Document]) -> Iterator[Document]:
        """Yield calls as clients put them together: what is called, then the arguments."""
        for number, call in enumerate(calls, len(choice.calls) - len(calls)):
            function = call["function"]
            named = {"index": number, **call, "function": {"name": function["name"], "arguments": ""}}
            yield {"tool_calls": [named]}
            yield {"tool_calls": [{"index": number, "function": {"arguments": function["arguments"]}}]}

    def last_chunk(self) -> Document:
        """Return the chunk with the usage, which has no choices."""
        return {**self._head(chunk=True), "choices": [], "usage": self.usage(), **self.measured()}

    def error(self, error: ApiError) -> Document:
        """Return the event for what goes wrong in the middle of a stream."""
        return error.body

    def whole(self) -> Document:
        """Return the document of a request that is not streamed."""
        return {
            **self._head(chunk=False),
            "choices": [self._whole_choice(choice) for choice in self._choices],
            "usage": self.usage(),
            **self.measured(),
        }

    def usage(self) -> Document:
        """Return how many tokens there were so far."""
        prompt = self._entry.num_prompt_tokens
        generated = sum(len(choice.token_ids) for choice in self._choices)
        cached = sum(request.sequences[0].num_cached for request in self._entry.requests)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": 0},
        }

    def measured(self) -> Document:
        """Return ``metrics`` in vLLM's shape and ``timings`` in llama.cpp's; of several prompts those of the first."""
        if not self._metrics:
            return {}
        return {"metrics": request_metrics(self._metrics[0]), "timings": timings(self._metrics[0])}

    def _head(self, chunk: bool) -> Document:
        chat = "chat.completion.chunk" if chunk else "chat.completion"
        return {
            "id": self.id,
            "object": chat if self.job.kind == "chat" else "text_completion",
            "created": self._created,
            "model": self.job.model,
            "system_fingerprint": self._service.fingerprint,
        }

    def _chunk(self, choice: Document) -> Document:
        return {**self._head(chunk=True), "choices": [choice]}

    def _chat_chunk(
        self, choice: Choice, delta: Document, logprobs: Document | None, sample: SampleDelta | None
    ) -> Document:
        # The chunk that only says who speaks comes with the first news, which may be the last, too.
        ended = sample is not None
        return {
            "index": choice.index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason if ended else None,
            "stop_reason": choice.stop_reason if ended else None,
        }

    def _whole_choice(self, choice: Choice) -> Document:
        job, prompt = self.job, choice.index // self.job.params.n
        logprobs = self._logprobs(choice, prompt, choice.logprobs, True)
        text = "".join(choice.text)
        shared: Document = {
            "index": choice.index,
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if job.kind == "chat":
            message: Document = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
            if choice.calls:
                message |= {"content": text or None, "tool_calls": choice.calls}
            shared["message"] = message
        else:
            shared["text"] = (self._echo(prompt) if job.echo else "") + text
        if job.token_ids:
            shared["token_ids"] = choice.token_ids
            shared["prompt_token_ids"] = self._prompt_ids(prompt)
        if job.params.prompt_logprobs is not None and not job.echo:
            shared["prompt_logprobs"] = [
                entry and self._of_vllm(entry) for entry in self._prompt_logprobs.get(prompt, [])
            ]
        return shared

    def _prompt_ids(self, prompt: int) -> list[int]:
        return self._entry.requests[prompt].prompt_token_ids

    def _echo(self, prompt: int) -> str:
        if prompt not in self._echoes:
            given = self.job.prompts[prompt]
            text = (
                given if isinstance(given, str) else self._tokenizer.decode(given, skip_special_tokens=False)
            )
            self._echoes[prompt] = text
        return self._echoes[prompt]

    # ---- log-probabilities

    def _logprobs(self, choice: Choice, prompt: int, new: list[TokenLogprob], first: bool) -> Document | None:
        if self.job.params.logprobs is None:
            return None
        if self.job.kind == "chat":
            return {"content": [self._of_chat(entry) for entry in new], "refusal": None}
        entries: list[TokenLogprob | None] = list(new)
        if first and self.job.echo:
            entries = [*self._prompt_logprobs.get(prompt, []), *entries]
        return self._of_completion(choice, prompt, entries)

    def _name(self, token: int) -> str:
        if self.job.tokens_as_ids:
            return f"token_id:{token}"
        return str(self._tokenizer.token_bytes(token).decode("utf-8", "replace"))

    def _of_chat(self, entry: TokenLogprob) -> Document:
        return {
            **self._alternative(entry.token_id, entry.logprob),
            "top_logprobs": [self._alternative(token, value) for token, value in entry.top],
        }

    def _alternative(self, token: int, logprob: float) -> Document:
        return {
            "token": self._name(token),
            "logprob": max(logprob, -9999.0),
            "bytes": list(self._tokenizer.token_bytes(token)),
        }

    def _of_completion(self, choice: Choice, prompt: int, entries: list[TokenLogprob | None]) -> Document:
        tokens, offsets, top = [], [], []
        for entry in entries:
            token = self._prompt_ids(prompt)[0] if entry is None else entry.token_id
            tokens.append(self._name(token))
            offsets.append(choice.offset)
            choice.offset += len(tokens[-1])
            # As in vLLM the token itself is always among them.
            chances = () if entry is None else (*entry.top, (entry.token_id, entry.logprob))
            top.append({self._name(t): max(value, -9999.0) for t, value in chances} or None)
        return {
            "text_offset": offsets,
            "token_logprobs": [None if e is None else max(e.logprob, -9999.0) for e in entries],
            "tokens": tokens,
            "top_logprobs": top,
        }

    def _of_vllm(self, entry: TokenLogprob) -> Document:
        chances: dict[int, float] = {entry.token_id: entry.logprob, **dict(entry.top)}
        return {
            str(token): {"logprob": max(value, -9999.0), "decoded_token": self._name(token)}
            for token, value in chances.items()
        }

    # ---- where tokens came from

    def _speculation(self, choice: Choice, sample: SampleDelta, event: RoundEvent | None) -> Document:
        of_round = sample.round
        origins = of_round.origins if of_round is not None else ()
        ended = sample.finish_reason is not None
        pieces = [choice.pieces.push(token) for token in sample.token_ids]
        if ended and pieces:
            pieces[-1] += choice.pieces.flush()
        document: Document = {
            "tokens": [
                [token, text, origin]
                for token, text, origin in zip(sample.token_ids, pieces, origins, strict=False)
            ]
        }
        if of_round is not None and event is not None:
            document |= {
                "proposed": list(of_round.proposed),
                "accepted": of_round.accepted,
                "origin": of_round.origin,
                "before": of_round.before,
                "rows": event.num_rows,
                "round_ms": 1e3 * (event.end_s - event.begin_s),
                "draft_wait_ms": 1e3 * (event.drafted_s - event.begin_s),
                "forward_ms": 1e3 * (event.ran_s - event.packed_s),
            }
        return document


def request_metrics(metrics: Document) -> Document:
    """Return the metrics of a request under vLLM's names, in milliseconds, with the engine's own beside them."""

    def ms(value: float | None) -> float | None:
        return None if value is None else 1e3 * value

    ttft, tpot = metrics["ttft_s"], metrics["tpot_s"]
    return {
        "time_to_first_token_ms": ms(ttft),
        "generation_time_ms": ms(None if ttft is None else metrics["e2e_s"] - ttft),
        "queue_time_ms": ms(metrics["queue_s"]),
        "mean_itl_ms": ms(tpot),
        "tokens_per_second": metrics["tokens_per_s"],
        "e2e_ms": ms(metrics["e2e_s"]),
        "num_rounds": metrics["num_rounds"],
        "num_preemptions": metrics["num_preemptions"],
        "seed": metrics["seed"],
        "speculative_decoding": metrics.get("speculative_decoding"),
    }


def timings(metrics: Document) -> Document:
    """Return what llama.cpp's clients read of a request."""
    ttft, e2e, queue = metrics["ttft_s"] or 0.0, metrics["e2e_s"], metrics["queue_s"] or 0.0
    prompt, predicted = metrics["num_prompt_tokens"], metrics["num_generated_tokens"]
    prompt_s, predicted_s = max(0.0, ttft - queue), max(0.0, e2e - ttft)
    new = prompt - metrics["num_cached_tokens"]
    found: Document = {
        "cache_n": metrics["num_cached_tokens"],
        "prompt_n": new,
        "prompt_ms": 1e3 * prompt_s,
        "prompt_per_token_ms": 1e3 * prompt_s / max(1, new),
        "prompt_per_second": new / prompt_s if prompt_s else 0.0,
        "predicted_n": predicted,
        "predicted_ms": 1e3 * predicted_s,
        "predicted_per_token_ms": 1e3 * predicted_s / max(1, predicted - 1),
        "predicted_per_second": (predicted - 1) / predicted_s if predicted_s and predicted > 1 else 0.0,
    }
    speculation = metrics.get("speculative_decoding")
    if speculation:
        found["draft_n"] = speculation["num_draft_tokens"]
        found["draft_n_accepted"] = speculation["num_accepted_draft_tokens"]
        found["draft_n_verif_steps"] = speculation["num_spec_steps"]
    return found
