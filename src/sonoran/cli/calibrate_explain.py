"""The work behind ``sonoran calibrate explain``: candidates, verification by the engine, advice."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sonoran.cli.common import err
from sonoran.cli.engine import load
from sonoran.llm import LLM
from sonoran.planning.profile.advice import Advice, advise, draft_size
from sonoran.planning.profile.check import check_predictions
from sonoran.planning.profile.choose import Choice, choose, engine_options
from sonoran.planning.profile.pair import Pair
from sonoran.planning.profile.placement import Workload, nearest_acceptance
from sonoran.planning.profile.predict import Prediction, predict_all
from sonoran.planning.profile.profile import Measured, Profile
from sonoran.planning.profile.prompts import built_in_prompts
from sonoran.planning.profile.store import save_profile
from sonoran.planning.scaling.hidden import HiddenDrafting

DEFAULT_TEXT = 96
"""Tokens per prompt where nothing was read along."""


@dataclass(slots=True)
class Explanation:
    """Everything that is printed for one workload."""

    workload: Workload
    predictions: list[Prediction]
    shown: list[Prediction]
    choice: Choice
    advice: list[Advice]
    sizing: HiddenDrafting | None
    measured: list[Measured] = field(default_factory=list)

    def document(self, profile: Profile) -> dict[str, Any]:
        """Return one JSON document."""
        by_label = {m.label: m for m in self.measured}

        def row(p: Prediction) -> dict[str, Any]:
            found = by_label.get(p.label)
            return {
                "label": p.label,
                **{key: value for key, value in asdict(p).items() if key != "placement"},
                "target_cores": p.placement.target_cores,
                "draft_cores": p.placement.draft_cores,
                "hidden": p.hidden,
                "measured_tokens_per_s": found.measured if found else None,
                "error": found.error if found else None,
            }

        return {
            "workload": asdict(self.workload),
            "profile": profile.summary(),
            "choice": {
                "label": self.choice.best.label,
                "reason": self.choice.reason,
                "gain": self.choice.gain,
            },
            "candidates": [row(p) for p in self.shown],
            "verified": [{**asdict(m), "error": m.error} for m in self.measured],
            "advice": [asdict(a) for a in self.advice],
            "draft_size": None if self.sizing is None else asdict(self.sizing),
        }


def explain_workload(
    pair: Pair, profile: Profile, workload: Workload, *, target: str, draft: str, top: int, verify_count: int
) -> Explanation:
    """Predict, choose, advise and, if asked, run the best configurations and keep the results in the profile."""
    predictions = predict_all(profile, workload)
    choice = choose(predictions)
    best_hit = next((p.hit_rate for p in predictions if p.mode == "ssd" and p.hit_rate is not None), None)
    answer = Explanation(
        workload,
        predictions,
        candidates(predictions, choice, top),
        choice,
        advise(profile, workload),
        draft_size(profile, workload, best_hit) if best_hit is not None else None,
    )
    if verify_count:
        wanted = candidates(predictions, choice, max(verify_count, 1))[:verify_count]
        answer.measured = run_candidates(
            wanted,
            pair,
            workload,
            target=target,
            draft=draft,
            max_tokens=text_length(profile, workload),
        )
        again = {m.label for m in answer.measured}
        kept = [m for m in profile.measured if m.label not in again]
        save_profile(replace(profile, measured=(*kept, *answer.measured)))
    return answer


def text_length(profile: Profile, workload: Workload) -> int:
    """Return the tokens to generate per prompt: about as many as calibration read, since later text is harder."""
    acceptance = nearest_acceptance(profile, workload)
    if acceptance is None:
        return DEFAULT_TEXT
    return max(2, round(acceptance.positions / len(acceptance.texts)))


def candidates(predictions: list[Prediction], choice: Choice, count: int) -> list[Prediction]:
    """Return the choice, the best of each mode, then the fastest others, at most ``count``, fastest first."""
    chosen = list(dict.fromkeys([choice.best, *choice.by_mode.values(), *predictions]))[:count]
    return sorted(chosen, key=lambda p: -p.tokens_per_s)


def run_candidates(
    wanted: list[Prediction],
    pair: Pair,
    workload: Workload,
    *,
    target: str,
    draft: str,
    max_tokens: int,
) -> list[Measured]:
    """Run configurations on the engine, one after the other, with the built-in prompts."""

    def make(p: Prediction) -> LLM:
        options = engine_options(
            p,
            draft=None if draft == "none" else draft,
            target_key=pair.key.target,
            draft_key=pair.key.draft,
            verification=workload.verification,
        )
        return load(
            target,
            options.speculative,
            max_num_seqs=workload.batch,
            enable_prefix_caching=False,
            **options.engine,
        )

    def show(label: str, done: int, total: int) -> None:
        # A line, because loading has bars of its own, and nothing shall draw while speeds are measured.
        err.print(f"running {label} ({done + 1} of {total})", style="dim", highlight=False, soft_wrap=True)

    prompts = pair.encode(built_in_prompts())
    return check_predictions(wanted, make, prompts, workload, max_tokens=max_tokens, repeats=1, progress=show)
