"""Many clients at once: queues, clients that leave, cancellations, the end, keys, and who may come in at all."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sonoran.errors import ConfigError
from sonoran.llm import LLM
from sonoran.server.config import ServerConfig, read_keys
from sonoran.server.run import bind
from sonoran.server.service import within
from tests.engine.helpers import engine, model_drafter
from tests.server.running import NAME, Running, events, running
from tests.toy_backend import ToyBackend
from tests.toy_tokenizer import ToyTokenizer

LONG: dict[str, Any] = {
    "model": NAME,
    "prompt": "abc",
    "max_tokens": 400,
    "ignore_eos": True,
    "temperature": 0,
}


class SlowToy(ToyBackend):
    """Takes some milliseconds for a pass."""

    pause = 0.004

    def forward(self, rows: Any) -> Any:
        time.sleep(self.pause)
        return super().forward(rows)


@pytest.fixture
def llm() -> Iterator[LLM]:
    core = engine(SlowToy(num_blocks=512), drafter=model_drafter(num_blocks=512), max_num_seqs=4)
    with LLM.from_core(core, ToyTokenizer()) as llm:
        yield llm
        llm.check_invariants()
        assert core.kv.pool.available == core.kv.pool.num_blocks


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.005)


def raw(server: Running, body: dict[str, Any], path: str = "/v1/completions") -> socket.socket:
    """Send a request and leave its answer in the socket."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


def test_a_cancellation_that_meets_the_end_of_the_work_counts() -> None:
    async def waits(going: asyncio.Event) -> None:
        done = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(done.set_result, None)
        asyncio.get_running_loop().call_soon(going.set)
        await within(5.0, done)
        await asyncio.sleep(0)
        pytest.fail("the cancellation was forgotten")

    async def run() -> None:
        going = asyncio.Event()
        task = asyncio.create_task(waits(going))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the work is done, and who waits for it has not heard of that yet
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await within(5.0, asyncio.sleep(0, 7)) == 7
        with pytest.raises(asyncio.TimeoutError):
            await within(0.01, asyncio.sleep(5))

    asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_a_client_that_leaves_ends_its_request(
    llm: LLM, stream: bool, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlowToy, "pause", 0.02)
    with running(llm) as server:
        for wait in (0.0, 0.05, 0.2):
            connection = raw(server, {**LONG, "stream": stream, "n": n})
            until(lambda: llm.snapshot()["num_running"] > 0)
            time.sleep(wait)
            cancelled = llm.snapshot()["num_cancelled"]
            connection.close()
            until(lambda: llm.snapshot()["num_running"] == 0)
            assert llm.snapshot()["num_cancelled"] == cancelled + 1, "it ran to its end"
        until(lambda: server.call("/v1/status")[1]["requests"] == [])
        assert "sonoran:disconnects_total" in server.call("/metrics")[1]


def test_a_client_that_leaves_the_queue_is_forgotten(llm: LLM) -> None:
    with running(llm) as server:
        held = [raw(server, LONG) for _ in range(4)]
        until(lambda: llm.snapshot()["num_running"] == 4)
        waiting = raw(server, LONG)
        until(lambda: llm.snapshot()["num_waiting"] == 1)
        waiting.close()
        until(lambda: llm.snapshot()["num_waiting"] == 0)
        assert llm.snapshot()["num_running"] == 4
        for connection in held:
            connection.close()
        until(lambda: llm.snapshot()["num_running"] == 0)


def test_requests_are_listed_and_cancelled_by_their_id(llm: LLM) -> None:
    with running(llm) as server, ThreadPoolExecutor() as pool:
        answer = pool.submit(server.call, "/v1/completions", {**LONG, "request_id": "long-one"})
        until(lambda: server.call("/v1/status")[1]["requests"] != [])
        (listed,) = server.call("/v1/status")[1]["requests"]
        assert listed["id"] == "long-one" and listed["phase"] in ("queued", "prefill", "decoding")
        assert server.call("/v1/requests/other", method="DELETE")[0] == 404
        assert server.call("/v1/requests/cmpl-long-one", method="DELETE")[0] == 200
        status, body, _ = answer.result()
        assert status == 200 and body["choices"][0]["finish_reason"] == "abort"
        assert body["usage"]["completion_tokens"] < 400


