"""vLLM as people run it: in processes of its own, on two tensor-parallel ranks, and as a server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from tests.vllm.engine.helpers import CORES, ENVIRONMENT, make_pair, prompts, speculation

pytestmark = pytest.mark.vllm

ROOT = Path(__file__).parents[3]
PROMPTS = prompts(3, seed=11)


def environment(counters: Path, **changes: str) -> dict[str, str]:
    counters.mkdir(exist_ok=True)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    several = {**ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "PYTHONPATH": path}
    return {**os.environ, **several, "PROMETHEUS_MULTIPROC_DIR": str(counters), **changes}


def play(folder: Path, name: str, env: dict[str, str], **engine: Any) -> list[list[int]]:
    out = folder / f"{name}.json"
    order = {"engine": engine, "prompts": PROMPTS, "max_tokens": 24, "times": 2, "out": str(out)}
    command = [sys.executable, "-m", "tests.vllm.engine.play", json.dumps(order)]
    done = subprocess.run(
        command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "Bad file descriptor" not in done.stderr
    return json.loads(out.read_text())


def counted(counters: Path) -> str:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(counters))
    return generate_latest(registry).decode()


@pytest.mark.skipif(len(CORES) < 2, reason="two ranks need two cores")
def test_tensor_parallel_ranks_verify_the_same(tmp_path: Path) -> None:
    """The worker shares a core with a rank that spins, so that it may be too late at times, but not always."""
    target, draft = make_pair(tmp_path, "qwen2")
    cores = {"VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, CORES[:2]))}
    shared = {"model": str(target), "tensor_parallel_size": 2}
    plain = play(tmp_path, "plain", environment(tmp_path / "none", **cores), **shared)
    counters = tmp_path / "counters"
    with_draft = speculation(draft, longest_wait_ms=1000)
    assert play(tmp_path, "ssd", environment(counters, **cores), **shared, **with_draft) == plain
    found = counted(counters)
    assert total(found, "sonoran:accepted_tokens_total") > 0
    assert total(found, "sonoran:draft_worker_up") in (0.0, 1.0)


def total(metrics: str, name: str) -> float:
    lines = [line for line in metrics.splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


@contextmanager
def serving(target: Path, log: Path, env: dict[str, str], options: dict[str, Any]) -> Iterator[str]:
    """``vllm serve`` with what docs/vllm.md says, until the end of the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # What `vllm serve` runs; that command itself does not start where the package is called vllm-cpu.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(target)]
    command += ["--port", str(port), "--host", "127.0.0.1", "--served-model-name", "tiny"]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "256"]
    for name, value in options.items():
        command += ["--" + name.replace("_", "-"), json.dumps(value)]
    with (
        log.open("wb") as out,
        subprocess.Popen(command, env=env, stdout=out, stderr=out, cwd=log.parent) as process,
    ):
        try:
            url, end = f"http://127.0.0.1:{port}", time.monotonic() + 240
            while True:
                assert process.poll() is None and time.monotonic() < end, log.read_text()[-4000:]
                with socket.socket() as probe:
                    probe.settimeout(1.0)
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.5)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def test_a_server_with_a_client_of_openai(tmp_path: Path) -> None:
    target, draft = make_pair(tmp_path, "llama")
    plain = play(tmp_path, "plain", environment(tmp_path / "none"), model=str(target))
    counters, log, trace = tmp_path / "counters", tmp_path / "log.txt", tmp_path / "trace.json"
    options = speculation(draft, log_every_s=1, trace=str(trace))
    with serving(target, log, environment(counters, VLLM_LOGGING_LEVEL="INFO"), options) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=5)
        wanted: dict[str, Any] = {
            "temperature": 0.0,
            "max_tokens": 24,
            "extra_body": {"ignore_eos": True, "return_token_ids": True},
        }
        for _ in range(2):
            for prompt, tokens in zip(PROMPTS, plain, strict=True):
                answer = client.completions.create(model="tiny", prompt=prompt, **wanted)
                assert answer.choices[0].token_ids == tokens
            time.sleep(1.2)
        chat = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=16, stream=True
        )
        assert sum(1 for _ in chat) > 1
        time.sleep(1.2)
        client.completions.create(model="tiny", prompt=PROMPTS[0], **wanted)
        metrics = client.with_options(base_url=url).get("/metrics", cast_to=str)
    assert total(metrics, "sonoran:speculation_cache_hits_total") > 0
    assert total(metrics, "sonoran:draft_tokens_total") > 0
    assert "vllm:spec_decode_num_accepted_tokens_total" in metrics
    said = log.read_text()
    assert "drafts for" in said
    assert "tokens per verification" in said
    assert "Bad file descriptor" not in said
    lanes = {
        event["args"]["name"]
        for event in json.loads(trace.read_text())["traceEvents"]
        if event["ph"] == "M" and event["name"] == "process_name"
    }
    assert lanes == {"target", "draft worker"}
