"""``sonoran draft-worker``: what it refuses before anything is loaded, keys, and a whole life of the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sonoran.cli.main import app
from sonoran.worker.connection import Remote
from sonoran.worker.keys import load_keys
from tests.worker.workers import connected, free_port, runs

RUN = """
import sys
sys.path.insert(0, {root!r})
import sonoran.cli.draft_worker as command
from sonoran.cli.main import main
from tests.worker.local import toy_model
command.load_draft_model = lambda options, progress: toy_model()
sys.argv = ["sonoran", "draft-worker", "--json", *{arguments!r}]
main()
"""


def say(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["draft-worker", *arguments])
    return result.exit_code, " ".join(result.output.split())


def test_keygen_writes_both_files_and_never_twice(tmp_path: Path) -> None:
    code, output = say("keygen", "--out", str(tmp_path / "keys"), "--json")
    assert code == 0
    paths = json.loads(output)
    assert load_keys(paths["worker"], "worker").peer == load_keys(paths["client"], "client").public
    code, output = say("keygen", "--out", str(tmp_path / "keys"))
    assert code == 2
    assert "exists already" in output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--bind", "tcp://0.0.0.0:5757"], "keygen --out DIR"),
        (["--bind", "tcp://nonsense"], "tcp://HOST:PORT"),
        (["--key-file", "none.key"], "none.key"),
        (["--quantize", "int5"], "quantize 'int5' is unknown"),
        (["--cores", "x"], "cores must look like '0,2-5'"),
        (["--threads", "0"], "threads must be"),
        (["--heartbeat", "0"], "heartbeat must be from 0.01"),
        (["--model", "qwen2.5-coder-0.5b-instrukt"], "qwen2.5-coder-0.5b-instruct"),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_loaded(arguments: list[str], text: str) -> None:
    code, output = say(*arguments)
    assert code == 2
    assert text in output


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_it_serves_with_keys_until_it_is_told_to_stop(tmp_path: Path, how: signal.Signals) -> None:
    assert say("keygen", "--out", str(tmp_path))[0] == 0
    port = free_port()
    arguments = ["--bind", f"tcp://0.0.0.0:{port}", "--key-file", str(tmp_path / "worker.key")]
    script = RUN.format(root=str(Path(__file__).parents[2]), arguments=arguments)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while lines[-1].strip() != "}" and lines[-1]:
            lines.append(process.stdout.readline())
        facts = json.loads("".join(lines))
        assert (facts["model"], facts["encrypted"]) == ("toy", True)
        remote = Remote(f"tcp://127.0.0.1:{port}", load_keys(tmp_path / "client.key", "client"))
        with connected(
            remote, fingerprint=facts["fingerprint"], settings={"num_speculative_tokens": 4}
        ) as client:
            assert client.welcome is not None
            assert client.welcome.context_length == facts["context_length"]
            os.kill(process.pid, how)
            assert process.wait(20) == 0
        assert not runs(process.pid)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
