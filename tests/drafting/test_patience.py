"""A worker that answers in time is given up where waiting for it costs more than it saves, and tried again."""

from __future__ import annotations

from itertools import pairwise

from sonoran.drafting.patience import LONGEST_PAUSE_S, TRUSTED_AFTER, Patience


class Play:
    """Decodes with passes of ``pass_s`` and ``tokens`` per round and sequence, on a clock of its own."""

    def __init__(self, pass_s: float, tokens: int = 3, sequences: int = 1) -> None:
        self.patience = Patience()
        self.pass_s, self.tokens, self.sequences = pass_s, tokens, sequences
        self.now = self.waited = 0.0
        self.asked: list[float] = []

    def rounds(self, count: int, wait_s: float) -> int:
        """Run rounds; return in how many the worker was asked."""
        before = len(self.asked)
        for _ in range(count):
            begin, tokens = self.now, self.sequences
            if asks := self.patience.asks(self.now):
                self.asked.append(self.now)
                self.now += wait_s
                self.waited += wait_s
                tokens = self.tokens * self.sequences
            self.now += self.pass_s
            if asks:
                self.patience.observe(self.now, wait_s, self.now - begin, tokens, self.sequences)
        return len(self.asked) - before


def test_waits_that_pay_are_waited_for_ever() -> None:
    assert Play(0.04).rounds(5000, wait_s=0.075) == 5000
    assert Play(0.04, sequences=8).rounds(5000, wait_s=0.075) == 5000
    assert Play(0.0001, tokens=1).rounds(5000, wait_s=0.015) == 5000, "tiny models wait longer than they run"


def test_a_slow_worker_costs_a_bounded_share_of_the_time() -> None:
    play = Play(0.04)
    assert play.rounds(15, wait_s=0.9) == 1
    play.rounds(20_000, wait_s=0.9)
    assert play.waited < 0.05 * play.now
    pauses = [later - earlier for earlier, later in pairwise(play.asked)]
    assert all(later > earlier - 1.0 for earlier, later in pairwise(pauses))
    assert max(pauses) <= LONGEST_PAUSE_S + 1.0
    assert play.patience.given_up == len(play.asked)


def test_a_little_too_slow_is_noticed_too() -> None:
    play = Play(0.04)
    play.rounds(3000, wait_s=0.15)
    assert play.waited < 0.2 * play.now


def test_one_hiccup_is_forgiven_and_an_early_pause_forgotten() -> None:
    play = Play(0.04)
    play.rounds(1, wait_s=0.5)
    assert play.rounds(50, wait_s=0.001) == 50
    play.rounds(1, wait_s=0.9)
    play.rounds(1000, wait_s=0.001)
    first = play.patience.given_up
    assert first == 1
    assert len(play.asked) > 700, "it is asked again"
    assert play.rounds(TRUSTED_AFTER, wait_s=0.001) == TRUSTED_AFTER
    begin = play.now
    play.rounds(1, wait_s=0.9)
    play.rounds(400, wait_s=0.001)
    assert min(t for t in play.asked if t > begin + 1.0) - begin < 20.0, (
        "the pause is as short as the first one"
    )


def test_batches_in_which_nothing_was_verified_do_not_count() -> None:
    patience = Patience()
    assert not patience.observe(0.0, 5.0, 5.0, 0, 0)
    assert patience.asks(0.0)
