"""Other engines on the same file, cores and rows, as subjects beside Sonoran's own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sonoran.errors import ConfigError, nearest

PEERS = ("llama.cpp",)
WORKER = Path(__file__).with_name("llama_cpp_worker.py")
CLOSE_SECONDS = 10


def check_peer(name: str) -> None:
    """Raise ConfigError for a peer that is not known."""
    if name not in PEERS:
        raise ConfigError(f"unknown peer {name!r}{nearest(name, PEERS)}")


def thread_binding(cores: tuple[int, ...] | None) -> dict[str, str]:
    """Return the environment that pins an OpenMP program's threads one to a core, as Sonoran pins its own."""
    if not cores:
        return {}
    return {"OMP_PROC_BIND": "close", "OMP_PLACES": ",".join(f"{{{core}}}" for core in cores)}


class LlamaCpp:
    """llama.cpp through the `llama_cpp` package of an interpreter, in a subprocess pinned to the cores.

    Raises ConfigError when the interpreter does not have the package or cannot run the file.
    """

    def __init__(
        self,
        path: Path,
        context: Sequence[int] = (),
        *,
        max_rows: int = 1,
        threads: int,
        cores: tuple[int, ...] | None = None,
        max_length: int | None = None,
        python: str | None = None,
        worker: Path = WORKER,
    ) -> None:
        if path.is_dir():
            raise ConfigError(f"llama.cpp reads GGUF files only; {path} is a folder")
        self.name = f"llama.cpp, {threads} thread{'s' if threads > 1 else ''}"
        self._python = python or sys.executable
        self._context = [int(token) for token in context]
        self._threads, self._cores = threads, cores
        try:
            self._process = subprocess.Popen(
                [self._python, str(worker)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, **thread_binding(cores)},
            )
        except OSError as error:
            raise ConfigError(f"cannot start {self._python}: {error}") from error
        # The library wants some room beyond the last position.
        length = max_length or len(self._context) + max_rows + 16
        setup = {"model": str(path), "cores": list(cores or ()), "threads": threads, "max_length": length}
        try:
            self._facts = self._ask(setup)
        except ConfigError:
            self.close()
            raise
        self._tokens = [int(t) for t in np.random.default_rng(1).integers(0, 1000, max_rows)]

    def forward_seconds(self, rows: int) -> float:
        """Run one batch of `rows` tokens behind the context, with logits for all; return its seconds."""
        request = {"do": "forward", "ids": self._tokens[:rows], "start": len(self._context)}
        return float(self._ask({**request, "all_logits": True})["seconds"])

    def prefill_seconds(self) -> float:
        """Read the context, logits for the last token only; return the seconds."""
        request = {"do": "forward", "ids": self._context, "start": 0, "all_logits": False}
        return float(self._ask(request)["seconds"])

    def generate(self, prompt: Sequence[int], max_tokens: int, stop_ids: Sequence[int]) -> dict[str, Any]:
        """Decode greedily; return token_ids, ttft_s and e2e_s."""
        request = {"do": "generate", "prompt": list(prompt), "max_tokens": max_tokens}
        return self._ask({**request, "stop_ids": list(stop_ids)})

    def describe(self) -> dict[str, Any]:
        """Return the engine's version, what it was built for, and its placement."""
        return {
            "engine": "llama.cpp",
            "version": self._facts["version"],
            "system": self._facts["system"],
            "threads": self._threads,
            "cores": list(self._cores) if self._cores else None,
            "load": {"seconds": self._facts["load_s"]},
        }

    def close(self) -> None:
        """End the subprocess."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        line = ""
        if stdin is not None and stdout is not None:
            try:
                stdin.write(json.dumps(request) + "\n")
                stdin.flush()
                line = stdout.readline()
            except (BrokenPipeError, ValueError):
                line = ""
        if not line:
            raise ConfigError(f"llama.cpp under {self._python} ended without an answer")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise ConfigError(
                f"llama.cpp under {self._python}: {reply['error']}; --peer-python names an interpreter that "
                "has the llama-cpp-python package"
            )
        return reply
