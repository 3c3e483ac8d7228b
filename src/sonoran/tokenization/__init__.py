"""Text to token ids and back; chat templates; whether two models share a vocabulary."""

from sonoran.tokenization.compatibility import (
    CompatibilityReport,
    TokenDifference,
    compare,
    require_compatible,
)
from sonoran.tokenization.detokenizer import Detokenizer
from sonoran.tokenization.tokenizer import Tokenizer
from sonoran.tokenization.vocabulary import Vocabulary

__all__ = [
    "CompatibilityReport",
    "Detokenizer",
    "TokenDifference",
    "Tokenizer",
    "Vocabulary",
    "compare",
    "require_compatible",
]
