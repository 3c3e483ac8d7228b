"""Load on a server over toy models: what is counted, and that both variants give the same texts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from sonoran.bench.serve import Load, LoadError, Target, ask, measure_load, measure_overhead, percentiles
from sonoran.cli.main import app
from sonoran.errors import ConfigError
from sonoran.llm import LLM
from tests.engine.helpers import engine, model_drafter
from tests.server.running import NAME, Running, running
from tests.tiny_models import make_gguf
from tests.toy_tokenizer import ToyTokenizer

PARAMS = {"max_tokens": 12, "temperature": 1.0, "ignore_eos": True}


@pytest.fixture
def server() -> Iterator[Running]:
    core = engine(drafter=model_drafter(num_blocks=512), max_num_seqs=4)
    with LLM.from_core(core, ToyTokenizer()) as llm, running(llm) as server:
        server.llm = llm
        yield server


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentiles([]) == {}
    assert percentiles([3.0]) == {"p50": 3.0, "p90": 3.0, "p99": 3.0}
    assert percentiles([float(i) for i in range(1, 101)]) == {"p50": 50.0, "p90": 90.0, "p99": 99.0}


def test_every_token_of_every_client_is_counted(server: Running) -> None:
    load = Load(["abc", [1, 2, 3], "xyz"], PARAMS, 3)
    levels = measure_load(Target(server.url, NAME), load, [1, 5])["levels"]
    assert [level["clients"] for level in levels] == [1, 5]
    for level in levels:
        assert level["same_texts"]
        for variant in ("speculative", "ar"):
            row = level[variant]
            assert row["requests"] == 3 * level["clients"] and row["tokens"] == 12 * row["requests"]
            assert row["ttft_s"]["p50"] <= row["ttft_s"]["p99"] <= row["e2e_s"]["p99"]
    with pytest.raises(ConfigError, match="at least 1"):
        measure_load(Target(server.url, NAME), load, [0])


def test_what_http_adds_is_measured_beside_the_engine(server: Running) -> None:
    found = measure_overhead(server.llm, Target(server.url, NAME), Load(["abc", "de"], PARAMS, 1), 3)
    assert found["speed_ratio"] > 0 and found["tokens_per_s"].keys() == {"direct", "http"}


def test_errors_say_what_the_server_said(server: Running) -> None:
    with pytest.raises(LoadError, match="does not exist"):
        asyncio.run(ask(Target(server.url, "other"), {"prompt": "a"}))
    with pytest.raises(LoadError, match="no answer"):
        asyncio.run(ask(Target("http://127.0.0.1:1", NAME), {"prompt": "a"}))


def test_the_command_starts_a_server_of_its_own(tmp_path) -> None:
    make_gguf(tmp_path / "tiny.gguf", "qwen2", seed=1)
    options = [
        "--clients",
        "1,2",
        "--requests",
        "1",
        "--max-tokens",
        "4",
        "--repeats",
        "1",
        "--max-model-len",
        "256",
    ]
    command = ["bench", "serve", "--model", str(tmp_path / "tiny.gguf"), "--mode", "ngram", *options]
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert [level["speculative"]["tokens"] for level in result["levels"]] == [4, 8]
    assert "over HTTP" in CliRunner().invoke(app, command).stdout


def test_options_without_effect_are_refused() -> None:
    for more, text in (
        ([], "--served-model-name"),
        (["--served-model-name", "x", "--draft", "auto"], "no effect"),
    ):
        done = CliRunner().invoke(app, ["bench", "serve", "--url", "http://127.0.0.1:1", *more])
        assert done.exit_code == 2 and text in done.stderr
