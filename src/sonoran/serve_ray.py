"""``sonoran serve`` as a Ray Serve application: replicas on cores of their own, the same paths, the same texts.

``serve run sonoran.serve_ray:app model=qwen2.5-coder-1.5b-instruct mode=ssd replicas=2 cores=4`` starts it; Ray restarts,
scales and routes. Needs ``pip install "sonoran[ray]"``.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sonoran.backends.placement import find_processors
from sonoran.config import SpeculativeConfig, from_keywords, speculation_of
from sonoran.errors import ConfigError
from sonoran.llm import LLM
from sonoran.models.registry import DEFAULT_TARGET
from sonoran.models.source import resolve_model
from sonoran.server.app import Receive, Scope, Send, build_app
from sonoran.server.config import KEY_VARIABLE, ServerConfig, read_keys
from sonoran.server.run import fingerprint
from sonoran.server.service import Service


@dataclass(frozen=True, kw_only=True, slots=True)
class RayConfig:
    """What ``serve run sonoran.serve_ray:app key=value ...`` takes; numbers may come as text.

    Keys of clients are read from SONORAN_API_KEY. ``host`` is where Ray's proxy listens: one that others reach needs
    keys. Raises ConfigError.
    """

    model: str = DEFAULT_TARGET
    mode: str = "auto"
    draft: str = ""  # empty: the one that is known for the model
    replicas: int = 1
    cores: int = 0  # of each replica; 0 shares out those of this machine
    max_num_seqs: int = 16  # texts that a replica generates at once; Ray sends it no more requests than that
    max_model_len: int = 0  # 0: the default
    served_model_name: str = ""
    host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type != "int" or isinstance(value, int):
                continue
            try:
                object.__setattr__(self, field.name, int(value))
            except ValueError:
                raise ConfigError(f"{field.name} must be a number, got {value!r}") from None
        for name, least in (("replicas", 1), ("cores", 0), ("max_num_seqs", 1), ("max_model_len", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")
        available = len(find_processors().cores)
        if self.cores == 0:
            object.__setattr__(self, "cores", max(1, available // self.replicas))

    @property
    def speculative(self) -> SpeculativeConfig | None:
        """What drafts in each engine, None for AR. Raises ConfigError for a mode that is none."""
        given = {"method": self.mode}
        if self.draft or self.mode in ("sd", "ssd"):
            given["model"] = self.draft or "auto"
        return speculation_of(given)

    @property
    def server(self) -> ServerConfig:
        """The limits of each replica; what waits beyond them, waits in Ray's proxy."""
        return ServerConfig(
            names=(self.served_model_name or Path(self.model).stem,),
            host=self.host,
            keys=read_keys(None, os.environ.get(KEY_VARIABLE)),
        )


def claim_cores(count: int, available: Sequence[int], folder: Path) -> tuple[tuple[int, ...], list[int]]:
    """Take cores that no other replica of this machine has, and the open locks that hold them.

    Ray counts processors but pins nobody: two replicas on one core would halve each other. Raises ConfigError when not
    enough are left.
    """
    folder.mkdir(parents=True, exist_ok=True)
    taken: list[int] = []
    locks: list[int] = []
    for core in available:
        if len(taken) == count:
            break
        lock = os.open(folder / f"core-{core}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        taken.append(core)
        locks.append(lock)
    if len(taken) < count:
        for lock in locks:
            os.close(lock)
        raise ConfigError(
            f"a replica wants {count} cores, and of {len(available)} only {len(taken)} are left: lower cores or replicas"
        )
    return tuple(taken), locks


class Replica:
    """The server's application in one replica: it loads when Ray starts it, and ends with it."""

    def __init__(self, config: RayConfig) -> None:
        self._config = config
        self._llm: LLM | None = None
        self._service: Service | None = None
        self._app: Any = None
        self._locks: list[int] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, or begin and end."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await self._app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self._start()
        except Exception as error:
            self._end()
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if self._service is not None:
            await self._service.drain()
        await asyncio.to_thread(self._end)
        await send({"type": "lifespan.shutdown.complete"})

    async def _start(self) -> None:
        config = self._config
        folder = Path(tempfile.gettempdir()) / f"sonoran-cores-{os.getuid()}"
        cores, self._locks = claim_cores(config.cores, find_processors().cores, folder)
        os.sched_setaffinity(0, cores)
        llm = self._llm = await asyncio.to_thread(self._load)
        facts = {
            "fingerprint": fingerprint(resolve_model(config.model), None),
            "model": Path(config.model).name,
            "mode": config.mode,
            "cores": len(cores),
            "process": os.getpid(),
        }
        self._service = Service(llm, config.server, facts)
        self._app = build_app(self._service)

    def _load(self) -> LLM:
        config = self._config
        limits: dict[str, Any] = {"max_num_seqs": config.max_num_seqs}
        if config.max_model_len:
            limits["max_model_len"] = config.max_model_len
        return LLM(config.model, speculative_config=config.speculative or False, **limits)

    def _end(self) -> None:
        if self._service is not None:
            self._service.close()
        if self._llm is not None:
            self._llm.close()
        for lock in self._locks:
            with suppress(OSError):
                os.close(lock)


def app(arguments: Mapping[str, Any]) -> Any:
    """Return the Ray Serve application for the keys of RayConfig. Raises ConfigError, also without Ray."""
    config = from_keywords(RayConfig, "serve_ray", arguments)
    # What is wrong is refused here, not in every replica.
    _ = config.server, config.speculative
    try:
        from ray import serve
    except ImportError:
        raise ConfigError('Ray Serve is not installed: pip install "sonoran[ray]"') from None
    deployment = serve.deployment(
        serve.ingress(lambda: Replica(config))(),
        name="sonoran",
        num_replicas=config.replicas,
        max_ongoing_requests=config.max_num_seqs,
        ray_actor_options={"num_cpus": config.cores},
        graceful_shutdown_timeout_s=config.server.drain_timeout,
    )
    return deployment.bind()
