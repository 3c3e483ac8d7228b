"""Proposal laws as they travel in messages: the exact q of every proposed token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sonoran.errors import WorkerError
from sonoran.sampling.proposals import Law, PointLaw, SparseLaw, UniformLaw


def encode_law(law: Law) -> list[Any]:
    """Return ``[]`` for a point mass, ``[size]`` for the uniform law, ``[ids, probabilities]`` for a sparse one."""
    if isinstance(law, PointLaw):
        return []
    if isinstance(law, UniformLaw):
        return [law.size]
    return [law.ids.astype("<i4").tobytes(), law.probabilities.astype("<f8").tobytes()]


def decode_law(parts: Sequence[Any]) -> Law:
    """The inverse of ``encode_law``. Raises WorkerError for anything that is no law."""
    if len(parts) == 0:
        return PointLaw()
    if len(parts) == 1 and isinstance(parts[0], int) and parts[0] > 0:
        return UniformLaw(parts[0])
    if len(parts) != 2 or not all(isinstance(part, bytes) for part in parts):
        raise WorkerError("a proposal law is neither a point, nor uniform, nor sparse")
    if len(parts[0]) % 4 or len(parts[1]) % 8 or len(parts[0]) // 4 != len(parts[1]) // 8 or not parts[0]:
        raise WorkerError("a sparse proposal law has ids and probabilities of different lengths")
    ids = np.frombuffer(parts[0], "<i4").astype(np.int32)
    probabilities = np.frombuffer(parts[1], "<f8").astype(np.float64)
    ascending = bool(np.all(np.diff(ids) > 0)) and int(ids[0]) >= 0
    if not ascending or not np.all(probabilities >= 0.0) or abs(float(probabilities.sum()) - 1.0) > 1e-6:
        raise WorkerError("a sparse proposal law is not a distribution over ascending token ids")
    return SparseLaw(ids, probabilities)
