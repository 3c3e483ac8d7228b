"""Faults of vLLM's own sampler on processors, which would make sampled texts wrong whatever drafts: found by trying, and
put right for this process. Where the trial succeeds nothing is touched.

Seen in vLLM 0.31 and 0.32 built for processors, without a Triton for them:

- temperatures (and top-k, top-p) are spread over the rows of a verification into a copy that is thrown away, so that rows
  are sampled at whatever was in memory;
- top-k of a step in which nothing was proposed ends the engine ("max(): Expected reduction dim").
"""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any

log = logging.getLogger("vllm.sonoran")


def repair_sampler() -> list[str]:
    """Try vLLM's sampler and put right what fails; return what that was."""
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.sample.ops import topk_topp_sampler

    repaired = []
    if not _spreads(rejection_sampler):
        rejection_sampler.expand_batch_to_tokens = spread
        repaired.append("temperatures of verified rows were lost")
    if not _takes_nothing(topk_topp_sampler):
        original = topk_topp_sampler.apply_top_k_only
        topk_topp_sampler.apply_top_k_only = lambda logits, k: original(logits, k) if len(logits) else logits
        repaired.append("top-k failed in steps without a proposal")
    return repaired


def spread(values: Any, ends: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0) -> Any:
    """Repeat the value of each request for its draft tokens, torch[requests] to torch[num_tokens].

    ``ends`` are running totals of draft tokens; ``replace_from`` becomes ``replace_to``.
    """
    import torch

    counts = torch.diff(ends.to(torch.int64), prepend=ends.new_zeros(1, dtype=torch.int64))
    replaced = torch.where(values == replace_from, torch.full_like(values, replace_to), values)
    return torch.repeat_interleave(replaced, counts, output_size=num_tokens)


def _spreads(sampler: ModuleType) -> bool:
    import torch

    values, ends = torch.tensor([0.0, 0.5, 2.0]), torch.tensor([2, 2, 5], dtype=torch.int32)
    try:
        found = sampler.expand_batch_to_tokens(values, ends, 5, 0, 1)
    except Exception:
        return False
    return bool(torch.equal(found, torch.tensor([1.0, 1.0, 2.0, 2.0, 2.0])))


def _takes_nothing(sampler: ModuleType) -> bool:
    import torch

    try:
        sampler.apply_top_k_only(torch.empty(0, 8), torch.empty(0, dtype=torch.int64))
    except Exception:
        return False
    return True
