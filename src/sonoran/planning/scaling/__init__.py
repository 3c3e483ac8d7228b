"""The planner: scaling laws of speculative decoding (SDSL), reproduced and usable. Pure; knows no backend."""

from sonoran.planning.scaling.acceptance import AcceptanceCurve, AcceptancePlane, fit_curve, fit_plane
from sonoran.planning.scaling.candidates import Candidate, Ranked, parse_candidates
from sonoran.planning.scaling.costs import CostModel, MeasuredCost, ParameterCost, measured_cost_from_dict
from sonoran.planning.scaling.estimate import AlphaEstimate, estimate_alpha
from sonoran.planning.scaling.laws import Laws, laws_from_json
from sonoran.planning.scaling.loss import BESIROGLU, HOFFMANN, LossLaw
from sonoran.planning.scaling.models import KnownModel, find_model, known_models, published_laws
from sonoran.planning.scaling.planning import Optimum, Plan, plan
from sonoran.planning.scaling.reproduction import reproduce

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
