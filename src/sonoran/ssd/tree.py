"""The draft's round while the target verifies: trunk pass, outcome prediction, tree decode (SSD paper, section 4).

With n tokens known, the bonus token included, the trunk pass runs [bonus, s_1..s_K] at positions n - 1 .. n
- 1 + K, in the sequence's own blocks. A branch that guesses "exactly j accepted" sits at position n + j + s
in tree step s; its keys and values go to scratch slots, because several branches share a position. It sees
the trunk up to s_j, that is n + j positions, and then its own slots of steps 0..s, so no mask is needed and
the cost of a branch does not grow with the context.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sonoran.backends.base import Rows
from sonoran.backends.rows import TrunkPart, join_arrays, pad_tables, trunk_rows
from sonoran.errors import ConfigError
from sonoran.sampling.proposals import PointMass, ProposalDistribution
from sonoran.ssd.budget import average_budget, choose_fan_outs
from sonoran.ssd.cache import END
from sonoran.ssd.context import Context
from sonoran.ssd.outcomes import (
    OutcomePrediction,
    outcome_probabilities,
    predict_outcomes,
    rank_rows,
    score_rows,
)
from sonoran.ssd.sequence import DraftSequence
from sonoran.types import FloatArray, IntArray, Outcome

RANK_DEPTH = 16
"""Bonus candidates that are ranked per position, so that the statistics see more than the fan-out in force."""


def draft_round(context: Context, sequences: Iterable[DraftSequence]) -> Iterator[None]:
    """Fill each sequence's cache with replies to the likely outcomes of verifying what it was sent.

    Yields after every forward pass; whoever stops there finds in the cache what was drafted so far.
    """
    batch = [s for s in sequences if context.reserve(s, len(s.sent))]
    if not batch:
        return
    trunk, budget = _trunk_pass(context, batch), average_budget(context)
    for s, rows in zip(batch, trunk, strict=True):
        _rank(context, s, rows, budget)
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


def _rank(context: Context, s: DraftSequence, rows: FloatArray, budget: int) -> None:
    """Rank the candidates for the bonus token at every k, and predict how likely each of them is."""
    sent = s.sent.tokens
    depths = [max(RANK_DEPTH, guesses) for guesses in context.fan_out.list_for(s.origin, len(sent), budget)]
    about = (s.tokens, s.prompt_length, s.params, s.seed, context.eos_ids)
    s.ranked = rank_rows(s.rule, rows, sent, depths, *about)
    if context.settings.fan_out == "confidence":
        scores = score_rows(s.rule, rows, sent, s.ranked, *about)
        confident = outcome_probabilities(scores, "coupled" if s.params.greedy else s.rule)
        average = context.average(s.origin, [len(row) for row in confident])
        s.prediction = OutcomePrediction(confident, average)


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
    s.cache.open(outcomes)
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
    distributions: list[list[ProposalDistribution]] = [[] for _ in batch]
    for branch, index in enumerate(tree.sequences.tolist()):
        s, row = batch[index], active.get(branch)
        if row is None:
            drawn[index].append(END)
            distributions[index].append(PointMass())
            continue
        path = paths[branch]
        accepted = int(tree.positions[branch]) - len(s.tokens)
        before = [*s.sent.tokens[:accepted], *path]
        token, q = context.sample(s, row, before)
        path.append(token)
        drawn[index].append(token)
        distributions[index].append(q if q is not None else PointMass())
        if step + 1 < tree.steps[branch]:
            alive[branch] *= context.chance(s, row, token, q, len(s.tokens) + len(before))
        if alive[branch] < context.settings.least_chance:
            tree.steps[branch] = step + 1
            s.ended.add(Outcome(accepted, path[0]))
    for s, tokens, their_distributions in zip(batch, drawn, distributions, strict=True):
        if any(token != END for token in tokens):
            s.cache.append(tokens, their_distributions if s.rule == "rejection" else [])


@dataclass(frozen=True, slots=True)
class TreePart:
    """One sequence's branches: the guesses about the verification of its speculation, and where they live."""

    outcomes: Sequence[Outcome]
    num_tokens: int  # n: known tokens, the last bonus token included, the speculation not
    steps: int  # tokens to draft per branch
    block_table: Sequence[int]
    scratch_blocks: Sequence[int]  # their slots are the caller's, and free for this round


