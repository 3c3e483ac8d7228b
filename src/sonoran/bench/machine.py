"""What the machine has: processor, memory, huge pages, bandwidth, packages."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

from sonoran import _native
from sonoran.backends.placement import default_kernels
from sonoran.planning.profile.pair import processor_name

PACKAGES = (
    "sonoran", "numpy", "scipy", "typer", "rich", "msgspec", "pyzmq", "gguf", "safetensors", "tokenizers",
    "jinja2", "huggingface_hub", "filelock",
)  # fmt: skip
"""What a default install brings."""

BANDWIDTH_BYTES = 256 << 20
BANDWIDTH_PASSES = 5


def describe_processor() -> dict[str, Any]:
    """Return the model name, cores (all, and those this process may use) and instruction sets."""
    return {
        "model": processor_name(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "available_cores": list(_native.available_cores()),
        "instruction_sets": [one.name for one in _native.instruction_sets() if one.present],
        "kernels": default_kernels(),
    }


def describe_memory(proc: Path = Path("/proc")) -> dict[str, int | None]:
    """Return bytes of memory in all and available to new processes; None where the system does not say."""
    values = _fields(proc / "meminfo")
    return {
        "total_bytes": _kib(values.get("MemTotal")),
        "available_bytes": _kib(values.get("MemAvailable")),
    }


def describe_huge_pages(
    proc: Path = Path("/proc"), settings: Path = Path("/sys/kernel/mm/transparent_hugepage")
) -> dict[str, Any]:
    """Return the state of transparent huge pages, and whether weights can lie in them.

    The native backend asks for them with madvise, so ``always`` and ``madvise`` both serve.
    """
    state = _chosen(settings / "enabled")
    return {
        "transparent": state,
        "defrag": _chosen(settings / "defrag"),
        "size_bytes": _kib(_fields(proc / "meminfo").get("Hugepagesize")),
        "used_for_weights": None if state is None else state in ("always", "madvise"),
    }


def measure_bandwidth(cores: list[int] | None = None) -> dict[str, float]:
    """Return GB/s of a plain read loop on one core and on all cores (best of a few passes)."""
    usable = cores or list(_native.available_cores())
    one = _native.measure_read_bandwidth(BANDWIDTH_BYTES, 1, usable[:1], BANDWIDTH_PASSES)
    every = _native.measure_read_bandwidth(BANDWIDTH_BYTES, max(1, len(usable)), usable, BANDWIDTH_PASSES)
    return {"one_core_gb_per_s": float(one), "all_cores_gb_per_s": float(every)}


def package_versions() -> dict[str, str | None]:
    """Return the version of each package of a default install; None for one that is missing."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def describe_system() -> str:
    """Return the operating system's name and release."""
    return f"{platform.system()} {platform.release()}"


def resident_bytes(proc: Path = Path("/proc")) -> int:
    """Bytes of memory that this process holds; the highest so far where the system says no more."""
    try:
        pages = int((proc / "self" / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _fields(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def _kib(text: str | None) -> int | None:
    number = (text or "").removesuffix("kB").strip()
    return int(number) * 1024 if number.isdigit() else None


def _chosen(path: Path) -> str | None:
    """Return the bracketed word of a settings file such as ``always [madvise] never``."""
    try:
        words = path.read_text(encoding="utf-8").split()
    except OSError:
        return None
    return next((word.strip("[]") for word in words if word.startswith("[")), None)
