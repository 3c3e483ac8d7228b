"""Passes on devices, what they cost, and predictions beside published systems."""

import pytest

from sonoran.errors import PlanError
from sonoran.planning.scaling.check import check_pairs
from sonoran.planning.scaling.deployment import deployments
from sonoran.planning.scaling.devices import DeviceCost, depth, devices, find_device
from sonoran.planning.scaling.models import find_model, known_models
from sonoran.planning.scaling.planning import plan
from sonoran.planning.scaling.rates import SsdSettings

H100 = find_device("h100")
PASSES = [
    ("Llama-3.1/70B", 4, 15.0),
    ("Qwen3/32B", 4, 10.27),
    ("Llama-3.2/1B", 1, 2.03),
    ("Qwen3/0.6B", 1, 2.54),
]


@pytest.mark.parametrize(("name", "count", "published"), PASSES)
def test_published_passes_within_10_percent(name, count, published):
    size = float(find_model(name).parameters)
    assert float(DeviceCost(H100, count).verify(size, 0)) == pytest.approx(published, rel=0.10)


def test_depth_is_known_or_fitted():
    assert depth(float(find_model("Llama-3.2/1B").parameters)) == 16
    off = [float(depth(m.parameters * 1.000001)) / m.layers for m in known_models()]
    assert sum(abs(ratio - 1) > 0.6 for ratio in off) <= 3
    assert depth([1e8, 1e9, 7e10]) == pytest.approx([13, 23, 68], abs=1)


def test_passes_are_bytes_or_products_and_a_floor():
    size = float(find_model("Llama-3.2/1B").parameters)
    one = float(DeviceCost(H100, draft_bits=16).draft(0, size, 1))
    assert one == pytest.approx(16 * H100.layer_ms + size * 2 / 3350e6)
    assert float(DeviceCost(H100, draft_bits=8).draft(0, size, 3)) < 3 * one
    slow = DeviceCost(find_device("core-avx2"), target_bits=5)
    # Six rows of products take longer there than the weights to come in.
    assert float(slow.verify(size, 5)) > 2 * float(slow.verify(size, 0))
    assert float(slow.verify(size, 5)) == pytest.approx(2 * float(slow.verify(size, 2)), rel=0.02)


def test_published_speeds_lie_in_the_range():
    checks = check_pairs()
    assert len(checks) == 10
    assert all(check.within for check in checks if not check.fitted)
    llama = next(check for check in checks if check.mode == "sd" and "Llama" in check.pair)
    assert llama.predicted == pytest.approx(2.96, rel=0.02) and not llama.fitted


def test_a_draft_device_is_paid_for():
    target, draft = (float(find_model(name).parameters) for name in ("Llama-3.1/70B", "Llama-3.2/1B"))
    ar, sd, ssd = deployments(DeviceCost(H100, 4), SsdSettings(0.88), 0.887, target, draft, price=2.0)
    assert (ar.devices, sd.devices, ssd.devices) == (4, 4, 5)
    assert ssd.tokens_per_s_per_device * 5 == pytest.approx(ssd.tokens_per_s)
    # The paper reports 1.26 times SD per GPU.
    assert ssd.tokens_per_s_per_device / sd.tokens_per_s_per_device == pytest.approx(1.26, rel=0.06)
    assert ssd.cost == pytest.approx(1e6 / ssd.tokens_per_s / 3600 * 5 * 2.0)
    assert ssd.energy_kwh == pytest.approx(1e6 / ssd.tokens_per_s / 3600 * 5 * 0.7)
    assert (
        deployments(DeviceCost(find_device("core-avx2")), SsdSettings(), 0.7, 1.5e9, 5e8)[0].energy_kwh
        is None
    )


def test_a_plan_on_devices():
    answer = plan(
        target="Llama-3.1/70B",
        cost=DeviceCost(H100, 4),
        measured={"Llama-3.2/1B": "5.03@6"},
        hit_rate=0.88,
        draws=0,
    )
    best = answer.candidates[0]
    assert answer.cost_unit == "ms" and best.name == "Llama-3.2/1B"
    assert 2.7 < best.speedup_range[0] < best.speedup < best.speedup_range[1] < 3.4
    assert [way.mode for way in answer.deployments] == ["ar", "sd", "ssd"]
    assert "device" in {note.code for note in answer.notes}
    assert "times plain decoding" in answer.sentence and "no measure of time" not in answer.sentence


def test_wrong_devices():
    with pytest.raises(PlanError, match="did you mean 'h100'"):
        find_device("h10")
    with pytest.raises(PlanError, match="tensor parallel devices"):
        DeviceCost(H100, 0)
    with pytest.raises(PlanError, match="needs devices"):
        plan(70e9, price=3.0, draws=0)
    assert all(device.bandwidth > 0 and device.about for device in devices().values())
