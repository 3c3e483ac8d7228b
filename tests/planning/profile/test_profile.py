import dataclasses
import json

import pytest

from sonoran.errors import PlanError
from sonoran.planning.profile.placement import Workload, curve_at, nearest_acceptance, placements
from sonoran.planning.profile.profile import (
    VERSION,
    Profile,
    Timing,
)
from sonoran.planning.profile.store import load_profile, load_profiles, profile_path, save_profile
from tests.planning.profile.made_up import acceptance, curve, key, profile


def test_survives_json():
    one = profile()
    assert Profile.from_json(one.to_json()) == one


def test_the_digest_depends_on_everything_in_the_key():
    one = key()
    others = [
        key((0,)),
        key(draft=None),
        dataclasses.replace(one, target=dataclasses.replace(one.target, quantize="int8")),
        dataclasses.replace(one, target=dataclasses.replace(one.target, file_bytes=1001)),
        dataclasses.replace(one, machine=dataclasses.replace(one.machine, kernels="avx2")),
    ]
    assert len({one.digest, *(other.digest for other in others)}) == 1 + len(others)
    assert key().digest == one.digest


def changed(**fields):
    document = json.loads(profile().to_json())
    document.update(fields)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "not a profile"),
        (b"{}", "missing required field `key`"),
        (changed(version=VERSION + 1), f"version {VERSION + 1}"),
        (changed(passes=[]), "passes of the target"),
        (changed(created=3), r"\$\.created"),
        (changed(message={"ms": -1.0}), "ms >= 0"),
    ],
)
def test_refuses(data, message):
    with pytest.raises(PlanError, match=message):
        Profile.from_json(data)


def test_a_noisy_machine_is_said_to_be_noisy():
    assert not profile(spread=0.02).noisy
    noisy = profile(spread=0.4)
    assert noisy.noisy
    assert noisy.verdict.startswith("too noisy: the same pass varies by 40%")


def test_a_short_pass_that_took_long_is_noise():
    one = profile()
    [first, *others] = one.passes
    slow = dataclasses.replace(first.points[0], time=Timing(500.0, 0.01, 9))
    odd = dataclasses.replace(first, points=(slow, *first.points[1:]))
    assert odd.curve(1) == first.points[1].time.ms
    assert odd.inversion == pytest.approx(500.0 / 41.5 - 1.0)
    disturbed = dataclasses.replace(one, passes=(odd, *others))
    assert disturbed.noisy and not one.noisy
    assert "fewer rows took 12.0x" in disturbed.verdict


def test_store_keeps_one_file_per_key(tmp_path):
    one = profile()
    assert load_profile(one.key, tmp_path) is None
    path = save_profile(one, tmp_path)
    assert path == profile_path(one.key, tmp_path)
    newer = dataclasses.replace(one, created="2026-02-01T00:00:00+00:00")
    save_profile(newer, tmp_path)
    other = dataclasses.replace(one, key=key((0,)))
    save_profile(other, tmp_path)
    assert load_profile(one.key, tmp_path) == newer
    assert load_profiles(tmp_path) == [newer, other]
    assert len(list((tmp_path / "profiles").iterdir())) == 2


def test_store_names_a_damaged_file(tmp_path):
    path = save_profile(profile(), tmp_path)
    path.write_text("{")
    with pytest.raises(PlanError, match="calibrate again"):
        load_profile(key(), tmp_path)
    assert load_profiles(tmp_path) == []


def test_store_reports_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "profiles").write_text("in the way")
    with pytest.raises(PlanError, match="cannot be written"):
        save_profile(profile(), tmp_path)


def test_placements_follow_from_what_was_measured():
    found = {str(p): p.kind for p in placements(profile())}
    assert [p.kind for p in placements(profile())].count("split") == 1
    assert found["0 | 1"] == "split"
    assert {str(p) for p in placements(profile()) if p.kind == "shared"} == {"0,1", "0", "1"}
    assert {p.kind for p in placements(profile(one_core=True))} == {"alone", "shared"}


def test_curves_between_and_beyond_contexts():
    passes = profile(target=(40.0, 0.0)).passes

    def ms(context):
        return curve_at(passes, "target", (0,), None, context)(1)

    assert ms(10) == ms(256) == 40.0
    assert ms((256 + 2048) // 2) == pytest.approx(44.0)
    assert ms(2048) == 48.0
    assert ms(2048 + 1792) == pytest.approx(56.0)
    # A longer context that seemed faster does not get faster for ever.
    odd = (curve("target", (0,), 40.0, 0.0), curve("target", (0,), 30.0, 0.0, context=512))
    assert curve_at(odd, "target", (0,), None, 4096)(1) == 30.0
    with pytest.raises(PlanError, match="no passes of the draft on cores 7 beside 1"):
        curve_at(passes, "draft", (7,), (1,), 256)


def test_the_nearest_acceptance():
    measured = (
        acceptance(),
        acceptance(temperature=1.0),
        acceptance(temperature=1.0, verification="rejection"),
    )
    one = profile(acceptances=measured)
    assert nearest_acceptance(one, Workload(temperature=0.0, verification="rejection")) is measured[0]
    assert nearest_acceptance(one, Workload(temperature=0.7)) is measured[1]
    assert nearest_acceptance(one, Workload(temperature=0.7, verification="rejection")) is measured[2]
    assert nearest_acceptance(profile(acceptances=()), Workload()) is None


@pytest.mark.parametrize("options", [{"batch": 0}, {"context": 0}, {"temperature": -1.0}])
def test_a_workload_is_checked(options):
    with pytest.raises(PlanError, match="a workload needs"):
        Workload(**options)


def test_a_timing_is_checked():
    with pytest.raises(PlanError, match="ms >= 0"):
        Timing(float("nan"))
