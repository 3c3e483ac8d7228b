"""A server over a tiny model, on a port of its own in a thread, and clients of it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from sonoran.llm import LLM
from sonoran.server.config import ServerConfig
from sonoran.server.run import Background
from tests.tiny_models import make_gguf

NAME = "tiny"


class Running(Background):
    """A server that answers at ``url``."""

    def __init__(self, llm: LLM, **config: Any) -> None:
        super().__init__(llm, ServerConfig(names=(NAME,), port=0, **config), {"fingerprint": "sonoran-test"})

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
    assert blocks[-1] == "data: [DONE]"
    found = []
    for block in blocks[:-1]:
        name, marker, data = block.rpartition("data: ")
        assert marker and "\n" not in data
        found.append(json.loads(data))
        assert name in ("", f"event: {found[-1].get('type')}\n")
    return found


running = Running


def tiny_pair(folder: Path) -> tuple[Path, Path]:
    """Write a target and a draft that often agrees with it."""
    target, draft = folder / "target.gguf", folder / "draft.gguf"
    make_gguf(target, "qwen2", seed=1)
    make_gguf(draft, "qwen2", seed=1, types="Q8_0")
    return target, draft
