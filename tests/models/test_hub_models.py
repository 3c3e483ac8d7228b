"""Models of a hub on this machine: fetched, resumed, checked, refused, found again without it, removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from sonoran.errors import DownloadError, ModelError, SonoranError
from sonoran.models.download import PullEvent
from sonoran.models.hub_models import (
    cached_models,
    find_cached,
    pull_from_hub,
    remove_from_cache,
    repository_folder,
    unfinished,
)
from sonoran.models.repository import HubName, parse_hub_name
from sonoran.models.source import open_model, resolve_model
from tests.models.fake_hub import FakeHub, serve_hub
from tests.tiny_models import make_gguf, make_hf_dir

ROOT = Path(__file__).parents[2]
REPOSITORY = "someone/Tiny-GGUF"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    make_gguf(folder / "q8.gguf", "qwen2", "Q8_0", num_layers=1)
    make_gguf(folder / "q4.gguf", "qwen2", "Q4_0", num_layers=1)
    make_hf_dir(folder / "hf", "qwen2", num_layers=1)
    return folder


@pytest.fixture
def hub(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serve_hub() as hub:
        files = {
            "tiny-Q8_0.gguf": tiny / "q8.gguf",
            "tiny-q4_0.gguf": tiny / "q4.gguf",
            "README.md": b"# Tiny",
        }
        hub.add(REPOSITORY, **files)
        hub.add(
            "someone/Tiny", **{file.name: file for file in (tiny / "hf").iterdir()}, **{"README.md": b"#"}
        )
        hub.add("someone/Tiny", **{"pytorch_model.bin": b"pickle", "original/model.safetensors": b"other"})
        # The client's own address of the hub, for what takes none.
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.endpoint)
        template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield hub


def pull(name: str, cache: Path, hub: FakeHub, events: list[PullEvent] | None = None) -> Path:
    parsed = parse_hub_name(name)
    assert parsed is not None
    report = None if events is None else events.append
    return pull_from_hub(parsed, cache=cache, progress=report, endpoint=hub.endpoint).path


def test_the_preferred_quantisation_is_fetched_named_and_found_again(tmp_path: Path, hub: FakeHub) -> None:
    events: list[PullEvent] = []
    path = pull(REPOSITORY, tmp_path, hub, events)
    assert path.name == "tiny-q4_0.gguf"
    assert open_model(path).config.architecture == "qwen2"
    assert hub.fetched() == {"tiny-q4_0.gguf"}
    chosen = next(event for event in events if event.stage == "chosen")
    assert chosen.detail.startswith("Q4_0, 0.00 GB: the first of Q4_K_M > Q4_0")
    assert chosen.detail.endswith("also there: Q8_0")
    assert events[-1].stage == "done"
    assert events[-1].done == events[-1].total == path.stat().st_size
    hub.requests.clear()
    hub.status = 500
    for name in (REPOSITORY, f"{REPOSITORY}:q4_0", f"{REPOSITORY}:tiny-q4_0.gguf"):
        assert pull(name, tmp_path, hub) == path
        assert resolve_model(name, cache=tmp_path, download=False) == path
    assert hub.requests == []


def test_without_choice_the_preferred_of_what_is_cached_is_taken(tmp_path: Path, hub: FakeHub) -> None:
    other = pull(f"{REPOSITORY}:Q8_0", tmp_path, hub)
    assert pull(REPOSITORY, tmp_path, hub) == other
    preferred = pull(f"{REPOSITORY}:Q4_0", tmp_path, hub)
    assert pull(REPOSITORY, tmp_path, hub) == preferred
    assert [str(model.name) for model in cached_models(tmp_path)] == [
        f"{REPOSITORY}:Q8_0",
        f"{REPOSITORY}:Q4_0",
    ]


def test_of_safetensors_a_folder_is_fetched(tmp_path: Path, hub: FakeHub) -> None:
    path = pull("someone/Tiny", tmp_path, hub)
    assert open_model(path).format == "safetensors"
    assert not (path / "pytorch_model.bin").exists()
    assert "README.md" not in hub.fetched()
    assert resolve_model("someone/Tiny", cache=tmp_path, download=False) == path


def test_a_folder_that_does_not_load_is_refused_before_its_weights_are_fetched(
    tmp_path: Path, hub: FakeHub
) -> None:
    hub.repositories["someone/Tiny"]["config.json"] = json.dumps(
        {"architectures": ["OtherForCausalLM"]}
    ).encode()
    with pytest.raises(ModelError, match="'OtherForCausalLM' is not supported"):
        pull("someone/Tiny", tmp_path, hub)
    assert hub.fetched() == {"config.json"}


def test_an_architecture_that_the_hub_knows_is_refused_before_anything_is_fetched(
    tmp_path: Path, hub: FakeHub
) -> None:
    hub.facts[REPOSITORY] = {"gguf": {"architecture": "mamba", "total": 5}}
    with pytest.raises(
        ModelError, match=r"someone/Tiny-GGUF: architecture 'mamba' is not supported; supported: llama"
    ):
        pull(REPOSITORY, tmp_path, hub)
    assert hub.fetched() == set()


def test_a_split_model_is_fetched_whole_and_opens(tmp_path: Path, hub: FakeHub, tiny: Path) -> None:
    parts = split_gguf(tiny / "q8.gguf", tmp_path)
    hub.add("someone/Split", **{f"Q8_0/{part.name}": part for part in parts})
    path = pull("someone/Split", tmp_path / "cache", hub)
    assert path.name == parts[0].name
    assert len(open_model(path).tensors) == len(open_model(tiny / "q8.gguf").tensors)
    assert len(hub.fetched()) == 2


def split_gguf(path: Path, folder: Path) -> list[Path]:
    """Cut a file in two, as llama.cpp does."""
    import gguf

    reader = gguf.GGUFReader(path)
    half = len(reader.tensors) // 2
    paths = []
    for number, tensors in enumerate((reader.tensors[:half], reader.tensors[half:])):
        paths.append(folder / f"tiny-Q8_0-{number + 1:05d}-of-00002.gguf")
        architecture = reader.fields["general.architecture"].contents()
        writer = gguf.GGUFWriter(paths[-1], architecture)
        for field in reader.fields.values() if number == 0 else ():
            if not field.name.startswith("GGUF.") and field.name != "general.architecture":
                sub = field.types[-1] if len(field.types) > 1 else None
                writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=sub)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def test_a_transfer_that_breaks_off_goes_on_where_it_stopped(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 500)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    content = hub.repositories[REPOSITORY]["tiny-q4_0.gguf"]
    hub.cut = 2000
    try:
        path = pull(REPOSITORY, tmp_path, hub)
    except DownloadError as error:
        assert "the same command goes on from there" in str(error)
        assert cached_models(tmp_path) == []
        hub.cut = None
        path = pull(REPOSITORY, tmp_path, hub)
    assert path.read_bytes() == content
    assert any(r is not None and int(r[6:].split("-")[0]) >= 2000 for _, _, r in hub.requests)


def test_a_wrong_hash_is_refused_and_not_gone_on_from(tmp_path: Path, hub: FakeHub) -> None:
    hub.lies["tiny-q4_0.gguf"] = "0" * 64
    with pytest.raises(
        DownloadError, match=r"tiny-q4_0\.gguf came with another SHA-256 than 0000.*deleted, try again"
    ):
        pull(REPOSITORY, tmp_path, hub)
    assert find_cached(HubName(REPOSITORY), tmp_path) is None
    hub.lies.clear()
    assert pull(REPOSITORY, tmp_path, hub).is_file()


def test_small_files_are_checked_too(tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.models import fake_hub

    monkeypatch.setattr(fake_hub, "git_hash", lambda content: "1" * 40)
    with pytest.raises(DownloadError, match=r"config\.json came with another git hash"):
        pull("someone/Tiny", tmp_path, hub)


def test_a_gated_model_says_what_to_type(tmp_path: Path, hub: FakeHub) -> None:
    hub.gated.add(REPOSITORY)
    with pytest.raises(DownloadError) as caught:
        pull(REPOSITORY, tmp_path, hub)
    text = str(caught.value)
    assert f"{REPOSITORY} is gated" in text
    assert f"Open {hub.endpoint}/{REPOSITORY}" in text
    assert "hf auth login (or set HF_TOKEN=hf_...)" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("someone/Tinny-GGUF", ""),
        ("someone/Tiny-GUFF", "nearest there: someone/Tiny-GGUF, someone/Tiny"),
        ("anyone/Tiny-GGUF", "nearest there: someone/Tiny-GGUF"),
    ],
)
def test_a_repository_that_is_not_there_names_the_nearest(
    tmp_path: Path, hub: FakeHub, name: str, nearest: str
) -> None:
    with pytest.raises(DownloadError, match=f"the hub has no model {name}, or it is private .*{nearest}"):
        pull(name, tmp_path, hub)


def test_an_unknown_quantisation_names_those_that_there_are(tmp_path: Path, hub: FakeHub) -> None:
    with pytest.raises(DownloadError, match=r"has no 'Q4_K_M'; did you mean Q4_0\? It has: Q4_0, Q8_0"):
        pull(f"{REPOSITORY}:Q4_K_M", tmp_path, hub)


@pytest.mark.parametrize("how", ["refused", "silent", "switched off", "broken"])
def test_without_the_hub_one_line_says_what_can_be_used_and_soon(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    import socket

    pull(f"{REPOSITORY}:Q8_0", tmp_path, hub)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        if how == "silent":  # an address that answers nobody
            monkeypatch.setattr(socket, "create_connection", lambda *_: time.sleep(60))
            monkeypatch.setattr("sonoran.models.hub.CONNECT_SECONDS", 0.2)
        elif how == "switched off":
            monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        elif how == "broken":
            hub.status, endpoint = 503, hub.endpoint
        with pytest.raises(DownloadError) as caught:
            pull_from_hub(HubName("org/model"), cache=tmp_path, endpoint=endpoint)
    text = str(caught.value)
    if how == "broken":
        assert "org/model" in text
        assert "503" in text
        return
    assert "org/model: no such file here, and the hub is" in text
    assert (
        f"pass the path of a GGUF file or model folder, or a model that is here (in the cache: {REPOSITORY}:Q8_0"
        in text
    )
    assert len(hub.requests) < 10


def test_a_path_that_is_there_wins_and_a_misspelt_one_keeps_its_error(
    tmp_path: Path, hub: FakeHub, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    local = Path("someone/Tiny-GGUF")
    local.parent.mkdir()
    local.write_bytes((tiny / "q8.gguf").read_bytes())
    assert resolve_model("someone/Tiny-GGUF", cache=tmp_path / "c") == local
    with pytest.raises(
        ModelError, match=r"no such file or folder: someone/Tiny-GUFF; did you mean 'Tiny-GGUF'\?"
    ):
        resolve_model("someone/Tiny-GUFF", cache=tmp_path / "c")
    with pytest.raises(ModelError, match=r"no such file or folder: none/model\.gguf"):
        resolve_model("none/model.gguf", cache=tmp_path / "c")
    assert hub.requests == []
    assert resolve_model("someone/Tiny", cache=tmp_path / "c") == tmp_path / "c" / "hub" / "someone--Tiny"


def test_removing_one_keeps_the_others(tmp_path: Path, hub: FakeHub) -> None:
    gone, kept = (pull(f"{REPOSITORY}:{quant}", tmp_path, hub) for quant in ("Q8_0", "Q4_0"))
    assert remove_from_cache(HubName(REPOSITORY, "Q6_K"), tmp_path) == 0
    assert remove_from_cache(HubName(REPOSITORY, "q8_0"), tmp_path) > 0
    assert (gone.exists(), kept.exists()) == (False, True)
    assert [str(model.name) for model in cached_models(tmp_path)] == [f"{REPOSITORY}:Q4_0"]
    assert remove_from_cache(HubName(REPOSITORY), tmp_path) > 0
    assert not repository_folder(REPOSITORY, tmp_path).exists()
    assert remove_from_cache(HubName(REPOSITORY), tmp_path) == 0


def test_a_file_that_was_changed_is_not_opened(tmp_path: Path, hub: FakeHub) -> None:
    path = pull(REPOSITORY, tmp_path, hub)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(path, ns=(1, 1))
    with pytest.raises(
        DownloadError, match=rf"another one than when .*: sonoran models rm {REPOSITORY}:Q4_0"
    ):
        resolve_model(REPOSITORY, cache=tmp_path)
    remove_from_cache(HubName(REPOSITORY, "Q4_0"), tmp_path)
    assert pull(REPOSITORY, tmp_path, hub).read_bytes() == content


def test_what_is_not_whole_is_no_model(tmp_path: Path, hub: FakeHub) -> None:
    path = pull(REPOSITORY, tmp_path, hub)
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert cached_models(tmp_path) == []
    assert pull(REPOSITORY, tmp_path, hub).read_bytes() == content
    (path.parent / "sonoran.json").write_text("{")
    assert cached_models(tmp_path) == []
    (path.parent / "left.incomplete").write_bytes(bytes(2 << 20))
    assert unfinished(tmp_path)[REPOSITORY] > 2 << 20


def test_names_that_lead_out_of_the_folder_are_left_alone(tmp_path: Path, hub: FakeHub) -> None:
    hub.add("someone/Evil", **{"../../evil-Q8_0.gguf": b"x", "/abs-Q8_0.gguf": b"x", "a\\b-Q8_0.gguf": b"x"})
    with pytest.raises(DownloadError, match="no model that loads"):
        pull("someone/Evil", tmp_path, hub)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SonoranError])
def test_nothing_interrupted_counts_as_a_model(
    tmp_path: Path, hub: FakeHub, error: type[BaseException]
) -> None:
    def stop(event: PullEvent) -> None:
        if event.stage == "checking":
            raise error

    with pytest.raises(error):
        pull_from_hub(HubName(REPOSITORY), cache=tmp_path, progress=stop, endpoint=hub.endpoint)
    assert cached_models(tmp_path) == []
    hub.requests.clear()
    pull(REPOSITORY, tmp_path, hub)
    assert hub.fetched() == set()  # the file is whole: it is only hashed


def run(hub: FakeHub, cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        "HF_ENDPOINT": hub.endpoint,
        "HF_HUB_OFFLINE": "0",
        "SONORAN_CACHE": str(cache),
        "COLUMNS": "200",
    }
    command = [sys.executable, "-c", "from sonoran.cli.main import main; main()", *arguments]
    return subprocess.run(command, env=environment, cwd=cache, capture_output=True, text=True, timeout=120)


def test_the_command_line_from_name_to_text(tmp_path: Path, hub: FakeHub) -> None:
    done = run(
        hub,
        tmp_path,
        "generate",
        "-m",
        f"{REPOSITORY}:q8_0",
        "-d",
        REPOSITORY,
        "--mode",
        "sd",
        "-n",
        "4",
        "hi",
    )
    assert done.returncode == 0, done.stderr
    assert f"{REPOSITORY}:q8_0: Q8_0, 0.00 GB: as asked" in done.stderr
    assert hub.fetched() == {"tiny-Q8_0.gguf"}  # as the draft, what is there will do
    listed = json.loads(run(hub, tmp_path, "models", "list", "--verify", "--json").stdout)["models"]
    (mine,) = [model for model in listed if model["name"] == f"{REPOSITORY}:Q8_0"]
    assert (mine["cached"], mine["verified"]) == (True, True)
    assert run(hub, tmp_path, "models", "path", REPOSITORY).stdout.strip() == mine["path"]
    assert "Q8_0" in run(hub, tmp_path, "models", "list").stdout
    pulled = run(hub, tmp_path, "models", "pull", f"{REPOSITORY}:Q4_0", "--json")
    assert json.loads(pulled.stdout)["models"][0]["name"] == f"{REPOSITORY}:Q4_0"
    freed = json.loads(run(hub, tmp_path, "models", "rm", REPOSITORY, "--json").stdout)["freed"]
    assert freed[REPOSITORY] > 1000
    missing = run(hub, tmp_path, "models", "path", REPOSITORY)
    assert missing.returncode == 2
    assert f"get it with: sonoran models pull {REPOSITORY}" in missing.stderr


def test_nothing_of_the_client_is_imported_before_it_is_needed() -> None:
    code = "import sys, sonoran.models.source, sonoran.cli.models; print('huggingface_hub' in sys.modules)"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "False"
