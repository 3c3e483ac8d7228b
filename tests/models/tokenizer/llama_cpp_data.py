"""What llama.cpp checks its tokenizers with: vocabularies with expected ids, and chat templates of real models.

They are in the source distribution of llama-cpp-python, which is fetched once and kept in the cache; nothing of it is
installed or run by these tests.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from functools import lru_cache
from pathlib import Path

import pytest

from sonoran.models.cache import cache_dir

VERSION = "0.3.36"
FETCH_SECONDS = 180


@lru_cache(maxsize=1)
def _models() -> Path | str:
    """Folder of vocabularies and templates, or why there is none."""
    folder = cache_dir() / "tests"
    models = folder / f"llama_cpp_{VERSION}"
    if models.is_dir():
        return models
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python"]
    command += [
        "--disable-pip-version-check",
        "--quiet",
        "--dest",
        str(folder),
        f"llama-cpp-python=={VERSION}",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS)
    except subprocess.TimeoutExpired:
        return f"llama-cpp-python {VERSION} was not fetched within {FETCH_SECONDS} s"
    archive = folder / f"llama_cpp_python-{VERSION}.tar.gz"
    if done.returncode or not archive.is_file():
        return (
            f"llama-cpp-python {VERSION} cannot be fetched: {(done.stderr.strip() or '?').splitlines()[-1]}"
        )
    unpacked = folder / f"llama_cpp_{VERSION}.new"
    unpacked.mkdir(exist_ok=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            _, found, name = member.name.partition("/vendor/llama.cpp/models/")
            source = tar.extractfile(member) if found and member.isfile() else None
            if source is not None:
                (unpacked / Path(name).name).write_bytes(source.read())
    archive.unlink()
    unpacked.replace(models)
    return models


def models() -> Path:
    """Return the folder; skip the test that asks when it cannot be had."""
    found = _models()
    if isinstance(found, str):
        pytest.skip(found)
    return found
