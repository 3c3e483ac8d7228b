"""vLLM in processes of its own, for tests: reads what to do from the command line, writes texts as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any


def main(order: dict[str, Any]) -> None:
    """Generate greedily with an engine that is told all of ``order["engine"]``."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=8, seed=0, **order["engine"]
    )
    params = SamplingParams(temperature=0.0, max_tokens=order["max_tokens"], ignore_eos=True)
    prompts = [{"prompt_token_ids": prompt} for prompt in order["prompts"]]
    found: list[list[int]] = []
    for _ in range(order.get("times", 1)):
        found = [list(o.outputs[0].token_ids) for o in llm.generate(prompts, params, use_tqdm=False)]
    with open(order["out"], "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(found, file)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
