"""Copy a GGUF model with the rows of its `down` matrices shuffled: as fast as before, and nearly never right.

    python scripts/shuffle_draft.py draft.gguf shuffled.gguf
    sonoran bench decode --modes ar,auto --draft shuffled.gguf --dataset gsm8k --data-dir data --num-prompts 16

It shows what speculation costs with the worst of all drafts. The vocabulary stays, so the two still fit.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np


def main() -> None:
    """Copy the file, then shuffle in place."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path, help="a file that does not exist yet")
    options = parser.parse_args()
    if options.target.exists():
        parser.error(f"{options.target} exists already")
    shutil.copyfile(options.source, options.target)
    rng = np.random.default_rng(0)
    reader = gguf.GGUFReader(options.target, "r+")
    shuffled = [tensor for tensor in reader.tensors if "ffn_down" in tensor.name]
    for tensor in shuffled:
        tensor.data[:] = tensor.data[rng.permutation(len(tensor.data))]
    reader.data.flush()
    sys.stdout.write(f"{options.target}: {len(shuffled)} matrices shuffled\n")


if __name__ == "__main__":
    main()
