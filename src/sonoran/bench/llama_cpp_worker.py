"""Runs llama.cpp for `sonoran bench`, in a process of its own and under any interpreter that has `llama_cpp`.

Reads one JSON request per line from standard input and answers each with one JSON line on standard output.
Needs nothing of Sonoran: the file is run by its path.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from typing import Any

UBATCH = 512  # llama.cpp's own default


class Worker:
    """A llama.cpp context of one sequence."""

    def __init__(self, lib: Any, setup: dict[str, Any]) -> None:
        self.lib = lib
        # llama.cpp logs to standard error; only what matters to a reader of the benchmark goes back.
        self.quiet = lib.llama_log_callback(lambda level, text, data: None)
        lib.llama_log_set(self.quiet, ctypes.c_void_p(0))
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(setup["model"].encode(), lib.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {setup['model']}")
        params = lib.llama_context_default_params()
        params.n_ctx = setup["max_length"]
        params.n_batch = params.n_ubatch = UBATCH
        params.n_threads = params.n_threads_batch = setup["threads"]
        self.context = lib.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("llama.cpp cannot make a context")
        self.memory = lib.llama_get_memory(self.context)
        self.batch = lib.llama_batch_init(UBATCH, 0, 1)
        self.vocab_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))

    def decode(self, ids: list[int], start: int, all_logits: bool) -> float:
        """Append tokens at positions from `start` on, whatever was there before; return the seconds."""
        self.lib.llama_memory_seq_rm(self.memory, 0, start, -1)
        seconds = 0.0
        for begin in range(0, len(ids), UBATCH):
            piece = ids[begin : begin + UBATCH]
            self.batch.n_tokens = len(piece)
            for i, token in enumerate(piece):
                self.batch.token[i] = token
                self.batch.pos[i] = start + begin + i
                self.batch.n_seq_id[i] = 1
                self.batch.seq_id[i][0] = 0
                self.batch.logits[i] = all_logits or begin + i == len(ids) - 1
            now = time.perf_counter()
            code = self.lib.llama_decode(self.context, self.batch)
            self.lib.llama_synchronize(self.context)
            seconds += time.perf_counter() - now
            if code != 0:
                raise RuntimeError(f"llama_decode returned {code}")
        return seconds

    def generate(self, prompt: list[int], max_tokens: int, stop_ids: list[int]) -> dict[str, Any]:
        """Decode greedily; times are from the start of the prompt, in seconds."""
        import numpy as np

        begin = time.perf_counter()
        self.decode(prompt, 0, False)
        ids: list[int] = []
        first = 0.0
        while True:
            logits = self.lib.llama_get_logits_ith(self.context, -1)
            token = int(np.ctypeslib.as_array(logits, shape=(self.vocab_size,)).argmax())
            ids.append(token)
            if len(ids) == 1:
                first = time.perf_counter() - begin
            if len(ids) == max_tokens or token in stop_ids:
                return {"token_ids": ids, "ttft_s": first, "e2e_s": time.perf_counter() - begin}
            self.decode([token], len(prompt) + len(ids) - 1, False)


def answer(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Carry out one request."""
    if request["do"] == "generate":
        return worker.generate(request["prompt"], request["max_tokens"], request["stop_ids"])
    return {"seconds": worker.decode(request["ids"], request["start"], request["all_logits"])}


def main() -> None:
    """Serve until standard input ends. The first line is the setup: model, cores, threads, max_length."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library writes to standard output must not mix with the answers

    def say(value: dict[str, Any]) -> None:
        channel.write(json.dumps(value) + "\n")
        channel.flush()

    try:
        setup = json.loads(sys.stdin.readline())
        if setup["cores"] and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, setup["cores"])
        begin = time.perf_counter()
        import llama_cpp

        worker = Worker(llama_cpp, setup)
        system = llama_cpp.llama_print_system_info().decode()
        say({"version": llama_cpp.__version__, "system": system, "load_s": time.perf_counter() - begin})
        for line in sys.stdin:
            say(answer(worker, json.loads(line)))
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
        sys.exit(1)


if __name__ == "__main__":
    main()
