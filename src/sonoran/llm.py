"""`LLM`: the Python interface, with vLLM's names."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import queue
import time
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from sonoran.assemble import build_engine
from sonoran.auto import build_auto
from sonoran.config import EngineConfig, SpeculativeConfig, from_keywords, speculation_of
from sonoran.engine.core import EngineCore
from sonoran.engine.runner import EngineClosedError, EngineThread, ReaderGoneError
from sonoran.engine.sequence import Request
from sonoran.engine.trace import MAX_SPANS, Span
from sonoran.errors import ConfigError, SonoranError, shown
from sonoran.models.download import PullEvent
from sonoran.models.opening import Reporting
from sonoran.models.registry import DEFAULT_TARGET
from sonoran.models.tokenizer.tokenizer import Tokenizer
from sonoran.sampling.params import SamplingParams
from sonoran.types import RequestDelta, RequestOutput, RoundEvent

log = logging.getLogger(__name__)

T = TypeVar("T")

Prompt = str | Sequence[int]
"""A text, which is encoded with the model's special tokens, or token ids, which are taken as they are."""

Message = Mapping[str, Any]
Conversation = str | Sequence[Message]
"""Messages with ``role`` and ``content``, or a text, which is the one message of a user."""

Progress = Callable[[str, float], None]
"""Called while models are fetched and loaded: what is done, and the share of it that is done, 0 to 1."""

