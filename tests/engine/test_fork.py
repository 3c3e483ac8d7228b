"""A process that was forked from one that has an engine is told to make its own, and leaves its parent's alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
sys.path.insert(0, {root!r})
from sonoran.errors import SonoranError
from sonoran.llm import LLM
from sonoran.sampling.params import SamplingParams
from tests.engine.helpers import engine
from tests.toy_tokenizer import ToyTokenizer
from tests.worker.test_end_to_end import ssd, toy_worker

opened = ssd(toy_worker())
llm = LLM.from_core(engine(drafter=opened.__enter__()), ToyTokenizer())
params = SamplingParams(temperature=0.0, max_tokens=8)
print("parent", llm.generate("abc", params)[0].outputs[0].token_ids, flush=True)
worker = llm._runner.core.drafter.client._keeper.worker
if {locked}:
    llm._runner._lock.acquire()
pid = os.fork()
if pid == 0:
    calls = [
        lambda: llm.generate("abc", params),
        lambda: list(llm.stream("abc", params)),
        lambda: llm.statistics(),
        lambda: llm.cancel("x"),
    ]
    for call in calls:
        try:
            call()
        except SonoranError as error:
            print("refused", error, flush=True)
    llm.close()
    fresh = LLM.from_core(engine(), ToyTokenizer())
    print("child", fresh.generate("abc", params)[0].outputs[0].token_ids, flush=True)
    sys.exit(0)
os.waitpid(pid, 0)
if {locked}:
    llm._runner._lock.release()
print("worker", worker.alive and worker.folder.exists(), flush=True)
print("again", llm.generate("abc", params)[0].outputs[0].token_ids, flush=True)
llm.close()
"""


@pytest.mark.parametrize("locked", [False, True])
def test_a_forked_child_makes_an_engine_of_its_own(locked: bool) -> None:
    script = SCRIPT.format(root=str(Path(__file__).parents[2]), locked=locked)
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=60
    )
    lines = ended.stdout.splitlines()
    assert ended.returncode == 0, ended.stderr
    ids = lines[0].removeprefix("parent ")
    assert lines[5:] == [f"child {ids}", "worker True", f"again {ids}"]
    assert all("make the LLM in the child" in line for line in lines[1:5])
