"""What README and docs say is true of the program: examples run, commands and options exist, links and names resolve.

A fenced block after the comment `<!-- run -->` is run, the default models being replaced by tiny ones; one after
`<!-- file: NAME -->` is written to NAME before. Every `sonoran` command line is parsed, marked or not.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pytest
import typer

from sonoran.cli import main
from sonoran.config import speculation_of
from sonoran.models.registry import DEFAULT_DRAFT, DEFAULT_TARGET
from tests.tiny_models import make_gguf

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHELL = ("", "bash", "console")
FOREIGN_OPTIONS = {"--additional-config", "--hypothesis-profile", "--help", "--no-binary"}
NOT_IN_THE_TREE = {"profiles/"}
SMALL = "smollm2-135m-instruct"


@dataclass(frozen=True)
class Block:
    """A fenced block: page and line for the reader, language, comment before it, text."""

    page: Path
    line: int
    language: str
    mark: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.name}:{self.line}"


def read(page: Path) -> tuple[list[Block], str]:
    """Return the fenced blocks of a page, and the page without them."""
    blocks: list[Block] = []
    prose: list[str] = []
    inside: list[str] | None = None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("```"):
            (prose if inside is None else inside).append(line)
        elif inside is None:
            mark = re.fullmatch(r"<!-- (.*) -->", prose[-1]) if prose else None
            begin, language, inside = number, line[3:], []
            comment = mark[1] if mark else ""
        else:
            blocks.append(Block(page, begin, language, comment, "\n".join(inside)))
            inside = None
    assert inside is None, f"{page.name}: a fence is not closed"
    return blocks, "\n".join(prose)


READ = {page: read(page) for page in PAGES}
BLOCKS = [block for blocks, _ in READ.values() for block in blocks]
RUNNABLE = [block for block in BLOCKS if block.mark == "run"]


def test_marks_are_known() -> None:
    assert {block.mark.partition(":")[0] for block in BLOCKS} <= {"", "run", "file"}
    assert {block.language for block in RUNNABLE} <= {"bash", "console", "python"}
    assert len(RUNNABLE) >= 5


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What stands in for the names of models in examples."""
    folder = tmp_path_factory.mktemp("models")
    names = {}
    for name, seed in ((DEFAULT_TARGET, 1), (DEFAULT_DRAFT, 2), (SMALL, 3)):
        make_gguf(folder / f"{name}.gguf", "qwen2", seed=seed)
        names[f'"{name}"'] = repr(str(folder / f"{name}.gguf"))
    names['"model": "auto"'] = f'"model": {names[f"{chr(34)}{DEFAULT_DRAFT}{chr(34)}"]}'
    return names


@pytest.mark.parametrize("block", RUNNABLE, ids=lambda block: block.name)
def test_an_example_runs(block: Block, tiny: dict[str, str], tmp_path: Path) -> None:
    for other in READ[block.page][0]:
        if other.mark.startswith("file: "):
            (tmp_path / other.mark.removeprefix("file: ")).write_text(other.text + "\n")
    if block.language == "python":
        code = block.text
        for name, stand_in in tiny.items():
            code = code.replace(name, stand_in)
        command = [sys.executable, "-c", code]
    else:
        lines = block.text.splitlines()
        if block.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        script = "\n".join(lines).replace(SMALL, tiny[f'"{SMALL}"'])
        command = ["bash", "-euo", "pipefail", "-c", script]
    # The command as this interpreter has it, wherever that is installed.
    program = tmp_path / "bin" / "sonoran"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "from sonoran.cli.start import main; main()" "$@"\n'
    )
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{block.name}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def command_lines(block: Block) -> Iterator[list[str]]:
    """Yield the words of each command in a block of the shell; comments are cut off."""
    if block.language not in SHELL:
        return
    for line in block.text.replace("\\\n", " ").splitlines():
        if block.language == "console":
            if not line.startswith("$ "):
                continue
            line = line[2:]
        if re.match(r"(sonoran|ssh|python|make) |.* \| sonoran ", line):
            words = shlex.split(line, comments=True)
            for begin, end in pairwise([-1, *(i for i, w in enumerate(words) if w == "|"), len(words)]):
                one = list(takewhile(lambda word: word not in (">", "<"), words[begin + 1 : end]))
                if one[0] in ("sonoran", "ssh", "python", "make"):
                    yield one


COMMANDS = [(block.name, words) for block in BLOCKS for words in command_lines(block)]


def parse(words: list[str]) -> None:
    """Parse a whole command line of `sonoran` without running it. Raises what the parser raises."""
    command: Any = typer.main.get_command(main.app)
    context = command.context_class(command, info_name="sonoran")
    rest = words
    while True:
        given, rest, _ = command.make_parser(context).parse_args(list(rest))
        for parameter in command.get_params(context):
            if given.get(parameter.name) is not None:
                parameter.process_value(context, given[parameter.name])
        if not rest:
            return
        assert hasattr(command, "resolve_command"), f"{rest} is too much"
        name, command, rest = command.resolve_command(context, rest)
        context = command.context_class(command, info_name=name, parent=context)


