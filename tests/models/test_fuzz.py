"""Whatever is wrong with a model's files, one line says so; `make fuzz` tries more of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.fuzz import KINDS, attack


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_open_or_are_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    opened, refused = attack(tmp_path, kind, 200)
    assert refused > 20
    assert opened + refused == 200


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_damaged_files(tmp_path: Path, kind: str) -> None:
    opened, refused = attack(tmp_path, kind, 1000, seed=1)
    assert opened + refused == 1000
