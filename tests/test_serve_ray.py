"""Replicas under Ray Serve. The cluster of the last tests needs Ray (`make test-ray`), the rest does not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sonoran import serve_ray
from sonoran.config import SpeculativeConfig
from sonoran.errors import ConfigError
from sonoran.serve_ray import RayConfig, Replica, claim_cores
from tests.server.running import tiny_pair

URL = "http://127.0.0.1:18431"


def test_cores_are_claimed_once(tmp_path: Path) -> None:
    first, locks = claim_cores(2, (0, 1, 2, 5), tmp_path)
    second, others = claim_cores(1, (0, 1, 2, 5), tmp_path)
    assert (first, second) == ((0, 1), (2,))
    with pytest.raises(ConfigError, match="wants 2 cores, and of 4 only 1 are left: lower cores or replicas"):
        claim_cores(2, (0, 1, 2, 5), tmp_path)
    os.close(locks[1])
    third, more = claim_cores(2, (0, 1, 2, 5), tmp_path)  # the failure has kept nothing
    assert third == (1, 5)
    for lock in (locks[0], *others, *more):
        os.close(lock)


def test_cores_come_back_when_their_replica_dies(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from sonoran.serve_ray import claim_cores;"
        "print(claim_cores(1, (3,), Path(sys.argv[1])), flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None and b"(3,)" in holder.stdout.readline()
    with pytest.raises(ConfigError):
        claim_cores(1, (3,), tmp_path)
    holder.kill()
    holder.communicate()
    _, [lock] = claim_cores(1, (3,), tmp_path)
    os.close(lock)


def test_values_may_be_text() -> None:
    config = RayConfig(replicas="2", cores="3", mode="ssd", draft="d")  # type: ignore[arg-type]
    assert (config.replicas, config.cores) == (2, 3)
    assert config.speculative == SpeculativeConfig("ssd", model="d")
    assert RayConfig(mode="ar").speculative is None
    assert RayConfig(mode="ngram").speculative == SpeculativeConfig("ngram")
    assert RayConfig().speculative == SpeculativeConfig.from_mapping({"method": "auto"})
    assert RayConfig().cores >= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"replica": "2"}, "unknown serve_ray key 'replica'.*replicas"),
        ({"replicas": "two"}, "replicas must be a number, got 'two'"),
        ({"replicas": "0"}, "replicas must be at least 1, got 0"),
        ({"host": "0.0.0.0"}, "give it keys"),
        ({"mode": "sdd"}, "method 'sdd' is unknown.*'sd'"),
        ({"mode": "ar", "draft": "d"}, "unknown speculative_config.*'model'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(
    arguments: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SONORAN_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=message):
        serve_ray.app(arguments)


def test_a_replica_that_cannot_load_says_why_and_keeps_no_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = os.sched_getaffinity(0)
    said: list[Any] = []

    async def live() -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "lifespan.startup"}

        async def send(message: Any) -> None:
            said.append(message)

        await Replica(RayConfig(model=str(tmp_path / "none.gguf"), cores=1))(
            {"type": "lifespan"}, receive, send
        )

    try:
        asyncio.run(live())
    finally:
        os.sched_setaffinity(0, before)
    assert said[0]["type"] == "lifespan.startup.failed" and "none.gguf" in said[0]["message"]
    _, locks = claim_cores(len(before), sorted(before), tmp_path / f"sonoran-cores-{os.getuid()}")
    for lock in locks:
        os.close(lock)


def ask(path: str, body: Any = None, timeout: float = 60.0) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.loads(answer.read())


def patiently(path: str, body: Any = None, patience: float = 120.0) -> Any:
    """Ask until there is an answer: a replica that died is started again meanwhile."""
    end = time.monotonic() + patience
    while True:
        try:
            return ask(path, body)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    ray = pytest.importorskip("ray")
    from ray import serve

    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two replicas need two cores")
    target, draft = tiny_pair(tmp_path_factory.mktemp("models"))
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, configure_logging=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": 18431})
        arguments = {"mode": "sd", "draft": str(draft), "replicas": "2", "cores": "1", "max_model_len": "128"}
        serve.run(serve_ray.app({"model": str(target), "served_model_name": "tiny", **arguments}))
        yield
    finally:
        serve.shutdown()
        ray.shutdown()


def replicas(least: int) -> dict[int, Any]:
    """Return the states of replicas by process, once that many were seen."""
    found: dict[int, Any] = {}
    end = time.monotonic() + 120
    while len(found) < least and time.monotonic() < end:
        state = patiently("/v1/status")
        found[state["process"]] = state
    assert len(found) >= least
    return found


@pytest.mark.ray
def test_either_replica_has_the_same_text_and_one_that_dies_is_replaced(cluster: None) -> None:
    states = replicas(2)
    assert {state["cores"] for state in states.values()} == {1}
    assert len({state["fingerprint"] for state in states.values()}) == 1
    body = {"model": "tiny", "prompt": "to be", "max_tokens": 12, "temperature": 1.0, "seed": 7}
    texts = {ask("/v1/completions", body)["choices"][0]["text"] for _ in range(20)}
    assert len(texts) == 1
    served = [state["engine"] for state in replicas(2).values()]
    assert len(served) == 2
    dead = next(iter(states))
    os.kill(dead, signal.SIGKILL)
    for _ in range(20):
        assert patiently("/v1/completions", body)["choices"][0]["text"] in texts
    assert dead not in replicas(2)


@pytest.mark.ray
def test_a_stream_comes_in_parts_and_ends(cluster: None) -> None:
    body = {"model": "tiny", "prompt": "to be", "max_tokens": 8, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(
        URL + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = answer.read().decode().split("\n\n")
    assert events[-2] == "data: [DONE]" and len(events) > 3


@pytest.mark.ray
def test_a_client_that_leaves_ends_its_request(cluster: None) -> None:
    body = {"model": "tiny", "prompt": "to be", "max_tokens": 100, "ignore_eos": True, "stream": True}
    for _ in range(4):
        request = urllib.request.Request(
            URL + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.readline()
    end = time.monotonic() + 30
    while any(state["requests"] for state in replicas(2).values()):
        assert time.monotonic() < end
