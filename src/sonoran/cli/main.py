"""The ``sonoran`` command: one module per sub-command, each with a ``register(app)`` function."""

from __future__ import annotations

import importlib

import typer

COMMANDS = (
    "generate",
    "demo",
    "trace",
    "models",
    "doctor",
    "bench",
    "plan",
    "check_draft",
    "draft_worker",
    "simulate",
    "calibrate",
)

app = typer.Typer(
    name="sonoran",
    help="Fast, lossless text generation: speculative speculative decoding, run and planned.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback()
def _root() -> None:
    """Fast, lossless text generation: speculative speculative decoding, run and planned."""


for _name in COMMANDS:
    importlib.import_module(f"sonoran.cli.{_name}").register(app)


def main() -> None:
    """Entry point of the console script."""
    app()
