"""Reading along must say exactly what speculative decoding of the same text would do."""

import math

import pytest

from sonoran.drafting.model import ModelDrafter
from sonoran.engine.core import EngineCore
from sonoran.errors import ConfigError
from sonoran.planning.profile.acceptance import Acceptance, TextRanks
from sonoran.planning.profile.reading import read_along
from sonoran.planning.profile.replay import replay_lengths, replay_ssd
from sonoran.sampling.params import SamplingParams
from tests.toy_backend import ToyBackend
from tests.toy_tokenizer import ToyTokenizer
from tests.worker.local import LocalDrafter, toy_model

PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [9, 8, 7], [11]]
N = 40


def pair():
    return ToyBackend(num_blocks=256, noise=0.5), ToyBackend(num_blocks=256, noise=0.5, salt=1)


def reading(temperature, **options):
    target, draft = pair()
    return read_along(
        target, draft, PROMPTS, temperature=temperature, eos_ids=(), max_tokens=N, seed=5, **options
    )


def decode(temperature, verification, k, index):
    """Run the engine with the same prompt and seed; return (accepted tokens of each full round, text)."""
    target, draft = pair()
    tokenizer = ToyTokenizer()
    drafter = ModelDrafter(draft, target_vocab=64, eos_ids=(), least_chance=0.0)
    core = EngineCore(
        target,
        tokenizer,
        drafter=drafter,
        num_speculative_tokens=k,
        max_num_seqs=1,
        verification=verification,
    )
    params = SamplingParams(temperature=temperature, seed=5 + index, max_tokens=N, ignore_eos=True)
    request = core.prepare("r", PROMPTS[index], params)
    core.add(request)
    while core.busy:
        core.step()
    stats = request.sequences[0].stats
    full = [a for d, a in zip(stats.per_step_drafted, stats.per_step_accepted, strict=True) if d == k]
    return full, request.sequences[0].output_ids


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_text_predicts_every_round_of_the_engine(temperature, index):
    k = 3
    text = reading(temperature).acceptance[0].texts[index]
    accepted, _ = decode(temperature, "coupled", k, index)
    # The engine's first token comes from a round without a speculation.
    at, predicted = 1, []
    while at + k <= len(text.rejected):
        run = next((i for i in range(k) if text.rejected[at + i]), k)
        predicted.append(run)
        at += run + 1
    assert len(accepted) >= 5
    assert predicted[: len(accepted)] == accepted[: len(predicted)]


def test_ranks_are_consistent():
    [law] = reading(0.0).acceptance
    assert law.positions == N * len(PROMPTS)
    assert 0.2 < law.rate < 0.98
    for text in law.texts:
        for rejected, free in zip(text.rejected, text.free, strict=True):
            assert free == rejected + 1
    assert sum(replay_lengths(law, 4)) > 0


def test_both_rules_at_a_temperature():
    coupled, rejection = reading(1.0).acceptance
    assert (coupled.verification, rejection.verification) == ("coupled", "rejection")
    assert coupled.positions == rejection.positions
    assert 0.1 < rejection.rate < 1.0 and 0.1 < coupled.rate < 1.0
    # Rejection sampling accepts at least as often in expectation; the texts are short.
    assert rejection.rate > coupled.rate - 0.15
    assert (coupled.target_perplexity, coupled.draft_perplexity) == (
        rejection.target_perplexity, rejection.draft_perplexity,
    )  # fmt: skip
    assert coupled.draft_perplexity > coupled.target_perplexity > 1.0


def test_a_perfect_draft():
    target, same = pair()[0], pair()[0]
    answer = read_along(target, same, PROMPTS, temperature=1.0, eos_ids=(), max_tokens=12)
    for law in answer.acceptance:
        assert law.rate == 1.0
        assert law.target_perplexity == pytest.approx(law.draft_perplexity)
    assert {rank for text in answer.acceptance[0].texts for rank in text.free} == {1}


def test_texts_end_at_end_tokens():
    target, draft = pair()
    endless = read_along(target, draft, PROMPTS, temperature=1.0, eos_ids=(), max_tokens=N)
    target, draft = pair()
    ended = read_along(target, draft, PROMPTS, temperature=1.0, eos_ids=tuple(range(32)), max_tokens=N)
    assert ended.num_tokens < endless.num_tokens