Params = SamplingParams | Sequence[SamplingParams] | None


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return a list of prompts from one text, one list of token ids, or a list of either.

    Token ids may be NumPy's, and lists of them arrays. Raises ConfigError for anything else.
    """
    given: object = prompts.tolist() if isinstance(prompts, np.ndarray) else prompts
    if isinstance(given, str):
        return [given]
    if isinstance(given, bytes) or not isinstance(given, Sequence):
        raise ConfigError(f"a prompt must be a text or a list of token ids, got {shown(prompts)}")
    if given and not any(isinstance(item, str | Sequence | np.ndarray) for item in given):
        return [_token_ids(given)]
    return [item if isinstance(item, str) else _token_ids(item) for item in given]


def _token_ids(prompt: object) -> list[int]:
    if isinstance(prompt, np.ndarray):
        prompt = prompt.tolist()
    if isinstance(prompt, bytes) or not isinstance(prompt, Sequence):
        raise ConfigError(f"a prompt must be a text or a list of token ids, got {shown(prompt)}")
    for token in prompt:
        if isinstance(token, bool) or not isinstance(token, Integral):
            hint = "; give messages to chat() or stream()" if isinstance(token, Mapping) else ""
            raise ConfigError(
                f"a prompt must be a text or a list of token ids; {shown(token)} is no token id{hint}"
            )
    return [int(token) for token in prompt]


def as_conversations(messages: Conversation | Sequence[Conversation]) -> list[Sequence[Message]]:
    """Return a list of conversations from one (a text or a list of messages) or from several.

    Raises ConfigError for anything else.
    """
    if isinstance(messages, str):
        return [[{"role": "user", "content": messages}]]
    if not isinstance(messages, Sequence) or isinstance(messages, bytes):
        raise ConfigError(
            f"a conversation must be a text or a list of messages such as {{'role': 'user', 'content': ...}}, "
            f"got {shown(messages)}"
        )
    if not messages or isinstance(messages[0], Mapping):
        return [cast("Sequence[Message]", messages)]
    return [one for each in cast("Sequence[Conversation]", messages) for one in as_conversations(each)]


def is_conversation(prompt: object) -> bool:
    """Tell messages from token ids."""
    return isinstance(prompt, Sequence) and bool(prompt) and isinstance(prompt[0], Mapping)


def pair(prompts: Sequence[Prompt], params: Params) -> list[tuple[Prompt, SamplingParams]]:
    """Return each prompt with its parameters: the same for all, or one each."""
    if params is None or isinstance(params, SamplingParams):
        return [(prompt, params or SamplingParams()) for prompt in prompts]
    if isinstance(params, str) or not isinstance(params, Sequence):
        check_params(params)
    for one in params:
        check_params(one)
    if len(params) != len(prompts):
        raise ConfigError(
            f"{len(prompts)} prompts need as many sampling parameters (or one), got {len(params)}"
        )
    return list(zip(prompts, params, strict=True))


def check_params(params: object) -> None:
    """Raise ConfigError for sampling parameters that are none."""
    if params is not None and not isinstance(params, SamplingParams):
        hint = "; make them with SamplingParams.from_mapping" if isinstance(params, Mapping) else ""
        raise ConfigError(f"sampling_params must be SamplingParams, got {shown(params)}{hint}")


News = RequestOutput | SonoranError


class LLM:
    """A model, ready to generate; usable from several threads and from asyncio at once.

    ``LLM(model)`` decodes in the fastest exact mode: it speculates (method ``auto``) where a draft of the model's family
    is known and at hand. ``LLM(model, speculative_config={"method": "sd", "model": ..., "num_speculative_tokens": 4})``
    names a mode, ``speculative_config=False`` or ``{"method": "ar"}`` none.
    `model` is a name of the registry, ``org/repo[:quantisation]`` of the hub, a GGUF file or a model
    directory. Keyword options are the fields of
    ``EngineConfig``: max_model_len, max_num_seqs, max_num_batched_tokens, kv_cache_bytes or num_kv_blocks,
    block_size, threads, cores, quantize, seed, enable_prefix_caching. Interrupting any method (Ctrl-C, a
    cancelled task, a closed iterator) cancels its requests and leaves the engine usable.

    `progress` is called while models are fetched and loaded, with what is done and the share that is done; how long it
    took is logged at level INFO. `reporting` is the same in more detail.

    Raises ConfigError (naming the nearest key for an unknown one), ModelError, DownloadError,
    CompatibilityError.
    """

    def __init__(
        self,
        model: str | Path = DEFAULT_TARGET,
        *,
        speculative_config: Mapping[str, Any] | SpeculativeConfig | bool | None = None,
        progress: Progress | None = None,
        reporting: Reporting | None = None,
        **options: Any,
    ) -> None:
        begin = time.perf_counter()
        if not isinstance(model, str | Path) or not str(model):
            raise ConfigError(f"model must be a name, a file or a folder, got {shown(model)}")
        config = from_keywords(EngineConfig, "engine", options)
        speculative = speculation_of(speculative_config)
        if progress is not None:
            reporting = reporting_to(progress)
        if speculative is not None and speculative.method == "auto":
            core, tokenizer = build_auto(model, config, speculative, reporting)
        else:
            core, tokenizer = build_engine(model, config, speculative, reporting)
        self._attach(core, tokenizer)
        self.model = str(model)
        log.info("%s is ready after %.1f s", self, time.perf_counter() - begin)

    @classmethod
    def from_core(cls, core: EngineCore, tokenizer: Any) -> LLM:
        """Wrap an engine made by hand, say over another backend."""
        llm = cls.__new__(cls)
        llm._attach(core, tokenizer)
        return llm

    def __repr__(self) -> str:
        k = f", num_speculative_tokens={self.num_speculative_tokens}" if self.num_speculative_tokens else ""
        return f"LLM({self.model!r}, max_model_len={self.max_model_len}{k})"

    def _attach(self, core: EngineCore, tokenizer: Any) -> None:
        self.model = ""
        self.tokenizer = tokenizer
        if isinstance(tokenizer, Tokenizer):
            tokenizer.most_tokens = core.limits.max_model_len
        self._runner = EngineThread(core)
        self._names = itertools.count()
        self._finalizer = weakref.finalize(self, self._runner.close)

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and output together."""
        return self._runner.core.limits.max_model_len

    @property
    def max_num_seqs(self) -> int:
        """Sequences that are decoded at once."""
        return self._runner.core.scheduler.max_num_seqs

    @property
    def num_speculative_tokens(self) -> int:
        """K as configured; 0 without speculation."""
        return self._runner.core.num_speculative_tokens

    @property
    def longest_speculation(self) -> int:
        """Most tokens of a speculation: K, or more where copies may be longer than drafts."""
        return self._runner.core.longest_speculation

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None
    ) -> list[RequestOutput]:
        """Generate for all prompts at once and return the results in their order.

        Nothing is started unless every request is valid. Raises ConfigError, CapacityError, NumericsError.
        """
        pairs = pair(as_prompts(prompts), sampling_params)
        return self._run([self._prepare(prompt, params) for prompt, params in pairs])

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Generate the next message of one conversation or of several, under the model's chat template.

        A text is the one message of a user. Raises ConfigError, also when the model has no chat template.
        """
        prompts: list[Prompt] = [
            self.tokenizer.encode_chat(
                conversation,
                tools,
                add_generation_prompt=add_generation_prompt,
                template_kwargs=chat_template_kwargs,
            )
            for conversation in as_conversations(messages)
        ]
        pairs = pair(prompts, sampling_params)
        return self._run([self._prepare(prompt, params) for prompt, params in pairs])

    def stream(
        self, prompt: Prompt | Sequence[Message], sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Yield everything generated so far after each round; the last value is finished and has metrics.

        Messages are put under the model's chat template, as in `chat`. The request starts when the first value is asked
        for; closing the iterator cancels it.
        """
        request = self._prepare(prompt, sampling_params)
        news: queue.SimpleQueue[News] = queue.SimpleQueue()
        ended = False
        try:
            self._runner.submit(request, news.put, streaming=True)
            while not ended:
                item = news.get()
                ended = isinstance(item, SonoranError) or item.finished
                yield _unwrap(item)
        finally:
            if not ended:
                self._stop([request])

    async def generate_async(
        self,
        prompt: Prompt | Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Like `stream`, for asyncio. Cancelling the task or closing the iterator cancels the request."""
        request = self._prepare(prompt, sampling_params, request_id)
        news: asyncio.Queue[News] = asyncio.Queue()
        ended = False
        try:
            self._runner.submit(request, _into(news), streaming=True)
            while not ended:
                item = await news.get()
                # A slow reader wants the latest state, not every one in between.
                while not news.empty():
                    item = news.get_nowait()
                ended = isinstance(item, SonoranError) or item.finished
                yield _unwrap(item)
        finally:
            if not ended:
                with contextlib.suppress(EngineClosedError):
                    self._runner.cancel(request.request_id)

    def deltas(
        self, prompt: Prompt | Sequence[Message], sampling_params: SamplingParams | None = None
    ) -> Generator[RequestDelta, None, None]:
        """Like `stream`, but yield what each round added, and where its tokens came from (``SampleRound.origins``)."""
        request = self._prepare(prompt, sampling_params)
        news: queue.SimpleQueue[RequestDelta | SonoranError] = queue.SimpleQueue()
        ended = False
        try:
            self._runner.submit_deltas(request, news.put)
            while not ended:
                item = news.get()
                ended = isinstance(item, SonoranError) or item.finished
                if isinstance(item, SonoranError):
                    raise item
                yield item
        finally:
            if not ended:
                self._stop([request])

    def prepare(
        self,
        prompt: Prompt | Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
    ) -> Request:
        """Check a request and make it, without starting it: for `deltas_async`. May be called from any thread.

        Raises ConfigError, CapacityError when it can never fit.
        """
        return self._prepare(prompt, sampling_params, request_id)

    async def deltas_async(self, request: Request) -> AsyncIterator[RequestDelta]:
        """Like `deltas`, for asyncio and a request that `prepare` made.

        Cancelling the task or closing the iterator cancels the request. What a slow reader has not read yet is kept,
        which is never more than the request generates.
        """
        news: asyncio.Queue[RequestDelta | SonoranError] = asyncio.Queue()
        ended = False
        try:
            self._runner.submit_deltas(request, _into(news))
            while not ended:
                item = await news.get()
                ended = isinstance(item, SonoranError) or item.finished
                if isinstance(item, SonoranError):
                    raise item
                yield item
        finally:
            if not ended:
                with contextlib.suppress(EngineClosedError):
                    self._runner.cancel(request.request_id)

    def observe(self, observer: Callable[[RoundEvent], None]) -> Callable[[], None]:
        """Call a function in the engine's thread after every round from now on; return what ends that.

        It must be quick, as the next round waits for it; one that raises is not called again.
        """
        return self._runner.observe(observer)

    def cancel(self, request_id: str) -> None:
        """End a request at the next safe point, from any thread; its reader gets reason "cancelled"."""
        self._runner.cancel(request_id)

    def statistics(self) -> dict[str, Any]:
        """Return totals since the model was loaded: tokens, rounds, times in seconds, speculation."""
        return self._runner.call(self._runner.core.statistics)

    def snapshot(self) -> dict[str, Any]:
        """Return what `statistics` does, less the draft worker's own counters, without waiting for a round to end."""
        while True:
            try:
                return self._runner.core.statistics(ask_worker=False)
            except RuntimeError:  # a dictionary has grown meanwhile
                continue

    def start_trace(self, limit: int = MAX_SPANS) -> None:
        """Record what target and draft worker do from now on: the newest `limit` spans of each."""
        self._runner.call(lambda: self._runner.core.start_trace(limit))

    def end_trace(self) -> dict[str, list[Span]]:
        """Stop recording; return the spans of ``target`` and, with a draft worker, of ``draft worker``."""
        return self._runner.call(self._runner.core.end_trace)

    def check_invariants(self) -> None:
        """Raise RuntimeError when KV memory is lost or held by nobody."""
        self._runner.call(self._runner.core.check_invariants)

    def close(self) -> None:
        """Cancel what runs and free the models; calling twice is harmless."""
        self._finalizer()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, requests: list[Request]) -> list[RequestOutput]:
        news: queue.SimpleQueue[News] = queue.SimpleQueue()
        done: dict[str, RequestOutput] = {}
        try:
            for request in requests:
                self._runner.submit(request, news.put, streaming=False)
            while len(done) < len(requests):
                output = _unwrap(news.get())
                done[output.request_id] = output
        except BaseException:
            self._stop(requests)
            raise
        return [done[request.request_id] for request in requests]

    def _stop(self, requests: list[Request]) -> None:
        """Cancel requests and wait until the engine has let go of them; nothing to do once it is closed."""
        with contextlib.suppress(EngineClosedError):
            for request in requests:
                self._runner.cancel(request.request_id)
            # Commands are obeyed in order. An interruption may have swallowed news, so these are not waited
            # for.
            self._runner.call(lambda: None)

    def _prepare(
        self,
        prompt: Prompt | Sequence[Message],
        params: SamplingParams | None,
        request_id: str | None = None,
    ) -> Request:
        check_params(params)
        name = f"request-{next(self._names)}" if request_id is None else request_id
        text = prompt if isinstance(prompt, str) else None
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt)
        elif is_conversation(prompt):
            ids = self.tokenizer.encode_chat(prompt)
        else:
            ids = _token_ids(prompt)
        return self._runner.core.prepare(name, ids, params or SamplingParams(), text)


def reporting_to(progress: Progress) -> Reporting:
    """Return where loading is reported so that a simple callback hears of it."""

    def pull(event: PullEvent) -> None:
        if event.source != "cache" and event.total:
            progress(f"fetching {event.model}", event.done / event.total)

    def load(name: str, done: int, total: int) -> None:
        progress(f"loading {name}", done / max(1, total))

    return Reporting(pull, load)


def _into(news: asyncio.Queue[T]) -> Callable[[T], None]:
    """Return a listener for the engine's thread that hands items to a reader in the running loop."""
    loop = asyncio.get_running_loop()

    def listen(item: T) -> None:
        try:
            loop.call_soon_threadsafe(news.put_nowait, item)
        except RuntimeError:
            if loop.is_closed():
                raise ReaderGoneError from None
            raise

    return listen


def _unwrap(item: News) -> RequestOutput:
    if isinstance(item, SonoranError):
        raise item
    return item
