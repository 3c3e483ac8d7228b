"""Whole rounds of two sequences on a toy model: prediction, layout, cache and statistics fit together."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from sonoran.backends.base import Rows
from sonoran.backends.rows import TrunkPart, trunk_rows
from sonoran.sampling.drafts import draft_sample
from sonoran.sampling.params import SamplingParams, VerificationRule
from sonoran.sampling.proposals import Speculation
from sonoran.sampling.verification import verify
from sonoran.ssd.cache import SpeculationCache
from sonoran.ssd.fan_out import FanOutPolicy
from sonoran.ssd.outcomes import bonus_rank, predict_outcomes, rank_rows
from sonoran.ssd.statistics import OutcomeStatistics
from sonoran.ssd.tree import TreePart, build_tree, tree_rows
from sonoran.types import Origin, Outcome
from tests.toy_backend import ToyBackend

BLOCK, VOCAB, BUDGET = 4, 64, 6


@dataclass
class Sequence:
    context: list[int]
    prompt: int
    k: int
    params: SamplingParams
    seed: int
    table: list[int]
    scratch: list[int]
    valid: int = 0  # draft positions whose keys and values are those of the context
    origin: Origin = "draft"
    speculation: Speculation = field(default_factory=Speculation)
    ranked: list[list[int]] = field(default_factory=list)
    fan_out: list[int] = field(default_factory=list)

    def sample(self, rule: VerificationRule, row: np.ndarray, extra: list[int]) -> tuple:
        prefix = self.context + extra
        return draft_sample(rule, row, prefix, self.prompt, self.params, self.seed, len(prefix))


def logits_after(salt: int, tokens: list[int], wanted: int) -> np.ndarray:
    """Logits of the last ``wanted`` positions, from scratch and without branches."""
    n, model = len(tokens), ToyBackend(vocab_size=VOCAB, block_size=BLOCK, salt=salt, noise=0.8)
    table = np.arange(model.num_blocks, dtype=np.int32)[None, ::-1]
    wants = (np.arange(n) >= n - wanted).astype(np.int32)
    return model.forward(Rows.trunk(tokens, np.arange(n), np.zeros(n, np.int32), table, BLOCK, wants))


def just_in_time(rule: VerificationRule, s: Sequence, extra: list[int]) -> Speculation:
    tokens, laws = [], []
    for _ in range(s.k):
        row = logits_after(1, s.context + extra + tokens, 1)[0]
        token, law = s.sample(rule, row, extra + tokens)
        tokens.append(token)
        laws.append(law)
    return Speculation(tuple(tokens), tuple(laws) if rule == "rejection" else ())


def draft_round(
    rule: VerificationRule,
    draft: ToyBackend,
    sequences: list[Sequence],
    cache: SpeculationCache,
    policy: FanOutPolicy,
) -> None:
    parts = [
        TrunkPart([*s.context[s.valid :], *s.speculation.tokens], s.valid, s.k + 1, s.table)
        for s in sequences
    ]
    logits = np.split(draft.forward(trunk_rows(parts, BLOCK)), np.cumsum([p.num_logits for p in parts])[:-1])
    trees = []
    for i, (s, rows) in enumerate(zip(sequences, logits, strict=True)):
        sent, n = list(s.speculation.tokens), len(s.context)
        assert np.array_equal(rows, logits_after(1, s.context + sent, s.k + 1))
        s.ranked = rank_rows(rule, rows, sent, [16] * (s.k + 1), s.context, s.prompt, s.params, s.seed)
        s.fan_out = policy.list_for(s.origin, s.k)
        outcomes = predict_outcomes(s.ranked, sent, s.fan_out)
        cache.open(i, n, outcomes)
        trees.append(TreePart(outcomes, n, s.k, s.table, s.scratch))
    tree = build_tree(trees, BLOCK)
    path = [[int(t)] for t in tree.first_tokens]
    for step in range(max(s.k for s in sequences)):
        active = tree.active(step)
        rows = draft.forward(tree_rows(tree, step, np.array([path[b][-1] for b in active], np.int32)))
        laws = {}
        for b, row in zip(active, rows, strict=True):
            s = sequences[tree.sequences[b]]
            accepted = int(tree.positions[b]) - len(s.context)
            token, laws[b] = s.sample(rule, row, [*s.speculation.tokens[:accepted], *path[b]])
            path[b].append(token)
        for i, s in enumerate(sequences):
            mine = [b for b in active if tree.sequences[b] == i]
            if mine:
                drawn = [laws[b] for b in mine] if rule == "rejection" else []
                assert cache.append(i, len(s.context), [path[b][-1] for b in mine], drawn)


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_rounds(rule: VerificationRule) -> None:
    draft = ToyBackend(vocab_size=VOCAB, block_size=BLOCK, num_blocks=64, salt=1, noise=0.8)
    sequences = [
        Sequence([3, 1, 4], 3, 3, SamplingParams(temperature=0.0), 11, list(range(16)), list(range(32, 38))),
        Sequence([2, 7, 1, 8], 4, 2, SamplingParams(temperature=1.0, repetition_penalty=1.1), 12,
                 list(range(16, 32)), list(range(38, 43))),
    ]  # fmt: skip
    statistics, cache = OutcomeStatistics(), SpeculationCache()
    policy = FanOutPolicy(statistics, "measured", BUDGET)
    for s in sequences:
        s.speculation = just_in_time(rule, s, [])
    hits, lengths = 0, set()
    for _ in range(12):
        draft_round(rule, draft, sequences, cache, policy)
        for i, s in enumerate(sequences):
            n, sent = len(s.context), list(s.speculation.tokens)
            target = logits_after(0, s.context + sent, s.k + 1)
            verified = verify(rule, target, s.context, s.prompt, s.speculation, s.params, s.seed, ())
            outcome = Outcome(verified.accepted, verified.bonus)
            found = cache.take(i, n, outcome)
            rank = bonus_rank(s.ranked, sent, outcome)
            # Statistics and cache agree on what a hit is.
            assert (found is not None) == (1 <= rank <= s.fan_out[outcome.accepted])
            statistics.observe(s.origin, s.k, outcome, rank, hit=found is not None)
            fresh = just_in_time(rule, s, verified.tokens)
            if found is not None:
                # What was drafted beside the verification is what the draft would say now, law by law.
                assert found.tokens == fresh.tokens
                for both in zip(found.laws, fresh.laws, strict=True):
                    mine, other = (law.on(np.arange(VOCAB), found.tokens[0]) for law in both)
                    assert np.array_equal(mine, other)
            hits += found is not None
            lengths.add(outcome.accepted)
            s.context += verified.tokens
            s.valid = n + outcome.accepted
            s.origin, s.speculation = ("draft", fresh) if found is None else ("primary", found)
    assert hits >= 6
    assert len(lengths) >= 3
    if rule == "coupled":
        for s in sequences:
            alone = s.context[: s.prompt]
            while len(alone) < len(s.context):
                row = logits_after(0, alone, 1)
                alone += verify(rule, row, alone, s.prompt, Speculation(), s.params, s.seed, ()).tokens
            assert alone == s.context
