"""A server from its socket to its end: signals, draining, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import platform
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn

import sonoran
from sonoran.errors import ConfigError
from sonoran.llm import LLM
from sonoran.server.app import build_app
from sonoran.server.config import ServerConfig
from sonoran.server.service import Service

_SAMPLES, _SAMPLE_BYTES = 64, 2**14


class Server(uvicorn.Server):
    """uvicorn's server; signals are ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def bind(config: ServerConfig) -> socket.socket:
    """Take the address before models are loaded for nothing; clients are refused until then. Raises ConfigError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        taken = socket.socket(family, kind, protocol)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
    except OSError as error:
        raise ConfigError(
            f"cannot listen at {config.host}:{config.port}: {error.strerror or error}; choose another --port, 0 for any"
        ) from None
    return taken


def url(config: ServerConfig, port: int) -> str:
    """Return the address that a browser opens."""
    host = "127.0.0.1" if config.host in ("0.0.0.0", "") else config.host
    host = f"[{host}]" if ":" in host else host
    return f"{'https' if config.ssl_certfile else 'http'}://{host}:{port}"


def serve(
    llm: LLM,
    config: ServerConfig,
    taken: socket.socket,
    facts: dict[str, Any] | None = None,
    on_ready: Callable[[str], None] = lambda url: None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C (or `stop`), then finish what runs; a second signal ends at once.

    `on_ready` is called with the URL once clients can connect. Raises ConfigError for TLS files that are none.
    """
    asyncio.run(_serve(llm, config, taken, facts, on_ready, stop))


async def _serve(
    llm: LLM,
    config: ServerConfig,
    taken: socket.socket,
    facts: dict[str, Any] | None,
    on_ready: Callable[[str], None],
    stop: asyncio.Event | None,
) -> None:
    service = Service(llm, config, facts)
    settings = uvicorn.Config(
        build_app(service),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=2,
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
        http="h11",
        ws="none",
    )
    try:
        settings.load()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot use the TLS files: {error}") from None
    server = Server(settings)
    ending = stop or asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        if ending.is_set():
            server.force_exit = server.should_exit = True
        ending.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):  # in a thread of a test
            loop.add_signal_handler(number, end)
    serving = asyncio.create_task(server.serve(sockets=[taken]))
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(0.005)
        if server.started:
            on_ready(url(config, taken.getsockname()[1]))
        waiting = asyncio.create_task(ending.wait())
        await asyncio.wait((waiting, serving), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        draining = asyncio.create_task(service.drain())
        while not draining.done() and not server.should_exit:
            await asyncio.sleep(0.02)
        server.should_exit = True
        await serving
        draining.cancel()
    finally:
        service.close()


def fingerprint(path: Path, quantize: str | None, device: str = "cpu") -> str:
    """Return what names the texts of a model: same fingerprint and seed, same text, whatever drafts and runs beside it.

    Of large files samples are read, and their sizes. Through PyTorch texts are also those of a machine.
    """
    digest = hashlib.sha256(repr(quantize).encode())
    if device != "cpu":
        digest.update(f"{device} {platform.node()}".encode())
    files = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name if path.is_dir() else ''} {size}".encode())
        with file.open("rb") as stream:
            for i in range(_SAMPLES):
                stream.seek(i * max(0, size - _SAMPLE_BYTES) // max(1, _SAMPLES - 1))
                digest.update(stream.read(_SAMPLE_BYTES))
    return f"sonoran-{sonoran.__version__}-{digest.hexdigest()[:8]}"


class Background:
    """A server in a thread of this process: ``with Background(llm, config) as server``, which has a ``url``."""

    def __init__(self, llm: LLM, config: ServerConfig, facts: dict[str, Any] | None = None) -> None:
        """Start it. Raises ConfigError for what cannot be served."""
        self.url = ""
        self._failure: BaseException | None = None
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, args=(llm, config, facts), name="sonoran-server")
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def _run(self, llm: LLM, config: ServerConfig, facts: dict[str, Any] | None) -> None:
        async def run() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            with bind(config) as taken:
                await _serve(llm, config, taken, facts, self._begin, self._stop)

        try:
            asyncio.run(run())
        except BaseException as error:
            self._failure = error
        self._ready.set()

    def _begin(self, url: str) -> None:
        self.url = url
        self._ready.set()

    def stop(self, wait: bool = True) -> None:
        """Finish what runs and end; twice is harmless."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it has just ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
        if wait:
            self._thread.join()

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
