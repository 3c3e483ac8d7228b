import dataclasses
import xml.etree.ElementTree as ElementTree

import pytest

from sonoran.errors import PlanError
from sonoran.planning.profile.advice import advise
from sonoran.planning.profile.placement import Workload
from sonoran.planning.profile.plot import best_by_k, hit_rates, render_plot
from sonoran.planning.profile.predict import predict_all
from tests.planning.profile.made_up import acceptance, profile


def test_a_slow_draft_should_be_faster():
    advice = advise(profile(draft=(30.0, 1.0)), Workload(), k_values=(1, 2, 4))
    assert advice[0].what.startswith("a draft with passes half as long")
    assert advice[0].gain > 1.2
    assert [a.gain for a in advice] == sorted((a.gain for a in advice), reverse=True)


def test_a_target_bound_by_compute_should_have_flat_passes():
    advice = advise(profile(target=(40.0, 12.0)), Workload(), k_values=(1, 2, 4))
    assert any("at the price of one row" in a.what for a in advice)


def test_one_core_hears_of_a_second():
    advice = advise(profile(one_core=True), Workload(), k_values=(1, 2, 4))
    second = next(a for a in advice if a.what.startswith("a second core"))
    assert "SSD" in second.what and second.gain > 1.03


def test_nothing_to_say_about_a_draft_that_costs_nothing():
    free = profile(target=(40.0, 0.0), draft=(0.01, 0.0), rate=0.9)
    assert advise(free, Workload(), k_values=(1, 2, 4)) == []


def test_without_a_draft_there_is_no_advice():
    assert advise(dataclasses.replace(profile(), acceptance=()), Workload()) == []


def test_speed_and_hits_behind_the_plots():
    predictions = predict_all(profile(), Workload(), k_values=(1, 3), budgets=(2, 8))
    points = best_by_k(predictions, "ssd")
    assert [k for k, _ in points] == [1, 3]
    assert points[1][1] == max(
        p.tokens_per_s for p in predictions if (p.mode, p.num_speculative_tokens) == ("ssd", 3)
    )
    rates = [rate for _, rate in hit_rates(profile(), Workload(), 3)]
    assert rates[0] < rates[-1] <= 1.0


@pytest.mark.parametrize("acceptances", [(acceptance(texts=2),), (acceptance(texts=1, length=3),), ()])
def test_plots_are_pictures(acceptances):
    pytest.importorskip("matplotlib")
    one = profile(acceptances=acceptances)
    predictions = predict_all(one, Workload(), k_values=(1, 2), budgets=(4,))
    svg = render_plot(one, Workload(), predictions)
    assert len(ElementTree.fromstring(svg).findall(".//*[@id]")) > 20
    assert render_plot(one, Workload(), predictions) == svg
    assert render_plot(one, Workload(), predictions, "png").startswith(b"\x89PNG")
    with pytest.raises(PlanError, match="did you mean 'png'"):
        render_plot(one, Workload(), predictions, "pngs")  # type: ignore[arg-type]
