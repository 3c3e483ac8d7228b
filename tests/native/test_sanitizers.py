"""Under sanitizers: what they would catch is caught, and the extension is the one that they watch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sonoran import _native

SANITIZED = os.environ.get("SONORAN_SANITIZED")

pytestmark = pytest.mark.skipif(SANITIZED is None, reason="for make test-sanitize")


@pytest.mark.parametrize(
    ("call", "report"),
    [
        ("read_at(15)", None),
        ("read_at(16)", "heap-buffer-overflow"),
        ("next(1)", None),
        ("next(2**31 - 1)", "signed integer overflow"),
    ],
)
def test_a_deliberate_fault_ends_the_process_with_a_report(call: str, report: str | None) -> None:
    [library] = Path(str(SANITIZED)).glob("*overflow*.so")
    code = f"import ctypes; print(ctypes.CDLL({str(library)!r}).{call})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if report is None:
        assert (result.returncode, result.stderr) == (0, "")
    else:
        assert result.returncode != 0
        assert report in result.stderr


def test_the_extension_is_the_sanitized_one() -> None:
    assert Path(str(_native.__file__)).is_relative_to(Path(str(SANITIZED)).resolve())
    assert b"__asan_report_load" in Path(str(_native.__file__)).read_bytes()
