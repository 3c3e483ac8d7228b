"""A worker process with the real speculator over a toy model, started like the real worker."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from sonoran.backends.native import LoadProgress
from sonoran.worker.__main__ import child_main
from sonoran.worker.session import Service, draft_service
from tests.worker.local import toy_model


def build(options: dict[str, Any], report: LoadProgress) -> Service:
    report(1, 1)
    return draft_service(toy_model(**options))


if __name__ == "__main__":
    sys.exit(child_main(build, dict))
