"""Whole rounds of two sequences on a toy model: prediction, layout, cache and statistics fit together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sonoran.backends.base import Rows
from sonoran.config import Verification
from sonoran.engine.drafter import DraftRequest
from sonoran.sampling.drafts import draft_sample
from sonoran.sampling.params import SamplingParams
from sonoran.sampling.proposals import Speculation
from sonoran.ssd.outcomes import bonus_rank, rank_rows
from sonoran.ssd.sequence import DraftSequence
from sonoran.types import Outcome
from tests.engine.helpers import alone, engine, run, texts
from tests.toy_backend import ToyBackend
from tests.toy_tokenizer import ToyTokenizer
from tests.worker.local import LocalDrafter, toy_model

BLOCK, VOCAB, BUDGET, K = 4, 64, 6, 3
EOS = ToyTokenizer().eos_ids


def logits_after(tokens: Sequence[int], wanted: int) -> np.ndarray:
    """The draft's logits of the last ``wanted`` positions, from scratch and without branches."""
    n, model = len(tokens), ToyBackend(vocab_size=VOCAB, block_size=BLOCK, salt=1, noise=0.8)
    table = np.arange(model.num_blocks, dtype=np.int32)[None, ::-1]
    wants = (np.arange(n) >= n - wanted).astype(np.int32)
    return model.forward(Rows.trunk(list(tokens), np.arange(n), np.zeros(n, np.int32), table, BLOCK, wants))


def from_scratch(request: DraftRequest, count: int) -> Speculation:
    """What the draft proposes when it reads the whole text and drafts token by token."""
    text, distributions = list(request.tokens), []
    for _ in range(count):
        row, params = logits_after(text, 1)[0], request.params
        token, q = draft_sample(
            params.verification, row, text, request.prompt_length, params, request.seed, len(text), EOS
        )
        text.append(token)
        distributions.append(q)
    drafted = tuple(text[len(request.tokens) :])
    return Speculation(drafted, tuple(distributions) if request.params.verification == "rejection" else ())


class Checked(LocalDrafter):
    """Compares all that the worker says and guesses with the same computed from scratch."""

    def sequence(self, request: DraftRequest) -> DraftSequence:
        return self.worker.session.speculator._sequences[request.sequence_id]

    def propose(self, requests: Sequence[DraftRequest]) -> list[Speculation]:
        hits = [self.is_guessed(request) for request in requests]
        found = super().propose(requests)
        assert self.last_round is not None
        for request, hit, speculation in zip(requests, hits, found, strict=True):
            # What was ranked high enough is what the cache has.
            assert (self.last_round.answers[request.sequence_id].origin == "primary") == hit
            self.check_speculation(request, speculation)
            self.check_guesses(request, speculation)
        return found

    def is_guessed(self, request: DraftRequest) -> bool:
        """Whether the outcome is among those that the fan-out in force covers."""
        s = self.sequence(request)
        # Nothing was sent before the first token, which is the bonus token of an empty speculation.
        outcome = request.outcome or Outcome(0, request.tokens[-1])
        assert s.ranked is not None
        rank = bonus_rank(s.ranked, s.sent.tokens, outcome)
        return 1 <= rank <= s.fan_out[outcome.accepted]

    def check_speculation(self, request: DraftRequest, speculation: Speculation) -> None:
        """What was drafted beside the verification, or just in time, is what the draft would say now, down to q."""
        assert len(speculation) == request.wanted
        fresh = from_scratch(request, request.wanted)
        assert speculation.tokens == fresh.tokens
        for token, *both in zip(
            speculation.tokens, speculation.distributions, fresh.distributions, strict=False
        ):
            mine, other = (q.on(np.arange(VOCAB), token) for q in both)
            assert np.array_equal(mine, other)
        assert len(speculation.distributions) == len(fresh.distributions)

    def check_guesses(self, request: DraftRequest, speculation: Speculation) -> None:
        """The trunk pass has read [bonus, s_1..s_K] behind the text, as ranking its rows shows."""
        s, k, sent = self.sequence(request), len(speculation), list(speculation.tokens)
        rows = logits_after([*request.tokens, *sent], k + 1)
        about = (request.tokens, request.prompt_length, request.params, request.seed, EOS)
        assert s.ranked == rank_rows(s.rule, rows, sent, [16] * (k + 1), *about)
        assert sum(s.fan_out) == len(s.cache) == BUDGET


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_rounds(rule: Verification) -> None:
    model = toy_model(salt=1, noise=0.8)
    drafter = Checked(
        model, num_speculative_tokens=K, fan_out="measured", budget=BUDGET, backup="draft", least_chance=0.0
    )
    core = engine(ToyBackend(noise=0.8), drafter, k=K)
    jobs = [
        ([3, 1, 4], SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, verification=rule)),
        (
            [2, 7, 1, 8],
            SamplingParams(
                temperature=1.0,
                seed=12,
                max_tokens=60,
                ignore_eos=True,
                repetition_penalty=1.1,
                num_speculative_tokens=2,
                verification=rule,
            ),
        ),
    ]
    requests = run(core, *jobs)
    found = core.statistics()["speculative_decoding"]
    assert found["num_cache_hits"] >= 6
    assert found["num_cache_hits"] < found["num_cache_lookups"]
    assert sum(count > 0 for count in found["acceptance_histogram"]) >= 3
    counters = drafter.worker.session.speculator.stats()
    assert counters["hits"] == found["num_cache_hits"]
    assert counters["hits"] + counters["misses"] == found["num_cache_lookups"]
    if rule == "coupled":
        for job, request in zip(jobs, requests, strict=True):
            assert texts([request])[0] == alone(*job, target=ToyBackend(noise=0.8))
