"""GGUF files broken in the ways a download or a disk can break them."""

import struct

import numpy as np
import pytest

from sonoran.errors import ModelError
from sonoran.models.source import open_model
from tests.tiny_models import make_gguf


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    make_gguf(
        path, hidden_size=32, intermediate_size=64, num_heads=2, num_kv_heads=1, num_layers=1, types="Q8_0"
    )
    open_model(path)
    return path.read_bytes()


def header_length(content):
    """Where the data of the first tensor begin: after the description of the last one."""
    return content.index(b"blk.0.ffn_down.weight") + len("blk.0.ffn_down.weight") + 4 + 16 + 4 + 8


def refused(path, content, match=""):
    path.write_bytes(content)
    with pytest.raises(ModelError, match=match) as caught:
        open_model(path)
    assert str(path) in str(caught.value)


def test_truncated_at_every_kind_of_place(tmp_path, content):
    rng = np.random.default_rng(0)
    end = header_length(content)
    places = {
        *range(1, 64),
        *rng.integers(64, end, 150),
        *rng.integers(end, len(content), 30),
        len(content) - 1,
    }
    for place in sorted(int(place) for place in places):
        match = "not a GGUF" if place < 4 else r"truncated: .*\d+ bytes|truncated: an array of \d+ strings"
        refused(tmp_path / "model.gguf", content[:place], match)


def test_empty_and_foreign_files(tmp_path, content):
    path = tmp_path / "model.gguf"
    refused(path, b"", "it is empty")
    refused(path, bytes(len(content)), r"not a GGUF file \(it begins with b'\\x00")
    refused(path, b"<!DOCTYPE html><html></html>", "it begins with b'<!DO'")
    refused(path, b"version https://git-lfs.github.com/spec/v1\n", "it begins with b'vers'")
    refused(path, b"GGUF", "truncated")


def test_any_flipped_header_byte_is_refused_or_harmless(tmp_path, content):
    rng = np.random.default_rng(1)
    path, end = tmp_path / "model.gguf", header_length(content)
    refusals = 0
    # The names and descriptions of the tensors, the fixed part, and some of the long token lists between.
    tensors = content.index(b"token_embd.weight")
    for place in [*range(24), *rng.integers(24, tensors, 300), *rng.integers(tensors, end, 300)]:
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            model = open_model(path)
            list(model.metadata.items())
        except ModelError:
            refusals += 1
    assert refusals > 200


def patched(content, place, layout, value):
    damaged = bytearray(content)
    struct.pack_into(layout, damaged, place, value)
    return bytes(damaged)


def test_damaged_fields_of_the_header(tmp_path, content):
    path = tmp_path / "model.gguf"
    refused(path, patched(content, 4, "<I", 99), "version 99")
    refused(path, patched(content, 8, "<Q", 10**15), "truncated|corrupt")
    refused(path, patched(content, 16, "<Q", 10**15), "truncated|corrupt")
    tokens = content.index(b"tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens")
    assert struct.unpack_from("<II", content, tokens) == (9, 8)
    refused(path, patched(content, tokens, "<I", 77), "corrupt header")
    refused(path, patched(content, tokens + 4, "<I", 9), "an array of type ARRAY")
    refused(path, patched(content, tokens + 8, "<Q", 2**63), "truncated: an array of")
    refused(path, patched(content, tokens + 16, "<Q", 2**64 - 1), "truncated: an array of")


def test_damaged_descriptions_of_tensors(tmp_path, content):
    path = tmp_path / "model.gguf"
    at = content.index(b"blk.0.ffn_up.weight") + len("blk.0.ffn_up.weight")
    dims, inputs, outputs, kind, offset = at, at + 4, at + 12, at + 20, at + 24
    assert struct.unpack_from("<IQQI", content, dims) == (2, 32, 64, 8)
    place = struct.unpack_from("<Q", content, offset)[0]
    refused(path, patched(content, dims, "<I", 0), "shape|truncated|corrupt")
    refused(path, patched(content, inputs, "<Q", 0), r"ffn_up\.weight has shape \(64, 0\)")
    refused(path, patched(content, inputs, "<Q", 48), "blocks of 32 elements, which do not divide")
    refused(path, patched(content, outputs, "<Q", 2**40), r"truncated: tensor blk\.0\.ffn_up\.weight ends at")
    refused(path, patched(content, outputs, "<Q", 63), r"has shape \(63, 32\)")
    refused(path, patched(content, kind, "<I", 1234), r"blk\.0\.ffn_up\.weight has type number 1234")
    refused(path, patched(content, kind, "<I", 1), "overlap|truncated")
    refused(path, patched(content, offset, "<Q", place + 1), "not a multiple of 32")
    refused(path, patched(content, offset, "<Q", place + 32), "overlap")
    refused(path, patched(content, offset, "<Q", 2**63), "truncated")
    refused(path, content.replace(b"blk.0.ffn_up.weight", b"blk.0.attn_q.weight"), "listed twice")
    refused(path, content.replace(b"blk.0.ffn_up.weight", b"blk.0.ffn_\xffp.weight"), "corrupt header")


def test_bytes_missing_in_the_middle(tmp_path, content):
    middle = (header_length(content) + len(content)) // 2
    refused(tmp_path / "model.gguf", content[:middle] + content[middle + 512 :], "truncated")


def test_bytes_after_the_last_tensor_are_allowed(tmp_path, content):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    expected = {name: tensor.data.tobytes() for name, tensor in open_model(path).tensors.items()}
    path.write_bytes(content + bytes(4096))
    assert {name: tensor.data.tobytes() for name, tensor in open_model(path).tensors.items()} == expected


def test_the_other_byte_order_is_refused(tmp_path, content):
    refused(tmp_path / "model.gguf", content[:4] + content[7:3:-1] + content[8:], "other byte order")


def test_a_token_that_is_not_utf8_is_named_when_decoded(tmp_path, content):
    path = tmp_path / "model.gguf"
    path.write_bytes(content.replace(b"<|im_start|>", b"<|im_\xff\xff\xff\xff\xff|>"))
    model = open_model(path)
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.tokens is not valid UTF-8"):
        model.metadata["tokenizer.ggml.tokens"]


def test_missing_file_and_folder_in_its_place(tmp_path):
    with pytest.raises(ModelError, match="cannot be read"):
        open_model(tmp_path / "none.gguf")
