"""Text to token ids and back; chat templates; whether two models share a vocabulary."""

from sonoran.models.tokenizer.compatibility import (
    CompatibilityReport,
    TokenDifference,
    compare,
    require_compatible,
)
from sonoran.models.tokenizer.detokenizer import Detokenizer
from sonoran.models.tokenizer.tokenizer import Tokenizer
from sonoran.models.tokenizer.vocabulary import Vocabulary

__all__ = [
    "CompatibilityReport",
    "Detokenizer",
    "TokenDifference",
    "Tokenizer",
    "Vocabulary",
    "compare",
    "require_compatible",
]
