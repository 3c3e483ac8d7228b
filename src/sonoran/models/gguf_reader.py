"""GGUF files through the ``gguf`` package, made quick on long arrays and strict on damaged files."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType
from numpy.typing import NDArray

from sonoran.errors import ModelError
from sonoran.models.tensors import MATRIX_TYPES, byte_size
from sonoran.models.untrusted import refusing

MAX_TENSOR_DIMS = 4


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as the header lists it; ``shape`` is outermost first."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


class HeaderReader(GGUFReader):  # type: ignore[misc, unused-ignore]
    """The package's reader with three differences.

    Reads beyond the end of the file are errors. Arrays stay undecoded (the package makes an object of every
    element, which takes seconds for a vocabulary). Tensors are checked and kept as raw bytes.
    """

    raw_tensors: list[RawTensor]

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> NDArray[Any]:
        end = int(offset) + np.dtype(dtype).itemsize * int(count)
        if end > self.data.nbytes:
            raise ModelError(
                f"truncated: the header goes on to byte {end}, the file has {self.data.nbytes} bytes"
            )
        result: NDArray[Any] = super()._get(offset, dtype, count, override_order)
        return result

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[NDArray[Any]], list[int], list[GGUFValueType]]:
        if raw_type != GGUFValueType.ARRAY:
            result: tuple[int, list[NDArray[Any]], list[int], list[GGUFValueType]]
            result = super()._get_field_parts(orig_offs, raw_type)
            return result
        kind = GGUFValueType(int(self._get(orig_offs, np.uint32)[0]))
        count = int(self._get(orig_offs + 4, np.uint64)[0])
        begin = orig_offs + 12
        if kind == GGUFValueType.STRING:
            size = self._strings_size(begin, count)
        elif kind in self.gguf_scalar_to_np:
            size = np.dtype(self.gguf_scalar_to_np[kind]).itemsize * count
        else:
            raise ModelError(f"corrupt: an array of type {kind.name} at byte {orig_offs}")
        raw = self._get(begin, np.uint8, size)
        return 12 + size, [np.array([count], np.uint64), raw], [1], [GGUFValueType.ARRAY, kind]

    def _strings_size(self, begin: int, count: int) -> int:
        view, end = self.data.data, self.data.nbytes
        unpack = struct.Struct("<Q").unpack_from
        position = begin
        try:
            for _ in range(count):
                position += 8 + unpack(view, position)[0]
        except (struct.error, OverflowError):
            position = end + 1
        if position > end:
            raise ModelError(
                f"truncated: an array of {count} strings at byte {begin} goes on beyond the end of the file"
            )
        return position - begin

    def _build_tensors(self, start_offs: int, fields: list[Any]) -> None:
        size = self.data.nbytes
        self.raw_tensors = []
        spans: list[tuple[int, int, str]] = []
        names: set[str] = set()
        for field in fields:
            _, name_data, dim_count, dims, raw_type, offset = field.parts
            name = bytes(name_data).decode()
            if name in names:
                raise ModelError(f"corrupt: tensor {name} is listed twice")
            names.add(name)
            shape = tuple(int(extent) for extent in reversed(dims.tolist()))
            if not 1 <= int(dim_count[0]) <= MAX_TENSOR_DIMS or min(shape) < 1:
                raise ModelError(f"corrupt: tensor {name} has shape {shape}")
            dtype = _type_name(name, int(raw_type[0]))
            try:
                nbytes = byte_size(dtype, shape)
            except ModelError as error:
                raise ModelError(f"corrupt: tensor {name}: {error}") from None
            begin = start_offs + int(offset[0])
            if int(offset[0]) % self.alignment:
                raise ModelError(
                    f"corrupt: tensor {name} begins at {offset[0]}, not a multiple of {self.alignment}"
                )
            if begin + nbytes > size:
                raise ModelError(
                    f"truncated: tensor {name} ends at byte {begin + nbytes}, the file has {size} bytes"
                )
            spans.append((begin, begin + nbytes, name))
            self.raw_tensors.append(
                RawTensor(name, dtype, shape, self.data[begin : begin + nbytes].view(np.ndarray))
            )
        spans.sort()
        for (_, end, name), (begin, _, other) in itertools.pairwise(spans):
            if begin < end:
                raise ModelError(f"corrupt: tensors {name} and {other} overlap")


def _type_name(name: str, raw: int) -> str:
    try:
        dtype = GGMLQuantizationType(raw).name
    except ValueError:
        dtype = f"number {raw}"
    if dtype not in MATRIX_TYPES:
        raise ModelError(
            f"tensor {name} has type {dtype}; supported: {', '.join(MATRIX_TYPES)}. "
            "Take another quantisation of the model, or make one with llama-quantize from llama.cpp"
        )
    return dtype


class GgufMetadata(Mapping[str, Any]):
    """Key/value metadata of a GGUF file; values are decoded when they are asked for.

    Scalars are Python values, arrays lists of strings or NumPy arrays.
    """

    def __init__(self, path: Path, reader: HeaderReader) -> None:
        self._path = path
        self._fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
        self._scalars = reader.gguf_scalar_to_np
        self._decoded: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._decoded:
            field = self._fields[key]
            with refusing(self._path):
                try:
                    self._decoded[key] = self._decode(field)
                except UnicodeDecodeError as error:
                    raise ModelError(f"metadata {key} is not valid UTF-8 ({error})") from error
        return self._decoded[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def raw(self, key: str) -> tuple[Any, ...]:
        """Return the types of a value and its bytes, not decoded."""
        field = self._fields[key]
        return (*field.types, *(bytes(part) for part in field.parts))

    def array_length(self, key: str) -> int:
        """Elements of an array, without decoding it; 0 when the key is missing or not an array."""
        field = self._fields.get(key)
        if field is None or field.types[0] != GGUFValueType.ARRAY:
            return 0
        return int(field.parts[-2][0])

    def _decode(self, field: Any) -> Any:
        if field.types[0] != GGUFValueType.ARRAY:
            return field.contents()
        raw = field.parts[-1]
        if field.types[1] != GGUFValueType.STRING:
            return np.frombuffer(raw, self._scalars[field.types[1]])
        data, strings, position = raw.tobytes(), [], 0
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(int(field.parts[-2][0])):
            end = position + 8 + unpack(data, position)[0]
            strings.append(data[position + 8 : end].decode())
            position = end
        return strings


def read_gguf(path: Path) -> tuple[GgufMetadata, list[RawTensor]]:
    """Open a GGUF file, map it, check its header against its length. Bytes after the last tensor are allowed.

    Raises ModelError with the reason for whatever is not a complete, well-formed, little-endian GGUF file.
    """
    with refusing(path):
        size = path.stat().st_size
        with path.open("rb") as stream:
            begin = stream.read(8)
        if begin[:4] != b"GGUF":
            found = f"it begins with {begin[:4]!r}" if begin else "it is empty"
            raise ModelError(f"not a GGUF file ({found})")
        if len(begin) == 8 and begin[4:6] == bytes(2):  # the version of a little-endian file is small
            raise ModelError("written for a machine of the other byte order (big-endian)")
        try:
            reader = HeaderReader(path)
        except (ValueError, KeyError, IndexError, OverflowError, TypeError) as error:
            raise ModelError(f"corrupt header ({error}); the file has {size} bytes") from error
        return GgufMetadata(path, reader), reader.raw_tensors
