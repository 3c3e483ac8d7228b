"""Requests in progress: who may come in, who waits, who has to go, and what the engine did for whom."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sonoran.engine.runner import EngineClosedError
from sonoran.engine.sequence import Request
from sonoran.errors import SonoranError
from sonoran.llm import LLM, Prompt
from sonoran.server.config import ServerConfig
from sonoran.server.errors import ApiError, as_api_error, bad, busy, unavailable
from sonoran.server.metrics import Metrics
from sonoran.server.protocol import Job
from sonoran.server.tools import Format, format_of, grammar
from sonoran.types import RequestDelta, RoundEvent

T = TypeVar("T")

RECENT_ROUNDS = 4096
"""Rounds that spectators can look back on."""


@dataclass(slots=True, eq=False)
class Entry:
    """A request in progress. ``started`` is when the engine first worked on it, seconds on ``time.perf_counter``."""

    id: str
    job: Job
    key: str | None
    arrival: float = field(default_factory=time.perf_counter)
    started: float | None = None
    requests: list[Request] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    tool_format: Format | None = None
    news: asyncio.Queue[tuple[int, RequestDelta] | Exception] = field(default_factory=asyncio.Queue)

    @property
    def phase(self) -> str:
        """``queued``, ``prefill`` or ``decoding``."""
        if self.started is None:
            return "queued"
        return "decoding" if self.num_tokens else "prefill"


async def within(seconds: float, work: Awaitable[T]) -> T:
    """Return the result of some work; asyncio.TimeoutError when it takes longer, which cancels it.

    `asyncio.wait_for` of Python before 3.12 forgets a cancellation that meets the end of the work: a client that
    left would be served on.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,), timeout=max(0.0, seconds))
    finally:
        if not task.done():
            task.cancel()
    if task.cancelled() or not task.done():
        raise asyncio.TimeoutError
    return task.result()


