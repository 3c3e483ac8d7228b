"""The draft's round while the target verifies: trunk pass, outcome prediction, tree decode (SSD paper, section 4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from sonoran.drafting.cache import END
from sonoran.drafting.confidence import Beliefs, outcome_probabilities
from sonoran.drafting.layout import (
    Tree,
    TreePart,
    TrunkPart,
    build_tree,
    scratch_slots_needed,
    tree_rows,
    trunk_rows,
)
from sonoran.drafting.outcomes import predict_outcomes, rank_rows, score_rows
from sonoran.draftworker.context import Context
from sonoran.draftworker.sequences import DraftSequence
from sonoran.draftworker.spending import choose_fan_outs, listed
from sonoran.sampling.proposals import Law, PointLaw
from sonoran.types import FloatArray, Outcome

RANK_DEPTH = 16
"""Bonus candidates that are ranked per position, so that the statistics see more than the fan-out in force."""


def draft_round(context: Context, sequences: Iterable[DraftSequence]) -> Iterator[None]:
    """Fill the cache with replies to the likely outcomes of verifying what each sequence was sent.

    Yields after every forward pass; whoever stops there finds in the cache what was drafted so far.
    """
    batch = [s for s in sequences if context.reserve(s, len(s.sent))]
    if not batch:
        return
    for s, rows in zip(batch, _trunk_pass(context, batch), strict=True):
        _rank(context, s, rows)
    fan_outs = choose_fan_outs(context, batch)
    trees = [_open(context, s, fan_out) for s, fan_out in zip(batch, fan_outs, strict=True)]
    yield
    tree = build_tree(trees, context.block_size)
    paths = [[int(token)] for token in tree.first_tokens]
    alive = [1.0] * len(tree)
    for step in range(max(part.steps for part in trees)):
        active = tree.active(step)
        if not len(active):
            return
        tokens = np.array([paths[branch][-1] for branch in active], np.int32)
        logits = context.forward(tree_rows(tree, step, tokens), "tree step")
        _grow(context, batch, tree, step, paths, alive, logits)
        yield


def _trunk_pass(context: Context, batch: list[DraftSequence]) -> list[FloatArray]:
    """Run [bonus, s_1..s_K] of every sequence; K + 1 rows of logits each, which predict the outcome."""
    parts = []
    for s in batch:
        start = min(s.computed, len(s.tokens) - 1)
        parts.append(TrunkPart([*s.tokens[start:], *s.sent.tokens], start, len(s.sent) + 1, s.table.blocks))
    logits = context.forward(trunk_rows(parts, context.block_size), "trunk pass")
    for s in batch:
        s.computed, s.ahead, s.stale = len(s.tokens), len(s.sent), False
        context.model.kv.commit(s.table, s.tokens, s.computed)
    ends = np.cumsum([part.num_logits for part in parts])
    return np.split(logits[:, : context.width], ends[:-1])


def _rank(context: Context, s: DraftSequence, rows: FloatArray) -> None:
    """Rank the candidates for the bonus token at every k, and keep how much the draft believes in each."""
    sent = s.sent.tokens
    depths = [max(RANK_DEPTH, guesses) for guesses in listed(context, s)]
    about = (s.tokens, s.prompt_length, s.params, s.seed, context.eos_ids)
    s.ranked = rank_rows(s.rule, rows, sent, depths, *about)
    if context.settings.fan_out == "confidence":
        scores = score_rows(s.rule, rows, sent, s.ranked, *about)
        confident = outcome_probabilities(scores, "coupled" if s.params.greedy else s.rule)
        s.beliefs = Beliefs(confident, context.average(s.origin, [len(row) for row in confident]))


def _open(context: Context, s: DraftSequence, fan_out: list[int]) -> TreePart:
    """Guess outcomes of the verification of ``sent``, open the cache for them and make room for their branches."""
    s.fan_out, s.ended = fan_out, set()
    outcomes: list[Outcome] = predict_outcomes(s.ranked or [], s.sent.tokens, s.fan_out)
    pool = context.model.kv.pool
    needed = -(-scratch_slots_needed(len(outcomes), s.wanted) // context.block_size)
    if needed > pool.available:
        context.counters.without_memory += 1
        outcomes, needed = [], 0
    s.scratch = [pool.allocate() for _ in range(needed)]
    context.cache.open(s.id, len(s.tokens), outcomes)
    return TreePart(outcomes, len(s.tokens), s.wanted if outcomes else 0, s.table.blocks, s.scratch)


def _grow(
    context: Context,
    batch: list[DraftSequence],
    tree: Tree,
    step: int,
    paths: list[list[int]],
    alive: list[float],
    logits: FloatArray,
) -> None:
    """Draw one token for each active branch and put them into the cache; end branches that hardly hold any more."""
    active = {int(branch): row for branch, row in zip(tree.active(step), logits, strict=True)}
    drawn: list[list[int]] = [[] for _ in batch]
    laws: list[list[Law]] = [[] for _ in batch]
    for branch, index in enumerate(tree.sequences.tolist()):
        s, row = batch[index], active.get(branch)
        if row is None:
            drawn[index].append(END)
            laws[index].append(PointLaw())
            continue
        path = paths[branch]
        accepted = int(tree.positions[branch]) - len(s.tokens)
        before = [*s.sent.tokens[:accepted], *path]
        token, law = context.sample(s, row, before)
        path.append(token)
        drawn[index].append(token)
        laws[index].append(law if law is not None else PointLaw())
        if step + 1 < tree.steps[branch]:
            alive[branch] *= context.chance(s, row, token, law, len(s.tokens) + len(before))
        if alive[branch] < context.settings.least_chance:
            tree.steps[branch] = step + 1
            s.ended.add(Outcome(accepted, path[0]))
    for s, tokens, their_laws in zip(batch, drawn, laws, strict=True):
        if any(token != END for token in tokens):
            context.cache.append(s.id, len(s.tokens), tokens, their_laws if s.rule == "rejection" else [])