def test_a_full_queue_says_when_to_come_again(llm: LLM) -> None:
    with running(llm, max_queue=2) as server:
        held = [raw(server, LONG) for _ in range(6)]
        until(lambda: len(server.call("/v1/status")[1]["requests"]) == 6)
        status, body, headers = server.call("/v1/completions", LONG)
        assert (status, body["error"]["type"], body["error"]["code"]) == (
            429,
            "rate_limit_error",
            "queue_full",
        )
        assert 1 <= int(headers["retry-after"]) <= 60
        text = server.call("/metrics")[1]
        assert 'vllm:admission_rejections_total{engine="0",model_name="tiny",reason="queue_full"} 1.0' in text
        for connection in held:
            connection.close()
        until(lambda: server.call("/v1/status")[1]["requests"] == [])
        assert server.call("/v1/completions", {**LONG, "max_tokens": 3})[0] == 200


def test_all_of_many_clients_that_come_again_are_served(llm: LLM) -> None:
    SlowToy.pause = 0.0005
    refused = 0

    def client(number: int) -> list[int]:
        nonlocal refused
        while True:
            body = {**LONG, "max_tokens": 12, "prompt": [number % 60, 1, 2], "return_token_ids": True}
            status, answer, _ = server.call("/v1/completions", body)
            if status == 200:
                return list(answer["choices"][0]["token_ids"])
            assert status == 429
            refused += 1
            time.sleep(0.02)

    try:
        with running(llm, max_queue=8) as server, ThreadPoolExecutor(40) as pool:
            found = list(pool.map(client, range(200)))
    finally:
        SlowToy.pause = 0.004
    assert refused > 0
    for number in range(60):
        assert len({tuple(ids) for ids in found[number::60]}) == 1


def test_time_limits(llm: LLM) -> None:
    with running(llm, queue_timeout=0.2, request_timeout=0.5) as server:
        begin = time.monotonic()
        status, body, headers = server.call("/v1/completions", {**LONG, "timeout_s": 0.1})
        assert (status, body["error"]["type"]) == (408, "timeout_error")
        assert headers["x-should-retry"] == "false"
        held = [raw(server, {**LONG, "stream": True}) for _ in range(4)]
        until(lambda: llm.snapshot()["num_running"] == 4)
        status, body, _ = server.call("/v1/completions", LONG)
        assert (status, body["error"]["code"]) == (429, "queue_full") and "0.2 s" in body["error"]["message"]
        text = b""
        while part := held[0].recv(65536):
            text += part
            if b"[DONE]" in text:
                break
        assert b'"type":"timeout_error"' in text and text.rstrip().endswith((b"[DONE]", b"0"))
        assert time.monotonic() - begin < 20
        for connection in held:
            connection.close()


def test_the_end_waits_for_what_runs(llm: LLM) -> None:
    with running(llm) as server, ThreadPoolExecutor() as pool:
        answer = pool.submit(server.call, "/v1/completions", {**LONG, "stream": True, "max_tokens": 100})
        until(lambda: llm.snapshot()["num_running"] == 1)
        server.stop(wait=False)
        status, text, _ = answer.result()
        assert status == 200 and events(text)[-1]["choices"][0]["finish_reason"] == "length"
        server.stop()


def test_the_end_does_not_wait_for_ever(llm: LLM) -> None:
    with running(llm, drain_timeout=0.1) as server, ThreadPoolExecutor() as pool:
        answer = pool.submit(server.call, "/v1/completions", {**LONG, "stream": True})
        until(lambda: llm.snapshot()["num_running"] == 1)
        time.sleep(0.1)
        server.stop()
        status, text, _ = answer.result()
        assert status == 200 and events(text)[-1]["error"]["code"] == "shutting_down"


def test_an_engine_that_fails_is_an_error_of_its_requests_only(llm: LLM) -> None:
    target = llm._runner.core.target
    assert isinstance(target, ToyBackend)

    def fail() -> None:
        target.before_forward = lambda: None
        raise ValueError("impossible")

    with running(llm) as server:
        target.before_forward = fail
        status, body, _ = server.call("/v1/completions", LONG)
        assert (status, body["error"]["type"]) == (500, "server_error")
        assert server.call("/v1/completions", {**LONG, "max_tokens": 3})[0] == 200


