"""A server under load: throughput and latencies at several numbers of clients, with and without speculation in turn."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from sonoran.bench.stats import ratio, summarize
from sonoran.errors import ConfigError, SonoranError
from sonoran.llm import LLM
from sonoran.sampling.params import SamplingParams

PERCENTILES = (50, 90, 99)
VARIANTS: dict[str, dict[str, Any]] = {"speculative": {}, "ar": {"speculative": False}}


class LoadError(SonoranError):
    """A server under load answered with an error, or with nonsense."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where the server is, and who asks."""

    url: str
    model: str
    key: str | None = None


@dataclass(slots=True)
class Timed:
    """One streamed request: seconds from its beginning, and tokens at each chunk that had some."""

    arrivals: list[tuple[float, int]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    end_s: float = 0.0

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.arrivals[0][0]

    @property
    def gaps_s(self) -> list[float]:
        """Time between tokens; those that come together share the time since the last."""
        found = []
        for (before, _), (now, count) in itertools.pairwise(self.arrivals):
            found += [(now - before) / count] * count
        return found


async def _rest(reader: asyncio.StreamReader, most: int = 1 << 16) -> bytes:
    """Read until the other side closes, or has sent `most` bytes: an answer comes in as many parts as it likes."""
    parts = b""
    while len(parts) < most and (part := await reader.read(most - len(parts))):
        parts += part
    return parts


async def ask(target: Target, body: dict[str, Any]) -> Timed:
    """Send one request and time its stream. Raises LoadError."""
    parts = urlsplit(target.url)
    data = json.dumps({"model": target.model, "stream": True, "return_token_ids": True, **body}).encode()
    lines = [
        "POST /v1/completions HTTP/1.1",
        f"Host: {parts.netloc}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        "Connection: close",
        *([f"Authorization: Bearer {target.key}"] if target.key else []),
    ]
    begin, timed = time.perf_counter(), Timed()
    try:
        reader, writer = await asyncio.open_connection(
            parts.hostname,
            parts.port or (443 if parts.scheme == "https" else 80),
            ssl=parts.scheme == "https" or None,
        )
        try:
            writer.write("\r\n".join([*lines, "", ""]).encode() + data)
            status = (await reader.readline()).split()
            if len(status) < 2 or status[1] != b"200":
                rest = (await _rest(reader)).decode("utf-8", "replace")
                raise LoadError(
                    f"the server answered {b' '.join(status).decode('utf-8', 'replace')}: {rest[-500:]}"
                )
            while line := await reader.readline():
                if line.startswith(b"data: {"):
                    _take(timed, json.loads(line[6:]), time.perf_counter() - begin)
        finally:
            writer.close()
    except (OSError, ValueError) as error:
        raise LoadError(f"no answer from {target.url}: {error}") from error
    timed.end_s = time.perf_counter() - begin
    if not timed.arrivals:
        raise LoadError("a stream ended without a token")
    return timed


def _take(timed: Timed, chunk: dict[str, Any], now: float) -> None:
    if "error" in chunk:
        raise LoadError(f"a stream ended with {chunk['error']}")
    ids = [token for choice in chunk["choices"] for token in choice.get("token_ids", ())]
    if ids:
        timed.arrivals.append((now, len(ids)))
        timed.token_ids += ids


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked for: prompts (token ids or texts) in turn, and the parameters that all requests share."""

    prompts: Sequence[Any]
    params: dict[str, Any]
    requests: int  # per client and variant


async def drive(target: Target, load: Load, clients: int, variant: str) -> tuple[float, list[Timed]]:
    """Let so many clients ask, each one request after the other; return the seconds it took and all requests."""
    jobs = iter(range(clients * load.requests))
    done: dict[int, Timed] = {}

    async def client() -> None:
        for number in jobs:
            prompt = load.prompts[number % len(load.prompts)]
            done[number] = await ask(
                target, {**load.params, **VARIANTS[variant], "prompt": prompt, "seed": number}
            )

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return time.perf_counter() - begin, [done[number] for number in sorted(done)]


def measure_load(
    target: Target,
    load: Load,
    clients: Sequence[int],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Measure all numbers of clients, both variants in turn. Raises LoadError, ConfigError.

    Returns for each number and variant tokens per second, and seconds of time to first token, between tokens, and of
    whole requests at the 50th, 90th and 99th percentile; ``same_texts`` says whether both variants gave the same ids.
    """
    if not clients or min(clients) < 1:
        raise ConfigError(f"clients must be at least 1, got {list(clients)}")
    levels, total = [], len(clients) * len(VARIANTS)
    asyncio.run(drive(target, Load(load.prompts, load.params, 1), 1, "speculative"))  # warms up
    for level, count in enumerate(clients):
        found: dict[str, tuple[float, list[Timed]]] = {}
        order = list(VARIANTS) if level % 2 == 0 else list(VARIANTS)[::-1]
        for step, variant in enumerate(order):
            found[variant] = asyncio.run(drive(target, load, count, variant))
            progress(level * len(VARIANTS) + step + 1, total)
        results = {variant: _result(*found[variant]) for variant in VARIANTS}
        levels.append(
            {
                "clients": count,
                **results,
                "speedup": ratio(results["speculative"]["tokens_per_s"], results["ar"]["tokens_per_s"]),
                "same_texts": [t.token_ids for t in found["speculative"][1]]
                == [t.token_ids for t in found["ar"][1]],
            }
        )
    return {"levels": levels}


def _result(seconds: float, requests: Sequence[Timed]) -> dict[str, Any]:
    tokens = sum(len(timed.token_ids) for timed in requests)
    return {
        "requests": len(requests),
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
        "ttft_s": percentiles([timed.ttft_s for timed in requests]),
        "itl_s": percentiles([gap for timed in requests for gap in timed.gaps_s]),
        "e2e_s": percentiles([timed.end_s for timed in requests]),
    }


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return the percentiles (nearest rank) by name: p50, p90, p99; nothing for no values."""
    ordered = sorted(values)
    if not ordered:
        return {}
    return {
        f"p{p}": ordered[min(len(ordered) - 1, max(0, -(-p * len(ordered) // 100) - 1))] for p in PERCENTILES
    }


def measure_overhead(llm: LLM, target: Target, load: Load, repeats: int) -> dict[str, Any]:
    """Compare a server in this process with its engine, asked directly, one request at a time, in turn.

    Returns the medians of time to first token and of tokens per second after it, of both, and what HTTP adds.
    """
    found: dict[str, list[tuple[float, float]]] = {"direct": [], "http": []}
    for prompt in load.prompts:  # both ways find it in the prefix cache then
        _ask_directly(llm, prompt, {"max_tokens": 1})
    for number in range(repeats + 1):
        prompt = load.prompts[number % len(load.prompts)]
        body = {**load.params, "seed": number}
        for way in ("direct", "http") if number % 2 else ("http", "direct"):
            if way == "http":
                timed = asyncio.run(ask(target, {**body, "prompt": prompt}))
            else:
                timed = _ask_directly(llm, prompt, body)
            tokens = sum(count for _, count in timed.arrivals[1:])
            rate = tokens / max(1e-9, timed.arrivals[-1][0] - timed.ttft_s)
            if number:  # the first warms up
                found[way].append((timed.ttft_s, rate))
    ttft = {way: summarize([pair[0] for pair in pairs]).median for way, pairs in found.items()}
    speed = {way: summarize([pair[1] for pair in pairs]).median for way, pairs in found.items()}
    ratios = [http[1] / direct[1] for http, direct in zip(found["http"], found["direct"], strict=True)]
    return {
        "repeats": repeats,
        "ttft_s": ttft,
        "tokens_per_s": speed,
        "added_ttft_s": ttft["http"] - ttft["direct"],
        "speed_ratio": summarize(ratios).median,
    }


def _ask_directly(llm: LLM, prompt: Any, body: dict[str, Any]) -> Timed:
    timed, begin = Timed(), time.perf_counter()
    for delta in llm.deltas(prompt, SamplingParams(**body)):
        ids = [token for sample in delta.samples for token in sample.token_ids]
        if ids:
            timed.arrivals.append((time.perf_counter() - begin, len(ids)))
            timed.token_ids += ids
    timed.end_s = time.perf_counter() - begin
    return timed
