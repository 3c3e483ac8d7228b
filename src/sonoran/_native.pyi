"""Kernels and forward pass of the CPU backend."""

from collections.abc import Sequence
import enum
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

class Activation(enum.Enum):
    """What the gate of a feed-forward network passes."""

    SILU = 0

    GELU_TANH = 1

class Norms(enum.Enum):
    """Where the norms of a sublayer stand."""

    BEFORE = 0

    AROUND = 1

    BEHIND = 2

class Rope:
    """A rotation of queries and keys."""

    def __init__(self, theta: float, factors: Sequence[float], attention_factor: float) -> None:
        """
        factors divide the frequencies (empty: not scaled), attention_factor scales rotated queries and keys.
        """

class Experts:
    """A feed-forward part of which a router chooses a few experts."""

    def __init__(self, *, count: int, per_row: int, intermediate_size: int, shared_size: int, normalised: bool) -> None:
        """
        shared_size is the inner width of the expert that every row passes (0: none); normalised: the chances of those chosen are divided by their sum.
        """

class DecoderConfig:
    """Shape of a decoder and of its KV memory; set the fields."""

    def __init__(self) -> None: ...

    @property
    def vocab_size(self) -> int: ...

    @vocab_size.setter
    def vocab_size(self, arg: int, /) -> None: ...

    @property
    def hidden_size(self) -> int: ...

    @hidden_size.setter
    def hidden_size(self, arg: int, /) -> None: ...

    @property
    def intermediate_size(self) -> int: ...

    @intermediate_size.setter
    def intermediate_size(self, arg: int, /) -> None: ...

    @property
    def num_layers(self) -> int: ...

    @num_layers.setter
    def num_layers(self, arg: int, /) -> None: ...

    @property
    def num_heads(self) -> int: ...

    @num_heads.setter
    def num_heads(self, arg: int, /) -> None: ...

    @property
    def num_kv_heads(self) -> int: ...

    @num_kv_heads.setter
    def num_kv_heads(self, arg: int, /) -> None: ...

    @property
    def head_dim(self) -> int: ...

    @head_dim.setter
    def head_dim(self, arg: int, /) -> None: ...

    @property
    def norm_epsilon(self) -> float: ...

    @norm_epsilon.setter
    def norm_epsilon(self, arg: float, /) -> None: ...

    @property
    def norms(self) -> Norms:
        """Where a sublayer's norms stand."""

    @norms.setter
    def norms(self, arg: Norms, /) -> None: ...

    @property
    def whole_qk_norm(self) -> bool:
        """Whether q_norm and k_norm span all heads at once."""

    @whole_qk_norm.setter
    def whole_qk_norm(self, arg: bool, /) -> None: ...

    @property
    def activation(self) -> Activation: ...

    @activation.setter
    def activation(self, arg: Activation, /) -> None: ...

    @property
    def experts(self) -> Experts: ...

    @experts.setter
    def experts(self, arg: Experts, /) -> None: ...

    @property
    def embedding_scale(self) -> float: ...

    @embedding_scale.setter
    def embedding_scale(self, arg: float, /) -> None: ...

    @property
    def attention_scale(self) -> float:
        """Of the scores; 0: 1 / sqrt(head_dim)."""

    @attention_scale.setter
    def attention_scale(self, arg: float, /) -> None: ...

    @property
    def residual_scale(self) -> float:
        """Of what a sublayer adds."""

    @residual_scale.setter
    def residual_scale(self, arg: float, /) -> None: ...

    @property
    def logit_scale(self) -> float: ...

    @logit_scale.setter
    def logit_scale(self, arg: float, /) -> None: ...

    @property
    def attention_softcap(self) -> float:
        """Scores become c tanh(score / c); 0: they stay."""

    @attention_softcap.setter
    def attention_softcap(self, arg: float, /) -> None: ...

    @property
    def logit_softcap(self) -> float:
        """The same for logits."""

    @logit_softcap.setter
    def logit_softcap(self, arg: float, /) -> None: ...

    @property
    def rope_interleaved(self) -> bool: ...

    @rope_interleaved.setter
    def rope_interleaved(self, arg: bool, /) -> None: ...

    @property
    def rotary_dim(self) -> int:
        """The first elements of a head, which are rotated."""

    @rotary_dim.setter
    def rotary_dim(self, arg: int, /) -> None: ...

    @property
    def ropes(self) -> list[Rope]: ...

    @ropes.setter
    def ropes(self, arg: Sequence[Rope], /) -> None: ...

    @property
    def layer_ropes(self) -> list[int]:
        """Which of the ropes each layer has, -1: none; empty: all the first."""

    @layer_ropes.setter
    def layer_ropes(self, arg: Sequence[int], /) -> None: ...

    @property
    def sliding_windows(self) -> list[int]:
        """Of each layer, 0: none; empty: no layer has one."""

    @sliding_windows.setter
    def sliding_windows(self, arg: Sequence[int], /) -> None: ...

    @property
    def block_size(self) -> int:
        """In KV slots."""

    @block_size.setter
    def block_size(self, arg: int, /) -> None: ...

    @property
    def num_blocks(self) -> int: ...

    @num_blocks.setter
    def num_blocks(self, arg: int, /) -> None: ...

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

    def place(self, threads: int, cores: Sequence[int]) -> None:
        """
        Run passes on other threads from now on, pinned to the cores if there are any.
        """

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
