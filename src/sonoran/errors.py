"""The one exception tree of Sonoran, and the helper that names the nearest valid spelling."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SonoranError(Exception):
    """Base of everything that Sonoran raises on purpose; its text says what was wrong and what to do."""


class ConfigError(SonoranError, ValueError):
    """A parameter, option or key given by the user is unknown, out of range or contradicts another."""


class ModelError(SonoranError):
    """A model file is missing, truncated, corrupt, of an unsupported kind, or does not fit its description."""


class DownloadError(SonoranError):
    """A model could not be fetched: no source reachable, not enough disk space, wrong hash."""


class CompatibilityError(SonoranError):
    """Target and draft cannot be used together; the text names the first differing tokens."""


class CapacityError(SonoranError):
    """A request can never fit the context or the KV memory; the text has the numbers."""


class NumericsError(SonoranError):
    """A forward pass produced logits that are not finite."""


class WorkerError(SonoranError):
    """The draft worker could not be started, or broke the protocol."""


class PlanError(SonoranError, ValueError):
    """Planner input that is impossible, or too little data for a fit."""


def nearest(value: str, valid: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest valid spelling, or the list of valid ones.

    The result is meant to be appended to an error text.
    """
    choices = list(valid)
    match = difflib.get_close_matches(value, choices, n=1, cutoff=0.5)
    if match:
        return f"; did you mean {match[0]!r}?"
    return f"; valid: {', '.join(sorted(choices))}"


def check_unicode(text: str, what: str = "the text") -> str:
    """Return a text that can be written as UTF-8. Raises ConfigError for others, such as bytes of a command line."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{what} is not valid Unicode: lone surrogate {text[error.start]!r} at index {error.start}"
        ) from None
    return text


def shown(value: object) -> str:
    """Return a value as an error shows it: short, whatever it is."""
    try:
        text = repr(value)
    except ValueError:  # more digits than Python converts
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:40]}... ({len(text)} characters)"