def test_keys_guard_everything_that_costs_or_tells(llm: LLM) -> None:
    with running(llm, keys=("secret-one", "secret-two")) as server:
        for path in ("/v1/models", "/v1/status", "/tokenizer_info"):
            status, body, headers = server.call(path)
            assert (status, body["error"]["type"]) == (401, "authentication_error")
            assert headers["www-authenticate"] == "Bearer"
            assert server.call(path, headers={"Authorization": "Bearer wrong"})[0] == 401
            assert server.call(path, headers={"Authorization": "Bearer secret-two"})[0] != 401
            assert server.call(path, headers={"X-Api-Key": "secret-one"})[0] != 401
        assert server.call("/v1/completions", LONG)[0] == 401
        assert server.call("/health")[0] == server.call("/")[0] == 200
        one, two = ({"Authorization": f"Bearer secret-{name}"} for name in ("one", "two"))
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(server.call, "/v1/completions", {**LONG, "request_id": "his"}, None, one)
            until(lambda: llm.snapshot()["num_running"] == 1)
            assert server.call("/v1/requests/his", None, "DELETE", two)[0] == 404
            assert server.call("/v1/requests/his", None, "DELETE", one)[0] == 200
            assert answer.result()[0] == 200


def test_pages_of_other_origins_may_not_use_the_server(llm: LLM) -> None:
    body = {**LONG, "max_tokens": 2}
    with running(llm, cors_origins=("https://good.example",)) as server:
        status, answer, headers = server.call(
            "/v1/completions", body, headers={"Origin": "https://evil.example"}
        )
        assert (status, answer["error"]["code"]) == (403, "forbidden")
        assert "access-control-allow-origin" not in headers
        status, _, headers = server.call("/v1/completions", body, headers={"Origin": "https://good.example"})
        assert (status, headers["access-control-allow-origin"]) == (200, "https://good.example")
        assert server.call("/v1/completions", body, headers={"Origin": server.url})[0] == 200
        status, _, headers = server.call(
            "/v1/completions", None, "OPTIONS", headers={"Origin": "https://good.example"}
        )
        assert status == 204 and "POST" in headers["access-control-allow-methods"]
        # A name of somebody else that was made to point here.
        assert server.call("/v1/models", headers={"Host": "evil.example"})[0] == 403
        assert server.call("/v1/models", headers={"Host": "good.example"})[0] == 200


def test_others_are_let_in_with_keys_only(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--api-key-file"):
        ServerConfig(names=("m",), host="0.0.0.0")
    ServerConfig(names=("m",), host="0.0.0.0", insecure_no_key=True)
    ServerConfig(names=("m",), host="::1")
    file = tmp_path / "keys"
    file.write_text("# mine\nfirst-key-here\n\n second-key-here \n")
    assert read_keys(file, "third-key-here,") == ("third-key-here", "first-key-here", "second-key-here")
    file.write_text("\n")
    with pytest.raises(ConfigError, match="has no key"):
        read_keys(file, None)
    with pytest.raises(ConfigError, match="at least 8"):
        ServerConfig(names=("m",), keys=("short",))


def test_a_port_that_is_taken_is_told_before_anything_is_loaded() -> None:
    with bind(ServerConfig(names=("m",), port=0)) as taken:
        taken.listen()
        with pytest.raises(ConfigError, match="choose another --port"):
            bind(ServerConfig(names=("m",), port=taken.getsockname()[1]))


def test_a_reader_that_stops_reading_is_left(llm: LLM) -> None:
    SlowToy.pause = 0.0
    try:
        with running(llm, stall_timeout=0.3) as server:
            body = {**LONG, "stream": True, "prompt": "a", "n": 4, "logprobs": 20}
            stalled = [raw(server, body) for _ in range(2)]
            until(lambda: server.call("/v1/status")[1]["requests"] == [], 60)
            for connection in stalled:
                connection.close()
    finally:
        SlowToy.pause = 0.004


def test_spectators_see_rounds_without_texts(llm: LLM) -> None:
    with running(llm) as server:
        host, port = server.url.removeprefix("http://").split(":")
        watching = socket.create_connection((host, int(port)))
        watching.sendall(b"GET /v1/status/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        watching.settimeout(10)
        text = watching.recv(65536).decode()
        threading.Thread(target=server.call, args=("/v1/completions", {**LONG, "max_tokens": 60})).start()
        while '"rounds":[{' not in text:
            text += watching.recv(65536).decode()
        watching.close()
        data = next(line for line in text.splitlines() if '"rounds":[{' in line)
        (round_, *_) = json.loads(data.removeprefix("data: "))["rounds"]
        assert len(round_["t"]) == 5 and round_["samples"][0].keys() == {
            "id", "proposed", "accepted", "emitted", "origin", "prompt",
        }  # fmt: skip
