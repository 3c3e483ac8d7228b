"""docs/models.md: how models are fetched, and what loads, from the code's own tables.

``python -m sonoran.cli.models_page > docs/models.md`` writes the page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from sonoran.models.architectures import ARCHITECTURES
from sonoran.models.families import FAMILIES
from sonoran.models.registry import MODELS
from sonoran.models.repository import PREFERENCE
from sonoran.models.supported import (
    converted_types,
    folder_types,
    kept_types,
    pre_tokenizers,
    rope_kinds,
)

_BEGIN = """\
# Models

Any of these names a model, wherever one is asked for: `--model`, `--draft`, `LLM(...)`, `speculative_config`.

```bash
sonoran generate -m Qwen/Qwen3-0.6B-GGUF "Why is the sky blue?"         # of the hub: the best quantisation that it has
sonoran generate -m Qwen/Qwen3-0.6B-GGUF:Q8_0 "Why is the sky blue?"    # this quantisation
sonoran generate -m Qwen/Qwen3-0.6B "Why is the sky blue?"              # a repository of safetensors
sonoran generate -m models/my-model.gguf "Why is the sky blue?"         # a file; of a split one, the first part
sonoran generate -m models/my-model "Why is the sky blue?"              # a folder with config.json and safetensors
sonoran generate -m smollm2-135m-instruct "Why is the sky blue?"        # a known name
```

What is not on disk is fetched first. The same goes beforehand, and for what lies in the cache:

```bash
sonoran models pull Qwen/Qwen3-0.6B-GGUF:Q8_0    # goes on where an interrupted pull stopped
sonoran models list                              # known models and those that were fetched, with sizes
sonoran models path Qwen/Qwen3-0.6B-GGUF         # where it lies
sonoran models rm Qwen/Qwen3-0.6B-GGUF           # all of this repository; with :Q8_0, only that
```

A file or folder that is there wins over a name. What was fetched is used without a network, and hashed once. A gated
model needs an account: the error says what to type.
"""

_CHOICE = """
Without a quantisation, the first of these that a repository has is taken: {}; then others of 4 bits and more, and those
of fewer bits last.
"""

_LOADS = """
## What loads

Written from the code's tables by `python -m sonoran.cli.models_page`. A model that is not among these is refused with
what is supported, before its weights are read or fetched. Of a model with images (`...ForConditionalGeneration`) the
text part loads.
"""

_OTHERS = """
SentencePiece vocabularies (`tokenizer.ggml.model` is `llama`) need none, and folders bring their `tokenizer.json`.

RoPE scaling: {}.
"""

_DRAFTS = """
## Drafts

Without `--draft`, a target's vocabulary tells its family, and the family its draft. A draft may be any model that has the
target's tokens; where one of the two has some more at the end, what both have is drafted (`sonoran check-draft` tells).
"""


def page() -> str:
    """Return the page."""
    kept: dict[int, list[str]] = {}
    for name, bits in kept_types().items():
        kept.setdefault(bits, []).append(name)
    become: dict[str, list[str]] = {}
    for name, other in converted_types().items():
        become.setdefault(other, []).append(name)
    types = [
        (_names(names), f"kept exactly, {bits} bits") for bits, names in sorted(kept.items(), reverse=True)
    ]
    types += [
        (_names(names), f"become {other} when loaded, with a warning") for other, names in become.items()
    ]
    types += [(f"safetensors: {_names(folder_types())}", "kept exactly, unless `--quantize` lowers them")]
    models = [(row.models, _code(row.gguf), _names((row.hf_class, *row.wholes))) for row in ARCHITECTURES]
    words = [(_code(names[0]), _names(names[1:]) or "-") for names in pre_tokenizers()]
    known = [(_code(entry.name), entry.description, entry.license) for entry in MODELS.values()]
    drafts = [(family.name, _code(family.draft)) for family in FAMILIES]
    return "".join(
        (
            _BEGIN,
            _CHOICE.format(_names(PREFERENCE)),
            _LOADS,
            _table(("models", "GGUF architecture", "class in config.json"), models),
            _table(("tensor types", "what becomes of them"), types),
            _table(("pre-tokenizers of GGUF files", "others that cut words alike"), words),
            _OTHERS.format(_names(rope_kinds())),
            _DRAFTS,
            _table(("family", "draft"), drafts),
            "\n## Known names\n",
            _table(("name", "what", "licence"), known),
        )
    )


def _code(name: str) -> str:
    return f"`{name}`"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [titles, ("---",) * len(titles), *rows]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(page())
