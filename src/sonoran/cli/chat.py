"""``sonoran chat``: a conversation in the terminal, or one line a turn from a pipe."""

from __future__ import annotations

import json as jsonlib
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from sonoran.cli.answer import Answer, generate_answer, summary, write_text
from sonoran.cli.common import command, err, examples, out, remark, say
from sonoran.cli.conversation import (
    COMMANDS,
    LEGEND,
    SAMPLING_COMMANDS,
    Action,
    Chat,
    OriginText,
    Setting,
    joined,
)
from sonoran.cli.options import (
    ENGINE,
    SAMPLING,
    SPECULATION,
    Given,
    ModelOption,
    ModeOption,
    decoding,
    load,
    offers,
)
from sonoran.cli.prompt import SystemOption
from sonoran.config import EngineConfig
from sonoran.errors import CapacityError, ConfigError, SonoranError
from sonoran.llm import LLM
from sonoran.models.cache import cache_dir
from sonoran.models.registry import DEFAULT_TARGET
from sonoran.types import SampleDelta

EXAMPLES = examples(
    "sonoran chat",
    "sonoran chat -f sort.py --mode ssd --show-origin",
    'sonoran chat --system "Answer in one sentence." --temperature 0.7',
    "sonoran chat --resume chat.json",
    "printf 'What is a heap?\\nAnd a stack?\\n' | sonoran chat --json",
)
STYLES = {"cache": "\x1b[32m", "backup": "\x1b[33m", "copy": "\x1b[36m", "target": ""}
PROMPT, MORE = ">>> ", "... "


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("chat", epilog=EXAMPLES)(chat)


@command
@offers(SAMPLING, SPECULATION, ENGINE, temperature=0.0, max_tokens=1024)
def chat(
    model: ModelOption = DEFAULT_TARGET,
    system: SystemOption = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", "-f", help="A file to go with the first question; may be repeated."),
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on from a chat that /save wrote.")] = None,
    show_origin: Annotated[
        bool, typer.Option("--show-origin", help="Colour tokens by where they came from.")
    ] = False,
    drop_oldest: Annotated[
        bool,
        typer.Option(
            "--drop-oldest", help="Forget the oldest turns when the context is full, instead of saying so."
        ),
    ] = False,
    mode: ModeOption = None,
    *,
    given: Given,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a turn.")] = False,
) -> None:
    """Talk with a model; it is loaded once, and only what is new in the conversation is read in each turn.

    /help lists the commands, Ctrl-C stops the answer, Ctrl-D ends. From a pipe each line is a turn.
    """
    decoding(mode, given)
    state = Chat(Setting(model, mode, given), show_origin=show_origin)
    if resume is not None:
        remark(state.resume(resume))
    if system is not None:
        state.conversation.system = system
    if file:
        state.enter("/file " + shlex.join(map(str, file)))
    terminal = sys.stdin is not None and sys.stdin.isatty()
    with Shell(state, json=json, drop_oldest=drop_oldest) as shell:
        if terminal and not json:
            remark(f"{model}, a context of {shell.llm.max_model_len} tokens; /help lists the commands")
        if show_origin and not json:
            remark(LEGEND)
        sound = shell.run(typed_lines() if terminal else piped_lines())
    if not sound and not terminal:
        raise typer.Exit(2)


