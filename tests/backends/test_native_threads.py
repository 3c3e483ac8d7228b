"""The native backend among threads: pinning, Python threads during a pass, Ctrl-C, calls from several."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from sonoran import _native
from sonoran.backends.base import Rows
from sonoran.backends.native import NativeBackend
from sonoran.backends.placement import find_processors
from sonoran.errors import ConfigError
from sonoran.models.source import ModelFile, open_model
from tests.backends.native_oracle import BLOCK_SIZE, native, text, trunk
from tests.tiny_models import make_gguf


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    path = tmp_path_factory.mktemp("threads") / "tiny.gguf"
    make_gguf(path, "qwen2", "Q8_0")
    return open_model(path)


def long_pass(rows: int = 480) -> Rows:
    """A pass of some tens of milliseconds."""
    table = np.arange(rows // BLOCK_SIZE, dtype=np.int32)[None]
    return Rows.trunk(text(rows), np.arange(rows), np.zeros(rows), table, BLOCK_SIZE, np.ones(rows))


@pytest.fixture
def patient_interpreter() -> Iterator[None]:
    """Threads get the interpreter only from one that gives it up by itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("threads", [1, 2])
def test_other_python_threads_run_during_a_pass(
    model_file: ModelFile, threads: int, patient_interpreter: None
) -> None:
    model = native(model_file, num_blocks=30, threads=threads)
    rows = long_pass()
    count, stop = [0], threading.Event()

    def counter() -> None:
        while not stop.is_set():
            count[0] += 1
            time.sleep(1e-4)

    worker = threading.Thread(target=counter)
    worker.start()
    try:
        before = count[0]
        for _ in range(200):  # a busy machine may leave the other thread without a core for a few passes
            model.forward(rows)
            if count[0] > before:
                break
        after = count[0]
    finally:
        stop.set()
        worker.join()
    assert after > before


def test_an_interrupt_ends_a_loop_of_passes_and_the_backend_lives_on(model_file: ModelFile) -> None:
    model = native(model_file, num_blocks=30, threads=2)
    rows = long_pass()
    expected = model.forward(rows)
    started = threading.Event()

    def interrupt() -> None:
        started.wait()
        os.kill(os.getpid(), signal.SIGINT)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    worker = threading.Thread(target=interrupt)
    worker.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            for _ in range(10_000):
                started.set()
                model.forward(rows)
    finally:
        signal.signal(signal.SIGINT, previous)
        worker.join()
    np.testing.assert_array_equal(model.forward(rows), expected)


def test_calls_from_several_threads_take_turns(model_file: ModelFile) -> None:
    """Each works on a text and blocks of its own, all on one backend."""
    model = native(model_file, num_blocks=8, threads=2)
    texts = [text(20 + i, seed=i) for i in range(4)]
    tables = [np.array([[2 * i, 2 * i + 1]], np.int32) for i in range(4)]
    alone = [model.forward(trunk(ids, table=table)) for ids, table in zip(texts, tables, strict=True)]

    def run(i: int) -> list[np.ndarray]:
        parts = [
            trunk(texts[i][:end], start, tables[i]) for start, end in ((0, 7), (7, 8), (8, len(texts[i])))
        ]
        return [np.concatenate([model.forward(part) for part in parts]) for _ in range(10)]

    with ThreadPoolExecutor(4) as pool:
        for i, repeats in enumerate(pool.map(run, range(4))):
            for logits in repeats:
                np.testing.assert_array_equal(logits, alone[i])


def test_closing_during_a_pass_lets_it_finish(model_file: ModelFile) -> None:
    model = native(model_file, num_blocks=30, threads=2)
    expected = model.forward(long_pass())
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(model.forward, long_pass())
        time.sleep(0.002)
        model.close()
        try:
            logits = running.result()
        except ConfigError as error:  # closed before it began
            assert "closed" in str(error)
        else:
            np.testing.assert_array_equal(logits, expected)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores cannot be chosen on this system")
def test_pinned_passes_leave_the_caller_where_it_was(model_file: ModelFile) -> None:
    cores = tuple(_native.available_cores())
    before = os.sched_getaffinity(0)
    assert set(cores) == before
    free = native(model_file)
    pinned = native(model_file, threads=None, cores=cores[-1:])
    every = native(model_file, threads=None, cores=cores)
    assert (pinned.threads, every.threads) == (1, len(cores))
    logits = [model.forward(trunk(text(9))) for model in (free, pinned, every)]
    np.testing.assert_array_equal(logits[0], logits[1])
    np.testing.assert_array_equal(logits[0], logits[2])
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs the list of threads of Linux")
def test_workers_start_with_the_backend_and_end_with_it(model_file: ModelFile) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    gc.collect()  # backends of other tests take their threads along
    before = count()
    model = native(model_file, threads=4)
    assert count() == before + 3
    model.forward(trunk(text(3)))
    model.close()
    assert count() == before


def test_default_is_one_thread_for_each_physical_core_within_the_quota(model_file: ModelFile) -> None:
    model = NativeBackend(model_file, num_blocks=2)
    assert model.threads == len(find_processors().cores)
    assert model.instruction_set == _native.best_instruction_set()
    with pytest.raises(ConfigError, match="2 threads do not fit 1 cores"):
        native(model_file, threads=2, cores=tuple(_native.available_cores()[:1]))


def test_too_many_threads_for_the_system_are_an_error_and_no_abort(model_file: ModelFile) -> None:
    code = f"""
import resource
from pathlib import Path
from sonoran.backends.native import NativeBackend
from sonoran.errors import ConfigError
from sonoran.models.source import open_model
file = open_model(Path({str(model_file.path)!r}))
used = 1024 * int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmSize")))
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)  # a thread's stack takes 8 MiB
try:
    NativeBackend(file, num_blocks=4, threads=500)
except ConfigError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "threads, not 500; ask for fewer" in result.stdout
