"""What vLLM says with a proposer is what it says without: greedy token for token, sampled in distribution."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.vllm.engine.helpers import engine, generate, make_pair, prompts, speculating, speculation

pytestmark = pytest.mark.vllm

PROMPTS = prompts(12)
LENGTH = 5  # of sampled texts


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_pair(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def plain(pair: tuple[Path, Path]) -> dict[str, Any]:
    """What the target says alone."""
    with engine(pair[0]) as llm:
        return {"greedy": generate(llm, PROMPTS), "sampled-0": sample(llm, 0), "sampled-2": sample(llm, 2)}


@pytest.fixture(scope="module")
def llm(pair: tuple[Path, Path], plain: object) -> Iterator[Any]:
    with engine(pair[0], **speculation(pair[1])) as llm:
        yield llm


def test_greedy_texts_are_the_same_and_the_cache_is_hit(llm: Any, plain: dict[str, Any]) -> None:
    assert generate(llm, PROMPTS) == plain["greedy"]
    found = speculating(llm).guest.stats
    assert found.cache.as_dict()["num_cache_hits"] > 0
    assert found.speculation.mean_acceptance_length > 1.2


def test_equal_prompts_are_interchangeable(llm: Any, plain: dict[str, Any]) -> None:
    assert generate(llm, [PROMPTS[0]] * 10) == [plain["greedy"][0]] * 10


@pytest.mark.parametrize("top_k", [0, 2])
def test_sampled_tokens_have_the_target_s_distribution(llm: Any, plain: dict[str, Any], top_k: int) -> None:
    """Tokens from the third on are drawn in the verification of a proposal; of two candidates, whole texts compare."""
    before = speculating(llm).guest.stats.speculation.num_accepted_draft_tokens
    ours = sample(llm, top_k)
    assert speculating(llm).guest.stats.speculation.num_accepted_draft_tokens > before + 50
    for length in range(1, LENGTH + 1):
        begin = 0 if top_k else length - 1
        same_distribution(
            *([tuple(t[begin:length]) for t in texts] for texts in (ours, plain[f"sampled-{top_k}"]))
        )


def sample(llm: Any, top_k: int) -> list[list[int]]:
    """Return 1000 short texts of one prompt."""
    found = generate(llm, [PROMPTS[0]] * 20, temperature=1.0, top_k=top_k, n=50, max_tokens=LENGTH)
    return [tokens for samples in found for tokens in samples]


def same_distribution(ours: Sequence[object], theirs: Sequence[object]) -> None:
    """Fail where two samples are unlikely to be of one distribution; what is rare counts together."""
    counted = Counter(ours), Counter(theirs)
    common = [value for value in {*ours, *theirs} if counted[0][value] + counted[1][value] >= 12]
    table = np.array(
        [[c[value] for value in common] + [c.total() - sum(c[v] for v in common)] for c in counted]
    )
    table = table[:, table.sum(axis=0) > 0]
    if table.shape[1] > 1:
        assert stats.chi2_contingency(table).pvalue > 1e-4


def test_a_worker_that_is_killed_is_replaced_and_no_text_changes(llm: Any, plain: dict[str, Any]) -> None:
    proposer = speculating(llm)
    with interrupted(proposer, {9: signal.SIGKILL}):
        assert generate(llm, PROMPTS) == plain["greedy"]
    assert proposer.guest.drafter.faults.rounds_without_worker > 0
    until_it_is_asked_again(llm, plain)
    assert proposer.guest.drafter.client.stats()["restarts"] >= 1


def test_a_worker_that_stands_still_costs_time_alone(llm: Any, plain: dict[str, Any]) -> None:
    proposer = speculating(llm)
    with interrupted(proposer, {7: signal.SIGSTOP}):
        try:
            assert generate(llm, PROMPTS) == plain["greedy"]
        finally:
            os.kill(proposer.guest.drafter.client.worker_pid, signal.SIGCONT)
    until_it_is_asked_again(llm, plain)


def until_it_is_asked_again(llm: Any, plain: dict[str, Any]) -> None:
    guest = speculating(llm).guest
    before = guest.stats.speculation.num_accepted_draft_tokens
    for _ in range(60):
        assert generate(llm, PROMPTS) == plain["greedy"]
        if guest.stats.speculation.num_accepted_draft_tokens > before:
            return
    raise AssertionError("the draft worker never came back")


class interrupted:  # noqa: N801
    """Send signals to the worker in certain steps."""

    def __init__(self, proposer: Any, signals: dict[int, signal.Signals]) -> None:
        self._guest, self._signals = proposer.guest, signals

    def __enter__(self) -> None:
        step, calls = self._guest.step, 0

        def counted(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls in self._signals:
                os.kill(self._guest.drafter.client.worker_pid, self._signals[calls])
            return step(*arguments)

        self._guest.step = counted

    def __exit__(self, *_: object) -> None:
        del self._guest.step