class Shell:
    """Carries out what a chat asks for, over one engine at a time."""

    def __init__(self, state: Chat, *, json: bool, drop_oldest: bool) -> None:
        self.state, self._json, self._drop_oldest = state, json, drop_oldest
        self.llm = self._loaded(state.setting)
        self._turn = 0

    def run(self, entries: Iterable[str]) -> bool:
        """Take entries until they end or say so; return whether all of them went well."""
        sound = True
        for entry in entries:
            try:
                action = self.state.enter(entry)
                if action.kind == "quit":
                    break
                self._do(action)
            except SonoranError as error:
                err.print(f"error: {error}", style="red", soft_wrap=True)
                sound = False
            except KeyboardInterrupt:
                remark("stopped; Ctrl-D or /quit ends")
        return sound

    def _do(self, action: Action) -> None:
        if action.text and action.kind != "load":
            (remark if self._json or action.kind == "ask" else say)(action.text)
        if action.setting is not None:
            self._switch(action.setting, action.text)
        if action.kind == "ask":
            self._answer()

    def _loaded(self, setting: Setting) -> LLM:
        """Load what a setting names. Raises ConfigError for a model that cannot chat."""
        _, speculative = decoding(setting.mode, setting.given)
        llm = load(setting.model, speculative, **setting.given[EngineConfig], max_num_seqs=1)
        if not llm.tokenizer.has_chat_template:
            llm.close()
            raise ConfigError(
                f"{setting.model} has no chat template; use an instruct model, or sonoran generate --raw"
            )
        return llm

    def _switch(self, setting: Setting, told: str) -> None:
        """Load another setting; where that fails, the old one again."""
        self.llm.close()  # before, so that memory need not hold both
        try:
            self.llm = self._loaded(setting)
        except BaseException:
            self.llm = self._loaded(self.state.setting)
            raise
        self.state.setting = setting
        remark(f"{told}; the conversation is read again with the next question")

    def _fitting(self) -> list[int]:
        """Return the conversation as token ids. Raises CapacityError when it leaves no room for an answer."""
        talk = self.state.conversation
        dropped = 0
        while True:
            ids: list[int] = self.llm.tokenizer.encode_chat(talk.prompt())
            room = self.llm.max_model_len - len(ids)
            if room > 0:
                if dropped:
                    remark(f"the context was full: forgot the {dropped} oldest turns")
                return ids
            if not (self._drop_oldest and talk.drop(1)):
                break
            dropped += 1
        ways = "/drop forgets the oldest turn and /retry asks again, " if talk.messages else ""
        raise CapacityError(
            f"the conversation has {len(ids)} tokens, and the context holds {self.llm.max_model_len}: {ways}"
            "/clear forgets all; or /save FILE, and sonoran chat --resume FILE --max-model-len "
            f"{1 << (len(ids) + 512).bit_length()}"
        )

    def _answer(self) -> None:
        state = self.state
        ids, params = self._fitting(), state.params
        answer = generate_answer(self.llm, ids, params, self._writer())
        if not self._json:
            say("")
        if answer.text:
            state.conversation.answered(answer.text)
        self._turn += 1
        line = summary(answer, params, self.llm.max_model_len)
        if answer.cancelled:
            line += ": what there is stays in the conversation" if answer.text else ": /retry asks again"
        if state.show_origin:
            line += f"; {shares(answer)}"
        if self._json:
            document = {"turn": self._turn, **answer.as_json(state.setting.model)}
            if state.show_origin:
                document["origins"] = answer.origins
            jsonlib.dump(document, sys.stdout, ensure_ascii=False)
            sys.stdout.write("\n")
            sys.stdout.flush()
        else:
            remark(line)

    def _writer(self) -> Callable[[SampleDelta], None] | None:
        if self._json:
            return None
        if not self.state.show_origin or not out.is_terminal or out.no_color:
            return write_text
        shared = OriginText(self.llm.tokenizer.detokenizer(continuation=True).push)

        def write_coloured(delta: SampleDelta) -> None:
            origins = delta.round.origins if delta.round is not None else ()
            for piece, origin in shared.pieces(delta.token_ids, origins, delta.text):
                style = STYLES[origin]
                sys.stdout.write(f"{style}{piece}\x1b[0m" if style else piece)
            sys.stdout.flush()

        return write_coloured

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self.llm.close()


def shares(answer: Answer) -> str:
    """Return how many tokens came from where."""
    count = max(1, len(answer.origins))
    names = {
        "cache": "guessed ahead",
        "backup": "drafted on demand",
        "copy": "copied",
        "target": "the target's own",
    }
    return ", ".join(f"{answer.origins.count(o) / count:.0%} {name}" for o, name in names.items())  # type: ignore[arg-type]


def piped_lines() -> Iterator[str]:
    """Yield what is entered when standard input is no terminal."""
    lines: list[str] = []
    for line in sys.stdin or ():
        lines.append(line.rstrip("\r\n").removeprefix("\ufeff"))
        if (text := joined(lines)) is not None:
            lines = []
            yield text
    if lines:
        yield "\n".join(lines)


def typed_lines() -> Iterator[str]:
    """Yield what is typed: with history, completion of commands and files, and Alt-Enter for a line break."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document
    from prompt_toolkit.history import FileHistory, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings

    paths = PathCompleter(expanduser=True)
    names = sorted((*COMMANDS, *SAMPLING_COMMANDS))

    class Commands(Completer):
        def get_completions(self, document: Document, complete_event: Any) -> Iterator[Completion]:
            text = document.text_before_cursor
            name, space, rest = text.partition(" ")
            if text.startswith("/") and not space:
                yield from (Completion(f"/{n}", -len(text)) for n in names if n.startswith(text[1:]))
            elif name in ("/file", "/save", "/load", "/model"):
                last = rest.rpartition(" ")[2]
                yield from paths.get_completions(Document(last), complete_event)

    keys = KeyBindings()
    keys.add("enter")(lambda event: event.current_buffer.validate_and_handle())
    keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
    history: Any = InMemoryHistory()
    with suppress(OSError, ConfigError):
        place = cache_dir() / "chat_history"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch(mode=0o600)
        history = FileHistory(str(place))
    session: PromptSession[str] = PromptSession(
        history=history, completer=Commands(), complete_while_typing=False, key_bindings=keys, multiline=True
    )
    lines: list[str] = []
    while True:
        try:
            lines.append(session.prompt(MORE if lines else PROMPT, prompt_continuation=MORE))
        except KeyboardInterrupt:
            lines = []
            remark("Ctrl-D or /quit ends")
            continue
        except EOFError:
            return
        if (text := joined(lines)) is not None:
            lines = []
            yield text
