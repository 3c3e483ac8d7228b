"""A stop string that is the text of a special token stops at that token, although its text is never seen."""

from __future__ import annotations

import pytest

from sonoran.models.tokenizer.tokenizer import Tokenizer
from tests.engine.helpers import VOCAB, engine, greedy, model_drafter, run
from tests.models.tokenizer.vocabularies import byte_level
from tests.tiny_tokenizer import SPECIALS, tiny_tokenizer


@pytest.mark.parametrize("speculates", [False, True])
def test_the_name_of_a_special_token_stops_there(speculates: bool) -> None:
    def text(**options: object) -> list[int]:
        core = engine(drafter=model_drafter() if speculates else None)
        params = greedy(200, ignore_eos=True, logit_bias={VOCAB - 1: 6.0}, **options)
        return run(core, ([3, 1, 4], params))[0].sequences[0].output_ids

    free = text()
    assert VOCAB - 1 in free[:-1], "the end token comes and is ignored"
    assert text(stop=["<end>"]) == free[: free.index(VOCAB - 1) + 1]
    assert text(stop=["<other>"]) == free


def test_special_tokens_are_known_by_their_text() -> None:
    tokenizer, tiny = Tokenizer.from_gguf(byte_level()), tiny_tokenizer()
    for name in SPECIALS:
        assert tokenizer.special_token_id(name) == tiny.id(name)
    assert tokenizer.special_token_id("a") is None
    assert tokenizer.special_token_id("<|nothing|>") is None
