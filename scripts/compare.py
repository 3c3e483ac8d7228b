"""Compare configurations of one target within one run: engines that take turns on every prompt.

    python scripts/compare.py --data-dir data --num-prompts 6 --cores 0 \\
        --config '{"method": "ssd", "model": "auto", "cores": [1]}' \\
        --config '{"method": "ssd", "model": "auto", "cores": [1], "num_speculative_tokens": 6}'

A configuration is a `speculative_config`; `null` is AR. Every engine has its own copy of the target in memory. Which one
begins changes from prompt to prompt, after a short warm-up of each. Ratios are to the first configuration, per prompt,
then the median.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sonoran import LLM, SamplingParams
from sonoran.bench.datasets import load_prompts
from sonoran.config import parse_cores
from sonoran.models.registry import DEFAULT_TARGET


def answer(llm: LLM, text: str, params: SamplingParams) -> tuple[list[int], dict[str, Any]]:
    """Return the token ids of an answer, and its metrics."""
    [output] = llm.chat([{"role": "user", "content": text}], params)
    return output.outputs[0].token_ids, output.metrics


def run(llms: list[LLM], prompts: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one record per prompt and configuration."""
    records = []
    for llm in llms:
        answer(llm, "Count from one to ten.", SamplingParams(temperature=0.0, max_tokens=8))
    for number, prompt in enumerate(prompts):
        order = [(number + i) % len(llms) for i in range(len(llms))]
        params = SamplingParams(temperature=options.temperature, seed=number, max_tokens=options.max_tokens)
        for index in order:
            ids, metrics = answer(llms[index], prompt, params)
            speculation = metrics.get("speculative_decoding", {})
            records.append(
                {
                    "prompt": number,
                    "configuration": index,
                    "token_ids": ids,
                    "tokens_per_s": 1.0 / metrics["tpot_s"] if metrics["tpot_s"] else None,
                    "acceptance_length": speculation.get("mean_acceptance_length"),
                    "hit_rate": speculation.get("cache_hit_rate"),
                }
            )
        sys.stderr.write(f"\r{number + 1}/{len(prompts)}")
    sys.stderr.write("\n")
    return records


def summarise(records: list[dict[str, Any]], configurations: list[Any]) -> dict[str, Any]:
    """Return medians by configuration, and whether all texts were identical."""
    rows = []
    base = {r["prompt"]: r["tokens_per_s"] for r in records if r["configuration"] == 0}
    for index, configuration in enumerate(configurations):
        own = [r for r in records if r["configuration"] == index and r["tokens_per_s"] and base[r["prompt"]]]
        rows.append(
            {
                "configuration": configuration,
                "tokens_per_s": median(r["tokens_per_s"] for r in own),
                "ratio": median(r["tokens_per_s"] / base[r["prompt"]] for r in own),
                "acceptance_length": median(r["acceptance_length"] for r in own),
                "hit_rate": median(r["hit_rate"] for r in own),
            }
        )
    texts: dict[int, set[tuple[int, ...]]] = {}
    for r in records:
        texts.setdefault(r["prompt"], set()).add(tuple(r["token_ids"]))
    return {"configurations": rows, "identical_texts": all(len(found) == 1 for found in texts.values())}


def median(values: Any) -> float | None:
    """Return the median of what is not None."""
    found = [value for value in values if value is not None]
    return statistics.median(found) if found else None


def main() -> None:
    """Load an engine for each configuration, run the prompts, print a table or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--config", action="append", required=True, type=json.loads, help="speculative_config as JSON"
    )
    parser.add_argument("--model", default=DEFAULT_TARGET)
    parser.add_argument("--dataset", default="humaneval", help="humaneval, gsm8k or spec_bench")
    parser.add_argument("--data-dir", type=Path, help="folder with the set as JSON lines; default: the hub")
    parser.add_argument("--num-prompts", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--cores", help="of the target: 0,2-5")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    prompts = load_prompts(options.dataset, options.num_prompts, data_dir=options.data_dir)
    with ExitStack() as stack:
        llms = [
            stack.enter_context(
                LLM(
                    options.model,
                    speculative_config=config or False,
                    cores=parse_cores(options.cores),
                    max_num_seqs=1,
                    enable_prefix_caching=False,
                )
            )
            for config in options.config
        ]
        result = summarise(run(llms, [prompt.text for prompt in prompts], options), options.config)
    if options.json:
        json.dump(result, sys.stdout, indent=1)
        return
    for row in result["configurations"]:
        parts = [f"{row['tokens_per_s']:.1f} tokens/s, {row['ratio']:.2f} x the first"]
        if row["acceptance_length"] is not None:
            parts.append(f"{row['acceptance_length']:.2f} tokens per verification")
        if row["hit_rate"] is not None:
            parts.append(f"{row['hit_rate']:.0%} hits")
        sys.stdout.write(f"{', '.join(parts)}: {json.dumps(row['configuration'])}\n")
    sys.stdout.write(f"texts identical: {'yes' if result['identical_texts'] else 'NO'}\n")


if __name__ == "__main__":
    main()
