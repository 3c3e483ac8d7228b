"""Candidates for ``model.generate`` of Hugging Face transformers, from a draft worker.

The target is any causal model of transformers, on any devices. It decides every token itself: a candidate is kept where
it is the token that the target takes, greedily or by its own sampling. So nothing that the worker does changes what a
text may be, and a worker that dies costs nothing but speed. The seam is transformers' own: ``CandidateGenerator``, as its
prompt lookup uses it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from sonoran.config import SpeculativeConfig, WorkerConfig
from sonoran.drafting.ssd import SsdDrafter
from sonoran.engine.drafter import DraftRequest
from sonoran.errors import ConfigError
from sonoran.models.source import resolve_model
from sonoran.models.tokenizer.tokenizer import Tokenizer
from sonoran.sampling.params import SamplingParams
from sonoran.ssd.messages import PROTOCOL_VERSION, Hello
from sonoran.types import Outcome
from sonoran.worker.client import WorkerClient
from sonoran.worker.connection import Remote
from sonoran.worker.keys import load_keys
from sonoran.worker.process import Local

_GREEDY = SamplingParams(temperature=0.0)


class DraftWorker:
    """A draft worker for models of transformers: ``with DraftWorker(tokenizer, model="...") as draft``, then
    ``draft.generate(model, **inputs, max_new_tokens=100)``.

    ``tokenizer`` is the target's, a fast one. Options are those of ``speculative_config`` for method ``ssd``: ``model``
    and what belongs to it, or ``draft_address``. Raises ConfigError, ModelError, DownloadError, WorkerError, and
    CompatibilityError when the draft's vocabulary is another one.
    """

    def __init__(self, tokenizer: Any, **options: Any) -> None:
        config = SpeculativeConfig.from_mapping({"method": "ssd", **options})
        if config.model == "auto":
            raise ConfigError("model 'auto' follows from a target of our own; name the draft")
        self._wanted = config.num_speculative_tokens
        target = _our_tokenizer(tokenizer)
        hello = Hello(
            PROTOCOL_VERSION, target.fingerprint(), max(target.padded_vocab_size, len(tokenizer)),
            list(target.eos_ids), config.settings(), target.vocab_size,
        )  # fmt: skip
        place: Local | Remote
        if config.draft_address is not None:
            keys = load_keys(config.draft_key_file, "client") if config.draft_key_file else None
            place = Remote(config.draft_address, keys)
        else:
            path = resolve_model(str(config.model))
            place = Local(
                WorkerConfig(
                    model=str(path), threads=config.threads, cores=config.cores, quantize=config.quantize,
                    draft_vocab=config.draft_vocab, device=config.device,
                )
            )  # fmt: skip
        self._client = WorkerClient(hello, place, target.fingerprint)
        self._client.start()
        self._drafter = SsdDrafter(self._client, target_vocab=target.vocab_size)
        self._sequences = 0
        self.last = {"verifications": 0, "proposed": 0, "accepted": 0}
        """Of the last ``generate``: verifications, proposed tokens, accepted ones."""

    def generate(self, model: Any, *inputs: Any, **options: Any) -> Any:
        """Return what ``model.generate`` returns for the same arguments, with this worker's candidates.

        It serves one prompt at a time, as all assisted generation of transformers does. Raises ConfigError for options
        that name another source of candidates, and what ``model.generate`` raises.
        """
        for name in ("assistant_model", "prompt_lookup_num_tokens", "custom_generate"):
            if options.get(name) is not None:
                raise ConfigError(f"{name} names another source of candidates; leave it out")
        self._sequences += 1
        candidates: list[_Candidates] = []

        def candidate_generator(generation_config: Any, input_ids: Any, **_: Any) -> _Candidates:
            candidates.append(
                _Candidates(self._drafter, self._sequences, self._wanted, generation_config.max_length)
            )
            return candidates[-1]

        # Prompt lookup is the mode of generate that asks for candidates and needs no second model.
        model._get_candidate_generator = candidate_generator
        try:
            return model.generate(*inputs, **options, prompt_lookup_num_tokens=max(1, self._wanted))
        finally:
            del model._get_candidate_generator
            self._drafter.release(self._sequences)
            if candidates:
                self.last = candidates[-1].counted

    def stats(self) -> dict[str, Any]:
        """Return what went wrong so far, the state of the connection, and the worker's own counters."""
        return self._drafter.stats()

    @property
    def worker_pid(self) -> int | None:
        """Process id of the worker, where it was started here."""
        return self._client.worker_pid

    def close(self) -> None:
        """End the connection, and a worker that was started here; calling twice is harmless."""
        self._drafter.close()

    def __enter__(self) -> DraftWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Candidates:
    """What transformers calls a CandidateGenerator, for one text."""

    requires_model_outputs = False

    def __init__(self, drafter: SsdDrafter, sequence: int, wanted: int, max_length: int) -> None:
        self._drafter, self._sequence = drafter, sequence
        self._wanted, self._max_length = wanted, max_length
        self._prompt_length = 0
        self._proposed: tuple[int, ...] | None = None
        self._tokens: list[int] = []
        self.counted = {"verifications": 0, "proposed": 0, "accepted": 0}

    def get_candidates(self, input_ids: Any, **_: Any) -> tuple[Any, None]:
        """Return the text with candidates behind it, ``[1, length + candidates]``, and no distributions."""
        if len(input_ids) != 1:
            raise ConfigError(
                f"a draft worker drafts for one prompt at a time here, got a batch of {len(input_ids)}"
            )
        tokens = input_ids[0].tolist()
        fresh = tokens[len(self._tokens) :]
        outcome = None
        if self._proposed:
            outcome = Outcome(len(fresh) - 1, fresh[-1])
            self.counted["accepted"] += outcome.accepted
        first = not self._tokens
        self._tokens = tokens
        if first:
            self._prompt_length = len(tokens)
            self._drafter.admit(self._request(0, None))
            self._proposed = None
            return input_ids, None  # the worker reads the prompt while the target does
        wanted = min(self._wanted, self._max_length - len(tokens) - 1)
        speculation: tuple[int, ...] = ()
        if wanted > 0 and self._fits(len(tokens) + wanted):
            speculation = self._drafter.propose([self._request(wanted, outcome)])[0].tokens
        self._proposed = speculation
        self.counted["verifications"] += 1
        self.counted["proposed"] += len(speculation)
        if not speculation:
            return input_ids, None
        import torch

        candidates = torch.tensor([speculation], dtype=input_ids.dtype, device=input_ids.device)
        return torch.cat([input_ids, candidates], dim=-1), None

    def update_candidate_strategy(self, input_ids: Any, scores: Any, num_matches: int) -> None:
        """Hear what was accepted; the next call for candidates sees it in the text."""

    def _request(self, wanted: int, outcome: Outcome | None) -> DraftRequest:
        return DraftRequest(
            sequence_id=self._sequence, tokens=self._tokens, prompt_length=self._prompt_length, wanted=wanted,
            params=_GREEDY, seed=0, outcome=outcome,
        )  # fmt: skip

    def _fits(self, length: int) -> bool:
        limit = self._drafter.max_context
        return limit is None or length <= limit


def _our_tokenizer(tokenizer: Any) -> Tokenizer:
    """Read a tokenizer of transformers as ours reads the files that it saves."""
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(
            f"the target's tokenizer must be a fast one of transformers, got {type(tokenizer).__name__}: only those have "
            "a tokenizer.json to compare with the draft's"
        )
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return Tokenizer.from_directory(Path(folder))
