"""Which K: at the start from the profile, then from what is observed, without flapping."""

import numpy as np
import pytest

from sonoran.drafting.adaptive import (
    FIRST_PROBE,
    PATIENCE,
    PROBE_ROUNDS,
    AdaptiveDrafter,
    AutoPolicy,
    Drafted,
)
from sonoran.drafting.model import ModelDrafter
from sonoran.engine.core import EngineCore
from sonoran.errors import PlanError
from sonoran.planning.profile.placement import placements
from sonoran.planning.profile.round_times import ProfileRounds, RoundModel
from sonoran.sampling.params import SamplingParams
from tests.planning.profile.made_up import acceptance, profile
from tests.toy_backend import ToyBackend
from tests.toy_tokenizer import ToyTokenizer

K_MAX = 4


class Made:
    """Rounds of 10 ms, 2 ms per draft token, and 0.5 ms (times the batch) per further row."""

    def __init__(self, rate=0.8, draft=2.0, row=0.5):
        self.rates, self.draft, self.row = (rate,) * K_MAX, draft, row

    def model(self, batch):
        ks = range(K_MAX + 1)
        return RoundModel(batch, tuple(10.0 + self.draft * k + self.row * batch * (k + 1) for k in ks))


def drive(policy, rounds, rate, *, batch=1, slow=None, seed=0):
    """Play rounds in which tokens are accepted at ``rate``; return the K of each."""
    random, made, used = np.random.default_rng(seed), policy.rounds, []
    for _ in range(rounds):
        k = policy.choose(batch)
        used.append(k)
        for _ in range(batch):
            accepted = next((i for i in range(k) if random.random() > rate), k)
            policy.observe_outcome(k, accepted)
        ms = made.model(batch).round_ms[k]
        policy.observe_time(k, batch, ms * (slow(k) if slow else 1.0))
    return used


def test_a_good_draft_is_used_from_the_first_round():
    policy = AutoPolicy(Made(), K_MAX)
    used = drive(policy, 200, 0.8)
    assert min(used) >= 2
    assert policy.switches <= 2
    assert policy.acceptance == pytest.approx(0.8, abs=0.1)


def test_a_useless_draft_loses_little():
    """Against AR over 400 rounds of a text on which nothing is ever accepted, although the profile hoped."""
    policy, made = AutoPolicy(Made(rate=0.8), K_MAX), Made()
    used = drive(policy, 400, 0.0)
    assert used[0] > 0 and policy.k == 0
    spent = sum(made.model(1).round_ms[k] for k in used)
    assert spent < 1.03 * 400 * made.model(1).round_ms[0]
    assert policy.probes == 2


def test_a_hopeless_profile_starts_with_ar_and_probes_now_and_then():
    policy = AutoPolicy(Made(rate=0.1), K_MAX)
    used = drive(policy, FIRST_PROBE + PROBE_ROUNDS, 0.1)
    assert used == [0] * (FIRST_PROBE - 1) + [2] * PROBE_ROUNDS + [0]


def test_a_probe_discovers_that_speculation_pays_after_all():
    policy = AutoPolicy(Made(rate=0.2), K_MAX)
    used = drive(policy, 3 * FIRST_PROBE, 0.95)
    assert used[0] == 0
    assert policy.k >= 2


def test_acceptance_that_falls_is_followed():
    policy = AutoPolicy(Made(), K_MAX)
    long = policy.k if drive(policy, 100, 0.9) else 0
    drive(policy, 150, 0.45)
    assert 0 < policy.k < long or policy.k == 0
    assert policy.acceptance == pytest.approx(0.45, abs=0.15)


def test_noise_does_not_flap():
    """Two K that are equally good: random outcomes must not make it change its mind all the time."""
    policy = AutoPolicy(Made(), K_MAX)
    drive(policy, 1000, 0.8, seed=3)
    assert policy.switches <= 6


def test_one_slow_round_changes_nothing():
    policy = AutoPolicy(Made(), K_MAX)
    drive(policy, 50, 0.8)
    before = policy.k
    policy.observe_time(before, 1, 1000.0)
    assert [policy.choose(1) for _ in range(PATIENCE + 1)] == [before] * (PATIENCE + 1)


def test_speculation_that_costs_more_than_predicted_is_given_up():
    policy = AutoPolicy(Made(), K_MAX)
    drive(policy, 60, 0.8, slow=lambda k: 3.5 if k else 1.0)
    assert policy.k == 0


def test_a_machine_that_is_slower_in_all_is_no_reason():
    policy = AutoPolicy(Made(), K_MAX)
    used = drive(policy, 200, 0.8, slow=lambda k: 3.0)
    assert policy.k >= 2
    # AR was looked at, and found to be as slow.
    assert 2 <= used.count(0) <= 12


