"""Sampling: parameters, what they do to logits, noise, verification rules, stop rules. Pure; knows no backend."""

from sonoran.sampling.drafts import draft_sample, rank_candidates, sample_weights
from sonoran.sampling.params import SamplingParams, VerificationRule
from sonoran.sampling.proposals import (
    EMPTY,
    PointMass,
    ProposalDistribution,
    SparseDistribution,
    Speculation,
    UniformDistribution,
)
from sonoran.sampling.stops import Advance, Detokenizer, StopChecker
from sonoran.sampling.verification import Verified, token_logprob, verify

__all__ = [
    "EMPTY",
    "Advance",
    "Detokenizer",
    "PointMass",
    "ProposalDistribution",
    "SamplingParams",
    "SparseDistribution",
    "Speculation",
    "StopChecker",
    "UniformDistribution",
    "VerificationRule",
    "Verified",
    "draft_sample",
    "rank_candidates",
    "sample_weights",
    "token_logprob",
    "verify",
]
