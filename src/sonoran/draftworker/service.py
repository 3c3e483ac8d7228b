"""What a worker offers once its draft model is in memory."""

from __future__ import annotations

from sonoran.draftworker.model import DraftModel
from sonoran.draftworker.session import Service
from sonoran.draftworker.speculator import Speculator


def draft_service(model: DraftModel) -> Service:
    """Return the facts of a draft model, and a speculator for each client."""
    return Service(
        model=model.name,
        fingerprint=model.fingerprint,
        context_length=model.context_length,
        open=lambda hello: Speculator(model, hello),
    )
