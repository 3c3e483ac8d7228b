"""Try an installed wheel: ``python -m tests.check_wheel``, in an environment without compilers and test packages."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from tests.tiny_models import make_gguf

# The kernels that a wheel for an architecture must bring, whatever the machine that built it.
BUILT = {
    "x86_64": {"avx512vnni", "avxvnni", "avx512bw", "avx2", "portable"},
    "aarch64": {"i8mm", "dotprod", "portable"},
}
SETS = "from sonoran import _native; print(*(one.name for one in _native.instruction_sets() if one.built))"


def run(program: str, *arguments: str) -> str:
    """Run a program of the environment, and never what lies in a source tree."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(Path(sysconfig.get_path("scripts")) / program), *arguments]
    done = subprocess.run(command, env=clean, text=True, capture_output=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Look at the kernels and at doctor's report, and compare the tokens of a tiny model in the modes."""
    built = set(run(Path(sys.executable).name, "-I", "-c", SETS).split())
    architecture = platform.machine().replace("arm64", "aarch64")
    if built != BUILT[architecture]:
        raise SystemExit(f"the wheel has kernels for {sorted(built)}, expected {sorted(BUILT[architecture])}")
    run("sonoran", "doctor")
    texts = set()
    with tempfile.TemporaryDirectory() as folder:
        target, draft = (str(Path(folder) / name) for name in ("target.gguf", "draft.gguf"))
        make_gguf(target, "qwen2", "Q4_K")
        make_gguf(draft, "qwen2", "Q4_K", seed=1)
        for mode in ("ar", "sd", "ssd"):
            model = ("-m", target, "--mode", mode, *(() if mode == "ar" else ("--draft", draft)))
            answer = run("sonoran", "generate", *model, "-n", "12", "--ignore-eos", "--json", "hello world")
            texts.add(tuple(json.loads(answer)["token_ids"]))
    if len(texts) != 1 or len(texts.pop()) != 12:
        raise SystemExit(f"the modes give different tokens: {sorted(texts)}")
    sys.stdout.write(f"works, with kernels for {', '.join(sorted(built))}\n")


if __name__ == "__main__":
    main()