@dataclass(frozen=True, slots=True)
class Tree:
    """All branches of all sequences, in the order of the parts; built once per round."""

    first_tokens: IntArray  # [N] the guessed bonus tokens, which step 0 reads
    positions: IntArray  # [N] position at step 0
    trunk_lengths: IntArray  # [N]
    sequences: IntArray  # [N] index of the part
    steps: IntArray  # [N] steps of the branch
    slots: IntArray  # [max steps, N], -1 where a branch has ended
    block_tables: IntArray

    def __len__(self) -> int:
        return int(self.first_tokens.shape[0])

    def active(self, step: int) -> IntArray:
        """Return the indices of the branches that run in ``step``."""
        return np.flatnonzero(self.steps > step).astype(np.int32)


def scratch_slots_needed(num_branches: int, steps: int) -> int:
    """Return the scratch slots of one sequence's branches: one for each branch and step."""
    return num_branches * steps


def build_tree(parts: Sequence[TreePart], block_size: int) -> Tree:
    """Lay out the branches of many sequences; slot ``step * branches + branch`` of a part's scratch blocks.

    Raises ConfigError when the scratch blocks are too few, with the numbers.
    """
    depth = max((p.steps for p in parts), default=0)
    tokens, positions, trunks, sequences, steps, slots = [], [], [], [], [], []
    for i, part in enumerate(parts):
        count = len(part.outcomes)
        accepted = np.array([o.accepted for o in part.outcomes], np.int32)
        needed = scratch_slots_needed(count, part.steps)
        blocks = np.asarray(part.scratch_blocks, np.int32)
        free = (blocks[:, None] * block_size + np.arange(block_size, dtype=np.int32)).reshape(-1)
        if free.size < needed:
            raise ConfigError(
                f"{count} branches of {part.steps} tokens need {needed} scratch slots, got {free.size}"
            )
        own = np.full((depth, count), -1, np.int32)
        own[: part.steps] = free[:needed].reshape(part.steps, count)
        tokens.append(np.array([o.bonus for o in part.outcomes], np.int32))
        positions.append(part.num_tokens + accepted)
        trunks.append(part.num_tokens + accepted)
        sequences.append(np.full(count, i, np.int32))
        steps.append(np.full(count, part.steps, np.int32))
        slots.append(own)
    return Tree(
        first_tokens=join_arrays(tokens),
        positions=join_arrays(positions),
        trunk_lengths=join_arrays(trunks),
        sequences=join_arrays(sequences),
        steps=join_arrays(steps),
        slots=np.concatenate(slots, axis=1) if slots else np.zeros((0, 0), np.int32),
        block_tables=pad_tables([p.block_table for p in parts]),
    )


def tree_rows(tree: Tree, step: int, tokens: IntArray) -> Rows:
    """Build tree step ``step``: one row per active branch, all with logits.

    ``tokens`` are one per active branch: the guessed bonus tokens in step 0, then what the previous step
    drafted. Raises ConfigError when their number is wrong.
    """
    active = tree.active(step)
    if len(tokens) != len(active):
        raise ConfigError(f"step {step} runs {len(active)} branches, got {len(tokens)} tokens")
    return Rows(
        tokens=np.asarray(tokens, np.int32),
        positions=(tree.positions[active] + step).astype(np.int32),
        slots=tree.slots[step, active] if len(active) else np.zeros(0, np.int32),
        sequences=tree.sequences[active],
        trunk_lengths=tree.trunk_lengths[active],
        wants_logits=np.ones(len(active), np.int32),
        block_tables=tree.block_tables,
        extra_offsets=(np.arange(len(active) + 1) * (step + 1)).astype(np.int32),
        extra_slots=np.ascontiguousarray(tree.slots[: step + 1, active].T).reshape(-1),
    )
