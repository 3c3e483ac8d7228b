"""The promise over HTTP: a seed's text is the same in every mode, under any load, streamed or not, whatever dies."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest

from sonoran.llm import LLM
from tests.server.running import NAME, Running, running
from tests.server.test_load import raw, until

PROMPTS = [[40 + i, 50 + 2 * i, 60, 61 + i] * (1 + i % 4) for i in range(20)]
MODES: dict[str, dict[str, Any]] = {
    "ar": {},
    "sd": {"method": "sd", "num_speculative_tokens": 3, "least_chance": 0.0},
    "ssd": {"method": "ssd", "num_speculative_tokens": 3},
    "ngram": {"method": "ngram", "prompt_lookup_min": 1},
}


def engine_of(mode: str, pair: tuple[str, str]) -> LLM:
    target, draft = pair
    speculative = MODES[mode] and {**MODES[mode], **({"model": draft} if mode in ("sd", "ssd") else {})}
    return LLM(target, speculative_config=speculative or None, max_model_len=128, threads=1)


def body(number: int, temperature: float) -> dict[str, Any]:
    return {
        "prompt": PROMPTS[number],
        "temperature": temperature,
        "seed": number,
        "max_tokens": 24,
        "logprobs": 1,
        "return_token_ids": True,
    }


def answer(server: Running, number: int, temperature: float, stream: bool) -> tuple[Any, ...]:
    """Return everything of an answer that the seed decides."""
    if not stream:
        (choice,) = server.ask(**body(number, temperature))["choices"]
        return (
            choice["token_ids"],
            choice["text"],
            choice["logprobs"]["token_logprobs"],
            choice["finish_reason"],
            choice["stop_reason"],
        )
    parts = [c for chunk in server.stream(**body(number, temperature)) for c in chunk["choices"]]
    return (
        [token for part in parts for token in part["token_ids"]],
        "".join(part["text"] for part in parts),
        [value for part in parts for value in part["logprobs"]["token_logprobs"]],
        parts[-1]["finish_reason"],
        parts[-1]["stop_reason"],
    )


@pytest.fixture(scope="module")
def expected(pair: tuple[str, str]) -> Callable[[int, float], tuple[Any, ...]]:
    """Answers of AR, one after the other."""
    with engine_of("ar", pair) as llm, running(llm) as server:
        known = {(i, t): answer(server, i, t, False) for i in range(len(PROMPTS)) for t in (0.0, 1.0)}
    return cache(lambda number, temperature: known[number, temperature])


@pytest.mark.parametrize("mode", MODES)
def test_texts_are_the_same_in_every_mode_and_under_any_load(
    mode: str, pair: tuple[str, str], expected: Callable[[int, float], tuple[Any, ...]]
) -> None:
    jobs = [(i, t, stream) for i in range(len(PROMPTS)) for t in (0.0, 1.0) for stream in (False, True)]
    with engine_of(mode, pair) as llm:
        with running(llm) as server:
            for concurrency in (1, 4, 16):
                with ThreadPoolExecutor(concurrency) as pool:
                    found = list(pool.map(lambda job: answer(server, *job), jobs))
                assert found == [expected(i, t) for i, t, _ in jobs]
        llm.check_invariants()


def test_texts_are_the_same_when_the_worker_dies_and_half_the_clients_leave(
    pair: tuple[str, str], expected: Callable[[int, float], tuple[Any, ...]]
) -> None:
    jobs = [(i, t, stream) for i in range(len(PROMPTS)) for t in (0.0, 1.0) for stream in (False, True)]
    with engine_of("ssd", pair) as llm:
        ending = threading.Event()

        def kill() -> None:
            time.sleep(0.1)
            drafter: Any = llm._runner.core.drafter
            pid = drafter.client.worker_pid
            if pid is not None:
                os.kill(pid, signal.SIGKILL)

        def leave(server: Running) -> None:
            number = 0
            while not ending.is_set():
                number += 1
                connection = raw(
                    server,
                    {"model": NAME, **body(number % 20, 1.0), "stream": bool(number % 2), "max_tokens": 90},
                )
                time.sleep(0.005 * (number % 5))
                connection.close()

        with running(llm, max_queue=256) as server:
            others = [threading.Thread(target=kill), threading.Thread(target=leave, args=(server,))]
            for other in others:
                other.start()
            with ThreadPoolExecutor(8) as pool:
                found = list(pool.map(lambda job: answer(server, *job), jobs))
            ending.set()
            for other in others:
                other.join()
            assert found == [expected(i, t) for i, t, _ in jobs]
            until(lambda: server.call("/v1/status")[1]["requests"] == [])
            until(lambda: llm.snapshot()["num_running"] == 0)
        llm.check_invariants()
