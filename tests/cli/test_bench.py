import json
import sys

import pytest
import typer
from typer.testing import CliRunner

from sonoran import _native
from sonoran.cli import bench
from tests.tiny_models import make_gguf

CORE = str(_native.available_cores()[0])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    make_gguf(folder / "tiny.gguf", "qwen2", types="Q8_0")
    make_gguf(folder / "draft.gguf", "qwen2", types="Q8_0", seed=1)
    rows = [{"task_id": f"HumanEval/{i}", "prompt": f"def f{i}(x):\n"} for i in range(3)]
    (folder / "humaneval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def run(*arguments):
    app = typer.Typer()
    bench.register(app)
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def forward(folder, *arguments):
    return run(
        "forward",
        "--model",
        folder / "tiny.gguf",
        "--context",
        20,
        "--repeats",
        2,
        "--cores",
        CORE,
        *arguments,
    )


def decode(folder, *arguments):
    return run(
        "decode", "--model", folder / "tiny.gguf", "--draft", folder / "draft.gguf", "--data-dir", folder,
        "--num-prompts", 2, "-n", 6, "--ignore-eos", *arguments,
    )  # fmt: skip


def test_forward_as_json(tiny):
    result = forward(tiny, "--rows", "2,1", "--json")
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    assert [entry["rows"] for entry in answer["results"]] == [1, 2]
    assert set(answer["results"][0]) == {
        "rows", "ms_median", "ms_min", "ms_max", "spread", "relative_to_fewest_rows", "bytes_read",
        "gb_per_s", "share_of_read_loop",
    }  # fmt: skip
    for entry in answer["results"]:
        assert 0 < entry["ms_min"] <= entry["ms_median"] <= entry["ms_max"]
    assert answer["read_gb_per_s"] > 0
    assert answer["prefill_tokens_per_s"] > 0
    assert (answer["threads"], answer["cores"], answer["context"]) == (1, [int(CORE)], 20)
    assert answer["load"]["file_bytes"] > 0
    assert answer["processor"]["kernels"] == answer["instruction_set"]


def test_forward_as_tables(tiny):
    result = forward(tiny, "--rows", "1,3", "--quantize", "int4")
    assert result.exit_code == 0, result.stderr
    assert "sonoran, 1 thread" in result.stdout
    assert "tokens/s, read loop" in result.stdout
    assert "tiny.gguf, context 20, 2 repeats" in result.stderr.replace("\n", "")


@pytest.mark.skipif(len(_native.available_cores()) < 2, reason="needs two cores")
def test_forward_compares_thread_counts(tiny):
    cores = ",".join(map(str, _native.available_cores()[:2]))
    result = forward(tiny, "--rows", "1", "--threads", "1,2", "--cores", cores, "--json")
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    [other] = answer["others"]
    assert (answer["threads"], other["threads"]) == (1, 2)
    ours, theirs = answer["results"][0]["ms_median"], other["results"][0]["ms_median"]
    assert other["main_to_this"]["ms"]["1"] == pytest.approx(ours / theirs)


def test_decode_as_json(tiny):
    result = decode(tiny, "--modes", "ar,sd,ngram", "--cores", CORE, "-k", 2, "--json")
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    assert list(answer["modes"]) == ["ar", "sd", "ngram"]
    assert answer["identical_texts"]
    assert set(answer["ratios"]) == {"sd/ar", "ngram/ar", "ngram/sd"}
    speeds = {name: mode["tokens_per_s"] for name, mode in answer["modes"].items()}
    assert answer["ratios"]["sd/ar"] == pytest.approx(speeds["sd"] / speeds["ar"])
    assert answer["hit_rate"] is None
    assert answer["modes"]["ar"]["num_tokens"] == 12
    assert answer["modes"]["ar"]["acceptance_rate"] is None
    assert answer["modes"]["sd"]["mean_acceptance_length"] >= 1
    assert (answer["dataset"], answer["num_prompts"], answer["max_tokens"]) == ("humaneval", 2, 6)


@pytest.mark.skipif(len(_native.available_cores()) < 2, reason="needs two cores")
def test_decode_with_ssd_as_json(tiny):
    other = _native.available_cores()[1]
    result = decode(
        tiny, "--modes", "ar,sd,ssd", "--cores", CORE, "--draft-cores", other, "--json",
        "--fan-out", "uniform", "--ssd-config", '{"budget": 6}', "--least-chance", "0.2",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["identical_texts"]
    assert set(answer["ratios"]) == {"sd/ar", "ssd/ar", "ssd/sd"}
    assert 0.0 <= answer["hit_rate"] == answer["modes"]["ssd"]["hit_rate"] <= 1.0
    assert answer["modes"]["sd"]["hit_rate"] is None
    assert answer["modes"]["ssd"]["acceptance_rate"] is not None


def test_own_prompts_and_a_sweep_in_one_table(tiny):
    file = tiny / "mine.txt"
    file.write_text("hello world\nhello\n\nhello\n")
    result = run(
        "decode", "--model", tiny / "tiny.gguf", "--draft", tiny / "draft.gguf", "--prompts", file, "-n", 6,
        "--ignore-eos", "--modes", "ar,sd,ngram", "-k", "2,4", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    assert list(answer["modes"]) == ["ar", "sd -k 2", "sd -k 4", "ngram -k 2", "ngram -k 4"]
    assert (answer["dataset"], answer["num_prompts"]) == (str(file), 2)
    assert answer["identical_texts"] and answer["verdict"].startswith("Fastest here: ")
    assert answer["num_speculative_tokens"] == [2, 4]


def test_a_sweep_has_every_combination_that_has_a_meaning():
    found = bench.sweep(["ar", "sd", "ssd"], {"num_speculative_tokens": [2, 4], "budget": [4, "auto"]})
    assert [label for label, _ in found["sd"]] == ["-k 2", "-k 4"]
    assert [label for label, _ in found["ssd"]] == [
        "-k 2 --budget 4", "-k 2 --budget auto", "-k 4 --budget 4", "-k 4 --budget auto",
    ]  # fmt: skip
    assert found["ssd"][1][1] == {"num_speculative_tokens": 2, "budget": "auto"}
    assert bench.sweep(["sd"], {}) == {"sd": [("", {})]}


def test_what_to_type_is_a_command_that_can_be_typed():
    assert bench.what_to_type("ssd -k 2", (0,), (1,)) == (
        "sonoran generate --mode ssd -k 2 --cores 0 --draft-cores 1"
    )
    assert bench.what_to_type("ar-all", (0,), (1,)) == "sonoran generate --mode ar --cores 0,1"
    assert bench.what_to_type("sd", None, None) == "sonoran generate --mode sd"


def test_decode_as_a_table(tiny):
    result = decode(tiny, "--modes", "ar,sd", "--temperature", 1.0)
    assert result.exit_code == 0, result.stderr
    assert "x ar" in result.stdout
    assert "sd/ar:" in result.stdout
    assert "texts identical in all modes" in result.stdout
    assert "Fastest here: " in result.stdout and "Type: sonoran generate --mode " in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rows", "1,x"), "--rows '1,x': cannot read 'x'"),
        (("--rows", "0"), "rows must be numbers from 1 to 256, got 0"),
        (("--context", "0"), "at least 1 token, got 0"),
        (("--repeats", "0"), "repeats must be at least 1"),
        (("--threads", "1,1"), "--threads names a count twice"),
        (("--cores", "0-"), "cores must look like '0,2-5'"),
        (("--cores", "4000"), "cores [4000] cannot be used"),
        (("--quantize", "int5"), "did you mean 'int8'"),
        (("--peer", "vllm"), "unknown peer 'vllm'"),
        (("--peer-python", sys.executable), "--peer-python without a peer"),
        (("--model", "qwen2.5-coder-1.5b-instrukt"), "did you mean 'qwen2.5-coder-1.5b-instruct'?"),
    ],
)
def test_mistakes_in_forward(tiny, arguments, message):
    result = forward(tiny, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--modes", "ar,,sd"), "write different names"),
        (("--modes", "ar,sdd"), "unknown mode 'sdd'; did you mean 'sd'?"),
        (("--dataset", "gsm"), "unknown data set 'gsm'; did you mean 'gsm8k'?"),
        (("--num-prompts", "9"), "has 3 distinct prompts, fewer than the 9 asked for"),
        (("--sd-config", "{"), "--sd-config: not valid JSON"),
        (("--sd-config", "[1]"), "--sd-config must be a JSON object"),
        (("--peer", "llama.cpp", "--temperature", "1"), "--peer decodes greedily"),
        (("--draft-cores", "4000"), "cores [4000] cannot be used"),
        (("--budget", "3"), "--budget is for ssd, and --modes has none of these"),
        (("--modes", "ssd", "--fan-out", "2,1", "--budget", "3"), "--budget has no effect beside a list"),
        (("--modes", "ssd", "--backup", "drft"), "did you mean 'draft'?"),
        (("--modes", "ssd", "--backup", "draft,drft"), "did you mean 'draft'?"),
        (("--modes", "ssd", "--fan-out", "2,1", "--budget", "3,4"), "--budget has no effect beside a list"),
        (("-k", "2,2"), "--num-speculative-tokens '2,2': write different names"),
        (("-k", "x"), "num_speculative_tokens must be a whole number"),
        (("--modes", "ar", "-k", "2"), "--num-speculative-tokens is for modes that draft"),
        (("--prompts", "nowhere.txt"), "--data-dir has no effect beside --prompts"),
    ],
)
def test_mistakes_in_decode(tiny, arguments, message):
    result = decode(tiny, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr.replace("\n", " ")


@pytest.mark.parametrize("name", ["forward", "decode"])
def test_help_has_examples(name):
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"sonoran bench {name}" in result.stdout
    assert "--json" in result.stdout


def test_decode_writes_a_report(tiny, tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "new" / "out"
    result = decode(
        tiny, "--modes", "ar,sd,ngram", "--batch", "2,1", "--cores", CORE, "--report", out, "--json"
    )
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    assert [(e["mode"], e["batch"]) for e in answer["throughput"]] == [
        (mode, batch) for batch in (1, 2) for mode in ("ar", "sd", "ngram")
    ]
    assert all(e["tokens_per_s"] > 0 for e in answer["throughput"])
    assert json.loads((out / "results.json").read_text())["modes"].keys() == {"ar", "sd", "ngram"}
    assert "<svg" in (out / "report.html").read_text() and (out / "report.md").is_file()
    refused = decode(tiny, "--batch", "3")
    assert refused.exit_code == 2 and "--batch 3 needs as many prompts" in refused.stderr.replace("\n", " ")


def test_options_go_to_the_modes_that_have_a_meaning_for_them():
    given = {"least_chance": 0.2, "fan_out": "2,1", "prompt_lookup_max": 3, "quantize": "int4"}
    assert bench.options_by_mode(["ar", "sd", "ssd", "ngram", "auto"], given) == {
        "sd": {"least_chance": 0.2, "quantize": "int4"},
        "ssd": {"least_chance": 0.2, "quantize": "int4", "fan_out": "explicit", "fan_out_primary": (2, 1)},
        "ngram": {"prompt_lookup_max": 3},
        "auto": {"quantize": "int4"},
    }
