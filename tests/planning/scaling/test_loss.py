"""Loss laws: values of the reference, parsing, refusals."""

import pytest

from sonoran.errors import PlanError
from sonoran.planning.scaling.loss import (
    BESIROGLU,
    HOFFMANN,
    LossLaw,
    loss_law_from_dict,
    parse_loss_law,
)


@pytest.mark.parametrize(
    "size,tokens,perplexity",
    [
        (125239296, 1.8e11, 15.06),
        (2651596800, 1.8e11, 9.31),
        (494032768, 1.8e13, 10.01),
        (72287920128, 3e12, 7.06),
    ],
)
def test_perplexities_of_the_reference(size, tokens, perplexity):
    assert BESIROGLU.perplexity(size, tokens) == pytest.approx(perplexity, abs=0.005)


def test_loss_falls_with_size_and_data_towards_its_floor():
    assert BESIROGLU.loss(1e9, 1e12) > BESIROGLU.loss(1e10, 1e12) > BESIROGLU.loss(1e10, 1e13) > BESIROGLU.e
    assert BESIROGLU.loss(1e30, 1e30) == pytest.approx(BESIROGLU.e, abs=1e-4)


def test_log_slope_is_the_derivative():
    step = 1e-6
    numeric = (BESIROGLU.loss(1e9 * (1 + step), 1e12) - BESIROGLU.loss(1e9 * (1 - step), 1e12)) / (2 * step)
    assert BESIROGLU.log_slope(1e9) == pytest.approx(numeric, rel=1e-6)


def test_parsing():
    assert parse_loss_law("Hoffmann") is HOFFMANN
    assert parse_loss_law("1.69,406.4,410.7,0.34,0.28") == HOFFMANN
    assert loss_law_from_dict(BESIROGLU.to_dict()) == BESIROGLU


@pytest.mark.parametrize(
    "text,words",
    [
        ("hofman", "did you mean 'hoffmann'"),
        ("1,2,3", "five numbers"),
        ("1,2,3,4,x", "five numbers"),
        ("1,2,3,4,-0.3", "delta must be positive"),
        ("1,2,3,4,nan", "delta must be finite"),
        ("1,2,3,4,9", "at most 2"),
    ],
)
def test_bad_laws(text, words):
    with pytest.raises(PlanError, match=words):
        parse_loss_law(text)


def test_dictionary_with_wrong_keys():
    with pytest.raises(PlanError, match="did you mean 'delta'"):
        loss_law_from_dict({**BESIROGLU.to_dict(), "detla": 1})
    with pytest.raises(PlanError, match="missing nu"):
        loss_law_from_dict({k: v for k, v in BESIROGLU.to_dict().items() if k != "nu"})
    with pytest.raises(PlanError, match="e must be positive"):
        LossLaw(0, 1, 1, 0.3, 0.3)
