"""Batching, chunks, preemption, prefixes, samples, fairness, and cancellation at any point."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sonoran.engine.core import EngineCore
from sonoran.engine.sequence import Request
from sonoran.errors import CapacityError, ConfigError
from sonoran.sampling.params import SamplingParams
from tests.engine.helpers import alone, drain, engine, greedy, model_drafter, run, texts
from tests.toy_backend import ToyBackend


def prompt(length: int, seed: int = 0) -> list[int]:
    numbers = random.Random(seed)
    return [numbers.randrange(60) for _ in range(length)]


def test_no_pass_exceeds_the_row_budget_and_chunks_mix_with_decoding() -> None:
    target = ToyBackend(num_blocks=128, max_rows=12)
    core = engine(target, max_num_batched_tokens=12, max_num_seqs=4, drafter=model_drafter(num_blocks=256))
    short = core.prepare("short", prompt(3), greedy(40, ignore_eos=True))
    core.add(short)
    core.step()
    long = core.prepare("long", prompt(90, 1), greedy(4))
    core.add(long)
    sequence, mixed = short.sequences[0], 0
    while not long.sequences[0].output_ids:
        before = len(sequence.tokens)
        core.step()
        mixed += len(sequence.tokens) > before
    drain(core)
    assert max(target.row_counts) <= 12
    assert mixed >= 90 // 12


def test_a_long_prompt_is_not_starved_by_speculation() -> None:
    core = engine(
        ToyBackend(num_blocks=256), max_num_batched_tokens=12, max_num_seqs=8, drafter=model_drafter(salt=0)
    )
    for index in range(3):
        core.add(core.prepare(f"busy{index}", prompt(4, index), greedy(200, ignore_eos=True)))
    for _ in range(4):
        core.step()
    long = core.prepare("long", prompt(60, 9), greedy(1))
    core.add(long)
    for _ in range(60 // 3 + 1):
        core.step()
    assert long.finished


def test_preemption_keeps_the_text_and_the_budget_of_new_tokens() -> None:
    core = engine(ToyBackend(num_blocks=20), max_num_seqs=6)
    jobs = [(prompt(10, i), greedy(40, ignore_eos=True)) for i in range(6)]
    requests = run(core, *jobs)
    assert core.scheduler.num_preemptions > 0
    assert any(request.sequences[0].num_preemptions for request in requests)
    for job, result in zip(jobs, texts(requests), strict=True):
        assert len(result[0][0]) == 40
        assert result == alone(*job)


def test_the_request_admitted_first_finishes_first_when_memory_is_short() -> None:
    core = engine(ToyBackend(num_blocks=16), max_num_seqs=8)
    requests = [core.prepare(f"r{i}", prompt(12, i), greedy(30, ignore_eos=True)) for i in range(8)]
    for request in requests:
        core.add(request)
    order: list[str] = []
    for _ in range(5000):
        order += [r.request_id for r in core.step() if r.finished]
    assert order[0] == "r0"
    assert sorted(order) == [f"r{i}" for i in range(8)]
    assert requests[0].sequences[0].num_preemptions == 0


def test_a_preempted_request_goes_on_before_those_that_never_ran() -> None:
    core = engine(ToyBackend(num_blocks=16), max_num_seqs=3)
    for index in range(8):
        core.add(core.prepare(f"r{index}", prompt(12, index), greedy(30, ignore_eos=True)))
    preempted: set[str] = set()
    while core.busy:
        core.step()
        queue = list(core.scheduler.waiting)
        begun = [bool(sequence.num_preemptions) for sequence in queue]
        assert begun == sorted(begun, reverse=True)
        preempted |= {sequence.request_id for sequence in queue if sequence.num_preemptions}
    assert len(preempted) > 1


def test_a_newcomer_leaves_every_running_sequence_a_block_to_grow() -> None:
    core = engine(ToyBackend(num_blocks=10))
    first = core.prepare("first", prompt(12), greedy(16, ignore_eos=True))
    core.add(first)
    core.step()
    core.add(core.prepare("second", prompt(24, 1), greedy(8, ignore_eos=True)))
    core.step()
    assert [s.request_id for s in core.scheduler.running] == ["first"]
    drain(core)
    assert core.scheduler.num_preemptions == 0


def test_nobody_overtakes_a_big_request_for_ever() -> None:
    core = engine(ToyBackend(num_blocks=32), max_num_seqs=4)
    big = core.prepare("big", prompt(100), greedy(4))
    for index in range(3):
        core.add(core.prepare(f"before{index}", prompt(6, index), greedy(30)))
    core.step()
    core.add(big)
    for index in range(200):
        if big.finished:
            break
        core.add(core.prepare(f"after{index}", prompt(6, index), greedy(30)))
        core.step()
    assert big.finished


def test_a_shared_beginning_is_computed_once() -> None:
    target = ToyBackend(num_blocks=128)
    core = engine(target)
    system = prompt(40)
    first = run(core, ([*system, 1, 2], greedy(4)))[0]
    rows = target.rows
    again = core.prepare("again", [*system, 3, 4, 5], greedy(4))
    core.add(again)
    drain(core)
    assert first.sequences[0].num_cached == 0
    assert again.sequences[0].num_cached == 40
    assert target.rows - rows <= 3 + 4
    assert texts([again])[0] == alone([*system, 3, 4, 5], greedy(4))


def test_the_next_turn_of_a_conversation_finds_the_answer_of_the_last() -> None:
    core = engine(ToyBackend(num_blocks=128), drafter=model_drafter())
    first = run(core, (prompt(20), greedy(20, ignore_eos=True)))[0].sequences[0]
    turn = [*first.tokens, 7, 7]
    second = core.prepare("second", turn, greedy(8))
    core.add(second)
    drain(core)
    assert second.sequences[0].num_cached == 36
    assert texts([second])[0] == alone(turn, greedy(8))


def test_a_prompt_that_is_cached_whole_still_computes_its_last_token() -> None:
    core = engine()
    job = (prompt(16), greedy(8))
    first, second = (texts(run(core, job))[0] for _ in range(2))
    assert first == second == alone(*job)


def test_samples_share_the_prompt_and_have_their_own_seeds() -> None:
    target = ToyBackend(num_blocks=128)
    params = SamplingParams(temperature=1.0, seed=3, n=4, max_tokens=10, ignore_eos=True)
    core = engine(target, prefix_caching=False)
    request = run(core, (prompt(33), params))[0]
    outputs = [tuple(s.output_ids) for s in request.sequences]
    assert len(set(outputs)) == 4
    assert target.rows == 33 + 3 + 4 * 9
    assert target.copies == 0 or target.copies <= 4
    single = SamplingParams(temperature=1.0, seed=request.sequences[2].seed, max_tokens=10, ignore_eos=True)
    assert alone(prompt(33), single)[0][0] == list(outputs[2])


def test_samples_that_wait_for_a_seat_still_give_the_same_texts() -> None:
    params = SamplingParams(temperature=1.0, seed=3, n=5, max_tokens=10)
    wide = texts(run(engine(), (prompt(9), params)))[0]
    narrow = texts(run(engine(max_num_seqs=1), (prompt(9), params)))[0]
    assert wide == narrow


def test_one_sample_may_end_with_its_first_token() -> None:
    params = SamplingParams(temperature=1.0, seed=3, n=3, max_tokens=1)
    assert [len(ids) for ids, *_ in texts(run(engine(), (prompt(9), params)))[0]] == [1, 1, 1]


@pytest.mark.parametrize("steps", range(14))
def test_cancellation_at_any_round_frees_everything(steps: int) -> None:
    core = engine(
        ToyBackend(num_blocks=20), max_num_batched_tokens=8, max_num_seqs=4, drafter=model_drafter()
    )
    jobs = [(prompt(14, i), greedy(30, ignore_eos=True, n=1 + i % 2)) for i in range(5)]
    requests = [core.prepare(f"r{i}", *job) for i, job in enumerate(jobs)]
    for request in requests:
        core.add(request)
    for _ in range(steps):
        core.step()
    for name in ("r0", "r3"):
        assert core.cancel(name) is not None
        core.check_invariants()
    drain(core)
    assert requests[0].sequences[0].finish_reason == "cancelled"
    assert core.cancel("r0") is None
    for index in (1, 2, 4):
        assert texts([requests[index]])[0] == alone(*jobs[index])


def test_reset_after_an_interruption_inside_a_round_leaves_a_usable_engine() -> None:
    target = ToyBackend()
    core = engine(target, drafter=model_drafter())
    request = core.prepare("r", prompt(12), greedy(30))
    core.add(request)
    core.step()

    def interrupt() -> None:
        raise KeyboardInterrupt

    target.before_forward = interrupt
    with pytest.raises(KeyboardInterrupt):
        core.step()
    target.before_forward = lambda: None
    assert core.reset() == [request]
    core.check_invariants()
    job = (prompt(12), greedy(30))
    assert texts(run(core, job))[0] == alone(*job)


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    core = engine(ToyBackend(num_blocks=8))
    with pytest.raises(
        CapacityError, match=r"40 tokens and at least 1 new ones take 41 .* max_model_len is 32"
    ):
        core.prepare("r", prompt(40), greedy())
    with pytest.raises(CapacityError, match="at least 20 new ones take 34"):
        core.prepare("r", prompt(14), greedy(30, min_tokens=20))
    with pytest.raises(ConfigError, match="hold only 32"):
        engine(ToyBackend(num_blocks=8), max_model_len=33)
    assert not core.busy


def test_a_refusal_ends_with_what_to_type() -> None:
    trained = ToyBackend().config.max_position
    core = engine(ToyBackend(num_blocks=16), max_model_len=16)
    with pytest.raises(CapacityError, match=r"--max-model-len 64\)$"):
        core.prepare("r", prompt(40), greedy())
    with pytest.raises(CapacityError, match=r"--max-model-len 256\), and KV memory for them \(it holds 64\)"):
        core.prepare("r", prompt(150), greedy())
    with pytest.raises(CapacityError, match=f"the model was trained for {trained}: shorten the prompt"):
        core.prepare("r", prompt(trained), greedy())


def test_a_context_that_fills_up_ends_with_length() -> None:
    core = engine(ToyBackend(num_blocks=8), drafter=model_drafter(salt=0), max_model_len=30)
    sequence = run(core, (prompt(10), greedy(100, ignore_eos=True)))[0].sequences[0]
    assert (len(sequence.tokens), sequence.finish_reason) == (30, "length")


@pytest.mark.parametrize(
    ("tokens", "text"), [([], "empty"), ([64], "token 64 does not exist"), ([-1], "token -1")]
)
def test_prompts_that_make_no_sense_are_refused(tokens: list[int], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        engine().prepare("r", tokens, greedy())


def test_two_requests_of_one_name_are_refused() -> None:
    core = engine()
    core.add(core.prepare("r", [1], greedy()))
    with pytest.raises(ConfigError, match="'r' is being served"):
        core.add(core.prepare("r", [1], greedy()))


PARAMS = [
    greedy(12),
    greedy(30, ignore_eos=True, n=2),
    SamplingParams(temperature=1.0, seed=5, max_tokens=20),
    SamplingParams(temperature=0.8, seed=6, max_tokens=9, speculative=False),
    SamplingParams(temperature=0.8, seed=7, max_tokens=25, num_speculative_tokens=1, stop=("a", "xy")),
]


class EngineMachine(RuleBasedStateMachine):
    """Requests join, rounds run and requests are cancelled in any order, in memory that is far too small."""

    def __init__(self) -> None:
        super().__init__()
        self.core: EngineCore = engine(
            ToyBackend(num_blocks=18),
            drafter=model_drafter(num_blocks=20),
            max_num_seqs=4,
            max_num_batched_tokens=9,
            k=3,
        )
        self.jobs: list[tuple[list[int], SamplingParams, Request]] = []

    @rule(length=st.integers(1, 30), seed=st.integers(0, 2), params=st.sampled_from(PARAMS))
    def join(self, length: int, seed: int, params: SamplingParams) -> None:
        request = self.core.prepare(f"r{len(self.jobs)}", prompt(length, seed), params)
        self.core.add(request)
        self.jobs.append((prompt(length, seed), params, request))

    @rule(rounds=st.integers(1, 5))
    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self.core.step()

    @precondition(lambda self: self.core.busy)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.core.cancel(data.draw(st.sampled_from(sorted(self.core.requests))))

    @invariant()
    def consistent(self) -> None:
        self.core.check_invariants()
        assert len(self.core.scheduler.running) <= 4
        for sequence in self.core.scheduler.running:
            assert len(sequence.table.blocks) <= self.core.kv.blocks_for(len(sequence.tokens))

    def teardown(self) -> None:
        drain(self.core)
        for tokens, params, request in self.jobs:
            expected = alone(tokens, params, max_model_len=72)
            for sequence, (ids, _, reason, _) in zip(request.sequences, expected, strict=True):
                if sequence.finish_reason == "cancelled":
                    assert sequence.output_ids == ids[: len(sequence.output_ids)]
                else:
                    assert (sequence.output_ids, sequence.finish_reason) == (ids, reason)


EngineMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=15, deadline=None)
TestEngine = EngineMachine.TestCase
