"""Plot and report: real files with the right content, and a clear refusal without matplotlib."""

import builtins
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from sonoran.errors import PlanError
from sonoran.planning.scaling import plot as plotting
from sonoran.planning.scaling.candidates import Candidate
from sonoran.planning.scaling.costs import ParameterCost
from sonoran.planning.scaling.planning import plan
from sonoran.planning.scaling.plot import render_plot
from sonoran.planning.scaling.report import LIMITS, render_report


@pytest.fixture(scope="module")
def answer():
    return plan(70e9, target_tokens=15e12, candidates=[Candidate("<draft> & co", 5e8, 1e12)], draws=100)


def test_svg_is_well_formed_and_repeatable(answer):
    drawing = render_plot(answer)
    root = ElementTree.fromstring(drawing)
    assert root.tag.endswith("svg")
    assert drawing == render_plot(answer)


@pytest.mark.parametrize("measured", [{}, {"Llama-3.2/1B": 0.85}])
def test_the_best_draft_lies_on_the_curve(measured):
    # What was measured moves the curve with the star.
    lines = []
    moved = plan(target="Llama-3.1/70B", measured=measured, draws=0)

    def keep(paint, size, form, **_):
        from matplotlib.figure import Figure

        figure = Figure()
        FigureCanvasAgg(figure)
        paint(figure)
        lines.extend(figure.axes[0].get_lines())
        return b""

    original = plotting.draw
    plotting.draw = keep
    try:
        plotting.render_plot(moved)
    finally:
        plotting.draw = original
    curve = next(line for line in lines if line.get_label() == "SD").get_xydata()
    nearest = min(curve, key=lambda point: abs(point[0] - moved.optimum.parameters))
    assert nearest[1] == pytest.approx(moved.optimum.speedup, rel=0.01)


def test_png(answer):
    assert render_plot(answer, form="png").startswith(b"\x89PNG\r\n")


def test_no_optimum_can_be_drawn_too():
    cost = ParameterCost(verify_slope=1.0)
    nothing = plan(70e9, cost=cost, draws=0)
    assert nothing.optimum is None
    assert b"</svg>" in render_plot(nothing, cost=cost)
    assert "no draft size that pays" in render_report(nothing, cost=cost)


def test_other_formats_and_missing_matplotlib(answer, monkeypatch):
    with pytest.raises(PlanError, match="svg"):
        render_plot(answer, form="pdf")
    real = builtins.__import__

    def refuse(name, *rest, **more):
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(PlanError, match=r"pip install 'sonoran\[plot\]'"):
        render_plot(answer)


class Collector(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.links = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [
            v for k, v in attrs if k in ("src", "href", "xlink:href") and v and not v.startswith("#")
        ]


def test_report_is_one_page_that_loads_nothing(answer):
    page = render_report(answer)
    collector = Collector()
    collector.feed(page)
    assert collector.links == []
    assert "script" not in collector.tags
    assert not re.search(r"@import|url\((?!#)", page)
    assert collector.tags.count("svg") == 1
    assert collector.tags.count("table") == 4
    assert "&lt;draft&gt; &amp; co" in page
    assert "<draft>" not in page
    assert "282M" in page
    assert LIMITS[0].split(".")[0] in page
