#!/bin/sh
# What only a GPU can show, in about ten minutes: prints one JSON object. PyTorch, cmake, ninja, nanobind and
# scikit-build-core must be installed; nothing is fetched. Nobody has run it on a GPU yet.
#
#     scripts/gpu_check.sh > gpu.json
set -eu
cd "$(dirname "$0")/.."
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
if ! PYTHONPATH=src python3 -c 'import sonoran._native' 2>/dev/null; then
  python3 -m pip install --quiet --no-build-isolation --no-deps --target "$build" . >&2
  PYTHONPATH="$build"
else
  PYTHONPATH=src
fi
command -v nvidia-smi >/dev/null && nvidia-smi >&2
PYTHONPATH="$PYTHONPATH:$(pwd)" exec timeout 600 python3 scripts/gpu_check.py "$@"
