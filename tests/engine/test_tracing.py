"""Recording both lanes of a run with a draft worker in another thread, and with none."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from sonoran.config import SpeculationSettings
from sonoran.drafting.ssd import SsdDrafter, clock_shift
from sonoran.engine.trace import chrome_trace
from sonoran.llm import LLM
from sonoran.sampling.params import SamplingParams
from sonoran.ssd.messages import PROTOCOL_VERSION, Hello
from sonoran.worker.client import WorkerClient
from sonoran.worker.connection import Remote
from sonoran.worker.session import draft_service
from tests.engine.helpers import PATIENT, VOCAB, engine, greedy
from tests.engine.test_trace import check_trace
from tests.toy_backend import ToyBackend
from tests.toy_tokenizer import ToyTokenizer
from tests.worker.local import toy_model
from tests.worker.workers import serving

PROMPT = [3, 1, 4, 1, 5]


def test_both_lanes_of_a_run(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 's'}"
    settings = SpeculationSettings()
    with serving(draft_service(toy_model(noise=0.6)), address):
        client = WorkerClient(
            Hello(PROTOCOL_VERSION, "toy", VOCAB, list(ToyTokenizer().eos_ids), settings), Remote(address)
        )
        client.start()
        target = ToyBackend()
        target.before_forward = lambda: time.sleep(0.005)
        with LLM.from_core(
            engine(target, SsdDrafter(client, target_vocab=VOCAB, patience=PATIENT)), ToyTokenizer(VOCAB)
        ) as llm:
            params = greedy(30, ignore_eos=True)
            plain = llm.generate([PROMPT], params)[0].outputs[0].token_ids
            llm.start_trace()
            output = llm.generate([PROMPT], params)[0]
            lanes = llm.end_trace()
            assert output.outputs[0].token_ids == plain
            assert llm.end_trace() == {"target": [], "draft worker": []}, "recording has ended"
    assert list(lanes) == ["target", "draft worker"]
    rounds = [span for span in lanes["target"] if span.name == "round"]
    assert sum(sum(span.args["emitted"]) for span in rounds) == 30
    counted = output.metrics["speculative_decoding"]
    origins = [origin for span in rounds for origin in span.args["origins"]]
    assert len(origins) == counted["num_cache_lookups"]
    assert origins.count("primary") == counted["num_cache_hits"] > 0
    replies = [span for span in lanes["draft worker"] if span.name == "reply"]
    waits = [span for span in lanes["target"] if span.name == "draft wait"]
    assert len(replies) == len(waits)
    for reply, wait in zip(replies, waits, strict=True):
        assert wait.begin_s < reply.begin_s < reply.end_s < wait.end_s, "one clock"
    assert {"reply", "trunk pass", "tree step"} <= {span.name for span in lanes["draft worker"]}
    assert len(check_trace(json.dumps(chrome_trace(lanes)))) == sum(map(len, lanes.values()))


def test_without_a_worker_there_is_one_lane() -> None:
    with LLM.from_core(engine(), ToyTokenizer(VOCAB)) as llm:
        llm.start_trace(6)
        llm.generate([PROMPT], SamplingParams(temperature=0.0, max_tokens=9))
        lanes = llm.end_trace()
    assert list(lanes) == ["target"]
    assert len(lanes["target"]) == 6


@pytest.mark.parametrize(
    ("clock", "shift"), [(10.0, 0.0), (10.2, 0.0), (None, 0.0), ("x", 0.0), (4.0, 6.1), (99.0, -88.9)]
)
def test_clocks_of_other_machines_are_aligned(clock: object, shift: float) -> None:
    assert clock_shift(10.0, 10.2, clock) == pytest.approx(shift)
