"""A worker process without a model: counts upwards, and misbehaves on request.

``python fake_worker.py`` is started like the real worker; its options say what goes wrong.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from sonoran.backends.native import LoadProgress
from sonoran.ssd.messages import Answer, Hello, Prefill, Speculate, Speculations
from sonoran.worker.__main__ import child_main, pin_process
from sonoran.worker.session import Service

FINGERPRINT = "f" * 64
CONTEXT = 512


class CountingSpeculator:
    """Proposes last + 1, last + 2, ... below the vocabulary's size; a hit when something was accepted."""

    def __init__(self, hello: Hello, options: dict[str, Any]) -> None:
        self.hello, self.options = hello, options
        self.sequences: dict[int, list[int]] = {}
        self.generations: dict[int, int] = {}
        self.prefills: list[tuple[int, int, int]] = []
        self.steps = self.rounds = self.closed = 0

    def prefill(self, message: Prefill) -> None:
        self.sequences[message.sequence] = list(message.tokens)
        self.generations[message.sequence] = message.generation
        self.prefills.append((message.sequence, message.generation, len(message.tokens)))

    def speculate(self, message: Speculate) -> Speculations:
        self.rounds += 1
        if self.options.get("die_in_round") == self.rounds:
            os._exit(3)
        if self.options.get("raise_in_round") == self.rounds:
            raise ZeroDivisionError("a mistake of the speculator")
        if "slow_s" in self.options:
            time.sleep(self.options["slow_s"])
        answers = []
        for item in message.items:
            tokens = self.sequences.get(item.sequence)
            known = (
                tokens is not None
                and len(tokens) == item.base
                and self.generations[item.sequence] == item.generation
            )
            if not known or tokens is None:
                answers.append(Answer(item.sequence, item.generation, False, "none", [], [], []))
                continue
            tokens += item.tokens
            drafted = [(tokens[-1] + 1 + i) % self.hello.vocab_size for i in range(item.wanted)]
            origin: Any = "primary" if item.accepted >= 0 else "draft"
            answers.append(Answer(item.sequence, item.generation, True, origin, drafted, [], [3, 2, 1]))
        return Speculations(message.round, answers, 4.0, 1.0)

    def work(self) -> Iterator[None]:
        for _ in range(self.options.get("passes", 3)):
            if "pass_s" in self.options:
                time.sleep(self.options["pass_s"])
            self.steps += 1
            yield

    def free(self, sequences: list[int]) -> None:
        for sequence in sequences:
            self.sequences.pop(sequence, None)

    def stats(self) -> dict[str, Any]:
        return {
            "sequences": sorted(self.sequences),
            "prefills": [list(entry) for entry in self.prefills],
            "steps": self.steps,
            "rounds": self.rounds,
            "settings": self.hello.settings.num_speculative_tokens,
        }

    def close(self) -> None:
        self.closed += 1


def fake_service(options: dict[str, Any]) -> Service:
    return Service(
        options.get("model", "fake"),
        options.get("fingerprint", FINGERPRINT),
        options.get("context", CONTEXT),
        lambda hello: CountingSpeculator(hello, options),
    )


def build(options: dict[str, Any], report: LoadProgress) -> Service:
    pin_process(options.get("cores"))
    for part in range(1, options.get("load_steps", 1) + 1):
        report(part, options.get("load_steps", 1))
        time.sleep(options.get("load_step_s", 0.0))
    for number in range(options.get("chatter", 0)):
        sys.stderr.write(f"line {number}\n")
    if options.get("die_while_loading"):
        sys.stderr.write("the disk is on fire\n")
        sys.stderr.flush()
        os._exit(7)
    return fake_service(options)


if __name__ == "__main__":
    sys.exit(child_main(build, dict))
