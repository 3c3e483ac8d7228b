"""Bodies that no client should send: always an answer, never a server error, and the server goes on."""

from __future__ import annotations

import json
import random
import socket
from typing import Any

import pytest

from tests.server.running import NAME, Running

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 1e308, 1e-9, 0.5, "", "x", "\x00", "\u2028", "é" * 50,
    [], [None], [[]], [[[]]], {}, {"a": 1}, {"": {}}, [1, "a"], ["a", 1], [True], ["a"], [{"role": "user"}],
    {"type": "text"}, {"include_usage": 5}, {"1": 5}, {"x": None}, [-1], [2**40], "stop", "auto", "inf", [0.5],
]  # fmt: skip
NAMES = [
    "model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "n",
    "stop", "stream", "stream_options", "logprobs", "top_logprobs", "logit_bias", "seed", "echo", "best_of", "suffix",
    "user", "tools", "tool_choice", "response_format",
    "structured_outputs", "parallel_tool_calls", "allowed_token_ids", "bad_words", "bad_word_ids", "min_tokens",
    "stop_token_ids", "prompt_logprobs", "speculative", "num_speculative_tokens", "verification", "timeout_s",
    "request_id", "chat_template_kwargs", "add_generation_prompt", "ignore_eos", "include_stop_str_in_output",
    "skip_special_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty", "return_token_ids", "nonsense",
]  # fmt: skip
BROKEN = [
    b"", b"{", b"}", b"nul", b"\xff\xfe", b'{"model": "\xff"}', b'{"a": NaN}', b'{"a": 1e999}', b'["\\ud800"]',
    b'{"model": "tiny", "prompt": "\\ud800"}', b"[" * 5000, b'{"a":' * 5000, b'{"model":"tiny"}x', b"\x00", b"1" * 5000,
    b'{"model":"tiny","prompt":"a","max_tokens":' + b"9" * 400 + b"}",
]  # fmt: skip


def bodies(count: int, seed: int) -> list[tuple[str, bytes]]:
    chance = random.Random(seed)
    found: list[tuple[str, bytes]] = [(path, body) for path in ("c", "m", "t", "d") for body in BROKEN]
    while len(found) < count:
        path = chance.choice("cm")
        base: dict[str, Any] = {"model": NAME, "max_tokens": 2}
        base["prompt" if path == "c" else "messages"] = (
            "a" if path == "c" else [{"role": "user", "content": "a"}]
        )
        for name in chance.sample(NAMES, chance.choice((1, 1, 2, 3))):
            base[name] = chance.choice(ODD)
        if path == "m" and chance.random() < 0.3:
            base["messages"] = [
                {chance.choice(("role", "content", "name", "tool_calls")): chance.choice(ODD), "role": "user"}
                for _ in range(2)
            ]
        data = json.dumps(base).encode()
        if chance.random() < 0.1:
            data = data[: chance.randrange(len(data))]
        found.append((path, data))
    return found


def check(server: Running, count: int, seed: int) -> None:
    paths = {"c": "/v1/completions", "m": "/v1/chat/completions", "t": "/tokenize", "d": "/detokenize"}
    statuses: dict[int, int] = {}
    for path, body in bodies(count, seed):
        status, answer, _ = server.call(paths[path], body)
        statuses[status] = statuses.get(status, 0) + 1
        assert status in (200, 400, 404), (status, body[:300], answer)
        assert "Traceback" not in str(answer) and ".py" not in str(answer)
        if status != 200:
            assert set(answer["error"]) == {"message", "type", "param", "code"}
            assert 0 < len(answer["error"]["message"]) < 2000
    assert statuses[400] > count / 4 and statuses[200] > count / 50
    assert server.ask(prompt="a", max_tokens=2)["choices"]
    assert server.call("/v1/status")[1]["requests"] == []


def test_hundreds_of_bodies_that_make_no_sense(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    check(server, 400, seed=1)
    assert "a request failed" not in caplog.text


@pytest.mark.slow
def test_ten_thousand_bodies_that_make_no_sense(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    check(server, 10_000, seed=2)
    assert "a request failed" not in caplog.text


def test_what_is_no_http_does_no_harm(server: Running) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    for data in (
        b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X-A: b\r\n" * 20_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: \xff\xfe\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{",
    ):
        with socket.create_connection((host, int(port))) as connection:
            connection.settimeout(0.3)
            try:
                connection.sendall(data)
                connection.recv(4096)
            except OSError:
                continue
    assert server.call("/health")[0] == 200
