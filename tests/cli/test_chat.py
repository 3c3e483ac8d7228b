"""``sonoran chat`` on a tiny model, from a pipe and in a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from sonoran.cli import answer, chat
from sonoran.types import SampleDelta
from tests.tiny_models import make_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    make_gguf(path, "qwen2", "Q8_0", seed=1)
    return str(path)


def call(model: str, *lines: str, options: tuple[str, ...] = ()) -> Result:
    app = typer.Typer()
    chat.register(app)
    arguments = ["-m", model, "--threads", "1", *options]
    return CliRunner().invoke(app, arguments, input="".join(f"{line}\n" for line in lines))


def turns(
    model: str, *lines: str, options: tuple[str, ...] = ("-n", "24", "--ignore-eos")
) -> list[dict[str, Any]]:
    result = call(model, *lines, options=("--json", *options))
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


QUESTION = "hello world this is a long question " * 3


def test_a_line_is_a_turn_and_what_is_known_is_not_read_again(model: str) -> None:
    first, second, third = turns(model, QUESTION, "and then", "/temperature 1", "and then")
    assert [t["turn"] for t in (first, second, third)] == [1, 2, 3]
    for earlier, later in ((first, second), (second, third)):
        usage, metrics = earlier["usage"], later["metrics"]
        assert later["usage"]["prompt_tokens"] > usage["total_tokens"]
        # Whole blocks of what the earlier turn left are known; the text of an answer may be encoded otherwise.
        assert metrics["num_cached_tokens"] >= usage["prompt_tokens"] // 16 * 16
        assert metrics["num_cached_tokens"] % 16 == 0
    assert first["metrics"]["num_cached_tokens"] == 0


def test_modes_and_models_change_and_the_conversation_stays(model: str) -> None:
    plain = turns(model, QUESTION, "more", "again")
    changed = turns(model, QUESTION, "/mode ngram", "more", f"/model {model}", "again")
    assert [t["token_ids"] for t in changed] == [t["token_ids"] for t in plain]
    assert [t["metrics"]["num_cached_tokens"] for t in changed] == [0, 0, 0]


def test_the_text_goes_to_standard_output_and_speed_and_remarks_to_standard_error(model: str) -> None:
    result = call(
        model, "hello", "/seed 3", "/nonsense", "/quit", "never asked", options=("-n", "8", "--ignore-eos")
    )
    [turn] = turns(model, "hello", options=("-n", "8", "--ignore-eos"))
    assert result.stdout == f"{turn['text']}\n/seed is 3\n"
    assert "8 tokens, " in result.stderr and "stopped at --max-tokens 8" in result.stderr
    assert "there is no command /nonsense" in result.stderr
    assert result.exit_code == 2


def test_files_and_a_saved_chat(model: str, tmp_path: Path) -> None:
    file, saved = tmp_path / "a.txt", tmp_path / "chat.json"
    file.write_text("hello world " * 5)
    one, two = turns(model, "hello", f"/file {file}", "hello", f"/save {saved}")
    assert two["usage"]["prompt_tokens"] > one["usage"]["total_tokens"] + 20
    [same] = turns(model, "hello", options=("-n", "24", "--ignore-eos", "-f", str(file)))
    assert same["usage"]["prompt_tokens"] > one["usage"]["prompt_tokens"] + 20
    three = turns(model, "more", options=("-n", "24", "--ignore-eos", "--resume", str(saved)))[0]
    assert three["token_ids"] == turns(model, "hello", f"/file {file}", "hello", "more")[2]["token_ids"]


def test_a_full_context_is_said_and_old_turns_go_only_when_allowed(model: str) -> None:
    options = ("-n", "24", "--ignore-eos", "--max-model-len", "128")
    lines = (QUESTION, "hello world " * 8, "/retry")
    result = call(model, *lines, options=options)
    assert result.exit_code == 2
    told = " ".join(result.stderr.split())
    assert (
        "the context holds 128: /drop forgets the oldest turn and /retry asks again, /clear forgets all"
        in told
    )
    assert "--max-model-len 1024" in told
    for dropping in ((*lines[:2], "/drop", "/retry"), lines):
        allowed = () if "/drop" in dropping else ("--drop-oldest",)
        result = call(model, *dropping, options=(*options, *allowed))
        assert "24 tokens, " in result.stderr.splitlines()[-1], result.stderr
    assert "the context was full: forgot the 1 oldest turns" in result.stderr


def test_ctrl_c_stops_the_answer_and_what_there_is_stays(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def interrupt(delta: SampleDelta) -> None:
        answer.write_text(delta)
        written.append(delta.text)
        if len(written) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(chat, "write_text", interrupt)
    result = call(model, "hello", "more", options=("-n", "24", "--ignore-eos", "--mode", "ar"))
    assert result.exit_code == 0, result.output
    first, second = result.stderr.splitlines()
    assert first.startswith("5 tokens, ") and first.endswith(
        "stopped by you: what there is stays in the conversation"
    )
    assert second.startswith("24 tokens, ")


def test_a_model_without_a_template_and_a_wrong_mode_are_refused(model: str, tmp_path: Path) -> None:
    result = call(model, "hello", options=("--mode", "sssd"))
    assert result.exit_code == 2 and "did you mean 'ssd'?" in result.stderr


@pytest.mark.parametrize("mode", ["sd", "ssd"])
def test_origins_are_told_token_by_token(model: str, mode: str) -> None:
    options = (
        "-n",
        "40",
        "--ignore-eos",
        "--mode",
        mode,
        "--draft",
        model,
        "--draft-quantize",
        "file",
        "--show-origin",
    )
    [turn] = turns(model, "hello", options=options)
    assert len(turn["origins"]) == 40 and turn["origins"][0] == "target"
    assert set(turn["origins"]) <= {"target", "backup"} | ({"cache"} if mode == "ssd" else set())
    result = call(model, "hello", options=options)
    assert result.stdout == f"{turn['text']}\n"  # no colours in a file
    assert "the target's own" in result.stderr


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, *arguments: str, cache: Path) -> None:
        self.shown = ""
        self._master, slave = pty.openpty()
        code = "import sys; from sonoran.cli.main import main; main()"
        environment = {
            **os.environ,
            "TERM": "xterm",
            "SONORAN_CACHE": str(cache),
            "PROMPT_TOOLKIT_NO_CPR": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str, seconds: float = 60.0) -> None:
        """Read until a text appears, and forget what was before its end."""
        end = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < end, f"{text!r} does not come: {self.shown[-2000:]!r}"
            if select.select([self._master], [], [], 0.2)[0]:
                try:
                    self.shown += os.read(self._master, 65536).decode(errors="replace")
                except OSError:
                    pytest.fail(f"{text!r} did not come before the end: {self.shown[-2000:]!r}")
        self.shown = self.shown.partition(text)[2]

    def close(self) -> int:
        status = self.process.wait(30)
        os.close(self._master)
        return status


def test_in_a_terminal_ctrl_c_stops_the_answer_and_ctrl_d_ends(model: str, tmp_path: Path) -> None:
    terminal = Terminal(
        "chat", "-m", model, "--threads", "1", "-n", "400", "--ignore-eos", "--mode", "sd", "--draft", model,
        "--show-origin", cache=tmp_path,
    )  # fmt: skip
    try:
        terminal.expect("/help lists the commands")
        terminal.expect(">>>")
        terminal.type("hello world\r")
        terminal.expect("\x1b[0m")  # an origin is coloured
        terminal.process.send_signal(signal.SIGINT)
        terminal.expect("tokens/s after the first")
        terminal.expect(">>>")
        terminal.type("\x03")
        terminal.expect("Ctrl-D or /quit ends")
        terminal.type("/fi\t")
        terminal.expect("/file")
        terminal.type("\x15\x04")
        assert terminal.close() == 0
    finally:
        terminal.process.kill()
    assert "hello world" in (tmp_path / "chat_history").read_text()
