"""One text while both models read it, and what was recorded of its positions under each rule."""

from __future__ import annotations

from dataclasses import dataclass, field

from sonoran.calibrate.traces import Trace, Verification
from sonoran.kv.memory import BlockTable


@dataclass(slots=True)
class ReadText:
    """Tokens so far, the KV memory of both models, and ranks and chances by rule (see traces)."""

    tokens: list[int]
    prompt_length: int
    seed: int
    tables: tuple[BlockTable, BlockTable]
    rejected: dict[Verification, list[int]] = field(default_factory=dict)
    free: dict[Verification, list[int]] = field(default_factory=dict)
    chances: dict[Verification, list[tuple[float, ...]]] = field(default_factory=dict)
    free_chances: dict[Verification, list[tuple[float, ...]]] = field(default_factory=dict)
    done: bool = False

    def record(self, rule: Verification, rejected: int, free: int) -> None:
        self.rejected.setdefault(rule, []).append(rejected)
        self.free.setdefault(rule, []).append(free)

    def believe(self, rule: Verification, chances: tuple[float, ...], free: tuple[float, ...]) -> None:
        self.chances.setdefault(rule, []).append(chances)
        self.free_chances.setdefault(rule, []).append(free)

    def trace(self, rule: Verification) -> Trace:
        kept = (self.rejected, self.free, self.chances, self.free_chances)
        return Trace(*(tuple(by_rule[rule]) for by_rule in kept))  # type: ignore[arg-type]