class Service:
    """One engine for many clients. All methods belong to one event loop."""

    def __init__(self, llm: LLM, config: ServerConfig, facts: dict[str, Any] | None = None) -> None:
        """``facts`` about model and machine are shown to clients; ``fingerprint`` among them names the texts."""
        self.llm, self.config, self.facts = llm, config, dict(facts or {})
        self.fingerprint = str(self.facts.get("fingerprint", "sonoran"))
        self.created = int(time.time())
        self.entries: dict[str, Entry] = {}
        self.draining = False
        self.metrics = Metrics(llm, config.names[0])
        self.rounds: deque[tuple[int, RoundEvent]] = deque(maxlen=RECENT_ROUNDS)
        self.last_round = time.perf_counter()
        self._owners: dict[str, Entry] = {}  # by request of the engine
        self._count = 0
        self._format: Format | None = None
        self._stop_observing = llm.observe(self._on_round)

    def admit(self, job: Job, key: str | None, name: str | None) -> Entry:
        """Let a request in, or say why not. Raises ApiError."""
        if self.draining:
            raise unavailable("the server is shutting down", "shutting_down")
        if job.model not in self.config.names:
            raise ApiError(
                404,
                f"the model {job.model!r:.80} does not exist; there is {', '.join(self.config.names)}",
                "model_not_found",
                "model",
            )
        held = sum(entry.job.num_samples for entry in self.entries.values())
        room = self.llm.max_num_seqs + self.config.max_queue
        if held and held + job.num_samples > room:
            self.metrics.reject("queue_full")
            raise busy(
                f"{held} texts are being generated or wait, and at most {room} may",
                "queue_full",
                self.wait_s(),
            )
        given = job.request_id or name
        chosen = given if given and given not in self.entries else uuid.uuid4().hex
        entry = Entry(chosen, job, key)
        self.entries[chosen] = entry
        return entry

    def leave(self, entry: Entry) -> None:
        """Forget a request."""
        self.entries.pop(entry.id, None)
        for request in entry.requests:
            self._owners.pop(request.request_id, None)

    def wait_s(self) -> float:
        """Return what clients are told to wait: a guess that grows with the requests in progress."""
        return 1.0 + 0.5 * len(self.entries)

    async def prepare(self, entry: Entry) -> list[Request]:
        """Tokenise a request. Raises ApiError."""
        try:
            requests = await asyncio.to_thread(self._prepare, entry)
        except SonoranError as error:
            found = as_api_error(error)
            if found.param == "structured_outputs":
                found.param = entry.job.form_field
            raise found from None
        tokens = sum(len(request.prompt_token_ids) for request in requests)
        queued = sum(
            e.num_prompt_tokens for e in self.entries.values() if e.started is None and e is not entry
        )
        if queued and queued + tokens > self.config.max_queued_tokens:
            self.metrics.reject("queued_tokens")
            raise busy(
                f"prompts of {queued} tokens wait, and at most {self.config.max_queued_tokens} may",
                "queue_full",
                self.wait_s(),
            )
        entry.requests, entry.num_prompt_tokens = requests, tokens
        for request in requests:
            self._owners[request.request_id] = entry
        return requests

    def _prepare(self, entry: Entry) -> list[Request]:
        job, tokenizer, params = entry.job, self.llm.tokenizer, entry.job.params
        prompts: list[Prompt] = list(job.prompts)
        if job.tools is not None:
            entry.tool_format = self._tool_format()
            if job.tools.forced:
                form = grammar(entry.tool_format, job.tools.callable, job.tools.parallel)
                params = replace(params, structured_outputs=form)
        if job.messages is not None:
            prompts = [
                tokenizer.encode_chat(
                    job.messages,
                    job.tools.described if job.tools is not None else None,
                    add_generation_prompt=job.generation_prompt,
                    template_kwargs=job.template_kwargs,
                )
            ]
        elif not job.add_special_tokens:
            prompts = [
                tokenizer.encode(prompt, add_special_tokens=False) if isinstance(prompt, str) else prompt
                for prompt in prompts
            ]
        names = [entry.id] if len(prompts) == 1 else [f"{entry.id}-{i}" for i in range(len(prompts))]
        requests = []
        for name, prompt in zip(names, prompts, strict=True):
            if not isinstance(prompt, str) and not prompt:
                raise bad("the prompt is empty; give it at least one token", "prompt")
            requests.append(self.llm.prepare(prompt, params, request_id=name))
        return requests

    def _tool_format(self) -> Format:
        """Return how the model calls functions. Raises ApiError when it does not."""
        if self._format is None:
            self._format = format_of(self.llm.tokenizer)
        if self._format is None:
            raise bad(
                "the model's chat template has no place for tools, or writes calls in an unknown way; leave them out",
                "tools",
                "unsupported_parameter",
            )
        return self._format

    async def run(self, entry: Entry) -> AsyncIterator[tuple[int, RequestDelta]]:
        """Yield the news of a prepared request, with the number of the prompt; closing cancels it.

        Raises ApiError when it takes too long or the server ends.
        """
        tasks = [
            asyncio.create_task(self._read(i, request, entry)) for i, request in enumerate(entry.requests)
        ]
        left = len(tasks)
        try:
            while left:
                item = await self._next(entry)
                if isinstance(item, SonoranError):
                    raise as_api_error(item)
                if isinstance(item, Exception):
                    raise item
                index, delta = item
                entry.num_tokens += sum(len(sample.token_ids) for sample in delta.samples)
                left -= delta.finished
                if delta.finished:
                    self.metrics.finished(entry.job.params, delta)
                yield index, delta
        except ApiError as error:
            self.metrics.failed("error" if error.status == 500 else "abort", left)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            self.metrics.failed("abort", left)
            self.metrics.disconnected(entry.phase)
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, index: int, request: Request, entry: Entry) -> None:
        try:
            async with aclosing(self.llm.deltas_async(request)) as deltas:  # type: ignore[type-var]
                async for delta in deltas:
                    entry.news.put_nowait((index, delta))
        except SonoranError as error:
            entry.news.put_nowait(error)

    async def _next(self, entry: Entry) -> tuple[int, RequestDelta] | Exception:
        """Return the next news; an error when time is up."""
        config = self.config
        whole = min(config.request_timeout, entry.job.timeout_s or config.request_timeout)
        while True:
            limits = [entry.arrival + whole]
            if entry.started is None:
                limits.append(entry.arrival + config.queue_timeout)
            try:
                return await within(min(limits) - time.perf_counter(), entry.news.get())
            except asyncio.TimeoutError:
                waited = time.perf_counter() - entry.arrival
            if waited >= whole:
                text = f"not finished in {whole:g} s"
                return ApiError(408, text, "timeout", headers={"x-should-retry": "false"})
            if entry.started is None and waited >= config.queue_timeout:
                self.metrics.reject("queue_timeout")
                return busy(f"no place was free for {config.queue_timeout:g} s", "queue_full", self.wait_s())

    def cancel(self, name: str, key: str | None) -> bool:
        """End a request by its id, the client's own only; False when there is none."""
        bare = name.removeprefix("chatcmpl-").removeprefix("cmpl-").removeprefix("resp_")
        entry = self.entries.get(name) or self.entries.get(bare)
        if entry is None or entry.key != key:
            return False
        for request in entry.requests:
            self.llm.cancel(request.request_id)
        return True

    async def drain(self) -> None:
        """Take nothing in any more, wait for what runs, and end what takes too long."""
        self.draining = True
        end = time.perf_counter() + self.config.drain_timeout
        while self.entries and time.perf_counter() < end:
            await asyncio.sleep(0.02)
        for entry in self.entries.values():
            entry.news.put_nowait(unavailable("the server is shutting down", "shutting_down"))
        while self.entries and time.perf_counter() < end + 5.0:
            await asyncio.sleep(0.02)

    def close(self) -> None:
        """Stop listening to the engine."""
        try:
            self._stop_observing()
        except EngineClosedError:
            return

    @property
    def healthy(self) -> bool:
        """Whether the engine does what it is asked."""
        stuck = (
            any(e.requests for e in self.entries.values()) and time.perf_counter() - self.last_round > 60.0
        )
        return not stuck

    def status(self) -> dict[str, Any]:
        """Return what runs, and how the engine and what drafts for it are."""
        now = time.perf_counter()
        totals = self.llm.snapshot()
        return {
            **{key: value for key, value in self.facts.items() if key != "fingerprint"},
            "fingerprint": self.fingerprint,
            "names": list(self.config.names),
            "max_model_len": self.llm.max_model_len,
            "max_num_seqs": self.llm.max_num_seqs,
            "num_speculative_tokens": self.llm.num_speculative_tokens,
            "draining": self.draining,
            "requests": [
                {
                    "id": entry.id,
                    "kind": entry.job.kind,
                    "phase": entry.phase,
                    "stream": entry.job.stream,
                    "samples": entry.job.num_samples,
                    "prompt_tokens": entry.num_prompt_tokens,
                    "tokens": entry.num_tokens,
                    "seconds": now - entry.arrival,
                }
                for entry in self.entries.values()
            ],
            "engine": totals,
        }

    def _on_round(self, event: RoundEvent) -> None:
        """In the engine's thread."""
        self.last_round = event.end_s
        for sample in event.samples:
            owner = self._owners.get(sample.request_id)
            if owner is not None and owner.started is None:
                owner.started = event.begin_s
        self._count += 1
        self.rounds.append((self._count, event))
        self.metrics.round(event)

    def rounds_after(self, number: int) -> list[tuple[int, RoundEvent]]:
        """Return the rounds after one, as far as they are kept."""
        while True:
            try:
                newer = []
                for item in reversed(self.rounds):
                    if item[0] <= number:
                        break
                    newer.append(item)
                return newer[::-1]
            except RuntimeError:  # one was added meanwhile
                continue
