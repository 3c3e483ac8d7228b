"""What only a GPU can show, for scripts/gpu_check.sh: one JSON object on standard output. No GPU has run it yet.

    python scripts/gpu_check.py --device cuda --minutes 9

Weights are random, of the shapes of real models, and made here. Reported are: rows whose bits depend on their
neighbours, in plain products and in those of 16 rows; milliseconds of a pass by rows and context, with CUDA graphs and
without; SHA-256 of texts in AR, SD and SSD of a tiny pair, which must be equal.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sonoran import LLM, SamplingParams
from sonoran.backends.base import Rows
from sonoran.backends.torch.backend import rope_frequencies
from sonoran.backends.torch.decoder import Decoder, DeviceRows
from sonoran.backends.torch.devices import import_torch, torch_device
from sonoran.backends.torch.graphs import Graphs
from sonoran.backends.torch.rows import TILE, Memory, pack_rows
from sonoran.models.config import ModelConfig

# hidden, inner width, layers, heads, key/value heads, vocabulary
SHAPES = {
    "tiny": (64, 128, 2, 4, 2, 512),
    "0.5B": (896, 4864, 24, 14, 2, 151936),
    "1.5B": (1536, 8960, 28, 12, 2, 151936),
    "7B": (3584, 18944, 28, 28, 4, 152064),
    "32B": (5120, 27648, 64, 40, 8, 152064),
}
ROWS = (1, 2, 4, 5, 8, 16, 32)
CONTEXTS = (256, 4096)
REPEATS = 20


def shape_config(name: str) -> ModelConfig:
    """Return the configuration of a decoder of that size."""
    hidden, inner, layers, heads, kv_heads, vocab = SHAPES[name]
    return ModelConfig(
        "qwen2", vocab, hidden, inner, layers, heads, kv_heads, hidden // heads, 32768, 1e6, 1e-6, False,
        tied_embeddings=True,
    )  # fmt: skip


def random_decoder(config: ModelConfig, slots: int, device: Any, dtype: Any) -> Decoder:
    """Make a decoder with random weights on the device."""
    torch = import_torch()
    torch.manual_seed(0)

    def made(outputs: int, inputs: int) -> Any:
        return torch.randn(outputs, inputs, device=device, dtype=dtype) * inputs**-0.5

    hidden, heads = config.hidden_size, config.num_heads + 2 * config.num_kv_heads
    weights = {"embed": made(config.vocab_size, hidden), "final_norm": torch.ones(hidden, device=device)}
    for i in range(config.num_layers):
        layer = {
            "qkv": made(heads * config.head_dim, hidden), "o": made(hidden, hidden),
            "gate_up": made(2 * config.intermediate_size, hidden), "down": made(hidden, config.intermediate_size),
            "attn_norm": torch.ones(hidden, device=device), "ffn_norm": torch.ones(hidden, device=device),
        }  # fmt: skip
        weights |= {f"layers.{i}.{name}": value for name, value in layer.items()}
    return Decoder(config, weights, slots, device)


def device_rows(config: ModelConfig, rows: int, context: int, device: Any) -> tuple[DeviceRows, int]:
    """Return rows that verify behind a context, and the spare slot."""
    torch, block = import_torch(), 16
    blocks = -(-(context + rows) // block)
    table = np.arange(blocks, dtype=np.int32)[None]
    line = Rows.trunk(np.arange(rows), context + np.arange(rows), np.zeros(rows), table, block, np.ones(rows))
    memory = Memory(config.vocab_size, blocks, block)
    packed = pack_rows(line, memory, rope_frequencies(config))
    values = {
        name: torch.from_numpy(getattr(packed, name)).to(device)
        for name in ("tokens", "slots", "visible", "lengths", "trunks", "positions", "wanted")
    }
    return DeviceRows(
        **values, angles=tuple(torch.from_numpy(a).to(device) for a in packed.angles)
    ), memory.spare


def dependent_rows(config: ModelConfig, device: Any, dtype: Any, rounds: int = 16) -> dict[str, int]:
    """Count rows whose bits differ between company: plain products of n rows, and products of 16."""
    torch = import_torch()
    torch.manual_seed(1)
    counted = {"rows": 0, "plain": 0, "fixed": 0}
    hidden, middle = config.hidden_size, config.intermediate_size
    for inputs, outputs in ((hidden, middle), (middle, hidden)):
        weight = torch.randn(outputs, inputs, device=device, dtype=dtype)
        for _ in range(rounds):
            x = torch.randn(TILE, inputs, device=device, dtype=dtype)
            alone = torch.nn.functional.linear(x[:1], weight)
            padded = torch.zeros_like(x)
            padded[0] = x[0]
            fixed = torch.nn.functional.linear(padded, weight)[0]
            whole = torch.nn.functional.linear(x, weight)[0]
            for n in (2, 4, 5, 8, 16):
                counted["rows"] += 1
                counted["plain"] += not torch.equal(torch.nn.functional.linear(x[:n], weight)[0], alone[0])
                counted["fixed"] += not torch.equal(whole, fixed)
    return counted


def median_ms(run: Callable[[], Any], wait: Callable[[], None]) -> float:
    """Return the median of some runs."""
    times = []
    for i in range(REPEATS + 3):
        wait()
        begin = time.perf_counter()
        run()
        wait()
        if i >= 3:
            times.append(1e3 * (time.perf_counter() - begin))
    return round(statistics.median(times), 3)


def pass_times(
    name: str, device: Any, dtype: Any, wait: Callable[[], None], end: float
) -> list[dict[str, Any]]:
    """Time passes of a shape by rows and context, until the time is up."""
    config, found = shape_config(name), []
    decoder = random_decoder(config, CONTEXTS[-1] + 64, device, dtype)
    bytes_read = sum(w.nbytes for w in decoder.weights.values())
    for context in CONTEXTS if name != "tiny" else CONTEXTS[:1]:
        for rows in ROWS:
            if time.monotonic() > end:
                return found
            made, spare = device_rows(config, rows, context, device)
            one = {"shape": name, "rows": rows, "context": context, "weight_bytes": bytes_read}
            one["eager_ms"] = median_ms(lambda made=made: decoder.run(made), wait)
            if device.type == "cuda":
                graphs = Graphs(decoder, spare)
                expected = decoder.run(made)
                one["graph_has_the_same_bits"] = bool((graphs.run(made) == expected).all())
                one["graph_ms"] = median_ms(lambda made=made, graphs=graphs: graphs.run(made), wait)
            found.append(one)
    return found


def texts(device: str) -> dict[str, Any]:
    """Return SHA-256 of the texts of every mode, from a tiny random pair, and the acceptance rates."""
    from tests.tiny_models import make_gguf

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        target, draft = Path(folder) / "target.gguf", Path(folder) / "draft.gguf"
        make_gguf(target, "qwen2", "Q8_0", seed=1)
        make_gguf(draft, "qwen2", "Q8_0", seed=1, num_layers=1)
        for mode, place in (("ar", None), ("sd", "cpu"), ("sd", device), ("ssd", "cpu"), ("ssd", device)):
            config = False if place is None else {"method": mode, "model": str(draft), "device": place}
            with LLM(str(target), device=device, speculative_config=config) as llm:
                ids = []
                for temperature in (0.0, 1.0):
                    params = SamplingParams(temperature=temperature, seed=5, max_tokens=64, ignore_eos=True)
                    outputs = llm.generate([f"{i} hello world" for i in range(8)], params)
                    ids += [output.outputs[0].token_ids for output in outputs]
                digest = hashlib.sha256(json.dumps(ids).encode()).hexdigest()
                counted = llm.statistics().get("speculative_decoding", {})
            found[f"{mode}, draft on {place}"] = {
                "sha256": digest,
                "acceptance": counted.get("draft_acceptance_rate"),
            }
    found["identical"] = len({one["sha256"] for one in found.values()}) == 1
    return found


def main() -> None:
    """Run everything and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, mps, or torch:cpu to try the program")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["0.5B", "1.5B", "7B", "32B"])
    parser.add_argument("--minutes", type=float, default=9.0, help="after which no further pass is timed")
    options = parser.parse_args()
    end = time.monotonic() + 60.0 * options.minutes
    device, torch = torch_device(options.device), import_torch()
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else options.device
    result: dict[str, Any] = {"device": name, "torch": torch.__version__, "dtype": str(dtype)}
    with torch.inference_mode():
        result["dependent_rows"] = dependent_rows(shape_config(options.shapes[0]), device, dtype)
    result["texts"] = texts(options.device)
    result["passes"] = []
    for shape in options.shapes:
        if time.monotonic() < end:
            with torch.inference_mode():
                result["passes"] += pass_times(shape, device, dtype, wait, end)
            if device.type == "cuda":
                torch.cuda.empty_cache()
        json.dump({"done": shape}, sys.stderr)
    json.dump(result, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
