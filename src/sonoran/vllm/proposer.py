"""vLLM's interface: a class that it makes in each of its worker processes and asks between two steps.

``vllm serve TARGET --speculative-config '{"method": "custom_class", "model": "sonoran.vllm.SSDProposer",
"num_speculative_tokens": 5}' --additional-config '{"sonoran": {"draft": ..., "cores": ...}}'``

Of tensor-parallel ranks the first one asks, and all return what it got: a cache entry serves one lookup, so that a rank
that asked for itself would verify other tokens than its peers.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sonoran.drafting.ssd import SsdDrafter
from sonoran.sampling.params import SamplingParams
from sonoran.vllm.guest import Guest
from sonoran.vllm.options import VllmOptions, read_options
from sonoran.vllm.repairs import repair_sampler
from sonoran.vllm.report import Report
from sonoran.vllm.target import describe_target, make_client

log = logging.getLogger("vllm.sonoran")

Proposals = list[list[int]]


class SSDProposer:
    """Proposes what a draft worker has ready. Whatever the worker does costs speed alone: without it there is no draft.

    ``load_model`` raises what is wrong with the options and the draft; ``propose`` never raises for them.
    """

    def __init__(self, vllm_config: Any) -> None:
        self._config = vllm_config
        self._guest: Guest | None = None  # of the rank that asks
        self._report: Report | None = None
        self._failures = 0
        self._group: Any = None  # of ranks that have to propose the same

    def load_model(self, target_model: object) -> None:
        """Start or find the draft worker, once the target has been loaded.

        Raises ConfigError for options, CompatibilityError for a draft that does not fit, WorkerError without a worker.
        """
        config = self._config
        k = int(config.speculative_config.num_speculative_tokens)
        options = read_options(config.additional_config, k)
        if config.device_config.device_type == "cpu":
            for repaired in repair_sampler():
                log.warning("SSD: a fault of this vLLM's sampler on processors was put right: %s", repaired)
        if config.parallel_config.tensor_parallel_size > 1:
            from vllm.distributed import get_tp_group

            self._group = get_tp_group()
        if self._group is None or self._group.rank_in_group == 0:
            self._start(options)

    def _start(self, options: VllmOptions) -> None:
        config = self._config
        target = describe_target(config)
        client = make_client(target, options)
        welcome = client.start()
        temperature = target.temperature if options.temperature is None else options.temperature
        self._guest = Guest(
            SsdDrafter(client, target_vocab=target.vocab_size, law="point_mass"),
            num_speculative_tokens=options.speculative.num_speculative_tokens,
            max_model_len=target.max_model_len,
            params=SamplingParams(temperature=temperature),
            microbatches=config.parallel_config.pipeline_parallel_size,
        )
        self._report = Report(
            self._guest,
            engine=str(config.parallel_config.data_parallel_rank),
            log_every_s=options.log_every_s,
            trace=None if options.trace is None else Path(options.trace).expanduser(),
        )
        atexit.register(self.close)
        log.info(
            "SSD: %s drafts for %s, up to %d tokens, in process %s",
            welcome.model,
            target.name,
            options.speculative.num_speculative_tokens,
            client.worker_pid or options.speculative.draft_address,
        )

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: object = None,
    ) -> Proposals:
        """Return at most K tokens for each row of the batch, none for prompts that are still being read.

        ``sampled_token_ids`` are what each row emitted in this step, ``num_tokens_no_spec`` int32[rows] counts all its
        tokens, which are in ``token_ids_cpu`` int32[rows, longest].
        """
        proposals: Proposals = [[] for _ in sampled_token_ids]
        if self._guest is not None:
            try:
                proposals = self._guest.step(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
                if self._report is not None:
                    self._report.look()
            except Exception:
                self._recover(self._guest)
        if self._group is not None:
            proposals = self._group.broadcast_object(proposals, src=0)
        return proposals

    def _recover(self, guest: Guest) -> None:
        """Begin anew after a mistake of ours, which must not end what the target generates."""
        self._failures += 1
        level = logging.ERROR if self._failures == 1 else logging.DEBUG
        log.log(level, "SSD: a step failed; vLLM goes on, and all sequences are told anew", exc_info=True)
        try:
            guest.reset()
        except Exception:
            self._guest = None
            log.exception("SSD: nothing is proposed any more")

    @property
    def guest(self) -> Guest | None:
        """What happens between steps, on the rank that asks."""
        return self._guest

    def close(self) -> None:
        """End the worker if it is ours; twice is harmless."""
        guest, self._guest = self._guest, None
        if guest is None:
            return
        if self._report is not None:
            self._report.last_words()
        guest.drafter.close()
