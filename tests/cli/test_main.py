"""The command as a whole: its help, how quickly it comes, completion, and texts that look like markup."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import sonoran
from sonoran.cli.common import command, examples, out, remark, say
from sonoran.cli.main import COMMANDS, app, load
from sonoran.errors import ConfigError

NAMES = [name for commands in COMMANDS.values() for name in commands]


def every_command() -> list[tuple[list[str], Any]]:
    """Return each command and command of a group, with the words that call it."""
    found = []
    for name in NAMES:
        loaded = load(name)
        found.append(([name], loaded))
        found += [([name, *sub.split()], each) for sub, each in getattr(loaded, "commands", {}).items()]
    return found


def call(*arguments: str, columns: int = 80) -> Any:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": str(columns)})


def test_help_groups_the_commands() -> None:
    text = call("--help").output
    places = [text.index(f"─ {panel} ─") for panel in COMMANDS]
    assert places == sorted(places)
    assert all(f"│ {name} " in text for name in NAMES)
    assert "Usage: " in call().output


def test_version() -> None:
    result = call("--version")
    assert (result.exit_code, result.output) == (0, f"sonoran {sonoran.__version__}\n")


def test_a_misspelt_command_is_answered_with_the_nearest() -> None:
    result = call("generat")
    assert result.exit_code == 2
    assert "'generate'" in result.output


def test_help_imports_no_engine() -> None:
    code = (
        "import sys; from sonoran.cli.main import app; app(['--help'], standalone_mode=False); "
        "print(sorted(m for m in sys.modules if m == 'numpy' or m.startswith('sonoran')), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = ["cli", "cli.common", "cli.main", "cli.start", "errors", "models", "models.untrusted"]
    assert result.stderr.strip() == str(["sonoran", *(f"sonoran.{name}" for name in expected)])


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("sonoran gen", "generate"), ("sonoran generate --fan-", "--fan-out"), ("sonoran plan repr", "reproduce"),
     ("sonoran generate --backup ng", "ngram")],
)  # fmt: skip
def test_completion_knows_commands_options_and_values(typed: str, expected: str) -> None:
    environment = {
        "_SONORAN_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(typed.count(" ")),
    }
    result = CliRunner().invoke(app, [], env=environment, prog_name="sonoran")
    assert expected in result.output.split()


def test_every_command_has_examples_that_can_be_copied() -> None:
    for words, each in every_command():
        text = call(*words, "--help").output
        listed = each.epilog.replace("\\[", "[").split("\n\n")[1:]
        assert listed, words
        lines = [line.strip() for line in text.splitlines()]
        assert all(example in lines for example in listed), words
        assert "--json" in text or words in (["models"], ["bench"]), words


def test_options_stand_in_panels() -> None:
    text = call("generate", "--help").output
    for panel in ("Sampling", "Draft", "SSD", "Machine"):
        assert f"─ {panel} ─" in text
    assert "Outcomes guessed per sequence and round (B)" in " ".join(
        call("generate", "--help", columns=200).output.split()
    )


def test_texts_are_not_read_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    name = "[bold]a[/bold] [0, 1] [/] :smile:"

    @command
    def fail() -> None:
        raise ConfigError(f"cannot read {name}")

    with pytest.raises(typer.Exit):
        fail()
    say(name)
    remark(name)
    out.print(name, style="red")
    printed = capsys.readouterr()
    assert printed.out == f"{name}\n{name}\n"
    assert printed.err == f"error: cannot read {name}\n{name}\n"


def test_brackets_in_names_of_files_survive() -> None:
    result = call("generate", "hello", "--model", "[red]x[/red].gguf")
    assert result.exit_code == 2
    assert "[red]x[/red].gguf" in result.output
    result = call("generate", "--file", "[/nowhere].txt")
    assert "[/nowhere].txt" in result.output


def test_examples_may_have_brackets() -> None:
    small = typer.Typer()
    small.command(epilog=examples("do [this] 'x[1]'"))(lambda: None)
    assert "do [this] 'x[1]'" in CliRunner().invoke(small, ["--help"]).output


RUN = "from sonoran.cli.start import main; main()"


def run_writing_to(stdout: Any, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``sonoran models list`` as a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv = ['sonoran', 'models', 'list']; {RUN}"],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SONORAN_CACHE": str(tmp_path), **environment},
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        result = run_writing_to(full, tmp_path)
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert "error: the output cannot be written: No space left on device" in result.stderr


def test_what_an_encoding_lacks_is_replaced() -> None:
    code = f"import sys; sys.argv = ['sonoran', 'generate', '-m', 'é.gguf', 'x']; {RUN}"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert result.returncode == 2
    assert "?.gguf" in result.stderr and "Traceback" not in result.stderr


def test_a_closed_output_is_no_error(tmp_path: Path) -> None:
    code = f"import sys; sys.stdout = None; sys.argv = ['sonoran', 'models', 'list']; {RUN}"
    environment = {**os.environ, "SONORAN_CACHE": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


INTERRUPT = """
import os, signal, sys
from sonoran.cli.start import main

class Finder:
    left = int(sys.argv.pop(1))

    def find_spec(self, *_):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
main()
"""


@pytest.mark.parametrize(
    "arguments", [("plan", "--target-params", "70B"), ("generate", "-m", "nowhere.gguf", "x")]
)
@pytest.mark.parametrize("moment", [1, 2, 5, 30, 100, 250, 300, 400])
def test_ctrl_c_during_imports_is_one_line(arguments: tuple[str, ...], moment: int) -> None:
    command = [sys.executable, "-c", INTERRUPT, str(moment), *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "interrupted\n")


def test_ctrl_c_that_is_ignored_stays_ignored() -> None:
    """As in a job in the background of a script."""
    code = f"import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.argv = ['sonoran', '--version']; {RUN}"
    code = code.replace(
        "; main()", "; import atexit; atexit.register(signal.raise_signal, signal.SIGINT); main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_ctrl_c_at_the_very_end_is_one_line() -> None:
    code = f"import signal, sys; sys.argv = ['sonoran', '--version']; {RUN}"
    code = code.replace(
        "; main()", "; import atexit; atexit.register(signal.raise_signal, signal.SIGINT); main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            PermissionError(13, "Permission denied", "/others/[/x]\n"),
            "error: /others/[/x]\\n: Permission denied\n",
        ),
        (OSError(24, "Too many open files"), "error: Too many open files\n"),
        (MemoryError(), "error: there is not enough memory\n"),
    ],
)
def test_what_the_system_refuses_is_one_line(error: BaseException, line: str) -> None:
    def fail() -> None:
        raise error

    small = typer.Typer()
    small.command()(command(fail))
    result = CliRunner().invoke(small, [])
    assert (result.exit_code, result.stderr) == (2, line)
