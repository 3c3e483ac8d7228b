"""Sampling: parameters, distribution, noise, verification rules and stop rules. Pure; knows no backend."""

from sonoran.sampling.distribution import Distribution, distribution
from sonoran.sampling.drafts import draft_sample, rank_candidates, sample_weights
from sonoran.sampling.params import SamplingParams, VerificationRule
from sonoran.sampling.proposals import EMPTY, Law, PointLaw, SparseLaw, Speculation, UniformLaw
from sonoran.sampling.stops import Advance, Detokenizer, StopChecker
from sonoran.sampling.verification import Verified, token_logprob, verify

__all__ = [
    "EMPTY",
    "Advance",
    "Detokenizer",
    "Distribution",
    "Law",
    "PointLaw",
    "SamplingParams",
    "SparseLaw",
    "Speculation",
    "StopChecker",
    "UniformLaw",
    "VerificationRule",
    "Verified",
    "distribution",
    "draft_sample",
    "rank_candidates",
    "sample_weights",
    "token_logprob",
    "verify",
]
