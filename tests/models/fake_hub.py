"""A model hub on this machine: the few endpoints that are used, repositories made of files on disk, and faults."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "a" * 40
SMALL = (".json", ".jinja", ".md", ".txt")


@dataclass
class FakeHub:
    """What is served: by repository, the bytes of each file. ``cut`` ends each transfer after so many bytes; ``lies``
    replaces what a file is said to hash to."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    lies: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    status: int | None = None  # of every answer
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    port: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add(self, repository: str, **files: Path | bytes) -> None:
        """Add files; the names of the keywords are those of the files."""
        held = self.repositories.setdefault(repository, {})
        held |= {name: f if isinstance(f, bytes) else f.read_bytes() for name, f in files.items()}

    def fetched(self) -> set[str]:
        """Names of files whose bytes were asked for."""
        return {path.partition(f"/{COMMIT}/")[2] for method, path, _ in self.requests if method == "GET"} - {
            ""
        }


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Any

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        hub: FakeHub = self.server.hub
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        hub.requests.append((self.command, path, self.headers.get("Range")))
        if hub.status is not None:
            return self._refuse(hub.status, "")
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)", path)
        if match:
            return self._describe(hub, match[1])
        if path == "/api/models":
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            return self._json(
                [
                    {"id": name}
                    for name in hub.repositories
                    if name.startswith(query.get("author", ""))
                    and query.get("search", "").lower() in name.lower()
                ]
            )
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path)
        if match is None or match[2] not in hub.repositories.get(match[1], {}):
            return self._refuse(404, "EntryNotFound")
        if match[1] in hub.gated and not self.headers.get("Authorization"):
            return self._refuse(401, "GatedRepo")
        return self._send(hub, match[2], hub.repositories[match[1]][match[2]], body)

    def _describe(self, hub: FakeHub, repository: str) -> None:
        files = hub.repositories.get(repository)
        if files is None:
            return self._refuse(401, "RepoNotFound")
        siblings = []
        for name, content in files.items():
            entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git_hash(content)}
            if not name.endswith(SMALL):
                digest = hub.lies.get(name, hashlib.sha256(content).hexdigest())
                entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 134}
            siblings.append(entry)
        gated = "manual" if repository in hub.gated else False
        return self._json(
            {
                "id": repository,
                "sha": COMMIT,
                "gated": gated,
                "siblings": siblings,
                **hub.facts.get(repository, {}),
            }
        )

    def _send(self, hub: FakeHub, name: str, content: bytes, body: bool) -> None:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        begin = int(match[1]) if match else 0
        self.send_response(206 if match else 200)
        digest = git_hash(content) if name.endswith(SMALL) else hashlib.sha256(content).hexdigest()
        self.send_header("ETag", f'"{digest}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        if match:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        if body:
            self.wfile.write(content[begin:][: hub.cut])
            self.close_connection = True

    def _json(self, value: Any) -> None:
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def serve_hub() -> Iterator[FakeHub]:
    """Serve until left."""
    hub = FakeHub()
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.hub, hub.port = hub, server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
