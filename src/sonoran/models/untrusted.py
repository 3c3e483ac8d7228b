"""The door through which files from elsewhere come: whatever is wrong with one becomes one line that names it.

A model's files become ModelError; those of other floors (plans, profiles, keys, prompts) name their own error.
"""

from __future__ import annotations

import json
import math
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sonoran.errors import ModelError, SonoranError

LONGEST_MESSAGE = 600
LARGEST_TEXT = 1 << 24  # bytes; of a configuration, an index, a plan
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
LARGEST_DIMENSION = 1 << 20  # far beyond any model's heads, widths and layers


@contextmanager
def refusing(where: Path | str, kind: type[SonoranError] = ModelError) -> Iterator[None]:
    """Turn every failure inside into an error of one line, of that ``kind``, that names ``where``.

    Values of the wrong type, nesting beyond Python's stack, sizes beyond memory, bytes that are no UTF-8, files
    that cannot be read: a file from elsewhere can cause all of them. Sonoran's own errors keep their text.
    """
    try:
        yield
    except kind as error:
        text = str(error)
        named = text if str(where) in text else f"{where}: {text}"
        if one_line(named) == text:
            raise
        raise kind(one_line(named)) from error
    except OSError as error:
        raise kind(one_line(f"{where}: cannot be read ({error.strerror or error})")) from error
    except SonoranError:
        raise
    except RecursionError:  # without its traceback of a thousand equal lines
        raise kind(one_line(f"{where}: nested too deeply")) from None
    except MemoryError:
        raise kind(one_line(f"{where}: asks for more memory than there is")) from None
    except Exception as error:
        raise kind(one_line(f"{where}: not as expected ({_reason(error)})")) from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise kind(one_line(f"{where}: not as expected ({_reason(error)})")) from error


def is_panic(error: BaseException) -> bool:
    """Whether a library written in Rust broke down: what it raises then is no Exception."""
    return type(error).__name__ == "PanicException"


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
        if not stat.S_ISREG(path.stat().st_mode):
            raise ModelError(f"{path}: not an ordinary file")
        value = parse_json(read_text(path))
        if not isinstance(value, dict):
            raise ModelError(f"{path}: holds {type(value).__name__}, expected an object")
        return value


def read_text(path: Path, kind: type[SonoranError] = ModelError, *, most: int = LARGEST_TEXT) -> str:
    """Read a text in UTF-8 of at most that many bytes, without the mark that Windows puts in front."""
    with refusing(path, kind):
        return decode_text(read_bytes(path, most=most), kind, most=most)


def read_bytes(path: Path, *, most: int = LARGEST_TEXT) -> bytes:
    """At most one byte more than that many: devices and pipes have no size that one could ask for."""
    with path.open("rb") as stream:
        return stream.read(most + 1)


def decode_text(data: bytes, kind: type[SonoranError] = ModelError, *, most: int = LARGEST_TEXT) -> str:
    """What ``read_text`` makes of bytes: lines end as everywhere in Python."""
    if len(data) > most:
        raise kind(f"longer than the {most} bytes that are read")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise kind(f"not UTF-8 text (byte {error.start})") from None


def parse_json(text: str, kind: type[SonoranError] = ModelError) -> Any:
    """The value of a JSON text. RecursionError for one that is nested too deeply: call it behind ``refusing``."""
    try:
        value = json.loads(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise kind(f"not valid JSON: line {error.lineno}: {error.msg}") from None
    except UnicodeEncodeError:
        raise kind("not valid JSON: half of a surrogate pair, which no text can have") from None
    except ValueError as error:  # integers of thousands of digits
        raise kind(f"not valid JSON: {error}") from None
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
