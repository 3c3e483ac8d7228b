"""Whatever is wrong with a model's files, one line says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.fuzz import KINDS, TYPES, attack, attack_running


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_open_or_are_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    assert attack(tmp_path, kind, 200) > 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_damaged_files(tmp_path: Path, kind: str) -> None:
    assert attack(tmp_path, kind, 1000, seed=1) > 100


@pytest.mark.parametrize("kind", TYPES)
def test_damaged_files_run_or_are_refused(tmp_path: Path, kind: str) -> None:
    assert 5 < attack_running(tmp_path, kind, 40) < 40


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES)
def test_many_damaged_files_run_or_are_refused(tmp_path: Path, kind: str) -> None:
    assert 40 < attack_running(tmp_path, kind, 300, seed=1) < 300
