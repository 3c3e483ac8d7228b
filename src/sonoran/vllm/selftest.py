"""A tiny random model, and what vLLM says with it: run in a process of its own, ``python -m sonoran.vllm.selftest``.

Target and draft are the same model, so that nearly all that is proposed is accepted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

MAX_TOKENS = 40
K = 4
BYTES = 256
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def make_model(folder: Path) -> None:
    """Write a Qwen2 of two layers with random weights and a tokenizer of bytes; needs torch and transformers."""
    import torch
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokens = {token: i for i, token in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(tokens, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), Decoder()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    config = Qwen2Config(
        vocab_size=BYTES + len(SPECIALS) + 5,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=BYTES,
        pad_token_id=BYTES,
    )
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIALS[0]}), encoding="utf-8"
    )


def run(folder: Path, draft_cores: str | None) -> dict[str, Any]:
    """Return what vLLM generates, and with cores for a draft (or "": any) how SSD did."""
    from vllm.platforms import current_platform

    from vllm import LLM, SamplingParams

    on_processors = bool(current_platform.is_cpu())
    ssd: dict[str, Any] = {}
    if draft_cores is not None:
        options = {"draft": str(folder), "quantize": "file", "log_every_s": 0, "least_chance": 0.0}
        options |= {"cores": draft_cores} if draft_cores else {"threads": 1}
        speculation = {
            "method": "custom_class",
            "model": "sonoran.vllm.SSDProposer",
            "num_speculative_tokens": K,
        }
        ssd = {"speculative_config": speculation, "additional_config": {"sonoran": options}}
    llm = LLM(
        str(folder),
        dtype="float32" if on_processors else "bfloat16",
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=4,
        gpu_memory_utilization=0.2,
        **ssd,
    )
    prompts = [{"prompt_token_ids": [7 + i, 40, 9 + 2 * i, 100, 3]} for i in range(4)]
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
    texts = [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]
    found: dict[str, Any] = {"texts": texts, "on_processors": on_processors}
    if draft_cores is not None:
        proposer = llm.llm_engine.model_executor.driver_worker.worker.model_runner.drafter
        found["stats"] = proposer.guest.stats.as_dict(K).get("speculative_decoding", {})
        proposer.close()
    return found


def main(folder: str, cores: str | None) -> None:
    """Write what ``run`` returns into the folder, the model too if it is not there."""
    place = Path(folder)
    if not (place / "config.json").exists():
        make_model(place)
    name = "plain" if cores is None else "ssd"
    (place / f"{name}.json").write_text(json.dumps(run(place, cores)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
