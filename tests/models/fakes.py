"""A small model entry, wheels that carry its parts, and a fetcher that hands them out."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from pathlib import Path

import numpy as np

from sonoran.errors import DownloadError
from sonoran.models.registry import HubFile, IndexParts, ModelEntry

PART = 1000
CONTENT = np.random.default_rng(7).integers(0, 256, 4 * PART + 321, dtype=np.uint8).tobytes()

ENTRY = ModelEntry(
    name="fake-model",
    description="random bytes",
    file="fake.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    license="Apache-2.0",
    hub=HubFile("someone/fake", "fake-on-hub.gguf"),
    index=IndexParts("sonoran-fake-part{n}==1.0", "sonoran_fake_part{n}/data/part{n:02d}.bin", 5, PART),
)


def part_content(part: int) -> bytes:
    return CONTENT[part * PART : (part + 1) * PART]


def write_wheel(folder: Path, part: int, content: bytes | None = None) -> Path:
    """A wheel that pip accepts; importing its package would leave a trace beside it."""
    name = f"sonoran_fake_part{part + 1}"
    info = f"{name}-1.0.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    data = part_content(part) if content is None else content
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{name}/__init__.py", "raise RuntimeError('imported')")
        wheel.writestr(f"{name}/data/part{part + 1:02d}.bin", data)
        metadata = f"Metadata-Version: 2.1\nName: sonoran-fake-part{part + 1}\nVersion: 1.0\n"
        wheel.writestr(f"{info}/METADATA", metadata + "Requires-Dist: does-not-exist-anywhere\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


class FakeIndex:
    """Stands in for pip: counts what was asked for, and fails at chosen parts."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.fail_at: int | None = None
        self.contents: dict[int, bytes] = {}
        self.damage: dict[int, bytes] = {}

    def __call__(self, requirement: str, folder: Path, stop: threading.Event) -> Path:
        name, _, version = requirement.partition("==")
        part = int(name.removeprefix("sonoran-fake-part")) - 1
        assert version == "1.0"
        self.asked.append(part)
        if part == self.fail_at:
            raise DownloadError(f"no {requirement} today")
        wheel = write_wheel(folder, part, self.contents.get(part))
        if part in self.damage:
            wheel.write_bytes(self.damage[part])
        return wheel
