"""Memory of the default target in a process of its own: during loading and after."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sonoran.models.registry import DEFAULT_TARGET
from tests.backends.real_models import real_model

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs the counters of Linux"),
]

SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
from sonoran.backends.base import Rows
from sonoran.backends.native import NativeBackend, kv_bytes_per_block
from sonoran.models.source import open_model

def status():
    lines = Path("/proc/self/status").read_text().splitlines()
    return {name: int(value.split()[0]) * 1024 for name, _, value in (line.partition(":") for line in lines)
            if name in ("VmRSS", "VmHWM", "RssAnon", "RssFile")}

before = status()["VmRSS"]
model_file = open_model(Path(sys.argv[1]))
backend = NativeBackend(model_file, num_blocks=16)
report = {"before": before, "loaded": status(), "kv": 16 * kv_bytes_per_block(model_file.config, 16)}
report |= {"kv_held": backend._decoder.kv_bytes, "weights": backend.weight_bytes}
n = 256
table = np.arange(16, dtype=np.int32)[None]
for start in range(0, n, 64):  # fills all of the KV memory
    positions = np.arange(start, start + 64)
    wants = positions == n - 1
    backend.forward(Rows.trunk(positions, positions, np.zeros(64), table, 16, wants))
report |= {"used": status(), "torch": "torch" in sys.modules}
print(json.dumps(report))
"""


def test_resident_memory_is_little_more_than_the_file() -> None:
    path = real_model(DEFAULT_TARGET).path
    size = path.stat().st_size
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, check=True, timeout=300
    )
    memory = json.loads(done.stdout)
    assert not memory["torch"]
    assert memory["kv"] == memory["kv_held"]
    assert size * 0.9 < memory["weights"] < size * 1.15
    bound = size * 1.35 + memory["kv"]
    assert memory["loaded"]["VmRSS"] < bound, memory
    assert memory["used"]["VmRSS"] < bound, memory
    assert memory["used"]["VmHWM"] < bound, memory  # the peak, while weights are packed
