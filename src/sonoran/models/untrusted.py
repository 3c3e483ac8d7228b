"""The door through which everything from a model's files comes: whatever is wrong with it becomes a ModelError."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sonoran.errors import ModelError, SonoranError

LONGEST_MESSAGE = 600
LARGEST_JSON = 1 << 24  # bytes; of a configuration or an index
LARGEST_DIMENSION = 1 << 20  # far beyond any model's heads, widths and layers


@contextmanager
def refusing(where: Path | str) -> Iterator[None]:
    """Turn every failure inside into a ModelError of one line that names ``where``.

    Values of the wrong type, nesting beyond Python's stack, sizes beyond memory, bytes that are no UTF-8, files
    that cannot be read: a file from elsewhere can cause all of them. Sonoran's own errors keep their text.
    """
    try:
        yield
    except ModelError as error:
        text = str(error)
        named = text if str(where) in text else f"{where}: {text}"
        if one_line(named) == text:
            raise
        raise ModelError(one_line(named)) from error
    except OSError as error:
        raise ModelError(one_line(f"{where}: cannot be read ({error.strerror or error})")) from error
    except SonoranError:
        raise
    except RecursionError:  # without its traceback of a thousand equal lines
        raise ModelError(one_line(f"{where}: nested too deeply")) from None
    except MemoryError:
        raise ModelError(one_line(f"{where}: asks for more memory than there is")) from None
    except Exception as error:
        raise ModelError(one_line(f"{where}: not as expected ({_reason(error)})")) from error
    except BaseException as error:
        # What a library written in Rust raises when it breaks down is no Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise ModelError(one_line(f"{where}: not as expected ({_reason(error)})")) from error


def one_line(text: str) -> str:
    """Escape what could break a line or steer a terminal, and leave out the middle of a text that is too long."""
    short = _without_middle(text)
    return _without_middle("".join(c if c.isprintable() else repr(c)[1:-1] for c in short))


def _without_middle(text: str) -> str:
    half = LONGEST_MESSAGE // 2
    return text if len(text) <= LONGEST_MESSAGE else f"{text[: half - 5]} ... {text[-half:]}"


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def shown(value: Any) -> str:
    """A value from a file as it may stand in a message: never longer than a line."""
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"an integer of {value.bit_length()} bits"
    return f"{value!r:.120}" if isinstance(value, (str, int, float, bool, type(None))) else f"{value!r:.60}"


def read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    """Read a JSON object; ModelError when the file is missing, damaged or something else.

    An ``optional`` file that is missing counts as empty.
    """
    if optional and not path.exists():
        return {}
    with refusing(path):
        size = path.stat().st_size
        if size > LARGEST_JSON:
            raise ModelError(f"{path}: {size} bytes, at most {LARGEST_JSON} are read")
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ModelError(f"{path}: not valid JSON ({error})") from error
        if not isinstance(value, dict):
            raise ModelError(f"{path}: holds {type(value).__name__}, expected an object")
        return value


class Fields:
    """Typed access to the values of a file; errors name file and key. A null counts as missing."""

    def __init__(self, where: Path | str, values: Mapping[str, Any], prefix: str = "") -> None:
        self.where = where
        self.values = values
        self.prefix = prefix

    def get(self, key: str) -> Any:
        """The value as it is, None if missing."""
        return self.values.get(self.prefix + key)

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer, or the default when the key is missing."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, value, "an integer")
        return value

    def dimension(self, key: str, default: int | None = None) -> int:
        """An integer that something is as long as: neither below 1 nor endless."""
        value = self.integer(key, default)
        if not 1 <= value <= LARGEST_DIMENSION:
            raise self.wrong(key, value, f"1 to {LARGEST_DIMENSION}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number, or the default when the key is missing."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        number = finite(value)
        if number is None:
            raise self.wrong(key, value, "a number")
        return number

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.number(key, default)
        if value <= 0:
            raise self.wrong(key, value, "a positive number")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false, or the default when the key is missing."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def wrong(self, key: str, value: Any, expected: str) -> ModelError:
        """The error for a key that holds something else."""
        found = "missing" if value is None else shown(value)
        return ModelError(f"{self.where}: {self.prefix}{key} is {found}, expected {expected}")


def finite(value: Any) -> float | None:
    """The value as a float; None for what is no finite number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
