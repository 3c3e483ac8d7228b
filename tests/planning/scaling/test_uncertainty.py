"""The printed intervals cover what they say: 130 published pairs, each target predicted by laws that never saw it."""

import numpy as np
import pytest

from sonoran.planning.scaling.acceptance import fit_measurements
from sonoran.planning.scaling.laws import laws_from_fit
from sonoran.planning.scaling.loss import BESIROGLU, CALIBRATED
from sonoran.planning.scaling.models import (
    published_anchored_error,
    published_laws,
    published_measurements,
    published_size,
)
from sonoran.planning.scaling.uncertainty import anchored_error, left_out_error

POINTS = published_measurements()
TARGETS = sorted({point.target for point in POINTS})


def by_measured_perplexities(point):
    return point.x, point.y


def by_sizes(point):
    return tuple(float(BESIROGLU.perplexity(*published_size(name))) for name in (point.draft, point.target))


@pytest.mark.parametrize("predict", [by_measured_perplexities, by_sizes])
def test_95_percent_of_the_pairs_of_new_targets_lie_within(predict):
    inside = []
    for target in TARGETS:
        rest = tuple(point for point in POINTS if point.target != target)
        laws = laws_from_fit(fit_measurements(rest), rest)
        for point in (point for point in POINTS if point.target == target):
            x, y = predict(point)
            inside.append(abs(float(laws.acceptance.alpha(x, y)) - point.alpha) <= laws.half_width(x, y))
    assert len(inside) == 130
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)


def test_intervals_grow_away_from_the_measurements_and_with_few_targets():
    laws = published_laws()
    near, far = laws.half_width(20.0, 11.0), laws.half_width(11.0, 6.9)
    assert 0.08 < near < far < 0.12
    rest = tuple(p for p in POINTS if p.target in ("OPT-13B", "OPT-30B"))
    few = laws_from_fit(fit_measurements(rest), rest)
    # Two targets leave one degree of freedom: a quantile of 12.7 instead of 1.96.
    assert few.half_width(20.0, 15.0) == pytest.approx(12.706 * few.residual_sd, rel=1e-3)


def test_one_measured_pair_halves_the_error():
    assert left_out_error(POINTS) == pytest.approx(0.0466, abs=1e-4)
    assert anchored_error(POINTS, by_measured_perplexities) == pytest.approx(0.0189, abs=1e-4)
    assert published_anchored_error(CALIBRATED) == pytest.approx(0.0248, abs=1e-4)
    assert published_anchored_error(BESIROGLU) == pytest.approx(0.0377, abs=1e-4)


def test_the_calibrated_law_is_the_fit_to_measured_perplexities():
    measured = {p.draft: p.x for p in POINTS} | {p.target: p.y for p in POINTS}
    loss = [float(BESIROGLU.loss(*published_size(name))) for name in measured]
    slope, constant = np.polyfit(loss, np.log(list(measured.values())), 1)
    assert len(measured) == 23
    assert CALIBRATED.e == pytest.approx(slope * BESIROGLU.e + constant, abs=1e-4)
    assert CALIBRATED.a == pytest.approx(slope * BESIROGLU.a, rel=1e-4)