def test_a_large_batch_wants_another_k():
    small, large = AutoPolicy(Made(row=1.0), K_MAX), AutoPolicy(Made(row=1.0), K_MAX)
    drive(small, 60, 0.8, batch=1)
    drive(large, 60, 0.8, batch=16)
    assert large.k < small.k


def test_rounds_from_a_profile():
    made_up = profile()
    for placement in placements(made_up):
        if placement.kind == "alone":
            continue
        mode = "sd" if placement.kind == "shared" else "ssd"
        rounds = ProfileRounds(made_up, placement, mode, K_MAX, 256, 0.0)
        assert len(rounds.rates) == K_MAX and all(0.7 < rate < 0.9 for rate in rounds.rates)
        rounds.prepare(3)
        one, three = rounds.model(1), rounds.model(3)
        assert one.batch == 1 and three.batch == 4 and rounds.model(4) is three
        assert len(one.round_ms) == K_MAX + 1
        assert all(a < b for a, b in zip(one.round_ms, three.round_ms, strict=True))
        assert one.round_ms[0] < one.round_ms[1] < one.round_ms[K_MAX]


def test_profiles_that_say_nothing_about_acceptance_are_refused():
    shared = next(p for p in placements(profile()) if p.kind == "shared")
    with pytest.raises(PlanError, match="no acceptance"):
        ProfileRounds(profile(acceptances=()), shared, "sd", K_MAX, 256, 0.0)
    with pytest.raises(PlanError, match="too short"):
        ProfileRounds(profile(acceptances=(acceptance(texts=1, length=1),)), shared, "sd", K_MAX, 256, 0.0)
    with pytest.raises(PlanError, match="k_max >= 1"):
        AutoPolicy(Made(), 0)


def drive_stopping(policy, rounds, chances, *, batch=1, slow=None, seed=0):
    """Play rounds of a draft that knows which of its tokens are likely (``chances`` are drawn from); return the K."""
    random, made, used = np.random.default_rng(seed), policy.rounds, []
    for _ in range(rounds):
        k, least = policy.choose(batch), policy.least_chance(batch)
        used.append(k)
        drafted = emitted = 0
        for _ in range(batch):
            alive, length, accepted, standing = 1.0, 0, 0, True
            while length < k and alive >= least:
                chance = random.choice(chances)
                length, alive = length + 1, alive * chance
                standing = standing and random.random() < chance
                accepted += standing
            policy.observe_outcome(length, accepted)
            drafted, emitted = drafted + length, emitted + accepted + 1
        ms = made.model(batch).round_ms[round(drafted / batch)] * (slow(k) if slow else 1.0)
        policy.observe_time(k, batch, ms, Drafted(drafted / batch, emitted / batch))
    return used


def test_a_draft_that_stops_is_asked_for_all_it_likes():
    policy = AutoPolicy(Made(), K_MAX, stops=True)
    used = drive_stopping(policy, 200, [0.98, 0.3])
    assert set(used) == {K_MAX}
    assert 0.1 < policy.least_chance(1) < 0.9


@pytest.mark.parametrize("hoped", [0.2, 0.8])
def test_a_useless_draft_that_stops_loses_little(hoped):
    policy, made = AutoPolicy(Made(rate=hoped), K_MAX, stops=True), Made()
    used = drive_stopping(policy, 400, [0.0])
    assert policy.k == 0
    spent = sum(made.model(1).round_ms[min(k, 1)] for k in used)
    assert spent < 1.03 * 400 * made.model(1).round_ms[0]


def test_a_probe_discovers_a_good_draft_that_stops():
    policy = AutoPolicy(Made(rate=0.1), K_MAX, stops=True)
    used = drive_stopping(policy, 3 * FIRST_PROBE, [0.95])
    assert used[0] == 0
    assert policy.k == K_MAX


def test_a_dear_token_must_be_likelier():
    cheap, dear = (AutoPolicy(Made(draft=d), K_MAX, stops=True).least_chance(1) for d in (0.2, 4.0))
    assert cheap < dear
    crowded = AutoPolicy(Made(row=2.0), K_MAX, stops=True)
    assert crowded.least_chance(1) < crowded.least_chance(16)
    assert AutoPolicy(Made(), 1, stops=True).least_chance(1) == 0.0


def test_a_draft_that_stops_does_not_flap():
    policy = AutoPolicy(Made(), K_MAX, stops=True)
    drive_stopping(policy, 1000, [0.9, 0.4, 0.2], seed=3)
    assert policy.switches <= 6


def test_a_slow_machine_is_no_reason_to_drop_a_draft_that_stops():
    policy = AutoPolicy(Made(), K_MAX, stops=True)
    used = drive_stopping(policy, 200, [0.9], slow=lambda k: 3.0)
    assert policy.k == K_MAX
    assert 2 <= used.count(0) <= 12


