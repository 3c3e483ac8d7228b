"""Prompts to calibrate with: those that come with the program, or a file's."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from sonoran.errors import ConfigError

BUILT_IN = "built-in"


def built_in_prompts() -> list[str]:
    """Return a few prompts of different kinds: code, explanation, arithmetic, prose."""
    file = resources.files("sonoran.planning.profile") / "data" / "prompts.json"
    prompts: list[str] = json.loads(file.read_text(encoding="utf-8"))
    return prompts


def prompts_from_file(path: Path) -> list[str]:
    """Read one prompt per line; in a ``.jsonl`` file each line is text or an object with ``prompt``.

    Raises ConfigError for a file without prompts.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the prompts in {path}: {error}") from error
    if path.suffix == ".jsonl":
        lines = [_prompt(path, number, line) for number, line in enumerate(lines, 1)]
    if not lines:
        raise ConfigError(f"{path} has no prompts")
    return lines


def _prompt(path: Path, number: int, line: str) -> str:
    try:
        value: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}, line {number}: not JSON ({error.msg})") from None
    prompt = value.get("prompt") if isinstance(value, dict) else value
    if not isinstance(prompt, str) or not prompt.strip():
        raise ConfigError(f"{path}, line {number}: needs a text, or an object with 'prompt'")
    return prompt
