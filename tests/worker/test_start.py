"""Where a worker cannot be started in the usual way: it starts in another, or says why not; and it comes back."""

from __future__ import annotations

import logging
import os
import signal
import stat
import sys
import tempfile
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from sonoran.errors import WorkerError
from sonoran.worker import process as process_module
from sonoran.worker.client import WorkerClient
from sonoran.worker.connection import Remote
from sonoran.worker.process import Keeper, LocalWorker, interpreter
from tests.worker.workers import connected, hello, item, leftovers, local, prefill, raw, runs, wait_until


def no_folder(*args: Any, **kwargs: Any) -> str:
    raise FileNotFoundError("no usable temporary directory")


def test_without_a_temporary_folder_it_is_reached_by_keys_that_nobody_else_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "mkdtemp", no_folder)
    with connected(local()) as client:
        assert client.prefill(prefill())
        reply = client.speculate([item(3)])
        assert reply is not None
        assert reply.answers[0].tokens == [8, 9, 10, 11]
        assert client._keeper is not None
        worker = client._keeper.worker
        assert worker is not None
        assert worker.folder is None
        with pytest.raises(WorkerError), connected(Remote(worker.address, patience_s=0.5)):
            pass
        os.kill(worker.pid, signal.SIGKILL)
        wait_until(lambda: client.state == "up" and client.epoch == 2, "another one is there")


def test_the_folder_of_the_session_is_second_choice(
    private_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tempfile.mkdtemp

    def picky(*, prefix: str, dir: str | None = None) -> str:
        return no_folder() if dir != str(private_tmp) else real(prefix=prefix, dir=dir)

    monkeypatch.setattr(tempfile, "mkdtemp", picky)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(private_tmp))
    with connected(local()) as client:
        assert client.state == "up"
        (folder,) = private_tmp.glob("sonoran-draft-*")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert leftovers(private_tmp) == []


def test_where_there_is_neither_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "mkdtemp", no_folder)
    monkeypatch.setattr(process_module.sys, "platform", "plan9")
    with pytest.raises(WorkerError, match="it needs a temporary folder: no usable"), connected(local()):
        pass


@pytest.mark.parametrize("named", ["", None, "/usr/sbin/uwsgi"])
def test_an_interpreter_that_is_not_named_is_found_or_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str | None
) -> None:
    real = interpreter()
    assert real == sys.executable
    monkeypatch.setattr(sys, "executable", named)
    assert Path(interpreter()).name.startswith("python")
    monkeypatch.setattr(sys, "exec_prefix", str(tmp_path))
    with pytest.raises(WorkerError, match=r"sys\.executable is .*sonoran draft-worker"):
        interpreter()
    with pytest.raises(WorkerError, match="cannot be started"):
        LocalWorker({})


def test_a_worker_whose_start_fails_half_way_does_not_stay(
    private_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def fail(worker: LocalWorker, process: Any, orders: Any) -> None:
        started.append(process.pid)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(LocalWorker, "_brief", fail)
    with pytest.raises(WorkerError, match="RuntimeError: can't start new thread"), connected(local()):
        pass
    assert started
    assert not any(runs(pid) for pid in started)
    assert leftovers(private_tmp) == []


@pytest.mark.parametrize(
    "error", [OSError(24, "Too many open files"), MemoryError(), zmq.ZMQError(24), RuntimeError("no thread")]
)
def test_a_killed_worker_comes_back_after_a_spell_in_which_nothing_works(
    private_tmp: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    caplog.set_level(logging.WARNING)
    look = Keeper.look
    spell: list[int] = []

    def fail(*args: Any) -> Any:
        spell.append(1)
        raise error

    with connected(local()) as client:
        pid = client.worker_pid
        assert pid is not None
        monkeypatch.setattr(Keeper, "look", fail)
        wait_until(lambda: len(spell) > 2 and client.state == "down", "it is noticed")
        assert client.speculate([item(3)]) is None
        assert type(error).__name__ in str(client.error)
        os.kill(pid, signal.SIGKILL)
        monkeypatch.setattr(Keeper, "look", look)
        wait_until(lambda: client.state == "up", "the worker is back", 30.0)
        assert client.worker_pid != pid
        assert client.prefill(prefill())
        assert client.speculate([item(3)]) is not None
    assert "looking after the draft worker failed" in caplog.text


def test_a_socket_that_fails_costs_a_round_and_no_more(private_tmp: Path) -> None:
    with connected(local()) as client:
        link = client._connection._link
        assert link is not None
        with client._lock:
            link._socket.close()
        with pytest.raises(WorkerError, match="connection to the draft worker failed"):
            client.prefill(prefill())
        wait_until(lambda: client.epoch == 2 and client.state == "up", "it is connected again", 30.0)
        assert client.prefill(prefill())


def test_a_forked_child_leaves_its_parents_worker_alone(private_tmp: Path) -> None:
    worker = LocalWorker({}, command=local().command)
    try:
        wait_until(lambda: worker.ready, "it is ready")
        pid = os.fork()
        if pid == 0:
            worker.stop()
            worker._cleanup()
            os._exit(0)
        os.waitpid(pid, 0)
        assert worker.alive
        assert worker.folder is not None
        assert worker.folder.exists()
        with raw(worker.address, hello()) as client:
            client.hear()
    finally:
        worker.stop()
    assert leftovers(private_tmp) == []


def test_a_worker_may_start_before_it_is_known_what_it_serves(private_tmp: Path) -> None:
    place = local()
    client = WorkerClient(None, replace(place, options=Future()))
    client.begin()
    wait_until(lambda: any(private_tmp.glob("sonoran-draft-*")), "its process is about to be there")
    client.brief(hello(), place.options)
    client.start()
    assert client.state == "up"
    client.close()


def test_one_that_is_never_told_ends_with_its_client(private_tmp: Path) -> None:
    client = WorkerClient(None, replace(local(), options=Future()))
    client.begin()
    client.close()
    assert not any(private_tmp.glob("sonoran-draft-*"))
    with pytest.raises(WorkerError, match="was closed while it started"):
        client.start()
