"""The peer's process, with a stand-in for llama.cpp that speaks the worker's protocol."""

import sys

import pytest

from sonoran.bench.peers import WORKER, LlamaCpp, check_peer, thread_binding
from sonoran.errors import ConfigError

STAND_IN = """
import json, sys
setup = json.loads(sys.stdin.readline())
def say(value):
    print(json.dumps(value), flush=True)
say({"version": "1.2", "system": "CPU", "load_s": 0.5, "setup": setup})
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "generate":
        say({"token_ids": request["prompt"][: request["max_tokens"]], "ttft_s": 0.1, "e2e_s": 0.3})
    elif request["start"] == 0 and len(request["ids"]) == 13:
        sys.exit(3)
    else:
        say({"seconds": len(request["ids"]) + request["all_logits"] / 10})
"""


@pytest.fixture
def stand_in(tmp_path):
    path = tmp_path / "worker.py"
    path.write_text(STAND_IN)
    return path


def test_requests_and_answers(tmp_path, stand_in):
    peer = LlamaCpp(
        tmp_path / "m.gguf",
        [5, 6, 7],
        max_rows=4,
        threads=2,
        cores=(0, 1),
        python=sys.executable,
        worker=stand_in,
    )
    assert peer.name == "llama.cpp, 2 threads"
    assert peer.forward_seconds(4) == pytest.approx(4.1)
    assert peer.prefill_seconds() == pytest.approx(3.0)
    assert peer.generate([1, 2, 3], 2, [0])["token_ids"] == [1, 2]
    facts = peer.describe()
    assert (facts["engine"], facts["version"], facts["system"]) == ("llama.cpp", "1.2", "CPU")
    assert facts["load"] == {"seconds": 0.5}
    peer.close()
    peer.close()


def test_a_worker_that_dies_is_an_error(tmp_path, stand_in):
    peer = LlamaCpp(tmp_path / "m.gguf", range(13), threads=1, python=sys.executable, worker=stand_in)
    with pytest.raises(ConfigError, match="ended without an answer"):
        peer.prefill_seconds()
    peer.close()


def test_an_interpreter_without_the_package_is_named(tmp_path):
    empty = tmp_path / "llama_cpp.py"
    empty.write_text("raise ImportError('no llama here')")
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER.read_text())  # beside the module above, which it finds first
    with pytest.raises(ConfigError, match=r"no llama here; --peer-python names an interpreter"):
        LlamaCpp(tmp_path / "m.gguf", [1], threads=1, worker=worker)


def test_wrong_peers(tmp_path):
    with pytest.raises(ConfigError, match=r"unknown peer 'lama\.cpp'; did you mean 'llama\.cpp'\?"):
        check_peer("lama.cpp")
    with pytest.raises(ConfigError, match="GGUF files only"):
        LlamaCpp(tmp_path, [1], threads=1)
    with pytest.raises(ConfigError, match="cannot start"):
        LlamaCpp(tmp_path / "m.gguf", [1], threads=1, python=str(tmp_path / "python"))


def test_threads_are_bound_one_to_a_core():
    assert thread_binding((0, 2)) == {"OMP_PROC_BIND": "close", "OMP_PLACES": "{0},{2}"}
    assert thread_binding(None) == {}
