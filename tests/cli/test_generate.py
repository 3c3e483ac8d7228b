"""``sonoran generate`` on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from sonoran.cli import generate
from tests.tiny_models import make_gguf

EXACT = ("--draft-quantize", "file")  # the same weights on both sides, so that every token is accepted


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    make_gguf(path, "qwen2", "Q8_0", seed=1)
    return str(path)


def call(*arguments: str, stdin: str | None = None) -> Result:
    app = typer.Typer()
    generate.register(app)
    return CliRunner().invoke(app, [*arguments, "--threads", "1"], input=stdin)


def document(*arguments: str, stdin: str | None = None) -> dict[str, object]:
    result = call(*arguments, "--json", stdin=stdin)
    assert result.exit_code == 0, result.stderr
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_the_text_goes_to_standard_output_and_the_speed_to_standard_error(model: str) -> None:
    result = call("hello world", "-m", model, "-n", "12", "--ignore-eos")
    assert result.exit_code == 0
    expected = document("hello world", "-m", model, "-n", "12", "--ignore-eos")
    assert result.stdout == f"{expected['text']}\n"
    assert "12 tokens, first after" in result.stderr
    assert "tokens/s" in result.stderr
    assert "accepted" not in result.stderr


def test_the_json_document(model: str) -> None:
    found = document(
        "hello", "-m", model, "-n", "9", "--ignore-eos", "--mode", "sd", "--draft", model, "-k", "3", *EXACT
    )
    assert {"text", "token_ids", "finish_reason", "usage", "metrics"} <= set(found)
    assert found["finish_reason"] == "length"
    usage, metrics = found["usage"], found["metrics"]
    assert isinstance(usage, dict) and isinstance(metrics, dict)
    assert usage["completion_tokens"] == 9 == len(found["token_ids"])  # type: ignore[arg-type]
    assert usage["total_tokens"] == usage["prompt_tokens"] + 9
    assert metrics["speculative_decoding"]["draft_acceptance_rate"] == 1.0
    assert metrics["speculative_decoding"]["num_spec_tokens"] == 3


@pytest.mark.parametrize("sampling", [(), ("--temperature", "1", "--seed", "5", "--top-p", "0.9")])
def test_drafts_do_not_change_the_text(model: str, sampling: tuple[str, ...]) -> None:
    options = ("hello world hello world", "-m", model, "-n", "20", *sampling)
    plain = document(*options)
    for draft in (model, "ngram"):
        assert document(*options, "--draft", draft)["token_ids"] == plain["token_ids"]
    result = call(*options, "--mode", "sd", "--draft", model, *EXACT)
    assert "100% of drafted tokens accepted" in result.stderr


def test_the_modes_give_one_text_and_ssd_tells_its_hits(model: str) -> None:
    options = ("hello world hello world", "-m", model, "-n", "20", "--ignore-eos")
    plain = document(*options, "--mode", "ar")
    assert "speculative_decoding" not in plain["metrics"]  # type: ignore[operator]
    # Which backup is best is a matter of time, and an n-gram may be wrong where the draft is not.
    for mode, backup in (("sd", ()), ("ssd", ("--backup", "draft"))):
        found = document(*options, "--mode", mode, "--draft", model, *EXACT, *backup)
        assert found["token_ids"] == plain["token_ids"]
        speculation = found["metrics"]["speculative_decoding"]  # type: ignore[index]
        assert speculation["draft_acceptance_rate"] == 1.0
        assert ("num_cache_hits" in speculation) == (mode == "ssd")
    assert document(*options, "--mode", "ngram")["token_ids"] == plain["token_ids"]
    ssd = ("--mode", "ssd", "--draft", model, "--fan-out", "2,1,1,3", "-k", "3", "--backup", "none")
    result = call(*options, *ssd)
    assert result.exit_code == 0, result.stderr
    assert "hits in the speculation cache" in result.stderr


def test_a_draft_leaves_the_mode_to_auto_unless_it_is_placed(model: str) -> None:
    options = ("hello world hello world", "-m", model, "-n", "20", "--ignore-eos", "--draft", model)
    plain = document(*options[:-2])
    for mode in ((), ("--mode", "auto", "-k", "3")):
        result = call(*options, *mode, "--json")
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout)["token_ids"] == plain["token_ids"]
        assert "auto: " in result.stderr and "sonoran calibrate knows more" in " ".join(result.stderr.split())
    placed = call(*options, "--draft-threads", "1", "--json")
    assert placed.exit_code == 0 and "auto: " not in placed.stderr


def test_prompts_come_from_a_file_or_from_standard_input(model: str, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("hello world", encoding="utf-8")
    options = ("-m", model, "-n", "4")
    expected = document("hello world", *options)["token_ids"]
    assert document("--file", str(file), *options)["token_ids"] == expected
    assert document("-", *options, stdin="hello world")["token_ids"] == expected


def test_the_chat_template_can_be_left_out_and_takes_a_system_message(model: str) -> None:
    lengths = []
    for options in (("--raw",), ("--chat",), (), ("--system", "hello")):
        usage = document("hello", "-m", model, "-n", "1", *options)["usage"]
        assert isinstance(usage, dict)
        lengths.append(usage["prompt_tokens"])
    assert lengths[0] < lengths[1] == lengths[2] < lengths[3]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "give a prompt"),
        (("hello", "--file", "x"), "one of them"),
        (("  ",), "the prompt is empty"),
        (("--file", "nowhere.txt"), "cannot read the prompt"),
        (("hello", "--temperature", "-1"), "temperature"),
        (("hello", "--draft-vocab", "50"), "--draft-vocab without a draft"),
        (("hello", "--draft", "ngram", "--draft-threads", "1"), "--draft-threads is for mode sd or ssd"),
        (("hello", "--draft", "nowhere.gguf"), "no such file"),
        (("hello", "--mode", "sssd"), "unknown mode 'sssd'; did you mean 'ssd'?"),
        (("hello", "--mode", "ar", "--draft", "auto"), "--mode ar and --draft auto contradict"),
        (("hello", "--mode", "ssd", "--draft", "ngram"), "--mode ssd and --draft ngram contradict"),
        (("hello", "-k", "4"), "--num-speculative-tokens without a draft"),
        (("hello", "--mode", "sd", "--fan-out", "uniform"), "--fan-out is for SSD"),
        (("hello", "--budget", "4", "--backup", "draft"), "--budget, --backup are for SSD"),
        (("hello", "--draft-address", "tcp://127.0.0.1:1"), "--draft-address is for SSD"),
        (("hello", "--mode", "ssd", "--fan-out", "unifrom"), "did you mean 'uniform'?"),
        (("hello", "--mode", "ssd", "--fan-out", "2,x"), "--fan-out '2,x': cannot read 'x'"),
        (("hello", "--mode", "ssd", "--fan-out", "2,1", "--budget", "3"), "--budget has no effect beside"),
        (
            ("hello", "--mode", "ssd", "--budget", "many"),
            "budget must be a whole number from 1 to 256 or 'auto', got 'many'",
        ),
        (("hello", "--mode", "ssd", "--budget", "0"), "budget must be a whole number from 1 to 256"),
        (("hello", "--mode", "ssd", "--backup", "drft"), "did you mean 'draft'?"),
        (("hello", "--mode", "ssd", "--saguaro-c", "0.5"), "needs --verification rejection"),
        (
            (
                "hello",
                "--mode",
                "ssd",
                "--saguaro-c",
                "2",
                "--verification",
                "rejection",
                "--temperature",
                "1",
            ),
            "--saguaro-c must lie in [0, 1], got 2.0",
        ),
        (("hello", "--mode", "ssd", "--draft-key-file", "k"), "it needs a draft_address"),
        (
            ("hello", "--mode", "ssd", "--draft-address", "tcp://127.0.0.1:1", "--draft", "auto"),
            "needs a model, or the draft_address",
        ),
        (
            ("hello", "--mode", "ssd", "--draft-address", "tcp://127.0.0.1:1", "--draft-threads", "1"),
            "decided where the worker at tcp://127.0.0.1:1 was started",
        ),
        (("hello", "--mode", "ssd", "--draft-address", "tcp://192.0.2.1:1"), "so it needs keys"),
        (("hello", "--verification", "coupel"), "did you mean 'coupled'"),
        (("hello", "--system", "x", "--raw"), "a system message needs a chat"),
        (("hello" * 300, "--max-model-len", "20"), "max_model_len is 20"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(model: str, arguments: tuple[str, ...], text: str) -> None:
    result = call(*arguments, "-m", model)
    assert result.exit_code == 2
    assert text in result.stderr
    assert "Traceback" not in result.output


def test_help_has_examples() -> None:
    result = call("--help")
    assert "Examples:" in result.stdout


def test_the_byte_order_mark_of_a_prompt_file_is_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"\xef\xbb\xbfhello\r\n")
    assert generate.read_prompt(None, path) == "hello\n"
