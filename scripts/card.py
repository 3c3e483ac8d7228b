"""What the pictures of the docs share: a card with its own background, legible on light and dark pages."""

from __future__ import annotations

from html import escape

STYLE = """
text{font:13px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328}
.title{font-size:15px;font-weight:600}.small{font-size:11px;fill:#59636e}.strong{font-weight:600}
.card{fill:#fff;stroke:#d1d9e0}.axis{stroke:#d1d9e0}
.target{fill:#2f6fdb}.draft{fill:#e08a1e}.idle{fill:#cfd7df}.ar{fill:#8c959f}.sd{fill:#e08a1e}.ssd{fill:#2f6fdb}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}.card{fill:#0d1117;stroke:#3d444d}
.axis{stroke:#3d444d}.target{fill:#4c8dff}.draft{fill:#f0a13c}.idle{fill:#3d444d}.ar{fill:#6e7681}.sd{fill:#f0a13c}
.ssd{fill:#4c8dff}}
""".strip()


class Card:
    """An SVG of a given width that grows downwards; ``svg`` closes it at ``height``."""

    def __init__(self, width: int, title: str) -> None:
        self.width, self.title = width, title
        self._parts: list[str] = []

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        """Write a line whose baseline is at y."""
        end = "" if anchor == "start" else f' text-anchor="{anchor}"'
        kind = f' class="{kind}"' if kind else ""
        self._parts.append(f'<text x="{x:g}" y="{y:g}"{kind}{end}>{escape(text)}</text>')

    def boxes(self, boxes: list[tuple[float, float]], y: float, height: float, kind: str) -> None:
        """Draw boxes ``(x, width)`` of one kind in one row, as a single path."""
        shapes = "".join(f"M{x:.2f} {y:g}h{width:.2f}v{height:g}h-{width:.2f}z" for x, width in boxes)
        self._parts.append(f'<path class="{kind}" d="{shapes}"/>')

    def line(self, x: float, top: float, bottom: float) -> None:
        """Draw a vertical line of the grid."""
        self._parts.append(f'<path class="axis" d="M{x:g} {top:g}V{bottom:g}"/>')

    def svg(self, height: int) -> str:
        """Return the document."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{height}" '
            f'viewBox="0 0 {self.width} {height}" role="img"><title>{escape(self.title)}</title>'
            f"<style>{STYLE}</style>"
            f'<rect class="card" x=".5" y=".5" width="{self.width - 1}" height="{height - 1}" rx="8"/>'
            f"{''.join(self._parts)}</svg>\n"
        )
