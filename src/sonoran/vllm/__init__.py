"""SSD inside vLLM: its class for ``speculative_config``. Nothing here needs vLLM before that class is used."""

from sonoran.vllm.proposer import SSDProposer

__all__ = ["SSDProposer"]
