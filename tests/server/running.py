"""A server over a tiny model, on a port of its own in a thread, and clients of it."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sonoran.llm import LLM
from sonoran.server.config import ServerConfig
from sonoran.server.run import bind, serve
from sonoran.server.service import Service
from tests.tiny_models import make_gguf

NAME = "tiny"


class Running:
    """A server that answers at ``url``."""

    def __init__(self, llm: LLM, **config: Any) -> None:
        self.llm = llm
        self.config = ServerConfig(names=(NAME,), port=0, **config)
        self.url = ""
        self.failure: BaseException | None = None
        self._ready, self._loop, self._stop = threading.Event(), None, None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(20)
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        async def run() -> None:
            from sonoran.server.run import _serve

            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            with bind(self.config) as taken:
                await _serve(
                    self.llm, self.config, taken, {"fingerprint": "sonoran-test"}, self._on_ready, self._stop
                )

        try:
            asyncio.run(run())
        except BaseException as error:
            self.failure = error
        self._ready.set()

    def _on_ready(self, url: str) -> None:
        self.url = url
        self._ready.set()

    def stop(self, wait: bool = True) -> None:
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        if wait:
            self._thread.join(60)
            assert not self._thread.is_alive()

    def call(
        self, path: str, body: Any = None, method: str | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, dict[str, str]]:
        """Return status, document (or text) and headers."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path,
            data,
            {"Content-Type": "application/json", **(headers or {})},
            method=method or ("GET" if body is None else "POST"),
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, _document(answer.read()), dict(answer.headers)
        except urllib.error.HTTPError as error:
            return error.code, _document(error.read()), dict(error.headers)

    def ask(self, path: str = "/v1/completions", **body: Any) -> Any:
        """Return the document of a request that succeeds."""
        status, document, _ = self.call(path, {"model": NAME, **body})
        assert status == 200, document
        return document

    def stream(self, path: str = "/v1/completions", **body: Any) -> list[Any]:
        """Return the events of a stream that succeeds."""
        status, text, headers = self.call(path, {"model": NAME, "stream": True, **body})
        assert status == 200, text
        assert headers["content-type"].startswith("text/event-stream")
        return events(text)


def _document(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode()


def events(text: str) -> list[Any]:
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    assert all(block.startswith("data: ") for block in blocks)
    assert blocks[-1] == "data: [DONE]"
    return [json.loads(block[6:]) for block in blocks[:-1]]


@contextmanager
def running(llm: LLM, **config: Any) -> Iterator[Running]:
    server = Running(llm, **config)
    try:
        yield server
    finally:
        server.stop()


def tiny_pair(folder: Path) -> tuple[Path, Path]:
    """Write a target and a draft that often agrees with it."""
    target, draft = folder / "target.gguf", folder / "draft.gguf"
    make_gguf(target, "qwen2", seed=1)
    make_gguf(draft, "qwen2", seed=1, types="Q8_0")
    return target, draft


def idle(llm: LLM) -> bool:
    return bool(llm.statistics()["num_running"] == 0 and llm.statistics()["num_waiting"] == 0)


__all__ = ["NAME", "Running", "Service", "events", "idle", "running", "serve", "tiny_pair"]
