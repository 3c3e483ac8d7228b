from pathlib import Path

import pytest

from sonoran.errors import ConfigError, DownloadError, ModelError
from sonoran.models import source
from sonoran.models.cache import cache_dir, model_path
from sonoran.models.registry import MODELS
from sonoran.models.source import open_model, resolve_model
from tests.models.fakes import CONTENT, ENTRY
from tests.tiny_models import make_gguf, make_hf_dir


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setitem(source.MODELS, ENTRY.name, ENTRY)


def test_names_are_found_in_the_cache(tmp_path, known):
    path = model_path(ENTRY, tmp_path)
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    assert resolve_model("fake-model", cache=tmp_path) == path
    assert resolve_model("Fake-Model", cache=tmp_path, download=False) == path


def test_names_are_pulled_with_progress(tmp_path, known, monkeypatch):
    pulled = []

    def pull(entry, *, cache, progress):
        pulled.append((entry.name, cache))
        progress("event")
        return cache / "there"

    monkeypatch.setattr(source, "pull", pull)
    events = []
    assert resolve_model("fake-model", cache=tmp_path, progress=events.append) == tmp_path / "there"
    assert (pulled, events) == ([("fake-model", tmp_path)], ["event"])


def test_without_download_a_missing_model_names_the_command(tmp_path, known):
    with pytest.raises(DownloadError, match="not in the cache; get it with: sonoran models pull fake-model"):
        resolve_model("fake-model", cache=tmp_path, download=False)


def test_files_and_folders(tmp_path, monkeypatch):
    make_gguf(tmp_path / "a.gguf", num_layers=1)
    make_hf_dir(tmp_path / "b", num_layers=1)
    assert open_model(resolve_model(tmp_path / "a.gguf")).format == "gguf"
    assert open_model(resolve_model(str(tmp_path / "b"))).format == "safetensors"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("a.gguf") == Path("a.gguf")
    assert resolve_model("b") == Path("b")
    assert resolve_model("~/a.gguf") == tmp_path / "a.gguf"


def test_unknown_names_and_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_gguf(tmp_path / "model.gguf", num_layers=1)
    with pytest.raises(
        ModelError, match=r"unknown model 'smollm2-135m'.*did you mean 'smollm2-135m-instruct'\?"
    ):
        resolve_model("smollm2-135m")
    with pytest.raises(ModelError, match="valid: .*" + next(iter(MODELS))):
        resolve_model("xyz")
    with pytest.raises(
        ModelError, match=r"no such file or folder: .*modle\.gguf; did you mean 'model\.gguf'\?"
    ):
        resolve_model(tmp_path / "modle.gguf")
    with pytest.raises(
        ModelError, match=r"no such file or folder: none/model\.gguf; the folder none is not there"
    ):
        resolve_model("none/model.gguf")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ModelError, match=r"folder: a folder without config\.json is not a model$"):
        resolve_model("folder")
    (tmp_path / "model.gguf").rename(tmp_path / "folder" / "model.gguf")
    with pytest.raises(ModelError, match=r"pass one of its files: model\.gguf"):
        resolve_model("folder")


def test_paths_that_cannot_be_followed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("link.gguf").symlink_to("gone/model.gguf")
    with pytest.raises(ModelError, match=r"link\.gguf is a link to gone/model\.gguf, which is not there$"):
        resolve_model("link.gguf")
    for text, match in (
        ("~nosuchuser/x.gguf", "not as expected .*determine home"),
        ("a\0b.gguf", "no such file"),
        ("x" * 5000 + "/y", "cannot be read|no such file"),
    ):
        with pytest.raises(ModelError, match=match) as caught:
            resolve_model(text)
        assert str(caught.value).isprintable()
    for spec in (None, 5, ["x"]):
        with pytest.raises(ConfigError, match="a model is a name or a path"):
            resolve_model(spec)


def test_short_names_are_explained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"did you mean 'qwen2\.5-coder-0\.5b-instruct'\?"):
        resolve_model("0.5b", cache=tmp_path)
    with pytest.raises(
        ModelError, match=r"it stands for several: qwen2\.5-coder-1\.5b.*, qwen2\.5-coder-0\.5b"
    ):
        resolve_model("qwen", cache=tmp_path)
    for name in ("smollm", "smolm2"):
        with pytest.raises(ModelError, match=r"did you mean 'smollm2-135m-instruct'\?"):
            resolve_model(name, cache=tmp_path)


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    for name in ("SONORAN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(ConfigError, match=r"Could not determine home directory\. Set SONORAN_CACHE"):
        cache_dir()


def test_a_lone_safetensors_file_is_explained(tmp_path):
    make_hf_dir(tmp_path / "b", num_layers=1)
    with pytest.raises(ModelError, match="pass the folder"):
        open_model(tmp_path / "b" / "model.safetensors")


@pytest.mark.real
def test_the_default_models_open():
    for entry in MODELS.values():
        model = open_model(resolve_model(entry.name, download=False))
        assert model.nbytes < entry.size
        assert model.metadata["tokenizer.ggml.model"] == "gpt2"
        assert len(model.metadata["tokenizer.ggml.tokens"]) == model.config.vocab_size
