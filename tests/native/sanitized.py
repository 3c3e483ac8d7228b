"""A plugin of pytest: the extension is the one that was built with sanitizers. See `make test-sanitize`."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

FOLDER = Path(os.environ["SONORAN_SANITIZED"])


def load(name: str) -> None:
    [file] = FOLDER.glob("_native*.so")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


load("sonoran._native")
