"""Worker processes: they start, explain their end, and leave nothing behind, however either side ends."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sonoran.errors import ConfigError, ModelError, WorkerError
from sonoran.ssd.messages import Welcome
from sonoran.worker.process import LocalWorker
from tests.worker.workers import BEAT, COMMAND, PATIENCE, hello, leftovers, raw, runs, wait_until

PARENT = """
import sys, time
from sonoran.worker.process import LocalWorker
worker = LocalWorker({"load_step_s": %s, "load_steps": 1000000 if %s else 1}, command=%r, heartbeat_s=0.2)
while not (worker.ready or worker.progress):
    time.sleep(0.005)
print(worker.pid, flush=True)
time.sleep(60)
"""


@contextmanager
def worker(**options: Any) -> Iterator[LocalWorker]:
    child = LocalWorker(options, command=COMMAND, heartbeat_s=BEAT)
    try:
        wait_until(lambda: child.ready or not child.alive, "the worker is ready")
        yield child
    finally:
        child.stop()


@contextmanager
def parent_process(loading: bool = False) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process with a worker; yields it and the worker's process id."""
    script = PARENT % (0.01 if loading else 0.0, loading, COMMAND)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_a_worker_lives_in_a_folder_of_its_own_and_takes_everything_along(private_tmp: Path) -> None:
    with worker() as child:
        assert child.alive
        assert child.ready
        assert child.progress == (1, 1)
        assert stat.S_IMODE(child.folder.stat().st_mode) == 0o700
        assert leftovers(private_tmp) == [child.folder.name]
        with raw(child.address, hello()) as client:
            assert isinstance(client.hear(), Welcome)
        pid = child.pid
    assert not runs(pid)
    assert leftovers(private_tmp) == []
    child.stop()


def test_nothing_of_the_settings_is_in_the_argument_list(private_tmp: Path) -> None:
    with worker(model="very-secret-name") as child:
        assert "secret" not in Path(f"/proc/{child.pid}/cmdline").read_text()


def test_a_worker_runs_on_its_own_cores(private_tmp: Path) -> None:
    core = max(os.sched_getaffinity(0))
    with worker(cores=[core]) as child:
        wait_until(lambda: child.ready, "it was ready")
        for task in Path(f"/proc/{child.pid}/task").iterdir():
            assert os.sched_getaffinity(int(task.name)) == {core}
    with worker(cores=[100_000]) as child:
        assert isinstance(child.failure(), ConfigError)
        assert "100000" in str(child.failure())


def test_an_end_while_loading_is_explained_with_the_last_words(private_tmp: Path) -> None:
    with worker(die_while_loading=True) as child:
        failure = child.failure()
        assert isinstance(failure, WorkerError)
        assert "status 7" in str(failure)
        assert "the disk is on fire" in str(failure)
    assert leftovers(private_tmp) == []


def test_an_error_of_the_real_worker_keeps_its_kind_and_text(private_tmp: Path) -> None:
    child = LocalWorker({"model": str(private_tmp / "none.gguf")})
    try:
        wait_until(lambda: not child.alive, "it gave up", 60.0)
        assert isinstance(child.failure(), ModelError)
        assert "none.gguf" in str(child.failure())
    finally:
        child.stop()


def test_a_command_that_is_not_there_is_an_error(private_tmp: Path) -> None:
    with pytest.raises(WorkerError, match="cannot be started"):
        LocalWorker({}, command=["/nowhere/python"])
    assert leftovers(private_tmp) == []


def test_a_very_long_temporary_folder_is_avoided(private_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = private_tmp / ("x" * 90)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    with worker() as child:
        assert child.ready
        assert child.folder.parent == Path("/tmp")
    assert not child.folder.exists()
    assert leftovers(long) == []


def test_it_ignores_ctrl_c_and_heeds_sigterm(private_tmp: Path) -> None:
    with worker() as child:
        os.kill(child.pid, signal.SIGINT)
        with raw(child.address, hello()) as client:
            assert isinstance(client.hear(), Welcome)
        os.kill(child.pid, signal.SIGTERM)
        wait_until(lambda: not child.alive, "it ended")
        assert leftovers(private_tmp) == []
        assert "status 0" in str(child.failure())


def test_a_stopped_worker_is_killed_in_the_end(private_tmp: Path) -> None:
    with worker() as child:
        os.kill(child.pid, signal.SIGSTOP)
        child.stop()
        assert not child.alive
    assert leftovers(private_tmp) == []


def test_a_killed_worker_leaves_nothing_once_it_is_stopped(private_tmp: Path) -> None:
    with worker() as child:
        os.kill(child.pid, signal.SIGKILL)
        wait_until(lambda: not child.alive, "it ended")
        assert "signal 9" in str(child.failure())
    assert leftovers(private_tmp) == []


@pytest.mark.parametrize("loading", [False, True], ids=["serving", "loading"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
def test_when_the_parent_ends_so_does_the_worker(
    private_tmp: Path, how: signal.Signals, loading: bool
) -> None:
    with parent_process(loading) as (parent, pid):
        assert runs(pid)
        # Ctrl-C reaches the whole foreground group of a terminal.
        os.killpg(parent.pid, how)
        parent.wait(PATIENCE)
        wait_until(lambda: not runs(pid), "the worker ended")
        wait_until(lambda: leftovers(private_tmp) == [], "its folder is gone")


def test_the_worker_goes_even_if_somebody_else_holds_its_standard_input(private_tmp: Path) -> None:
    script = "import os, time\n" + PARENT.replace(
        "print(worker.pid", "if os.fork() == 0: time.sleep(20); os._exit(0)\nprint(worker.pid"
    ) % (0.0, False, COMMAND)
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
        process.wait()
        wait_until(lambda: not runs(pid), "the worker ended")
        wait_until(lambda: leftovers(private_tmp) == [], "its folder is gone")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        if process.stdout is not None:
            process.stdout.close()


def test_started_by_hand_it_says_what_to_do_instead() -> None:
    ended = subprocess.run(
        [sys.executable, str(COMMAND[1])],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert ended.returncode != 0
    assert "sonoran draft-worker" in ended.stderr


def test_many_log_lines_do_not_block_it(private_tmp: Path) -> None:
    begin = time.monotonic()
    with worker(chatter=200_000) as child:
        assert child.ready, child.failure()
    assert time.monotonic() - begin < 60


def test_a_second_signal_does_not_end_the_cleaning_up() -> None:
    script = """
import os, signal, time
from sonoran.worker.guard import Guard
with Guard([signal.SIGTERM]):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        print("cleaned up", flush=True)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (128 + signal.SIGTERM, "cleaned up\n")
