"""What went wrong with a request, as OpenAI's clients read it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sonoran.errors import CapacityError, ConfigError, SonoranError
from sonoran.sampling.params import SamplingParams


class ApiError(Exception):
    """An answer that is an error: a status, and OpenAI's ``type``, ``code`` and ``param`` beside the message."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The JSON document."""
        kinds = {401: "authentication_error", 408: "timeout_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def bad(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """Return the error for a request that can never be served."""
    return ApiError(400, message, code, param)


def busy(message: str, code: str, retry_after_s: float) -> ApiError:
    """Return the error for a request that may be served later."""
    return ApiError(429, message, code, headers={"Retry-After": str(max(1, min(60, round(retry_after_s))))})


def unavailable(message: str, code: str) -> ApiError:
    """Return the error of a server that serves nobody now."""
    return ApiError(503, message, code, headers={"Retry-After": "1"})


def as_api_error(error: SonoranError) -> ApiError:
    """Return what a client is told of an error of the engine."""
    if isinstance(error, CapacityError):
        return bad(str(error), "messages", "context_length_exceeded")
    if isinstance(error, ConfigError):
        first = re.match(r"(?:an entry of |a key of )?(\w+)", str(error))
        name = first[1] if first else ""
        return bad(str(error), name if name in SamplingParams.__dataclass_fields__ else None)
    return ApiError(500, str(error), "engine_error")
