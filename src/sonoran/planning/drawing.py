"""The one style of all pictures: matplotlib where it is installed, colours and marks of the modes, files.

The colours are those of Okabe and Ito, told apart by the colour-blind; each mode also has a mark and a line of its
own, so that a print without colour can be read.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sonoran.errors import PlanError, nearest
from sonoran.planning.page import figure as in_page
from sonoran.planning.page import page

Form = Literal["svg", "png", "html"]
FORMS: tuple[Form, ...] = get_args(Form)
DOTS_PER_INCH = 120

INK, MUTED, GRID = "#1f2430", "#6b7280", "#e5e7eb"
BLUE, RUST, TEAL, VIOLET = "#0072b2", "#d55e00", "#009e73", "#a2488a"
AMBER, SLATE, SKY = "#e69f00", "#7c8794", "#56b4e9"
BAND = "#f4b183"
SHADES = (BLUE, RUST, TEAL, VIOLET, AMBER, SLATE)
MARKS = ("o", "s", "^", "D", "v", "P")


@dataclass(frozen=True, slots=True)
class Look:
    """How one mode is drawn, in every picture."""

    label: str
    colour: str
    mark: str
    line: Any

    def curve(self, **more: Any) -> dict[str, Any]:
        """Return arguments of ``plot`` for a line with marks."""
        return {"color": self.colour, "marker": self.mark, "ls": self.line, "ms": 5.5, "lw": 1.9} | more

    def points(self, **more: Any) -> dict[str, Any]:
        """Return arguments of ``plot`` for what was published or measured: marks alone, ringed."""
        ring = {"mfc": self.colour, "mec": INK, "mew": 1.1, "ms": 8, "zorder": 6}
        return {"marker": self.mark, "ls": "none"} | ring | more


LOOKS = {
    "ar": Look("AR", SLATE, "o", (0, (4, 2))),
    "sd": Look("SD", BLUE, "s", (0, (7, 1.5))),
    "ssd": Look("SSD", RUST, "D", "-"),
    "ngram": Look("n-gram", TEAL, "^", (0, (2, 1.2))),
    "auto": Look("auto", AMBER, "P", (0, (5, 1, 1, 1))),
    "llama.cpp": Look("llama.cpp", VIOLET, "v", (0, (1, 1))),
}


def look(name: str) -> Look:
    """Return the look of a measured mode, such as ``sd`` or ``ar-all``; what is unknown is slate."""
    kind = name.split(" ")[0]
    known = LOOKS.get(kind.removesuffix("-all"), Look(name, SLATE, "x", ":"))
    return Look(
        name if kind != name or kind not in LOOKS else known.label, known.colour, known.mark, known.line
    )


_STYLE: Any = {
    "font.size": 10, "axes.edgecolor": MUTED, "axes.labelcolor": INK, "text.color": INK,
    "xtick.color": MUTED, "ytick.color": MUTED, "axes.spines.top": False, "axes.spines.right": False,
    "axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.7, "axes.axisbelow": True,
    "legend.fontsize": 8.5, "legend.edgecolor": GRID, "legend.framealpha": 0.95,
    "svg.hashsalt": "sonoran",
}  # fmt: skip


def draw(
    paint: Callable[[Any], None],
    size: tuple[float, float],
    form: Form,
    *,
    title: str = "Sonoran",
    beside: Sequence[str] = (),
) -> bytes:
    """Return the bytes of a picture of ``size`` inches; ``paint`` gets the empty figure.

    As ``html`` it is a page of its own with a title, and with the HTML ``beside`` below the picture. Raises PlanError
    when matplotlib is missing or for an unknown ``form``.
    """
    if form not in FORMS:
        raise PlanError(f"unknown plot format {form!r}{nearest(str(form), FORMS)}")
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise PlanError("plots need matplotlib; install it with: pip install 'sonoran[plot]'") from None
    kind = "svg" if form == "html" else form
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)  # can say how large a label is, whatever is written in the end
        paint(figure)
        buffer = io.BytesIO()
        # Without a date the same numbers give the same file.
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(buffer, format=kind, dpi=DOTS_PER_INCH, metadata=metadata, facecolor="white")
    if form != "html":
        return buffer.getvalue()
    return page(title, [in_page(buffer.getvalue()), *beside]).encode()


def reference(axes: Any, value: float, label: str) -> None:
    """Draw a line to compare with, named at its left end; the caller leaves it room inside the axes."""
    axes.axhline(value, color=MUTED, lw=1.1, ls=(0, (4, 3)), zorder=1)
    axes.annotate(
        label, (0, value), xycoords=("axes fraction", "data"), xytext=(4, 3), textcoords="offset points",
        va="bottom", color=MUTED, fontsize=8.5,
    )  # fmt: skip


def beside_points(axes: Any, labels: Sequence[tuple[float, float, str]], colour: str = INK) -> None:
    """Write labels beside points, each where it meets neither a label that is placed nor a point that is drawn.

    ``labels`` are (x, y, text) in data; the first come first, and one that finds no room is left out. Call it when all
    else of the figure is drawn.
    """
    figure = axes.get_figure()
    figure.draw_without_rendering()  # settles the layout, so that places in pixels are final
    renderer = figure.canvas.get_renderer()
    frame, legend = axes.get_window_extent(renderer), axes.get_legend()
    taken = [] if legend is None else [legend.get_window_extent(renderer)]
    for line in axes.get_lines():
        if line.get_marker() not in (None, "None", "", " "):
            taken += [_box(x, y, 5.0) for x, y in axes.transData.transform(line.get_xydata())]
    for x, y, text in labels:
        for dx, dy, ha, va in _PLACES:
            note = axes.annotate(
                text, (x, y), xytext=(dx, dy), textcoords="offset points", ha=ha, va=va, color=colour, fontsize=8,
                zorder=8,
            )  # fmt: skip
            box = note.get_window_extent(renderer)
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            note.remove()


_PLACES = (
    (7, 0, "left", "center"), (-7, 0, "right", "center"), (0, 8, "center", "bottom"), (0, -8, "center", "top"),
    (7, 7, "left", "bottom"), (-7, -7, "right", "top"), (7, -7, "left", "top"), (-7, 7, "right", "bottom"),
    (0, 18, "center", "bottom"), (0, -18, "center", "top"),
)  # fmt: skip


def _box(x: float, y: float, half: float) -> Any:
    from matplotlib.transforms import Bbox

    return Bbox.from_extents(x - half, y - half, x + half, y + half)
