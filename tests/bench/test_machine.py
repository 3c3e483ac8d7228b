import mmap

import pytest

from sonoran.bench.machine import (
    describe_huge_pages,
    describe_memory,
    describe_processor,
    measure_bandwidth,
    package_versions,
    resident_bytes,
)


@pytest.fixture
def system(tmp_path):
    """A /proc and a /sys folder with known values."""
    (tmp_path / "meminfo").write_text(
        "MemTotal:       1000 kB\nMemAvailable:    600 kB\nHugepagesize:    2048 kB\n"
    )
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    (tmp_path / "defrag").write_text("always defer [never]\n")
    return tmp_path


def test_memory_and_huge_pages(system):
    assert describe_memory(system) == {"total_bytes": 1_024_000, "available_bytes": 614_400}
    assert describe_huge_pages(system, system) == {
        "transparent": "madvise", "defrag": "never", "size_bytes": 2 << 20, "used_for_weights": True,
    }  # fmt: skip
    (system / "enabled").write_text("always madvise [never]\n")
    assert describe_huge_pages(system, system)["used_for_weights"] is False


def test_a_system_that_says_nothing(tmp_path):
    assert describe_memory(tmp_path) == {"total_bytes": None, "available_bytes": None}
    pages = describe_huge_pages(tmp_path, tmp_path)
    assert pages["transparent"] is None
    assert pages["used_for_weights"] is None
    assert resident_bytes(tmp_path) > 0


def test_processor_and_packages():
    processor = describe_processor()
    assert processor["kernels"] in processor["instruction_sets"]
    assert "portable" in processor["instruction_sets"]
    versions = package_versions()
    assert versions["numpy"]
    assert versions["sonoran"]


def test_resident_memory_grows_with_what_is_held():
    # Fresh pages: an allocator may hand out memory that an earlier test left resident.
    with mmap.mmap(-1, 64 << 20) as held:
        before = resident_bytes()
        held.write(b"x" * len(held))
        assert resident_bytes() - before > 32 << 20


def test_bandwidth_is_measured_on_the_cores_given():
    core = describe_processor()["available_cores"][0]
    rates = measure_bandwidth([core])
    assert rates["one_core_gb_per_s"] > 0
    assert rates["all_cores_gb_per_s"] > 0
