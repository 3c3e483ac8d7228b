"""Threads, cores and kernels of a backend: how many, where they run, and for which processor they were compiled."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sonoran import _native
from sonoran.errors import ConfigError, nearest


@dataclass(frozen=True)
class Processors:
    """What this process may use of the machine."""

    available: tuple[int, ...]
    """Logical cores that it may run on."""
    physical: tuple[int, ...]
    """One of them for each physical core, performance cores first."""
    quota: float | None
    """Processors' worth of time that the container grants; None without a limit."""

    @property
    def cores(self) -> tuple[int, ...]:
        """Where threads go by default: siblings of a core share its arithmetic, and time beyond the quota stalls."""
        return self.physical if self.quota is None else self.physical[: max(1, int(self.quota))]


def find_processors(sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> Processors:
    """Ask the system; where it says nothing every core counts as a physical one without a limit."""
    available = tuple(_native.available_cores()) or tuple(range(os.cpu_count() or 1))
    return Processors(available, physical_cores(available, sys), cpu_quota(sys, proc))


def physical_cores(available: tuple[int, ...], sys: Path = Path("/sys")) -> tuple[int, ...]:
    """Return the first available sibling of each physical core, performance cores first, else in their order."""
    seen: set[int] = set()
    first = []
    for core in available:
        topology = sys / f"devices/system/cpu/cpu{core}/topology"
        siblings = _core_list(_read(topology / "thread_siblings_list")) or {core}
        if not siblings & seen:
            first.append(core)
        seen |= siblings
    performance = _core_list(_read(sys / "devices/cpu_core/cpus"))  # hybrid x86; Arm gives capacities

    def slowness(core: int) -> tuple[bool, int]:
        capacity = _read(sys / f"devices/system/cpu/cpu{core}/cpu_capacity")
        return bool(performance) and core not in performance, -int(capacity or 0)

    return tuple(sorted(first, key=slowness))


def cpu_quota(sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> float | None:
    """Return the least quota of this process's control groups (both versions) and those above them."""
    root = sys / "fs/cgroup"
    quotas = []
    for line in _read(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for mount in {root / controllers, root / "cpu"} if controllers else {root, root / "unified"}:
            # Inside a container the path may be that of the host: then its groups are missing, the mount is not.
            group = mount / path.lstrip("/")
            for place in (group, *group.parents):
                quotas.append(_quota_of(place))
                if place == mount:
                    break
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_of(group: Path) -> float | None:
    quota, period = (_read(group / "cpu.max").split() or ["", ""])[:2]
    if not quota:
        quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _core_list(text: str) -> set[int]:
    """Parse a list such as 0-3,8."""
    cores: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def place_threads(threads: int | None, cores: tuple[int, ...] | None) -> tuple[int, tuple[int, ...]]:
    """Settle the number of threads and the cores they are pinned to (empty: not pinned).

    Default: one thread for each core named, or for each physical core that this process may use, but no more than the
    CPU quota of its container. Raises ConfigError for cores that the process may not use and for more threads than
    cores named.
    """
    if cores is not None:
        available = find_processors().available
        foreign = [core for core in cores if core not in available]
        if foreign or not cores:
            raise ConfigError(f"cores {foreign} cannot be used; this process may use {list(available)}")
    count = threads
    if count is None:
        count = len(cores) if cores is not None else len(find_processors().cores)
    if count < 1:
        raise ConfigError(f"threads must be at least 1, got {count}")
    if cores is not None and count > len(cores):
        raise ConfigError(f"{count} threads do not fit {len(cores)} cores; name more cores or fewer threads")
    return count, cores or ()


def loading_threads(cores: tuple[int, ...], sys: Path = Path("/sys")) -> int:
    """Return how many threads load a model that will run on ``cores``: more than one for each where the machine has more.

    0 stands for the model's own threads. Memory lies on the node of the core that first writes it, so that machines
    with several nodes load where they run.
    """
    nodes = sys / "devices/system/node"
    if not cores or len(list(nodes.glob("node[0-9]*"))) > 1:
        return 0
    usable = len(find_processors(sys).cores)
    return usable if usable > len(cores) else 0


def split_cores(target: tuple[int, ...] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return cores for the target and for a draft beside it; the draft's are empty when there are none left.

    The target keeps those named for it; otherwise it gets all but the last of the cores used by default.
    """
    processors = find_processors()
    if target is None:
        cores = processors.cores
        return (cores[:-1], cores[-1:]) if len(cores) > 1 else (cores, ())
    # A physical core of its own if there is one, else the sibling of a busy one.
    others = [core for core in processors.physical if core not in target]
    return target, tuple(others or [core for core in processors.available if core not in target])[-1:]


def default_kernels() -> str:
    """Return the instruction set that backends use: the best of this processor, or the one that SONORAN_KERNELS names.

    Naming a lesser one shows, on one machine, what others have. Raises ConfigError for one that is not there.
    """
    wanted = os.environ.get("SONORAN_KERNELS", "")
    if not wanted:
        return _native.best_instruction_set()
    present = [one.name for one in _native.instruction_sets() if one.present]
    if wanted not in present:
        raise ConfigError(
            f"SONORAN_KERNELS is {wanted!r}, which this processor lacks{nearest(wanted, present)}"
        )
    return wanted
