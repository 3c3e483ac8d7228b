import http.server
import re
import socket
import threading

import huggingface_hub.constants
import pytest

from sonoran.errors import DownloadError
from sonoran.models.download import pull
from sonoran.models.hub import fetch_from_hub
from tests.models.fakes import CONTENT, ENTRY


class FakeHub(http.server.BaseHTTPRequestHandler):
    """Serves one file as the hub does: its hash and commit in the headers, ranges, optionally cut off."""

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        server = self.server
        server.requests.append((self.command, self.headers.get("Range")))
        if self.path != "/someone/fake/resolve/main/fake-on-hub.gguf" or server.status != 200:
            self.send_response(server.status if server.status != 200 else 404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.end_headers()
            return
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        begin = int(match[1]) if match else 0
        content = server.content[begin:]
        self.send_response(206 if match else 200)
        self.send_header("ETag", f'"{ENTRY.sha256}"')
        self.send_header("X-Repo-Commit", "a" * 40)
        self.send_header("Accept-Ranges", "bytes")
        if match:
            last = len(server.content) - 1
            self.send_header("Content-Range", f"bytes {begin}-{last}/{len(server.content)}")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content[: server.cut] if server.cut else content)

    def log_message(self, *args):
        pass


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    server.content, server.status, server.cut, server.requests = CONTENT, 200, None, []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def fetch(server_or_port, work, report=lambda done: None, **options):
    port = server_or_port if isinstance(server_or_port, int) else server_or_port.server_port
    return fetch_from_hub(ENTRY, work, report, endpoint=f"http://127.0.0.1:{port}", **options)


def test_the_file_is_fetched_with_progress(tmp_path, hub):
    seen = []
    path = fetch(hub, tmp_path, seen.append)
    assert path.read_bytes() == CONTENT
    assert tmp_path in path.parents
    assert seen[-1] == len(CONTENT)


def test_a_file_of_another_size_is_not_fetched(tmp_path, hub):
    hub.content = CONTENT[:-5]
    with pytest.raises(DownloadError, match="has 4316 bytes there, expected 4321"):
        fetch(hub, tmp_path)
    assert all(method == "HEAD" for method, _ in hub.requests)


def test_a_file_of_the_same_size_but_other_content_is_refused(tmp_path, hub):
    hub.content = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    with pytest.raises(DownloadError, match="SHA-256"):
        pull(ENTRY, cache=tmp_path, sources={"hub": lambda entry, work, report: fetch(hub, work, report)})


@pytest.mark.parametrize("status", [404, 401, 403, 500])
def test_errors_of_the_server_are_a_reason(tmp_path, hub, status):
    hub.status = status
    with pytest.raises(DownloadError, match="not reachable"):
        fetch(hub, tmp_path, reach_seconds=3)


def test_nobody_listens(tmp_path, hub):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(DownloadError, match="not reachable"):
            fetch(unused.getsockname()[1], tmp_path, reach_seconds=2)


def test_a_hub_that_never_answers_is_given_up(tmp_path, hub):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(DownloadError, match="not reachable"):
            fetch(silent.getsockname()[1], tmp_path, reach_seconds=0.5)


def test_offline_is_respected(tmp_path, hub, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE"):
        fetch(hub, tmp_path)
    assert hub.requests == []


def test_the_index_takes_over(tmp_path, hub):
    hub.status = 404

    def index(entry, work, report):
        (work / "got").write_bytes(CONTENT)
        return work / "got"

    sources = {"hub": lambda entry, work, report: fetch(hub, work, report), "index": index}
    assert pull(ENTRY, cache=tmp_path, sources=sources).read_bytes() == CONTENT


def test_a_transfer_that_breaks_off_goes_on_where_it_stopped(tmp_path, hub, monkeypatch):
    hub.cut = 2000
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 500)
    try:
        path = fetch(hub, tmp_path)
    except DownloadError:
        hub.cut = None
        path = fetch(hub, tmp_path)
    assert path.read_bytes() == CONTENT
    assert ("GET", "bytes=2000-") in hub.requests
