"""Fetching a file from the model hub."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sonoran.errors import DownloadError
from sonoran.models.registry import ModelEntry

REACH_SECONDS = 6.0

T = TypeVar("T")


def fetch_from_hub(
    entry: ModelEntry,
    work: Path,
    report: Callable[[int], None],
    *,
    endpoint: str | None = None,
    reach_seconds: float = REACH_SECONDS,
) -> Path:
    """Download ``entry`` below ``work`` and return the file; an interrupted download goes on later.

    ``report`` receives the bytes done. Raises DownloadError when the hub is switched off (HF_HUB_OFFLINE),
    does not answer within ``reach_seconds``, has another file under that name, or the transfer fails.
    """
    import huggingface_hub
    from huggingface_hub import constants

    if entry.hub is None:
        raise DownloadError("the model is not there")
    if constants.HF_HUB_OFFLINE:
        raise DownloadError("switched off by HF_HUB_OFFLINE")
    repository, file = entry.hub.repository, entry.hub.file
    url = huggingface_hub.hf_hub_url(repository, file, endpoint=endpoint)
    try:
        # A name server that never answers is not covered by the client's own timeout.
        found = _within(
            reach_seconds, lambda: huggingface_hub.get_hf_file_metadata(url, timeout=reach_seconds)
        )
    except Exception as error:
        raise DownloadError(f"not reachable ({_reason(error)})") from error
    if found.size is not None and found.size != entry.size:
        raise DownloadError(f"{repository}/{file} has {found.size} bytes there, expected {entry.size}")
    options: dict[str, Any] = {"local_dir": work / "hub", "endpoint": endpoint, "etag_timeout": reach_seconds}
    if "tqdm_class" in inspect.signature(huggingface_hub.hf_hub_download).parameters:
        options["tqdm_class"] = _progress_class(report)
    try:
        return Path(huggingface_hub.hf_hub_download(repository, file, **options))
    except Exception as error:
        raise DownloadError(f"the download failed ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _within(seconds: float, function: Callable[[], T]) -> T:
    """Run a function in a thread of its own; TimeoutError when it takes longer than that."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="sonoran-hub-probe")
    thread.start()
    thread.join(seconds)
    if results:
        return results[0]
    raise errors[0] if errors else TimeoutError(f"no answer within {seconds:g} s")


def _progress_class(report: Callable[[int], None]) -> type[Any]:
    """A silent progress bar class that passes the bytes done on to ``report``."""
    from tqdm.auto import tqdm

    class Reporting(tqdm):  # type: ignore[misc, type-arg, unused-ignore]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            kwargs["disable"] = True
            super().__init__(*args, **kwargs)
            self.n = kwargs.get("initial", 0) or 0

        def update(self, n: float | None = 1) -> bool | None:
            self.n += n or 0
            report(int(self.n))
            return None

    return Reporting
