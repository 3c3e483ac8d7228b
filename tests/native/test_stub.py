"""The committed types of the extension are those of its bindings."""

from __future__ import annotations

from pathlib import Path

import pytest

import sonoran
from sonoran import _native


def test_the_stub_is_what_nanobind_writes_now() -> None:
    """If it is not: ``make stub``."""
    stubgen = pytest.importorskip("nanobind.stubgen")
    writer = stubgen.StubGen(module=_native)
    writer.put(_native)
    committed = Path(sonoran.__file__).with_name("_native.pyi").read_text(encoding="utf-8")
    assert writer.get() == committed
