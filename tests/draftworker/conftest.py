"""Fixtures of the draft worker's tests."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def address(tmp_path: Path) -> str:
    """Where a worker of this test may listen."""
    return f"ipc://{tmp_path / 's'}"


@pytest.fixture
def private_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder that only this test and its processes use, so that what is left in it shows."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path