def test_another_batch_does_not_mislead_a_draft_that_stops():
    policy = AutoPolicy(Made(), K_MAX, stops=True)
    drive_stopping(policy, 60, [0.8])
    used = drive_stopping(policy, 30, [0.8], batch=8)
    used += drive_stopping(policy, 30, [0.8])
    assert used.count(0) <= 4


def decode(salt, *, adaptive=True, prompts=3, tokens=120, seed=1, stops=False):
    target = ToyBackend(num_blocks=512, noise=0.3)
    draft = ToyBackend(num_blocks=512, noise=0.3, salt=salt, seed=seed)
    inner = ModelDrafter(draft, target_vocab=64, prefix_caching=False, least_chance=0.0)
    policy = AutoPolicy(Made(), K_MAX, stops=stops)

    def clock():
        # A pass of the target takes 10 ms and one of the draft 2 ms, whatever the machine does.
        return 0.010 * target.passes + 0.002 * draft.passes

    drafter = AdaptiveDrafter(inner, policy, "because", clock=clock) if adaptive else inner
    core = EngineCore(target, ToyTokenizer(), drafter=drafter, num_speculative_tokens=K_MAX, max_num_seqs=2)
    params = SamplingParams(temperature=0.7, seed=3, max_tokens=tokens, ignore_eos=True)
    requests = [core.prepare(str(i), [i + 1, 5, 9], params) for i in range(prompts)]
    for request in requests:
        core.add(request)
    while core.busy:
        core.step()
    core.check_invariants()
    return [request.sequences[0].output_ids for request in requests], core, policy


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("salt", [0, 1, 7])
def test_texts_are_the_same_whatever_k(salt, stops):
    plain, _, _ = decode(salt, adaptive=False)
    adapted, core, policy = decode(salt, stops=stops)
    assert adapted == plain
    stats = core.statistics()["drafter"]
    assert stats["auto"]["reason"] == "because"
    assert stats["auto"]["num_speculative_tokens"] == policy.k
    assert stats["num_passes"] > 0


def test_a_perfect_draft_is_kept():
    _, _, policy = decode(0)
    assert policy.k >= 2 and policy.acceptance > 0.9


def test_reading_prompts_is_no_reason_to_give_up():
    """Short answers to long prompts: a third of the rounds begin with the draft reading."""
    target, draft = ToyBackend(num_blocks=512, noise=0.3), ToyBackend(num_blocks=512, noise=0.3)
    policy = AutoPolicy(Made(), K_MAX)

    def clock():
        return 0.010 * target.passes + 0.001 * draft.passes + 0.001 * draft.rows

    inner = ModelDrafter(draft, target_vocab=64, prefix_caching=False, least_chance=0.0)
    core = EngineCore(
        target, ToyTokenizer(), drafter=AdaptiveDrafter(inner, policy, clock=clock),
        num_speculative_tokens=K_MAX, max_num_seqs=1, prefix_caching=False,
    )  # fmt: skip
    began = policy.k
    for i in range(6):
        prompt = [(7 * i + j) % 60 for j in range(120)]
        core.add(
            core.prepare(str(i), prompt, SamplingParams(temperature=0.0, max_tokens=14, ignore_eos=True))
        )
        while core.busy:
            core.step()
    assert began > 0 and policy.k > 0 and policy.acceptance > 0.85


@pytest.mark.parametrize("stops", [False, True])
def test_a_draft_that_knows_nothing_is_dropped(stops):
    _, core, policy = decode(0, seed=99, prompts=1, tokens=300, stops=stops)
    assert policy.k == 0
    # SD with the K it began with would have drafted 3 tokens in each of about 300 rounds.
    assert core.stats.speculation.num_draft_tokens < 100


def test_the_inner_drafter_never_sees_an_outcome_that_is_not_its_own():
    seen = []

    class Inner:
        max_context = None

        def propose(self, requests):
            seen.extend(request.outcome for request in requests)
            return ModelDrafter.propose(self.real, requests)

        def __getattr__(self, name):
            return getattr(self.real, name)

    inner = Inner()
    inner.real = ModelDrafter(ToyBackend(num_blocks=256), target_vocab=64, least_chance=0.0)
    policy = AutoPolicy(Made(rate=0.1), K_MAX)
    core = EngineCore(
        ToyBackend(num_blocks=256), ToyTokenizer(), drafter=AdaptiveDrafter(inner, policy),
        num_speculative_tokens=K_MAX,
    )  # fmt: skip
    core.add(core.prepare("r", [1], SamplingParams(temperature=0.0, max_tokens=90, ignore_eos=True)))
    while core.busy:
        core.step()
    # The first probe comes after rounds of AR: what those ended with is kept from it.
    assert seen[0] is None and len(seen) >= 2 and seen[1] is not None