def test_there_are_commands() -> None:
    assert sum("sonoran" in words for _, words in COMMANDS) >= 30


@pytest.mark.parametrize(("place", "words"), COMMANDS, ids=[f"{p} {' '.join(w)[:60]}" for p, w in COMMANDS])
def test_a_command_line_can_be_typed(place: str, words: list[str]) -> None:
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif words[0] == "python":
        usage = (ROOT / words[1]).read_text()
        for word in words[2:]:
            assert not word.startswith("-") or f'"{word}"' in usage, f"{words[1]} has no {word}"
    else:
        parse(words[words.index("sonoran") + 1 :])


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("generate --modus ssd", "--modus"),
        ("generat x", "generat"),
        ("bench decode --num-prompts many", "valid integer"),
        ("doctor now", "now"),
    ],
)
def test_a_wrong_command_line_would_be_found(wrong: str, why: str) -> None:
    with pytest.raises(Exception, match=why):
        parse(wrong.split())


def configurations(block: Block) -> Iterator[dict[str, Any]]:
    """Yield what a block gives as `speculative_config`, in Python or as JSON after `--config`."""
    if block.language == "python":
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.keyword) and node.arg == "speculative_config":
                yield ast.literal_eval(node.value)
    for words in command_lines(block):
        yield from (json.loads(value) for name, value in pairwise(words) if name == "--config")


def test_every_speculative_config_is_valid() -> None:
    found = [config for block in BLOCKS for config in configurations(block)]
    assert len(found) >= 8
    for config in found:
        speculation_of(config)


PROGRAM: Any = typer.main.get_command(main.app)
PROGRAM.commands = {name: main.load(name) for panel in main.COMMANDS.values() for name in panel}


def options_of(command: Any) -> set[str]:
    names = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return names.union(*(options_of(sub) for sub in getattr(command, "commands", {}).values()))


def spans(page: Path) -> list[str]:
    """Return what stands between backticks in the prose of a page."""
    return re.findall(r"`([^`\n]+)`", READ[page][1])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_and_commands_in_the_text_exist(page: Path) -> None:
    scripts = "".join(path.read_text() for path in (ROOT / "scripts").glob("*.py"))
    for span in spans(page):
        words = span.replace("[", " ").replace("]", " ").split()
        if not span.startswith(("--", "sonoran ")):
            continue
        command = PROGRAM
        for word in words[1:] if words[0] == "sonoran" else ():
            known = getattr(command, "commands", {})
            if word in known:
                command = known[word]
            elif known and re.fullmatch(r"[a-z-]+", word) and not word.startswith("-"):
                pytest.fail(f"{page.name}: there is no command {span!r}")
        valid = options_of(command) | FOREIGN_OPTIONS
        for word in words:
            option = word.partition("=")[0]
            if option.startswith("--") and option not in valid:
                assert f'"{option}"' in scripts, f"{page.name}: no option {option} in {span!r}"


def home_of(path: str) -> Path | None:
    """Return where a path of the docs is: in the package, or in the repository."""
    return next((home / path for home in (ROOT / "src" / "sonoran", ROOT) if (home / path).exists()), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_names_in_the_text_exist(page: Path) -> None:
    for span in spans(page):
        folder = re.fullmatch(r"([\w-]+/)+", span)
        file = re.fullmatch(r"((?:[\w-]+/)*\w+\.(?:py|cpp|hpp|svg|md))(?::([\w.]+))?", span)
        if folder and span not in NOT_IN_THE_TREE:
            assert home_of(span), f"{page.name}: there is no folder {span}"
        if file:
            path = home_of(file[1])
            if path is None and "/" not in file[1] and not file[1].endswith(".py"):
                continue  # something that the reader makes
            assert path, f"{page.name}: there is no file {file[1]}"
            for name in (file[2] or "").split("."):
                defined = not name or re.search(rf"(def|class) {name}\b", path.read_text(encoding="utf-8"))
                assert defined, f"{page.name}: {file[1]} does not define {name}"
        if re.fullmatch(r"sonoran(\.\w+)+", span):
            resolve(span)


def resolve(name: str) -> Any:
    """Import a dotted name. Raises ImportError or AttributeError."""
    parts = name.split(".")
    value: Any = importlib.import_module(parts[0])
    for index, part in enumerate(parts[1:], 2):
        if not hasattr(value, part):
            importlib.import_module(".".join(parts[:index]))
        value = getattr(value, part)
    return value


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", READ[page][1], re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", READ[page][1]):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(file), f"{page.name}: {file.name} has no heading #{anchor}"


def test_every_page_can_be_found_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/\w+\.md)\)", READ[ROOT / "README.md"][1]))
    assert {f"docs/{page.name}" for page in PAGES[1:]} <= linked
