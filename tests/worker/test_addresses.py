"""Where a worker may listen: it takes no file that it did not make, and no address that is in use."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from sonoran.errors import ConfigError, WorkerError
from sonoran.ssd.messages import Welcome
from sonoran.worker.server import serve
from sonoran.worker.transport import Endpoint, check_address
from tests.worker.fake_worker import fake_service
from tests.worker.workers import hello, raw, serving


def refused(address: str) -> str:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        with pytest.raises(WorkerError) as caught:
            Endpoint(context, address, None)
        return str(caught.value)
    finally:
        context.term()


@pytest.mark.parametrize("kind", ["file", "link", "folder", "pipe", "dangling link"])
def test_what_lies_at_the_path_is_left_alone(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "notes.db", tmp_path / "other"
    if kind == "file":
        path.write_text("data")
    elif kind == "link":
        other.write_text("data")
        path.symlink_to(other)
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(other)
    before = path.lstat()
    assert "no socket" in refused(f"ipc://{path}")
    assert path.lstat().st_ino == before.st_ino
    if kind in ("file", "link"):
        assert path.read_text() == "data"


def test_a_second_worker_is_refused_and_the_first_one_serves_on(address: str) -> None:
    with serving(fake_service({}), address):
        assert "in use" in refused(address)
        with raw(address, hello()) as client:
            assert isinstance(client.hear(), Welcome)


def test_the_socket_of_a_worker_that_was_killed_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.listen()
    left.close()
    assert path.exists()
    with serving(fake_service({}), f"ipc://{path}"), raw(f"ipc://{path}", hello()) as client:
        assert isinstance(client.hear(), Welcome)
    assert not path.exists()


def test_a_path_that_somebody_else_took_meanwhile_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with serving(fake_service({}), f"ipc://{path}"):
        path.unlink()
        path.write_text("mine")
    assert path.read_text() == "mine"


def test_relative_paths_are_those_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with serving(fake_service({}), "ipc://s"):
        assert (tmp_path / "s").exists()
        monkeypatch.chdir(tmp_path / "elsewhere")
    assert not (tmp_path / "s").exists()


def test_a_forked_child_removes_nothing(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    endpoint = Endpoint(context, f"ipc://{tmp_path / 's'}", None)
    pid = os.fork()
    if pid == 0:
        endpoint.remove_file()
        os._exit(0)
    os.waitpid(pid, 0)
    assert (tmp_path / "s").exists()
    endpoint.close()
    context.term()
    assert not (tmp_path / "s").exists()


def test_the_abstract_namespace_has_no_files_and_is_in_use_once() -> None:
    address = f"ipc://@sonoran-test-{os.getpid()}"
    with serving(fake_service({}), address):
        assert "in use" in refused(address)
        with raw(address, hello()) as client:
            assert isinstance(client.hear(), Welcome)
    assert not Path(address.removeprefix("ipc://")).exists()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "No such file" in refused(f"ipc://{tmp_path / 'none' / 's'}")
    with pytest.raises(ConfigError, match="names no path"):
        check_address("ipc://*", None)


def test_serve_says_so_before_it_is_ready(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("x")
    with pytest.raises(WorkerError, match=r"cannot listen at ipc://.*no socket"):
        serve(fake_service({}), f"ipc://{path}", on_ready=lambda: pytest.fail("it is not ready"))


def test_two_workers_that_start_together_do_not_take_each_others_place(tmp_path: Path) -> None:
    """Also where a killed worker left its socket: one of them gets the address, the others are told."""
    path = tmp_path / "s"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    script = (
        "import sys, zmq\n"
        "from sonoran.worker.transport import Endpoint\n"
        "print('go', flush=True); sys.stdin.readline()\n"
        "try: endpoint = Endpoint(zmq.Context(), sys.argv[1], None)\n"
        "except Exception as error: print('refused', error, flush=True)\n"
        "else: print('listens', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", script, f"ipc://{path}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("\n")
            worker.stdin.flush()
        said = [worker.stdout.readline() for worker in workers if worker.stdout is not None]
        assert sorted(line.split()[0] for line in said) == ["listens", "refused", "refused", "refused"], said
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
            worker.communicate()
