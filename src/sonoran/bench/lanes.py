"""The lanes of a race: which mode decodes where."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sonoran.backends.placement import place_threads, split_cores
from sonoran.config import SpeculativeConfig, parse_cores
from sonoran.errors import ConfigError
from sonoran.planning.profile.profile import Cores


@dataclass(frozen=True, slots=True)
class Lane:
    """One way to decode, and where. ``speculative`` is None for autoregressive decoding."""

    name: str
    place: str  # for people
    cores: Cores
    speculative: SpeculativeConfig | None


def plan_lanes(
    *,
    cores: str | None = None,
    draft_cores: str | None = None,
    draft: str = "auto",
    num_speculative_tokens: int = 4,
    all_cores: bool = True,
) -> list[Lane]:
    """Return AR and SD on the target's cores, SSD with the draft on cores of its own, and AR on all of them.

    Where there is but one core, the draft of SSD shares it. Raises ConfigError for cores that overlap or that cannot be
    used.
    """
    target, own = parse_cores(cores), parse_cores(draft_cores)
    if target is None and own is not None:
        available = split_cores(None)
        target = tuple(core for core in (*available[0], *available[1]) if core not in own)
    place, beside = split_cores(target or None)
    if own is not None and set(place) & set(own):
        raise ConfigError(f"target and draft need different cores, got {list(place)} and {list(own)}")
    own = own or beside or place
    for given in (place, own):
        place_threads(None, given)
    sd = SpeculativeConfig("sd", model=draft, num_speculative_tokens=num_speculative_tokens)
    ssd = replace(sd, method="ssd", cores=own)
    lanes = [
        Lane("AR", f"target on {_name(place)}", place, None),
        Lane("SD", f"target and draft on {_name(place)}, in turns", place, sd),
        Lane("SSD", f"target on {_name(place)}, draft on {_name(own)}, at the same time", place, ssd),
    ]
    both = tuple(sorted({*place, *own}))
    if all_cores and both != place:
        lanes.append(Lane("AR, all cores", f"target on {_name(both)}", both, None))
    return lanes


def _name(cores: Cores) -> str:
    return f"core{'s' if len(cores) > 1 else ''} {','.join(map(str, cores))}"
