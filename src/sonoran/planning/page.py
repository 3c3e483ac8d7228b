"""A page of HTML that loads nothing from elsewhere: pictures inline, tables, notes."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_STYLE = """
:root { color-scheme: light; --ink: #1f2430; --muted: #6b7280; --line: #e5e7eb; --accent: #b34700; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 2.5rem 1.5rem 4rem; color: var(--ink); background: #fff;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .8rem; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; }
p, li { max-width: 60rem; }
p.lead { font-size: 1.12rem; }
pre { overflow-x: auto; background: #f6f7f9; padding: .7rem 1rem; border-radius: .4rem; font-size: .88rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(12rem, 1fr)); gap: .8rem; }
.tile { border: 1px solid var(--line); border-radius: .6rem; padding: .8rem 1rem; }
.tile b { display: block; font-size: 1.35rem; color: var(--accent); }
.tile span { color: var(--muted); font-size: .85rem; }
figure { margin: 1.6rem 0; }
figure svg { width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; min-width: 30rem; }
th, td { text-align: right; padding: .35rem .8rem; white-space: nowrap; }
th, td { border-bottom: 1px solid var(--line); }
th { color: var(--muted); font-weight: 600; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
td.text { white-space: normal; }
footer { margin-top: 3rem; color: var(--muted); font-size: .85rem; }
"""


def page(title: str, parts: Iterable[str], footer: str = "") -> str:
    """Return the whole page; ``parts`` are HTML, title and footer plain text."""
    body = "\n".join([f"<h1>{escape(title)}</h1>", *parts, f"<footer>{escape(footer)}</footer>"])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def figure(svg: bytes) -> str:
    """Return a picture as part of a page."""
    drawing = svg.decode("utf-8")
    return f"<figure>{drawing[drawing.index('<svg') :]}</figure>"


def table(
    head: Iterable[str], rows: Iterable[Iterable[str]], text: frozenset[int] | set[int] = frozenset()
) -> str:
    """Return a table; columns of ``text`` are aligned left and may be broken."""

    def cell(tag: str, index: int, value: str) -> str:
        return f"<{tag}{' class=text' if index in text else ''}>{escape(value)}</{tag}>"

    top = "".join(cell("th", index, value) for index, value in enumerate(head))
    lines = ("<tr>" + "".join(cell("td", i, v) for i, v in enumerate(row)) + "</tr>" for row in rows)
    body = f"<thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="scroll"><table>{body}</table></div>'


def items(texts: Iterable[str]) -> str:
    """Return a list of plain texts."""
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"
