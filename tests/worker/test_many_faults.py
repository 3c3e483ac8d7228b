"""A thousand random faults of a worker: no text changes, nothing hangs, nothing is left over."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from sonoran.drafting.patience import Patience
from sonoran.drafting.ssd import SsdDrafter
from sonoran.engine.core import EngineCore
from sonoran.sampling.params import SamplingParams
from sonoran.worker.connection import Remote
from sonoran.worker.session import draft_service
from tests.engine.helpers import alone, engine, greedy, texts
from tests.toy_backend import ToyBackend
from tests.worker.local import toy_model
from tests.worker.mangler import Mangler, between
from tests.worker.test_end_to_end import ssd, toy_worker
from tests.worker.workers import leftovers, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

FAULTS = 1000
EPISODES_PER_CLIENT = 12
HANG_S = 30.0
OF_THE_PROCESS = ["killed", "terminated", "stopped", "slowed", "socket removed"]
PROMPTS = [[3, 1, 4, 1, 5], [2, 7, 1, 8], [9], list(range(30)), [6, 6, 6, 6, 6, 6]]
PARAMS = [
    greedy(20),
    SamplingParams(temperature=1.0, seed=5, max_tokens=20),
    SamplingParams(temperature=0.8, top_k=8, seed=1, max_tokens=20, repetition_penalty=1.2),
]


@cache
def autoregressive(prompt: int, params: int) -> object:
    return alone(PROMPTS[prompt], PARAMS[params])


def children() -> list[int]:
    """Processes that this one started and that are still there."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                found.append(int(entry.name))
    return found


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@dataclass
class Figures:
    """What happened."""

    faults: Counter[str] = field(default_factory=Counter)
    changed: int = 0
    hung: int = 0
    struck_down: int = 0  # faults while the client was not up
    slowest_s: float = 0.0
    mangled: int = 0
    speculated: int = 0


class Harness:
    """Decodes a few prompts over one client, strikes in the middle, and compares the texts with AR's."""

    def __init__(self, drafter: SsdDrafter, chance: random.Random, figures: Figures) -> None:
        self.drafter, self.chance, self.figures = drafter, chance, figures
        target = ToyBackend()
        target.before_forward = lambda: time.sleep(0.002)
        self.core: EngineCore = engine(target, drafter, max_num_seqs=4)

    def episode(self, name: str, strike: Callable[[], None], mend: Callable[[], None]) -> bool:
        """Return whether the client may be used further."""
        figures, core, client = self.figures, self.core, self.drafter.client
        self.drafter._patience = Patience()  # every fault meets a worker that is asked
        end = time.monotonic() + 3.0
        while client.state != "up" and time.monotonic() < end:
            time.sleep(0.01)
        figures.faults[name] += 1
        figures.struck_down += client.state != "up"
        jobs = [(self.chance.randrange(len(PROMPTS)), self.chance.randrange(len(PARAMS))) for _ in range(3)]
        requests = [core.prepare(f"r{i}", PROMPTS[p], PARAMS[q]) for i, (p, q) in enumerate(jobs)]
        for request in requests:
            core.add(request)
        begin, steps, at = time.monotonic(), 0, self.chance.randint(0, 12)
        while core.busy:
            if steps == at:
                strike()
            core.step()
            steps += 1
            if time.monotonic() - begin > HANG_S:
                figures.hung += 1
                core.reset()
        mend()
        took = time.monotonic() - begin
        figures.slowest_s = max(figures.slowest_s, took)
        core.check_invariants()
        assert core.kv.pool.available == core.kv.pool.num_blocks
        for (p, q), request in zip(jobs, requests, strict=True):
            figures.changed += texts([request])[0] != autoregressive(p, q)
        return client.state == "up" or self.chance.random() < 0.5

    def close(self) -> None:
        self.figures.speculated += self.core.stats.speculation.num_draft_tokens


def of_the_process(harness: Harness, name: str) -> bool:
    client = harness.drafter.client
    pulses: list[threading.Thread] = []
    struck: list[int] = []

    def send(pid: int, how: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, how)

    def pulse(pid: int) -> None:
        for _ in range(15):
            send(pid, signal.SIGSTOP)
            time.sleep(0.01)
            send(pid, signal.SIGCONT)
            time.sleep(0.005)

    def strike() -> None:
        keeper, pid = client._keeper, client.worker_pid
        if keeper is None or keeper.worker is None or pid is None or not keeper.worker.alive:
            return
        struck.append(pid)
        if name == "socket removed":
            assert keeper.worker.folder is not None
            (keeper.worker.folder / "worker.sock").unlink(missing_ok=True)
        elif name == "slowed":
            pulses.append(threading.Thread(target=pulse, args=(pid,)))
            pulses[0].start()
        else:
            how = {"killed": signal.SIGKILL, "terminated": signal.SIGTERM, "stopped": signal.SIGSTOP}
            send(pid, how[name])

    def mend() -> None:
        for thread in pulses:
            thread.join()
        # The process id may belong to nobody any more, but not to another process: ours is its parent.
        if name == "stopped" and client.worker_pid in struck:
            send(struck[0], signal.SIGCONT)

    return harness.episode(name, strike, mend)


def test_a_thousand_faults(private_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance, figures = random.Random(2026), Figures()
    model = toy_model(noise=0.6)
    fault_names = list(Mangler(0).faults)
    before: tuple[int, int] | None = None
    begin = time.monotonic()
    while figures.faults.total() < FAULTS:
        number = figures.faults.total()
        with ExitStack() as stack:
            if number // EPISODES_PER_CLIENT % 3 == 0:
                drafter = stack.enter_context(ssd(toy_worker(noise=0.6)))
                harness = Harness(drafter, chance, figures)
                for _ in range(EPISODES_PER_CLIENT):
                    if not of_the_process(harness, chance.choice(OF_THE_PROCESS)):
                        break
            else:
                mangler = Mangler(number)
                far, near = f"ipc://{private_tmp}/far", f"ipc://{private_tmp}/near"
                stack.enter_context(serving(draft_service(model), far))
                stack.enter_context(between(near, far, mangler))
                drafter = stack.enter_context(ssd(Remote(near)))
                harness = Harness(drafter, chance, figures)
                for _ in range(EPISODES_PER_CLIENT):
                    name = chance.choice(fault_names)

                    def strike(name: str = name, mangler: Mangler = mangler) -> None:
                        mangler.fault = name

                    def mend(mangler: Mangler = mangler) -> None:
                        mangler.fault = None

                    if not harness.episode(name, strike, mend):
                        break
                figures.mangled += mangler.mangled
            harness.close()
        assert model.kv.pool.available == model.kv.pool.num_blocks, "KV blocks of the worker are lost"
        assert leftovers(private_tmp) == []
        assert list(private_tmp.iterdir()) == []
        assert children() == []
        gc.collect()
        now = descriptors(), threading.active_count()
        before = before or now
        assert now[0] <= before[0] + 3, "descriptors are lost"
        assert now[1] <= before[1], "threads are lost"
    with capsys.disabled():
        print(f"\n{figures} in {time.monotonic() - begin:.0f} s; descriptors, threads: {before} -> {now}")  # noqa: T201
    assert (figures.changed, figures.hung) == (0, 0)
    assert figures.speculated > 1000, "there was something to disturb"
    assert figures.struck_down < FAULTS // 5, "most faults met a client that was up"
