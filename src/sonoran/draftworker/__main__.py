"""``python -m sonoran.draftworker``: how an engine starts a worker of its own."""

from __future__ import annotations

import sys
from typing import Any

from sonoran.draftworker.child import Report, child_main
from sonoran.draftworker.loading import load_draft_model
from sonoran.draftworker.options import WorkerOptions
from sonoran.draftworker.service import draft_service
from sonoran.draftworker.session import Service


def build(options: dict[str, Any], report: Report) -> Service:
    """Load the draft model that the options name."""
    return draft_service(load_draft_model(WorkerOptions.from_mapping(options), report))


if __name__ == "__main__":
    sys.exit(child_main(build))
