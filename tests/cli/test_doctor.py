import json
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from sonoran.backends.placement import Processors
from sonoran.cli import doctor
from sonoran.models import registry
from sonoran.models.cache import model_path
from tests.models.fakes import ENTRY
from tests.tiny_models import make_gguf


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, and a machine that need not be measured."""
    monkeypatch.setenv("SONORAN_CACHE", str(tmp_path))
    monkeypatch.setattr(
        doctor, "measure_bandwidth", lambda: {"one_core_gb_per_s": 10.0, "all_cores_gb_per_s": 19.0}
    )
    monkeypatch.setattr(doctor, "measure_products", lambda: 80e9)
    monkeypatch.setattr(doctor, "find_processors", lambda: Processors((0, 1), (0, 1), None))
    return tmp_path


@pytest.fixture
def tiny(cache, monkeypatch):
    """A tiny model as a known one, in the cache."""
    path = model_path(ENTRY, cache)
    path.parent.mkdir(parents=True)
    make_gguf(path, "qwen2", types="Q8_0")
    entry = replace(ENTRY, name="tiny", size=path.stat().st_size)
    monkeypatch.setitem(registry.MODELS, "tiny", entry)
    return path


def run(*arguments):
    app = typer.Typer()
    doctor.register(app)
    app.callback()(lambda: None)
    return CliRunner().invoke(app, ["doctor", *arguments])


def test_without_models_it_says_what_to_run():
    result = run()
    assert result.exit_code == 0
    assert "sonoran models pull" in result.stdout
    assert "everything works" not in result.stdout
    assert "10.0 GB/s on one core, 19.0 GB/s on all" in result.stdout
    report = json.loads(run("--json").stdout)
    assert report["works"] is None
    assert report["check"] is None
    assert not any(model["cached"] for model in report["cache"]["models"])


def test_a_cached_model_is_tried(tiny):
    result = run("--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["works"] is True
    assert report["problems"] == []
    assert report["check"]["model"] == "tiny"
    assert report["check"]["load_s"] > 0
    [found] = [model for model in report["cache"]["models"] if model["name"] == "tiny"]
    assert found["path"] == str(tiny)
    assert set(report) == {
        "system", "processor", "placement", "memory", "huge_pages", "bandwidth", "multiply_adds_per_s",
        "rows_at_the_cost_of_one", "packages", "cache", "check", "problems", "advice", "works",
    }  # fmt: skip
    assert "everything works" in run().stdout


def test_a_damaged_model_gives_exit_code_1(tiny):
    content = tiny.read_bytes()
    tiny.write_bytes(b"\0" * len(content))
    result = run("--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["works"] is False
    assert report["problems"][0].startswith("tiny does not work: ")
    text = run()
    assert text.exit_code == 1
    assert "problem: tiny does not work" in text.stdout


def test_a_missing_package_is_a_problem(monkeypatch):
    monkeypatch.setattr(doctor, "package_versions", lambda: {"python": "3", "numpy": None})
    result = run()
    assert result.exit_code == 1
    assert "problem: the package numpy is not installed" in result.stdout
    assert "numpy MISSING" in result.stdout


def test_advice_about_huge_pages_rows_and_quota(monkeypatch):
    pages = {"transparent": "never", "defrag": None, "size_bytes": None, "used_for_weights": False}
    monkeypatch.setattr(doctor, "describe_huge_pages", lambda: pages)
    processor = doctor.describe_processor() | {"kernels": "avx2"}
    monkeypatch.setattr(doctor, "describe_processor", lambda: processor)
    monkeypatch.setattr(doctor, "measure_products", lambda: 32e9)
    monkeypatch.setattr(doctor, "find_processors", lambda: Processors((0, 1, 2, 3), (0, 2), 1.5))
    report = json.loads(run("--json").stdout)
    assert report["rows_at_the_cost_of_one"] == pytest.approx(32e9 * 4.5 / 8 / 10e9)
    assert report["placement"] == {"physical_cores": [0, 2], "quota": 1.5, "threads": 1}
    assert "1 by default: 2 physical, CPU quota 1.5" in run().stdout
    tips = report["advice"]
    assert any("transparent huge pages are off" in tip for tip in tips)
    assert any("with avx2 about 1.8 rows cost one" in tip for tip in tips)
    assert any("the CPU quota leaves one thread" in tip for tip in tips)


def test_measuring_can_be_left_out():
    report = json.loads(run("--json", "--no-measure").stdout)
    assert report["bandwidth"] is report["rows_at_the_cost_of_one"] is None
    assert "for the price of one" not in run("--no-measure").stdout


def test_help_has_examples():
    result = run("--help")
    assert "sonoran doctor --json" in result.stdout
