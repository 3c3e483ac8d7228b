"""Opening a pair of tiny models, and the prompts that come with the program."""

import numpy as np
import pytest

from sonoran import _native
from sonoran.assemble import load_models
from sonoran.backends.base import Rows
from sonoran.config import EngineConfig, SpeculativeConfig, WorkerConfig
from sonoran.errors import CompatibilityError, ConfigError
from sonoran.planning.profile.pair import machine_key, open_pair, processor_name
from sonoran.planning.profile.prompts import built_in_prompts, prompts_from_file
from sonoran.ssd.model import load_draft_model
from tests.tiny_models import make_gguf


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    make_gguf(folder / "target.gguf", "qwen2", types="Q8_0")
    make_gguf(folder / "draft.gguf", "qwen2", types="Q8_0", seed=1)
    return folder


def rows(backend, token=3):
    zero = np.zeros(1, np.int32)
    return backend.forward(Rows.trunk(zero + token, zero, zero, zero[None], backend.block_size, zero + 1))


def test_the_key_tells_models_and_settings_apart(models):
    one = open_pair(models / "target.gguf", models / "draft.gguf").key
    assert (one.target.name, one.draft.name) == ("target.gguf", "draft.gguf")
    assert one.target.quantize is None and one.draft.quantize == "int4"
    assert one.target.parameters > 1000 and one.target.file_bytes > 1000
    assert one.machine.cores == tuple(_native.available_cores())
    others = [
        open_pair(models / "target.gguf", None).key,
        open_pair(models / "target.gguf", models / "draft.gguf", draft_quantize="file").key,
        open_pair(models / "target.gguf", models / "draft.gguf", draft_vocab=32).key,
        open_pair(models / "target.gguf", models / "draft.gguf", quantize="int8").key,
        open_pair(models / "target.gguf", models / "draft.gguf", cores=one.machine.cores[:1]).key,
    ]
    expected = 1 + len(others) - (len(one.machine.cores) == 1)
    assert len({one.digest, *(other.digest for other in others)}) == expected
    assert open_pair(models / "target.gguf", models / "draft.gguf").key == one


def test_models_are_loaded_onto_cores_in_their_precision(models):
    core = (_native.available_cores()[0],)
    pair = open_pair(models / "target.gguf", models / "draft.gguf", draft_vocab=32)
    loaded = pair.load("draft", core, 4)
    try:
        logits = rows(loaded.backend)
        assert loaded.backend.num_blocks == 4
        hidden = np.flatnonzero(np.isneginf(logits[0]))
        assert len(hidden) and loaded.vocabulary is not None
        loaded.vocabulary.add([int(hidden[-1])])
        assert np.isfinite(rows(loaded.backend)[0, hidden[-1]])
    finally:
        loaded.backend.close()
    target = pair.load("target", core, 4)
    try:
        assert target.vocabulary is None and np.isfinite(rows(target.backend)).all()
    finally:
        target.backend.close()


def test_calibration_measures_the_draft_that_the_engine_and_the_worker_run(models):
    core = (_native.available_cores()[0],)
    drafts = models / "draft.gguf"
    pair = open_pair(models / "target.gguf", drafts)
    measured = pair.load("draft", core, 8).backend
    worker = load_draft_model(WorkerConfig(model=str(drafts), cores=core, num_kv_blocks=8))
    own = load_models(
        models / "target.gguf",
        EngineConfig(cores=core, num_kv_blocks=8),
        SpeculativeConfig("sd", model=str(drafts)),
    )
    try:
        reads = {b.facts.read_bytes for b in (measured, worker.backend, own.drafter.backend)}
        assert len(reads) == 1
        assert len({rows(b).tobytes() for b in (measured, worker.backend, own.drafter.backend)}) == 1
    finally:
        measured.close()
        worker.close()
        own.close()


def test_pairs_are_checked(models, tmp_path):
    draft = (models / "draft.gguf").read_bytes()
    assert b"<|im_end|>" in draft
    (tmp_path / "other.gguf").write_bytes(draft.replace(b"<|im_end|>", b"<|im_END|>"))
    with pytest.raises(CompatibilityError, match="im_END"):
        open_pair(models / "target.gguf", tmp_path / "other.gguf")
    with pytest.raises(ConfigError, match="cannot be used"):
        open_pair(models / "target.gguf", None, cores=(4095,))


def test_the_machine(tmp_path):
    assert machine_key((0,)).cores == (0,)
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name\t: A Fast One\n")
    assert processor_name(info) == "A Fast One"
    assert processor_name(tmp_path / "missing")


def test_built_in_prompts_are_different_and_short():
    prompts = built_in_prompts()
    assert len(set(prompts)) == 8
    assert all(20 < len(prompt) < 500 for prompt in prompts)


def test_prompts_from_files(tmp_path):
    plain, lines = tmp_path / "p.txt", tmp_path / "p.jsonl"
    plain.write_text("one\n\ntwo\n")
    lines.write_text('"one"\n{"prompt": "two", "id": 3}\n')
    assert prompts_from_file(plain) == prompts_from_file(lines) == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.txt", "\n", "has no prompts"),
        ("p.jsonl", "{", "line 1: not valid JSON"),
        ("p.jsonl", '"a"\n{"text": "b"}', "line 2: needs a text"),
        ("p.jsonl", "3", "line 1: needs a text"),
    ],
)
def test_prompts_that_cannot_be_read(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        prompts_from_file(path)


def test_missing_prompts(tmp_path):
    with pytest.raises(ConfigError, match="missing: cannot be read"):
        prompts_from_file(tmp_path / "missing")
