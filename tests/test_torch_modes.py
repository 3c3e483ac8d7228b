"""Targets and drafts through PyTorch: one text in AR, SD and SSD, and a draft there serves a native target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from sonoran.config import EngineConfig, SpeculativeConfig, WorkerConfig
from sonoran.errors import ConfigError
from sonoran.llm import LLM
from sonoran.sampling.params import SamplingParams
from sonoran.server.run import fingerprint
from tests.tiny_models import make_gguf

SMALL: dict[str, Any] = {"num_layers": 1, "hidden_size": 128, "intermediate_size": 256}
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=3, max_tokens=20, n=2, top_p=0.95),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    make_gguf(folder / "target.gguf", "qwen2", "Q8_0", seed=1)
    make_gguf(folder / "draft.gguf", "qwen2", "Q8_0", seed=1, **SMALL)
    return {name: str(folder / f"{name}.gguf") for name in ("target", "draft")}


def outputs(llm: LLM) -> list[Any]:
    jobs = [(prompt, params) for prompt in ("hello world", "abc " * 30) for params in PARAMS]
    results = llm.generate([prompt for prompt, _ in jobs], [params for _, params in jobs])
    llm.check_invariants()
    return [[(c.token_ids, c.text, c.finish_reason) for c in result.outputs] for result in results]


def accepted(llm: LLM) -> float:
    counted = llm.statistics()["speculative_decoding"]
    return float(counted["draft_acceptance_rate"])


def test_one_text_in_every_mode(models: dict[str, str]) -> None:
    where = {"device": "torch:cpu", "max_num_batched_tokens": 48}
    with LLM(models["target"], **where) as llm:
        expected = outputs(llm)
        alone = [llm.generate(prompt, PARAMS[0])[0].outputs[0].token_ids for prompt in ("hello world",)]
        assert alone[0] == expected[0][0][0]
    for speculative in (
        {"model": models["draft"], "num_speculative_tokens": 3, "least_chance": 0.0},
        {"model": models["draft"], "device": "torch:cpu", "quantize": "bf16", "least_chance": 0.0},
        {"method": "ngram", "prompt_lookup_min": 1},
        {"method": "ssd", "model": models["draft"], "least_chance": 0.0},
        {"method": "ssd", "model": models["target"], "device": "torch:cpu", "least_chance": 0.0},
    ):
        with LLM(models["target"], speculative_config=speculative, **where) as llm:
            assert outputs(llm) == expected, speculative


def test_a_draft_through_pytorch_serves_a_native_target(models: dict[str, str]) -> None:
    """As accepted as the native draft of the same weights."""
    shares = {}
    with LLM(models["target"], threads=1) as llm:
        expected = outputs(llm)
    for device in ("cpu", "torch:cpu"):
        for method in ("sd", "ssd"):
            speculative = {
                "method": method, "model": models["target"], "device": device, "quantize": "file",
                "draft_vocab": 0, "least_chance": 0.0, "threads": 1,
            }  # fmt: skip
            with LLM(models["target"], speculative_config=speculative, threads=1) as llm:
                assert outputs(llm) == expected, (device, method)
                shares[device, method] = accepted(llm)
    assert all(share > 0.5 for share in shares.values()), shares
    assert abs(shares["torch:cpu", "sd"] - shares["cpu", "sd"]) < 0.15, shares


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EngineConfig(device="cudda"), "device 'cudda' is unknown; did you mean 'cuda'"),
        (lambda: EngineConfig(device="cuda:x"), "device 'cuda:x' is unknown; did you mean 'cuda:1'"),
        (
            lambda: EngineConfig(device="cuda", threads=2),
            "threads are of device cpu and have no effect on cuda",
        ),
        (lambda: EngineConfig(device="torch:cpu", cores=(0,)), "cores place threads of device cpu"),
        (lambda: EngineConfig(device="mps", quantize="int4"), "quantize 'int4' is of device cpu; on mps"),
        (lambda: WorkerConfig(model="x", device="cuda:1", quantize="int3"), "quantize 'int3' is of device"),
        (lambda: WorkerConfig(model="x", device="cuda", cores="1"), "cores place threads of device cpu"),
        (lambda: SpeculativeConfig.from_mapping({"method": "ngram", "device": "cuda"}), "belongs to method"),
        (
            lambda: SpeculativeConfig(method="ssd", draft_address="tcp://127.0.0.1:1", device="cuda"),
            "device is decided where the worker",
        ),
    ],
)
def test_what_a_device_does_not_have_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:12", "mps", "torch:cpu"])
def test_devices(device: str) -> None:
    assert EngineConfig(device=device).device == WorkerConfig(model="x", device=device).device == device


def test_mode_auto_names_what_to_do(models: dict[str, str]) -> None:
    speculative = {"method": "auto", "model": models["draft"]}
    with pytest.raises(ConfigError, match="for device torch:cpu name the mode: ar, sd or ssd"):
        LLM(models["target"], speculative_config=speculative, device="torch:cpu")


def test_texts_of_devices_have_names_of_their_own(models: dict[str, str]) -> None:
    names = {fingerprint(Path(models["target"]), None, device) for device in ("cpu", "cuda", "torch:cpu")}
    assert len(names) == 3
    assert fingerprint(Path(models["target"]), None) in names
