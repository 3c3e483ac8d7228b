"""``sonoran generate`` on a tiny model."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

from sonoran.cli import answer, generate, progress, prompt
from sonoran.types import SampleDelta
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
    result = call("hello world", "-m", model, "-n", "12", "--ignore-eos", "--mode", "ar")
    assert result.exit_code == 0
    expected = document("hello world", "-m", model, "-n", "12", "--ignore-eos")
    assert result.stdout == f"{expected['text']}\n"
    line = " ".join(result.stderr.split())
    assert re.fullmatch(
        r"12 tokens, [\d.]+ tokens/s after the first; prompt of \d+ tokens in [\d.]+ s; stopped at --max-tokens 12",
        line,
    )


def test_where_no_draft_is_known_one_line_says_so_and_what_to_type(model: str) -> None:
    result = call("hello world", "-m", model, "-n", "4")
    first = result.stderr.splitlines()[0]
    assert (
        first.startswith("auto: AR: no draft is known for tiny.gguf (qwen2); name a smaller model")
        and "ngram" in first
    )


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
    options = (*options, "-n", "60", "--ignore-eos")
    result = call(*options, "--mode", "sd", "--draft", model, *EXACT)
    assert "100% of drafted tokens accepted" in result.stderr
    assert "accepted" not in call(*options, "-n", "9", "--mode", "sd", "--draft", model, *EXACT).stderr


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
    ssd = ("--mode", "ssd", "--draft", model, "--fan-out", "2,1,1,3", "-k", "3", "--least-chance", "0")
    result = call(*options, "-n", "99", *ssd)
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


def test_a_prompt_goes_together_with_files_and_with_what_is_piped(model: str, tmp_path: Path) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.md"
    first.write_text("hello\n", encoding="utf-8")
    second.write_text("```\nworld\n```\n", encoding="utf-8")
    parts = (f"{first}:\n```\nhello\n```", f"{second}:\n````\n```\nworld\n```\n````")
    assert prompt.read_prompt("say", [first]) == f"say\n\n{parts[0]}"
    assert prompt.read_prompt("say", [first, second]) == f"say\n\n{parts[0]}\n\n{parts[1]}"
    assert prompt.read_prompt(None, [first, second]) == f"{parts[0]}\n\n{parts[1]}"
    assert prompt.read_prompt(None, [first], "say") == f"say\n\n{parts[0]}"
    assert prompt.read_prompt("say", [], "a\n") == "say\n\nstandard input:\n```\na\n```"
    assert prompt.read_prompt("say", [first], " \n") == f"say\n\n{parts[0]}"
    assert prompt.read_prompt(None, [], "say\n") == prompt.read_prompt("-", [], "say\n") == "say\n"
    options = ("-m", model, "-n", "4")
    whole = document(f"hello\n\n{parts[0]}\n\nstandard input:\n```\nworld\n```", *options)
    assert document("hello", "-f", str(first), *options, stdin="world")["usage"] == whole["usage"]
    assert document(*options, stdin="world")["usage"] == document("world", *options)["usage"]


@pytest.mark.parametrize(
    ("stdin", "read"), [(subprocess.PIPE, "standard input"), (subprocess.DEVNULL, None)], ids=["pipe", "null"]
)
def test_a_pipe_is_read_and_the_null_device_is_not(stdin: int, read: str | None) -> None:
    code = "from sonoran.cli.prompt import *; print(read_prompt('say', [], piped_input(wanted=False)))"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        input="piped" if stdin == subprocess.PIPE else None,
        stdin=None if stdin == subprocess.PIPE else stdin,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == ("say\n\nstandard input:\n```\npiped\n```\n" if read else "say\n")


def test_a_pipe_that_says_nothing_is_waited_for_aloud() -> None:
    code = "from sonoran.cli import prompt; prompt.WAIT_S = 0; print(prompt.piped_input(wanted=False))"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "waiting for the end of standard input" in process.stderr.readline()
    assert process.communicate("late")[0] == "late\n"


def test_ctrl_c_keeps_what_there_is_and_tells_its_speed(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(delta: SampleDelta) -> None:
        answer.write_text(delta)
        interrupt.calls += 1  # type: ignore[attr-defined]
        if interrupt.calls == 5:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    interrupt.calls = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(generate, "write_text", interrupt)
    result = call("hello world", "-m", model, "-n", "400", "--ignore-eos", "--mode", "ar")
    assert result.exit_code == 130
    assert result.stdout.endswith("\n") and "Traceback" not in result.output
    assert result.stderr.startswith("5 tokens, ") and result.stderr.rstrip().endswith("stopped by you")


def test_a_long_prompt_is_read_with_a_bar_and_a_short_one_without() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with progress.reading_progress(1000, console) as reading:
        reading.read(256)
        reading.read(256)
        reading.end()
        reading.read(256)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "reading the prompt" in shown and "512/1000" in shown and "768" not in shown
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with progress.reading_progress(200, console) as reading:
        reading.read(200)
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]


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
        ((), "give a prompt, a file (-f FILE), or -"),
        (("hello", "--file", "x"), "the prompt file x: cannot be read"),
        (("  ",), "the prompt is empty"),
        (("--file", "nowhere.txt"), "the prompt file nowhere.txt: cannot be read"),
        (("hello", "--temperature", "-1"), "temperature"),
        (("hello", "--draft-vocab", "50"), "no draft is known"),
        (("hello", "--draft", "ngram", "--draft-threads", "1"), "--draft-threads is for mode sd or ssd"),
        (("hello", "--draft", "nowhere.gguf"), "no such file"),
        (("hello", "--mode", "sssd"), "unknown mode 'sssd'; did you mean 'ssd'?"),
        (("hello", "--mode", "ar", "--draft", "auto"), "--mode ar and --draft auto contradict"),
        (("hello", "--mode", "ssd", "--draft", "ngram"), "--mode ssd and --draft ngram contradict"),
        (("hello", "-k", "4"), "no draft is known"),
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
        (
            ("hello" * 300, "--max-model-len", "20"),
            "max_model_len is 20; load the model with max_model_len 512 (--max-model-len 512)",
        ),
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
    assert prompt.read_prompt(None, [path]) == "hello\n"
