"""Devices that PyTorch drives: finding them, their memory, and the precision of weights there."""

from __future__ import annotations

from typing import Any

from sonoran.config import DEVICES
from sonoran.errors import ConfigError, nearest

PRECISIONS = ("bf16", "file")


def import_torch() -> Any:
    """Return the module. Raises ConfigError, which says what to install, where it is missing."""
    try:
        import torch
    except ImportError as error:
        raise ConfigError(
            f"this device needs PyTorch ({error}): pip install 'sonoran[torch]', or use device cpu, which needs none"
        ) from None
    return torch


def torch_device(name: str) -> Any:
    """Return PyTorch's device for a name of ``config.DEVICES``. Raises ConfigError when it is not there."""
    torch = import_torch()
    place = name.removeprefix("torch:")
    kind, _, index = place.partition(":")
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(index or 0) >= count:
            raise ConfigError(
                f"device {name!r} is not there: PyTorch {torch.__version__} sees {count} CUDA devices; "
                "device cpu needs neither a GPU nor PyTorch"
            )
    elif kind == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(f"device 'mps' is not there: PyTorch {torch.__version__} finds no Metal device")
    elif kind not in ("cpu", "mps"):
        raise ConfigError(f"no backend runs on device {name!r}{nearest(name, DEVICES)}")
    return torch.device(kind, int(index or 0)) if kind == "cuda" else torch.device(kind)


def weight_dtype(device: Any, quantize: str | None) -> Any:
    """Return the type of weights in memory: bf16, or fp32, which has every value of the file (``file``).

    Without a wish fp32 on a CPU and bf16 elsewhere. Raises ConfigError for a precision of the CPU backend.
    """
    torch = import_torch()
    if quantize not in (None, *PRECISIONS):
        raise ConfigError(
            f"quantize {quantize!r} is of device cpu; through PyTorch weights are bf16, or fp32 with every value of the "
            f"file ('file'){nearest(str(quantize), PRECISIONS)}"
        )
    exact = quantize == "file" or (quantize is None and device.type == "cpu")
    return torch.float32 if exact else torch.bfloat16


def device_memory(name: str) -> tuple[int, int] | None:
    """Return bytes of memory that are free and in all, of a GPU; None where it is the machine's."""
    device = torch_device(name)
    if device.type != "cuda":
        return None
    free, total = import_torch().cuda.mem_get_info(device)
    return int(free), int(total)
