"""``sonoran bench``: how fast one pass is, and how fast each decoding mode is."""

from __future__ import annotations

import typer

from sonoran.cli import bench_decode, bench_forward

app = typer.Typer(help="Measure passes and decoding modes, interleaved in one run.", no_args_is_help=True)


def register(root: typer.Typer) -> None:
    """Add the command group to the application."""
    bench_forward.register(app)
    bench_decode.register(app)
    root.add_typer(app, name="bench")
