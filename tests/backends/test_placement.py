"""Default threads and cores: affinity, siblings, kinds of cores and the quota of a container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sonoran import _native
from sonoran.backends import placement
from sonoran.backends.placement import Processors, cpu_quota, physical_cores, place_threads, split_cores
from sonoran.errors import ConfigError


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def siblings(groups: list[str]) -> dict[str, str]:
    """Files of the system in which each group of logical cores is one physical core."""
    files = {}
    for group in groups:
        for core in placement._core_list(group):
            files[f"devices/system/cpu/cpu{core}/topology/thread_siblings_list"] = group
    return files


def test_siblings_count_once(tmp_path):
    write(tmp_path, siblings(["0,4", "1,5", "2,6", "3,7"]))
    assert physical_cores(tuple(range(8)), tmp_path) == (0, 1, 2, 3)
    assert physical_cores((2, 4, 5, 6), tmp_path) == (2, 4, 5)
    assert physical_cores((3, 9), tmp_path / "nothing") == (3, 9)


def test_performance_cores_come_first(tmp_path):
    hybrid = siblings(["0", "1", "2-3", "4-5"]) | {"devices/cpu_core/cpus": "2-5"}
    assert physical_cores(tuple(range(6)), write(tmp_path / "x86", hybrid)) == (2, 4, 0, 1)
    capacities = {f"devices/system/cpu/cpu{c}/cpu_capacity": v for c, v in enumerate(("446", "446", "1024"))}
    assert physical_cores((0, 1, 2), write(tmp_path / "arm", capacities)) == (2, 0, 1)


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/", {}, None),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, 2.0),
        ("0::/of/the/host", {"cpu.max": "300000 100000"}, 3.0),
        ("2:cpu,cpuacct:/a", {"cpu,cpuacct/a/cpu.cfs_quota_us": "50000",
                              "cpu,cpuacct/a/cpu.cfs_period_us": "100000"}, 0.5),
        ("1:cpu:/a\n0::/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("1:cpu:/a\n0::/", {"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000",
                            "cpu/a/cpu.cfs_quota_us": "250000", "cpu/a/cpu.cfs_period_us": "100000"}, 2.5),
        ("3:cpuset:/", {"cpuset/cpu.max": "100000 100000"}, None),
    ],
)  # fmt: skip
def test_quotas_of_both_versions(tmp_path, cgroup, files, expected):
    write(tmp_path, {"proc/self/cgroup": cgroup})
    write(tmp_path / "sys/fs/cgroup", files)
    assert cpu_quota(tmp_path / "sys", tmp_path / "proc") == expected


@pytest.mark.parametrize(
    ("quota", "threads", "split"),
    [
        (None, 4, ((0, 2, 4), (6,))),
        (8.0, 4, ((0, 2, 4), (6,))),
        (3.9, 3, ((0, 2), (4,))),
        (1.5, 1, ((0,), ())),
        (0.5, 1, ((0,), ())),
    ],
)
def test_defaults_follow_physical_cores_and_quota(monkeypatch, quota, threads, split):
    found = Processors(tuple(range(8)), (0, 2, 4, 6), quota)
    monkeypatch.setattr(placement, "find_processors", lambda: found)
    assert place_threads(None, None) == (threads, ())
    assert split_cores(None) == split


def test_a_draft_beside_named_cores_gets_a_physical_core_if_one_is_left(monkeypatch):
    monkeypatch.setattr(placement, "find_processors", lambda: Processors(tuple(range(4)), (0, 2), None))
    assert split_cores((0, 1)) == ((0, 1), (2,))
    assert split_cores((0, 2)) == ((0, 2), (3,))
    assert split_cores((0, 1, 2, 3)) == ((0, 1, 2, 3), ())


def test_this_machine():
    found = placement.find_processors()
    assert found.available == tuple(_native.available_cores())
    assert set(found.cores) <= set(found.physical) <= set(found.available)
    assert found.cores


def test_where_the_system_names_no_cores_all_can_be_named(monkeypatch):
    """As on macOS, which pins no threads."""
    monkeypatch.setattr(_native, "available_cores", list)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert place_threads(None, (0, 2)) == (2, (0, 2))
    assert split_cores(None) == ((0, 1), (2,))
    with pytest.raises(ConfigError, match=r"cores \[3\] cannot be used; this process may use \[0, 1, 2\]"):
        place_threads(None, (3,))


def test_kernels_are_the_best_unless_others_are_named(monkeypatch):
    monkeypatch.delenv("SONORAN_KERNELS", raising=False)
    assert placement.default_kernels() == _native.best_instruction_set()
    monkeypatch.setenv("SONORAN_KERNELS", "portable")
    assert placement.default_kernels() == "portable"
    monkeypatch.setenv("SONORAN_KERNELS", "portible")
    with pytest.raises(ConfigError, match="which this processor lacks; did you mean 'portable'"):
        placement.default_kernels()


def test_loading_uses_the_other_cores_of_one_node_only(tmp_path, monkeypatch):
    monkeypatch.setattr(
        placement, "find_processors", lambda sys: Processors((0, 1, 2, 3), (0, 1, 2, 3), None)
    )
    assert placement.loading_threads((3,), tmp_path) == 4
    assert placement.loading_threads((0, 1, 2, 3), tmp_path) == 0
    assert placement.loading_threads((), tmp_path) == 0
    for node in ("node0", "node1"):
        (tmp_path / "devices/system/node" / node).mkdir(parents=True)
    assert placement.loading_threads((3,), tmp_path) == 0