@pytest.mark.parametrize("positions", [0, 2 * len(PROMPTS), 2 * len(PROMPTS) + 1])
def test_time_runs_out_but_no_draft_is_judged_by_a_handful_of_positions(positions):
    ticks = iter(range(10**6))
    target, draft = pair()
    answer = read_along(
        target,
        draft,
        PROMPTS,
        temperature=0.0,
        eos_ids=(),
        max_tokens=N,
        seconds=0.0,
        least_positions=positions,
        clock=lambda: next(ticks),
    )
    steps = max(1, -(-positions // len(PROMPTS)))
    assert answer.num_tokens == steps * len(PROMPTS) >= positions
    assert answer.sampling.row.ms == 1000.0 and answer.sampling.row.count == steps * len(PROMPTS)


def test_a_draft_of_fewer_tokens():
    """Text ends at a token that the draft does not have."""
    target = ToyBackend(num_blocks=256)
    draft = ToyBackend(num_blocks=256, vocab_size=48)
    prompts = [[1, 2, 3], [4], [5]]
    answer = read_along(target, draft, prompts, temperature=1.0, eos_ids=(), max_tokens=N)
    law = answer.acceptance[0]
    assert math.isfinite(law.draft_perplexity)
    assert len(prompts) <= law.positions < N * len(prompts)
    assert all(0 not in text.rejected[-1:] for text in law.texts)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [([[]], "prompt is empty"), ([[1] * 200], "do not fit the KV"), ([], "no calibration text")],
)
def test_refuses(prompts, message):
    target, draft = ToyBackend(num_blocks=20), ToyBackend(num_blocks=20)
    with pytest.raises(ConfigError, match=message):
        read_along(target, draft, prompts, temperature=0.0, eos_ids=(), max_tokens=N)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("fan_out", [(1, 1, 1, 1), (3, 2, 1, 4), (0, 0, 0, 2)])
def test_a_text_predicts_every_hit_of_the_draft_worker(temperature, fan_out, monkeypatch):
    """SSD in one process, every round's drafting finished in time: the replay knows hits and lengths exactly."""
    k, tokens = len(fan_out) - 1, 120
    monkeypatch.setattr("sonoran.planning.profile.replay.STARTS", 1)
    target, draft = pair()
    law = read_along(
        target, draft, PROMPTS[:1], temperature=temperature, eos_ids=(), max_tokens=tokens, seed=5
    ).acceptance[0]
    # The engine's first token comes from a round without a speculation.
    [whole] = law.texts
    rest = Acceptance("coupled", temperature, (TextRanks(whole.rejected[1:], whole.free[1:]),))
    replay = replay_ssd(rest, fan_out)

    model = toy_model(noise=0.5, salt=1)
    drafter = LocalDrafter(
        model,
        num_speculative_tokens=k,
        fan_out="explicit",
        fan_out_primary=fan_out,
        backup="draft",
        least_chance=0.0,
    )
    core = EngineCore(pair()[0], ToyTokenizer(), drafter=drafter, num_speculative_tokens=k, max_num_seqs=1)
    # Some tokens more than the text has, so that what its last round led to is looked up as well.
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=tokens + 2 * k, ignore_eos=True)
    request = core.prepare("r", PROMPTS[0], params)
    core.add(request)
    while core.busy:
        core.step()
    stats = request.sequences[0].stats
    accepted = [a for d, a in zip(stats.per_step_drafted, stats.per_step_accepted, strict=True) if d == k]
    lengths = [a + b for a, b in zip(replay.lengths_hit, replay.lengths_miss, strict=True)]
    # A replay ends K positions before the text does, with the last whole round.
    assert [accepted[: replay.rounds].count(i) for i in range(k + 1)] == lengths
    hits = drafter.origins[1 : replay.rounds + 1].count("primary")
    assert hits == replay.hits_after_primary + replay.hits_after_backup
    assert sum(fan_out) < 4 or 0 < hits < replay.rounds
