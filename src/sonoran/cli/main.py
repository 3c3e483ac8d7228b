"""The ``sonoran`` command. Each of its commands is a module with a ``register(app)`` function, imported when it runs."""

from __future__ import annotations

import importlib
import io
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

import sonoran
from sonoran.cli.common import examples

COMMANDS = {
    "Use": {
        "generate": "Answer a prompt; the text comes as it is generated.",
        "chat": "Talk with a model in the terminal; it is loaded once.",
        "models": "The known models and the cache.",
        "doctor": "What the machine has, what is cached, and whether everything works.",
    },
    "Measure": {
        "demo": "AR, SD and SSD answer the same prompt, side by side.",
        "bench": "Time passes and decoding modes.",
        "calibrate": "Measure this machine and a pair of models, so that mode auto knows what is fastest.",
        "trace": "Record what target and draft do when, for Perfetto.",
    },
    "Plan": {
        "plan": "Which draft for a target, by the scaling laws.",
        "simulate": "AR, SD and SSD on a machine that need not be here.",
        "check-draft": "Whether a draft fits a target.",
    },
    "Serve": {
        "serve": "OpenAI's interface over HTTP, metrics, and a page to try it.",
        "draft-worker": "Serve a draft model to engines, on this machine or others.",
        "vllm-check": "Whether SSD works inside the vLLM that is installed here.",
    },
}
"""By panel of ``--help``: the commands, and what each does in one line."""

SETTINGS: dict[str, Any] = {"rich_markup_mode": "rich", "pretty_exceptions_enable": False}


class Commands(TyperGroup):
    """Shows commands by their line in COMMANDS, so that help and completion need not import them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for panel, commands in COMMANDS.items():
            for name, line in commands.items():
                self.commands[name] = TyperCommand(name, help=line, rich_help_panel=panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that is to run, or whose options are to be completed."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load(str(name)), rest


def load(name: str) -> Any:
    """Return a command, imported and complete."""
    root = typer.Typer(**SETTINGS)
    importlib.import_module(f"sonoran.cli.{name.replace('-', '_')}").register(root)
    return get_group(root).commands[name]


EXAMPLES = examples('sonoran generate "Reverse a list in Python"', "sonoran demo", "sonoran generate --help")

app = typer.Typer(name="sonoran", no_args_is_help=True, cls=Commands, epilog=EXAMPLES, **SETTINGS)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sonoran {sonoran.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Fast, lossless text generation: speculative speculative decoding, run and planned."""


def main() -> None:
    """Entry point of the console script."""
    _prepare_output()
    app()


def _prepare_output() -> None:
    """Let nothing that models write fail on the way out: closed streams swallow it, poor encodings replace letters."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # for the rest of its life
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
