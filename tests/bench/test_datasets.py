import gzip
import json
import socket
import sys
from types import SimpleNamespace

import pytest

from sonoran.bench.datasets import load_prompts
from sonoran.errors import ConfigError, DownloadError


def write(path, rows):
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def humaneval(count):
    return [
        {"task_id": f"HumanEval/{i}", "prompt": f"def f{i}():\n", "entry_point": f"f{i}"}
        for i in range(count)
    ]


def spec_bench(**counts):
    return [
        {"question_id": f"{category}-{i}", "category": category, "turns": [f"{category} {i}", "and then"]}
        for category, count in counts.items()
        for i in range(count)
    ]


def test_edits_ask_for_a_solution_with_another_name(tmp_path):
    rows = [{**row, "canonical_solution": "    return 1\n"} for row in humaneval(4)]
    write(tmp_path / "humaneval.jsonl", rows)
    text = load_prompts("edits", 4, data_dir=tmp_path)[2].text
    assert "`f2` renamed to `renamed_function`" in text
    assert "```python\ndef f2():\n    return 1\n```" in text
    write(tmp_path / "humaneval.jsonl", humaneval(4))
    with pytest.raises(ConfigError, match="row 1 is not a row of edits"):
        load_prompts("edits", 4, data_dir=tmp_path)


@pytest.mark.parametrize("name", ["humaneval.jsonl", "HumanEval.jsonl", "HumanEval.jsonl.gz"])
def test_humaneval_under_its_names(tmp_path, name):
    write(tmp_path / name, humaneval(4))
    prompts = load_prompts("humaneval", 2, data_dir=tmp_path)
    assert [prompt.id for prompt in prompts] == ["HumanEval/0", "HumanEval/2"]
    assert "def f2():" in prompts[1].text


@pytest.mark.parametrize("name", ["gsm8k.jsonl", "test.jsonl"])
def test_gsm8k_asks_the_question(tmp_path, name):
    write(tmp_path / name, [{"question": "1 + 1?", "answer": "#### 2"}])
    [prompt] = load_prompts("gsm8k", 1, data_dir=tmp_path)
    assert prompt.text.startswith("1 + 1?")
    assert "####" not in prompt.text


def test_spec_bench_takes_first_turns_of_its_categories(tmp_path):
    write(tmp_path / "question.jsonl", spec_bench(writing=6, math=3, qa=6))
    prompts = load_prompts("spec_bench", 4, data_dir=tmp_path)
    assert [prompt.text for prompt in prompts] == ["writing 0", "writing 3", "qa 0", "qa 3"]
    chosen = load_prompts("spec_bench", 2, data_dir=tmp_path, categories=["math"])
    assert [prompt.category for prompt in chosen] == ["math", "math"]


def test_a_small_category_is_made_up_for(tmp_path):
    write(tmp_path / "spec_bench.jsonl", spec_bench(writing=1, qa=6))
    prompts = load_prompts("spec_bench", 6, data_dir=tmp_path)
    assert [prompt.category for prompt in prompts] == ["writing"] + ["qa"] * 5


def test_prompts_are_distinct(tmp_path):
    write(tmp_path / "humaneval.jsonl", humaneval(2) * 3)
    assert len(load_prompts("humaneval", 2, data_dir=tmp_path)) == 2
    with pytest.raises(ConfigError, match="has 2 distinct prompts, fewer than the 3 asked for"):
        load_prompts("humaneval", 3, data_dir=tmp_path)


def test_the_hub_is_asked_for_the_files_of_the_categories(tmp_path):
    asked = []

    def fetch(repository, file):
        asked.append((repository, file))
        path = tmp_path / file
        write(path, [{"prompt": f"{path.stem} {i}"} for i in range(3)])
        return path

    prompts = load_prompts("spec_bench", 2, categories=["qa", "rag"], fetch=fetch)
    assert [file for _, file in asked] == ["qa.jsonl", "rag.jsonl"]
    assert [(prompt.category, prompt.text) for prompt in prompts] == [("qa", "qa 0"), ("rag", "rag 0")]


def test_parquet_files_are_read(tmp_path, monkeypatch):
    class Table:
        def __init__(self, path):
            self.rows = [{"question": line} for line in path.read_text().splitlines()]

        def to_pylist(self):
            return self.rows

    parquet = SimpleNamespace(read_table=Table)
    monkeypatch.setitem(sys.modules, "pyarrow", SimpleNamespace(parquet=parquet))
    (tmp_path / "t.parquet").write_text("a?\nb?\n")
    prompts = load_prompts("gsm8k", 2, fetch=lambda repository, file: tmp_path / "t.parquet")
    assert [prompt.text[:2] for prompt in prompts] == ["a?", "b?"]


def test_parquet_without_pyarrow_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match="--data-dir"):
        load_prompts("gsm8k", 1, fetch=lambda repository, file: tmp_path / "t.parquet")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("humanevil", {}, "unknown data set 'humanevil'; did you mean 'humaneval'?"),
        ("humaneval", {"count": 0}, "at least 1, got 0"),
        ("humaneval", {"categories": ["qa"]}, "'humaneval' has no categories"),
        ("gsm8k", {}, "none of gsm8k.jsonl, test.jsonl is there"),
        ("spec_bench", {"categories": ["wrting"]}, "no category 'wrting'; did you mean 'writing'?"),
    ],
)
def test_mistakes(tmp_path, name, options, message):
    write(tmp_path / "humaneval.jsonl", humaneval(3))
    write(tmp_path / "spec_bench.jsonl", spec_bench(writing=2))
    with pytest.raises(ConfigError) as caught:
        load_prompts(name, options.pop("count", 1), data_dir=tmp_path, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "x"}\nnot json\n', "not valid JSON"),
        (b'{"question": "x"}\n', "row 1 is not a row of humaneval"),
        (b'{"prompt": "def f():"}\n["x"]\n', "row 2 is not a row of humaneval"),
        (b"\xff\xfe", "not UTF-8 text"),
    ],
)
def test_damaged_files(tmp_path, content, message):
    (tmp_path / "humaneval.jsonl").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_prompts("humaneval", 1, data_dir=tmp_path)


def test_an_unreachable_hub_is_one_line_at_once(monkeypatch):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))  # and nobody listens
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
    for name in ("http_proxy", "HTTP_PROXY", "HF_HUB_OFFLINE", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        DownloadError, match=r"from the model hub \(.*refused\); --data-dir names .* --prompts a file"
    ):
        load_prompts("humaneval", 1)
