"""Batches that live: prompts in parts, little KV memory, shared beginnings, aborts, stops, many requests at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.vllm.engine.helpers import engine, generate, make_pair, prompts, speculating, speculation

pytestmark = pytest.mark.vllm

TIGHT = {
    "max_num_batched_tokens": 96,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
    "num_gpu_blocks_override": 24,
    "block_size": 32,
}
COMMON = prompts(1, seed=5, low=40, high=41)[0]
MANY = [COMMON + prompt for prompt in prompts(62, seed=6, low=3, high=60)] + prompts(
    2, seed=7, low=150, high=180
)


def test_sixty_four_requests_in_little_memory_with_aborts_and_stops(tmp_path: Path) -> None:
    target, draft = make_pair(tmp_path, "qwen2")
    with engine(target, max_num_seqs=64) as plain:
        expected = [texts[0] for texts in generate(plain, MANY)]
    stops = [tokens[20] for tokens in expected]
    with engine(target, **TIGHT, **speculation(draft, least_chance=0.3)) as llm:
        preempted = count_preemptions(llm)
        found = run(llm, stops, aborted={3, 17, 40, 63})
        guest = speculating(llm).guest
        for index, tokens in found.items():
            whole = expected[index][: expected[index].index(stops[index]) + 1]
            assert tokens == whole[: len(tokens)] if index in (3, 17, 40, 63) else tokens == whole, index
        assert preempted(), "memory was not short enough for this test to mean anything"
        assert guest.stats.speculation.num_accepted_draft_tokens > 50
        assert guest.drafter.faults.unknown_sequences == guest.drafter.faults.garbage_answers == 0
        assert len(guest._rows) <= 64 + 16 * 64
        again = generate(llm, MANY[:4])
        assert [texts[0] for texts in again] == expected[:4]
        assert len(guest._rows) <= 4 + 4, "what has ended is forgotten"


def run(llm: Any, stops: list[int], aborted: set[int]) -> dict[int, list[int]]:
    """Run all requests; some are aborted after a while. Return the tokens of each so far."""
    from vllm import SamplingParams

    core = llm.llm_engine
    names = {}
    for index, prompt in enumerate(MANY):
        params = SamplingParams(
            temperature=0.0, max_tokens=48, ignore_eos=True, stop_token_ids=[stops[index]]
        )
        given = f"request-{index}"
        names[core.add_request(given, {"prompt_token_ids": prompt}, params) or given] = index
        names[given] = index
    found: dict[int, list[int]] = {}
    steps = 0
    while core.has_unfinished_requests():
        for output in core.step():
            found[names[output.request_id]] = list(output.outputs[0].token_ids)
        steps += 1
        if steps == 30:
            core.abort_request([f"request-{index}" for index in aborted])
    return found


def count_preemptions(llm: Any) -> Any:
    """Return what tells how many requests lost their memory from now on."""
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    original, seen = scheduler._preempt_request, []

    def counted(*arguments: Any, **named: Any) -> Any:
        seen.append(arguments)
        return original(*arguments, **named)

    scheduler._preempt_request = counted
    return lambda: len(seen)
