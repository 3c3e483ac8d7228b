"""Packed weights in the cache: the same weights as from the model file, or none at all."""

from __future__ import annotations

import os

import numpy as np
import pytest

from sonoran.backends import native, packed
from sonoran.backends.base import Rows
from sonoran.backends.native import NativeBackend
from sonoran.backends.packed import packed_files
from sonoran.errors import ConfigError
from sonoran.models.source import open_model
from tests.tiny_models import make_gguf


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("SONORAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(packed.SETTING, raising=False)
    make_gguf(tmp_path / "tiny.gguf", types="Q8_0", seed=3)
    return tmp_path / "tiny.gguf"


def load(path, **options):
    given = {"num_blocks": 8, "quantize": "int4", "threads": 1, "least_kept": 0, **options}
    return NativeBackend(open_model(path), **given)


def logits(backend):
    positions = np.arange(20)
    table = np.arange(2, dtype=np.int32)[None]
    rows = Rows.trunk(positions % 7, positions, np.zeros(20), table, 16, np.ones(20))
    return np.array(backend.forward(rows))


def count_packing(monkeypatch):
    calls = []
    pack = native._pack
    monkeypatch.setattr(native, "_pack", lambda *given: (calls.append(1), pack(*given))[1])
    return calls


def kept(model):
    return next((model.parent / "cache" / packed.FOLDER).glob("*.packed"))


def test_a_second_load_converts_nothing_and_computes_the_same(model, monkeypatch):
    first = load(model)
    calls = count_packing(monkeypatch)
    progress = []
    again = load(model, progress=lambda done, total: progress.append((done, total)))
    assert calls == []
    assert np.array_equal(logits(first), logits(again))
    assert [done for done, _ in progress] == [0, progress[0][1]]
    assert packed_files() == [(kept(model).name, first.weight_bytes + packed._HEADER)]


@pytest.mark.parametrize("place", ["header", "first", "last", "cut", "longer", "empty"])
def test_a_damaged_file_is_made_again(model, monkeypatch, caplog, place):
    expected = logits(load(model))
    path = kept(model)
    whole = path.read_bytes()
    at = {"header": 3, "first": packed._HEADER + 1, "last": len(whole) - 70}.get(place)
    damaged = {"cut": whole[:-64], "longer": whole + b"x", "empty": b""}.get(place, whole)
    if at is not None:
        damaged = whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
    path.write_bytes(damaged)
    calls = count_packing(monkeypatch)
    assert np.array_equal(logits(load(model)), expected)
    assert calls == [1]
    assert "is damaged" in caplog.text
    assert path.read_bytes() == whole


def test_other_files_and_settings_are_other_weights(model, monkeypatch):
    load(model)
    calls = count_packing(monkeypatch)
    load(model, quantize=None)
    assert len(calls) == 1
    other = logits(load(model, quantize="int3"))
    assert len(calls) == 2
    stat = model.stat()
    make_gguf(model, types="Q8_0", seed=4)  # of the same size, under the same name
    assert model.stat().st_size == stat.st_size
    changed = logits(load(model, quantize="int3"))
    assert len(calls) == 3
    assert not np.array_equal(other, changed)


def test_the_layout_of_another_build_is_not_read(model, monkeypatch):
    load(model)
    calls = count_packing(monkeypatch)
    monkeypatch.setattr(packed._native, "packed_layout", lambda: "another")
    load(model)
    assert calls == [1]


def test_what_was_not_read_for_longest_goes_when_there_is_no_room(model, monkeypatch):
    sizes = {}
    for number, precision in enumerate(("int4", "int3")):
        sizes[precision] = load(model, quantize=precision).weight_bytes + packed._HEADER
        newest = max((model.parent / "cache" / packed.FOLDER).iterdir(), key=lambda p: p.stat().st_mtime_ns)
        os.utime(newest, (number, number))
    load(model, quantize="int4")  # read again: int3 is the oldest now
    whole = load(model, quantize=None, num_blocks=4, least_kept=2**40).weight_bytes + packed._HEADER
    monkeypatch.setenv(packed.SETTING, str((sizes["int4"] + whole + 100) / 1e9))
    load(model, quantize=None)
    assert sorted(size for _, size in packed_files()) == sorted((sizes["int4"], whole))


def test_a_file_that_was_never_finished_is_removed(model):
    load(model)
    stale = kept(model).with_suffix(".part")
    stale.write_bytes(b"half")
    os.utime(stale, (0, 0))
    load(model, quantize=None)
    assert not stale.exists()


@pytest.mark.parametrize("value", ["0", "off"])
def test_it_can_be_switched_off(model, monkeypatch, value):
    monkeypatch.setenv(packed.SETTING, value)
    load(model)
    assert packed_files() == []


@pytest.mark.parametrize("value", ["much", "-1", "nan"])
def test_a_setting_that_is_no_number_is_named(model, monkeypatch, value):
    monkeypatch.setenv(packed.SETTING, value)
    with pytest.raises(ConfigError, match="SONORAN_PACKED_CACHE must be a number of GB"):
        load(model)


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(model, monkeypatch):
    (model.parent / "cache").write_text("a file where the folder should be")
    assert logits(load(model)).shape[0] == 20


def test_small_models_are_not_kept(model):
    NativeBackend(open_model(model), num_blocks=8, quantize="int4", threads=1)
    assert packed_files() == []
