"""Kernels and forward pass of the CPU backend."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


class InstructionSet:
    """Kernels for a kind of processor."""

    @property
    def name(self) -> str:
        """As the option instruction_set takes it."""

    @property
    def built(self) -> bool:
        """Whether this build has its kernels."""

    @property
    def present(self) -> bool:
        """Whether this processor can run them, too."""

def instruction_sets() -> list[InstructionSet]:
    """
    All instruction sets, the best first; the first one present is chosen by default.
    """

def best_instruction_set() -> str:
    """The name of the instruction set that is chosen by default."""

def packed_layout() -> str:
    """
    Names the packed layout of this build: it differs where the layout may differ.
    """

def available_cores() -> list[int]:
    """The cores that this process may use."""

def measure_read_bandwidth(bytes: int, threads: int, cores: Sequence[int], repeats: int) -> float:
    """
    GB/s that a plain read loop reaches on these cores (best of the repeats).
    """

class PackedMatrix:
    """One matrix in the packed layout, on its own: what tests look at."""

    def __init__(self, from_format: str, to_format: str, outputs: int, inputs: int, rows: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        Pack rows of a file in from_format; to_format is the same or one with fewer bits.
        """

    def decode(self, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
        """Write all weights as floats [outputs, inputs]."""

    def multiply(self, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], y: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], instruction_set: str = 'auto') -> None:
        """
        Write x W^T: y [rows, outputs] for x [rows, inputs], by the kernels of an instruction set.
        """

    @property
    def bytes(self) -> int:
        """Bytes in memory."""

class DecoderConfig:
    """Shape of a decoder and of its KV memory."""

    def __init__(self, *, vocab_size: int, hidden_size: int, intermediate_size: int, num_layers: int, num_heads: int, num_kv_heads: int, head_dim: int, norm_epsilon: float, rope_theta: float, rope_interleaved: bool, rope_factors: Sequence[float], rope_attention_factor: float, sliding_windows: Sequence[int], block_size: int, num_blocks: int) -> None:
        """
        rope_factors divide the frequencies (empty: not scaled), rope_attention_factor scales rotated queries and keys; sliding_windows are those of the layers, 0 for none (empty: none at all); block_size is in KV slots.
        """

class Decoder:
    """A decoder with its weights, KV memory and threads."""

    def __init__(self, config: DecoderConfig, matrices: Sequence[tuple[str, str, int, int]], threads: int, cores: Sequence[int], instruction_set: str, loading_threads: int = 0) -> None:
        """
        Reserve memory; matrices are (name, packed format, outputs, inputs). Threads are pinned to the cores if there are any; until finish(), loading_threads (0: the same ones) work on any core.
        """

    def load_matrix(self, name: str, format: str, rows: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """Pack the rows of a matrix, as a file has them in this format."""

    def read_packed(self, file: int, offset: int) -> int:
        """
        Read all matrices from an open file that holds packed() of the same matrices at an offset; return what digest() is now. A matrix that is loaded afterwards takes the place of what was read.
        """

    def packed(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """All matrices in the packed layout, one after another; not copied."""

    def digest(self) -> int:
        """A checksum of packed(), against damage."""

    def load_vector(self, name: str, values: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """Copy a norm's weights or a bias."""

    def finish(self) -> None:
        """Check that every tensor is there with its shape; call after loading."""

    def restrict_output(self, blocks: Sequence[int]) -> None:
        """
        Compute the logits of these blocks of 16 tokens only, in ascending order; others become -inf.
        """

    def forward(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], slots: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], sequences: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], trunk_lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], wants_logits: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], block_tables: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], extra_offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], extra_slots: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
        """
        Run the rows (fields of sonoran.backends.base.Rows); write logits [rows that want them, vocab].
        """

    def copy_block(self, source: int, destination: int) -> None:
        """Copy the keys and values of a block in all layers."""

    @property
    def read_bytes(self) -> int:
        """Bytes of weights that a pass reads."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of all matrices."""

    @property
    def kv_bytes(self) -> int:
        """Bytes of KV memory."""

    @property
    def threads(self) -> int:
        """Threads of a pass, the caller included."""

    @property
    def instruction_set(self) -> str:
        """The instruction set of the kernels in use."""

def sampling_argmax(arg: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], /) -> int: ...

def sampling_top(arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: int, arg2: int, /) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

def sampling_select(arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: float, arg2: int, arg3: float, arg4: float, arg5: int, /) -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.float64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))]]: ...

def sampling_coupled_top(arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: float, arg2: int, arg3: float, arg4: float, arg5: int, arg6: int, arg7: int, arg8: int, /) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

def sampling_inverse(arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: float, arg2: int, arg3: float, arg4: float, arg5: int, /) -> int: ...

def sampling_mass(arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: float, arg2: int, arg3: float, arg4: float, arg5: int, /) -> tuple[int, int]: ...

def sampling_logsumexp(arg: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], /) -> float: ...

def sampling_weights(arg: Annotated[NDArray[numpy.float64], dict(shape=(None,), writable=False)], /) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

def sampling_words(arg0: int, arg1: int, arg2: int, arg3: int, /) -> tuple[int, int, int, int]: ...

def sampling_gumbel(arg0: int, arg1: int, arg2: Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)], /) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]: ...
