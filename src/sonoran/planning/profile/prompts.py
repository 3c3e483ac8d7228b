"""Prompts to calibrate with: those that come with the program, or a file's."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

from sonoran.errors import ConfigError, check_unicode
from sonoran.models.untrusted import parse_json, read_text, refusing

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
    lines = [line for line in read_text(path, ConfigError).splitlines() if line.strip()]
    if path.suffix == ".jsonl":
        lines = [_prompt(f"{path}, line {number}", line) for number, line in enumerate(lines, 1)]
    if not lines:
        raise ConfigError(f"{path} has no prompts")
    return lines


def _prompt(where: str, line: str) -> str:
    with refusing(where, ConfigError):
        value = parse_json(line, ConfigError)
        prompt = value.get("prompt") if isinstance(value, dict) else value
        if not isinstance(prompt, str) or not prompt.strip():
            raise ConfigError(f"{where}: needs a text, or an object with 'prompt'")
        return check_unicode(prompt)
