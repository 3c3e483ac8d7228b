"""A worker ends soon after it is told to, however long what it is doing would take."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sonoran.worker.process import LocalWorker
from tests.worker.workers import COMMAND, hello, leftovers, prefill, raw, runs, wait_until

SOON = 5.0
"""Seconds; what the workers below are doing takes minutes."""

BUSY = {
    "a long pass": "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)",
    "a long loop": "exec('while True: pass')",
}

COMMAND_LINE = """
import hashlib, sys
sys.path.insert(0, {root!r})
import sonoran.cli.draft_worker as command
from sonoran.cli.main import main
from tests.worker.local import toy_model

def busy():
    sys.stderr.write("busy\\n")
    sys.stderr.flush()
    {busy}

def load(options, progress):
    if {loading}:
        busy()
    model = toy_model()
    model.backend.before_forward = busy
    return model

command.load_draft_model = load
sys.argv = ["sonoran", "draft-worker", "--bind", {address!r}]
main()
"""

CHILD = """
import hashlib, sys
sys.path.insert(0, {root!r})
from sonoran.worker.__main__ import child_main
from sonoran.worker.session import draft_service
from tests.worker.local import toy_model

def build(options, report):
    report(1, 2)
    if {loading}:
        {busy}
    model = toy_model()
    def busy():
        {busy}
    model.backend.before_forward = busy
    return draft_service(model)

sys.exit(child_main(build, dict))
"""
ROOT = str(Path(__file__).parents[2])


@contextmanager
def command_line(busy: str, address: str, loading: bool) -> Iterator[subprocess.Popen[str]]:
    script = COMMAND_LINE.format(root=ROOT, busy=BUSY[busy], loading=loading, address=address)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
@pytest.mark.parametrize("busy", list(BUSY))
def test_the_command_ends_in_the_middle_of(tmp_path: Path, busy: str, how: signal.Signals) -> None:
    address = f"ipc://{tmp_path / 's'}"
    with command_line(busy, address, False) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "serving toy" in process.stdout.readline()
        with raw(address, hello(fingerprint="toy"), prefill()):
            assert process.stderr.readline() == "busy\n"
            process.send_signal(how)
            assert process.wait(SOON) == 128 + how
        assert process.stderr.read() == "interrupted\n"
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
@pytest.mark.parametrize("busy", list(BUSY))
def test_the_command_ends_while_it_loads(tmp_path: Path, busy: str, how: signal.Signals) -> None:
    with command_line(busy, f"ipc://{tmp_path / 's'}", True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "busy\n"
        process.send_signal(how)
        assert process.wait(SOON) == 128 + how
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("loading", [False, True], ids=["serving", "loading"])
@pytest.mark.parametrize("busy", list(BUSY))
def test_a_child_ends_in_the_middle_of(private_tmp: Path, busy: str, loading: bool) -> None:
    script = CHILD.format(root=ROOT, busy=BUSY[busy], loading=loading)
    child = LocalWorker({}, command=(sys.executable, "-c", script))
    try:
        wait_until(lambda: child.progress is not None, "it loads")
        if not loading:
            wait_until(lambda: child.ready, "it is ready")
            with raw(child.address, hello(fingerprint="toy"), prefill()) as client:
                client.hear()
        os.kill(child.pid, signal.SIGTERM)
        wait_until(lambda: not runs(child.pid), "it ended", SOON)
        assert leftovers(private_tmp) == []
    finally:
        child.stop()


def test_a_child_that_is_told_nothing_ends_with_its_input() -> None:
    process = subprocess.Popen(
        list(COMMAND), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(30) != 0
