"""The planner: scaling laws of speculative decoding (SDSL), reproduced and usable. Pure; knows no backend."""

from sonoran.planner.acceptance import AcceptanceCurve, AcceptancePlane, fit_curve, fit_plane
from sonoran.planner.acceptance_estimate import AlphaEstimate, estimate_alpha
from sonoran.planner.answer import Optimum, Plan
from sonoran.planner.candidates import Candidate, Ranked, parse_candidates
from sonoran.planner.costs import CostModel, MeasuredCost, ParameterCost, measured_cost_from_dict
from sonoran.planner.laws import BESIROGLU, HOFFMANN, LossLaw
from sonoran.planner.lawset import Laws, laws_from_json
from sonoran.planner.models import KnownModel, find_model, known_models
from sonoran.planner.planning import plan
from sonoran.planner.published import published_laws
from sonoran.planner.reproduction import reproduce

__all__ = [
    "BESIROGLU",
    "HOFFMANN",
    "AcceptanceCurve",
    "AcceptancePlane",
    "AlphaEstimate",
    "Candidate",
    "CostModel",
    "KnownModel",
    "Laws",
    "LossLaw",
    "MeasuredCost",
    "Optimum",
    "ParameterCost",
    "Plan",
    "Ranked",
    "estimate_alpha",
    "find_model",
    "fit_curve",
    "fit_plane",
    "known_models",
    "laws_from_json",
    "measured_cost_from_dict",
    "parse_candidates",
    "plan",
    "published_laws",
    "reproduce",
]
