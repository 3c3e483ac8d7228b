"""A conversation and its commands, without a terminal or a model: a line goes in, what is to be done comes out."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from sonoran.cli.common import read, write
from sonoran.cli.options import SAMPLING, SPECULATION, Given, Option, decoding, sampling
from sonoran.cli.prompt import with_files
from sonoran.config import ALIASES, SpeculativeConfig
from sonoran.errors import ConfigError, nearest
from sonoran.models.untrusted import parse_json, refusing
from sonoran.sampling.params import SamplingParams

FORMAT = "sonoran chat 1"
Message = dict[str, str]


@dataclass(slots=True)
class Conversation:
    """Messages so far, and the files that go with the next question."""

    messages: list[Message] = field(default_factory=list)
    system: str | None = None
    files: list[tuple[str, str]] = field(default_factory=list)
    unanswered: Message | None = None  # a question that got no answer

    def with_question(self, text: str) -> list[Message]:
        """Take a question, with the files that wait, and return all messages for the model to go on from."""
        self.unanswered = {"role": "user", "content": with_files(text, self.files)}
        self.files = []
        return self.prompt()

    def prompt(self) -> list[Message]:
        """Return the messages as the model reads them, the question that waits for its answer last."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        last = [self.unanswered] if self.unanswered is not None else []
        return [*first, *self.messages, *last]

    def answered(self, text: str) -> None:
        """Keep an answer, whole or in part."""
        if self.unanswered is not None:
            self.messages += [self.unanswered, {"role": "assistant", "content": text}]
            self.unanswered = None

    def take_back(self) -> None:
        """Make the last question one without an answer. Raises ConfigError when there is none."""
        if self.unanswered is None:
            if not self.messages:
                raise ConfigError("there is no question yet")
            self.unanswered = self.messages[-2]
            del self.messages[-2:]

    def drop(self, count: int) -> int:
        """Forget the oldest turns; return how many there were to forget."""
        dropped = min(count, len(self.messages) // 2)
        del self.messages[: 2 * dropped]
        return dropped

    def clear(self) -> None:
        """Forget everything but the system message."""
        self.messages, self.files, self.unanswered = [], [], None


@dataclass(frozen=True, slots=True)
class Setting:
    """What a conversation runs on."""

    model: str
    mode: str | None
    given: Given

    def with_mode(self, mode: str) -> Setting:
        """Return the same in another mode; options that have no meaning there are left out. Raises ConfigError."""
        mode = ALIASES.get(mode, mode)
        methods = {option.name: option.field.metadata["methods"] for option in SPECULATION}
        kept = {
            name: value
            for name, value in self.given[SpeculativeConfig].items()
            if name == "verification" or (mode != "ar" and (not methods[name] or mode in methods[name]))
        }
        if kept.get("model") in ("none", "ngram") and mode != "ngram":
            del kept["model"]
        changed = replace(self, mode=mode, given={**self.given, SpeculativeConfig: kept})
        decoding(mode, changed.given)
        return changed

    def with_sampling(self, given: dict[str, Any]) -> Setting:
        """Return the same with other sampling parameters. Raises ConfigError."""
        sampling(given)
        return replace(self, given={**self.given, SamplingParams: given})


@dataclass(frozen=True, slots=True)
class Action:
    """What the shell is to do: show a text, let the model answer, load another setting, or end."""

    kind: Literal["say", "ask", "load", "quit"]
    text: str = ""
    setting: Setting | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """A command: what may follow it, what it does in a few words, and the method that carries it out."""

    argument: str
    text: str
    run: Callable[[Chat, str], Action]


SAMPLING_COMMANDS: dict[str, Option] = {
    option.flags[0].removeprefix("--"): option for option in SAMPLING if option.name != "verification"
}
SHORT = {"exit": "quit", "bye": "quit", "colors": "colours", "set": "settings", "?": "help"}


@dataclass(slots=True)
class Chat:
    """The state of ``sonoran chat``."""

    setting: Setting
    conversation: Conversation = field(default_factory=Conversation)
    show_origin: bool = False

    @property
    def params(self) -> SamplingParams:
        """How the next answer is sampled."""
        return sampling(self.setting.given[SamplingParams])

    def enter(self, text: str) -> Action:
        """Take what the user entered. Raises ConfigError; then nothing has changed."""
        if text.startswith("//"):
            text = text[1:]
        elif text.startswith("/"):
            name, _, argument = text[1:].strip().partition(" ")
            return self._command(SHORT.get(name, name), argument.strip())
        if not text.strip() and not self.conversation.files:
            return Action("say")
        self.conversation.with_question(text)
        return Action("ask")

    def _command(self, name: str, argument: str) -> Action:
        if name in SAMPLING_COMMANDS:
            return self._sample(SAMPLING_COMMANDS[name], argument)
        if name not in COMMANDS:
            known = [f"/{each}" for each in (*COMMANDS, *SAMPLING_COMMANDS)]
            found = nearest(f"/{name}", known)
            hint = found if "did you mean" in found else ""
            raise ConfigError(
                f"there is no command /{name}{hint}; /help lists them, // begins a text with a slash"
            )
        command = COMMANDS[name]
        if argument and not command.argument:
            raise ConfigError(f"/{name} takes nothing after it, got {argument!r}")
        return command.run(self, argument)

    def _sample(self, option: Option, argument: str) -> Action:
        name, given = option.flags[0].removeprefix("--"), dict(self.setting.given[SamplingParams])
        if not argument:
            value = given.get(option.name, option.default)
            return Action("say", f"/{name} is {_shown(value)}. {option.field.metadata['help']}")
        given.pop(option.name, None)
        if argument not in ("default", "none"):
            given[option.name] = from_text(option, argument)
        self.setting = self.setting.with_sampling(given)
        return Action("say", f"/{name} is {_shown(given.get(option.name, option.default))}")

    def _help(self, _: str) -> Action:
        lines = [(f"/{name} {c.argument}".rstrip(), c.text) for name, c in COMMANDS.items()]
        lines.append(
            (
                "/temperature, /seed, ...",
                "Any sampling option of sonoran generate: alone shows, with a value sets.",
            )
        )
        lines.append(("Ctrl-C, Ctrl-D", "Stop the answer; end the chat."))
        lines.append(('Alt-Enter, \\ or """', "A line break; a line that goes on; a block of lines."))
        return Action("say", "\n".join(f"{left:<24} {right}" for left, right in lines))

    def _file(self, argument: str) -> Action:
        if argument:
            self.conversation.files += [(str(path), read(path, "attached")) for path in _paths(argument)]
        if not self.conversation.files:
            return Action("say", "no file goes with the next question; /file PATH adds one")
        files = ", ".join(f"{name} ({len(text)} characters)" for name, text in self.conversation.files)
        return Action("say", f"with the next question: {files}")

    def _system(self, argument: str) -> Action:
        if argument:
            self.conversation.system = None if argument == "none" else argument
        system = self.conversation.system
        return Action("say", f"system message: {system}" if system else "no system message")

    def _model(self, argument: str) -> Action:
        if not argument:
            return Action("say", f"/model is {self.setting.model}")
        return Action("load", f"the model is {argument}", replace(self.setting, model=argument))

    def _mode(self, argument: str) -> Action:
        if not argument:
            return Action("say", f"/mode is {self.setting.mode or 'what fits the model'}")
        return Action("load", f"the mode is {argument}", self.setting.with_mode(argument))

    def _settings(self, _: str) -> Action:
        given = self.setting.given[SamplingParams]
        parts = [f"model {self.setting.model}", f"mode {self.setting.mode or 'what fits the model'}"]
        parts += [
            f"{name} {_shown(given[o.name])}" for name, o in SAMPLING_COMMANDS.items() if o.name in given
        ]
        return Action("say", ", ".join(parts))

    def _clear(self, _: str) -> Action:
        self.conversation.clear()
        return Action("say", "the conversation is empty; the system message stays")

    def _drop(self, argument: str) -> Action:
        if argument and not argument.isdigit():
            raise ConfigError(f"/drop takes a number of turns, got {argument!r}")
        dropped = self.conversation.drop(int(argument or 1))
        waiting = "; /retry asks again what got no answer" if self.conversation.unanswered else ""
        return Action("say", f"forgot the {dropped} oldest turns{waiting}")

    def _retry(self, _: str) -> Action:
        again = self.conversation.unanswered is None
        self.conversation.take_back()
        same = self.params.greedy or self.params.seed is not None
        hint = "the same answer comes again: /temperature 0.7 without /seed draws another"
        return Action("ask", hint if again and same else "")

    def _colours(self, _: str) -> Action:
        self.show_origin = not self.show_origin
        return Action("say", LEGEND if self.show_origin else "origins are not shown")

    def _save(self, argument: str) -> Action:
        path = _one_path("/save", argument)
        if path.exists() and not _is_chat(path):
            raise ConfigError(f"{path} is there and is no saved chat; choose another name")
        told = "written over" if path.exists() else "written"
        write(path, (self.to_json() + "\n").encode())
        return Action(
            "say", f"{path} {told}; /load {path}, or sonoran chat --resume {path}, goes on from there"
        )

    def _load(self, argument: str) -> Action:
        return Action("say", self.resume(_one_path("/load", argument)))

    def to_json(self) -> str:
        """Return what a file needs to go on from here."""
        talk = self.conversation
        return json.dumps(
            {
                "format": FORMAT,
                "model": self.setting.model,
                "system": talk.system,
                "messages": talk.messages,
                "sampling": self.setting.given[SamplingParams],
            },
            ensure_ascii=False,
            indent=1,
        )

    def resume(self, path: Path) -> str:
        """Go on from a file that ``/save`` wrote; return what to tell. Raises ConfigError, and nothing has changed."""
        saved = _read_chat(path)
        params = {k: tuple(v) if isinstance(v, list) else v for k, v in saved["sampling"].items()}
        self.setting = self.setting.with_sampling(params)
        self.conversation = Conversation(saved["messages"], saved["system"])
        other = "" if saved["model"] == self.setting.model else f"; it was led with {saved['model']}"
        return f"{path}: {len(saved['messages']) // 2} turns{other}"


LEGEND = "tokens by origin: green guessed ahead (speculation cache), yellow drafted on demand, plain the target's own"

COMMANDS: dict[str, Command] = {
    "help": Command("", "This list.", Chat._help),
    "file": Command("PATH...", "Files that go with the next question; alone lists them.", Chat._file),
    "system": Command("TEXT", "The system message; none removes it.", Chat._system),
    "model": Command("NAME", "Another model; the conversation stays.", Chat._model),
    "mode": Command("MODE", "ar, sd, ssd, ngram or auto; loads anew.", Chat._mode),
    "settings": Command("", "Model, mode and sampling.", Chat._settings),
    "retry": Command("", "Answer the last question again.", Chat._retry),
    "clear": Command("", "Forget the conversation.", Chat._clear),
    "drop": Command("N", "Forget the N oldest turns (1).", Chat._drop),
    "save": Command("FILE", "Write the conversation.", Chat._save),
    "load": Command("FILE", "Go on from a saved conversation.", Chat._load),
    "colours": Command("", "Show where each token came from, or no longer.", Chat._colours),
    "quit": Command("", "End.", lambda chat, _: Action("quit")),
}  # fmt: skip
"""By name, without the slash."""


def from_text(option: Option, text: str) -> Any:
    """Read the value of an option that was typed. Raises ConfigError."""
    flag = option.flags[0].removeprefix("--")
    kind = option.kinds[0]
    if kind is bool:
        values = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
        if text not in values:
            raise ConfigError(f"/{flag} must be on or off, got {text!r}")
        return values[text]
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            wanted = "a whole number" if kind is int else "a number"
            raise ConfigError(f"/{flag} must be {wanted}, got {text!r}") from None
    if get_origin(kind) is tuple and get_args(kind)[0] is str:
        return (text,)
    return option.read(text)


def joined(lines: list[str]) -> str | None:
    r"""Return the text of lines that were entered one after the other; None when more is to come.

    A line that ends with a backslash goes on, and what begins with three quotation marks goes on until three more.
    """
    text = "\n".join(lines)
    if text.startswith('"""'):
        inside, end, rest = text[3:].partition('"""')
        return inside.strip("\n") + rest if end else None
    if lines[-1].endswith("\\"):
        return None
    return "\n".join(line.removesuffix("\\") for line in lines)


@dataclass(slots=True)
class OriginText:
    """Shares a text that comes in pieces out to the tokens that it came from.

    What is shown may lag behind the tokens (a stop string in the making, half a letter); in the end it is the same text.
    """

    push: Callable[[int], str]
    waiting: list[tuple[int, str]] = field(default_factory=list)  # characters and origin

    def pieces(
        self, token_ids: tuple[int, ...], origins: tuple[str, ...], text: str
    ) -> list[tuple[str, str]]:
        """Return the text in pieces with their origins."""
        for token, origin in zip(token_ids, origins, strict=False):
            self.waiting.append((len(self.push(token)), origin))
        found: list[tuple[str, str]] = []
        while text:
            count, origin = self.waiting.pop(0) if self.waiting else (len(text), "target")
            if count > len(text):
                self.waiting.insert(0, (count - len(text), origin))
            piece, text = text[:count], text[count:]
            if piece:
                found.append((piece, origin))
        return found


def _shown(value: object) -> str:
    if value is None or value == ():
        return "not set"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _words(argument: str) -> list[str]:
    try:
        return shlex.split(argument)
    except ValueError as error:
        raise ConfigError(f"cannot read {argument!r}: {error}") from error


def _paths(argument: str) -> list[Path]:
    """Return the files that were named; a pattern such as *.py stands for those that fit."""
    found: list[Path] = []
    for word in _words(argument):
        path = Path(word).expanduser()
        fitting = (
            sorted(path.parent.glob(path.name)) if not path.exists() and set("*?[") & set(path.name) else []
        )
        found += fitting or [path]
    return found


def _one_path(command: str, argument: str) -> Path:
    words = _words(argument)
    if len(words) != 1:
        raise ConfigError(f"{command} takes one file, such as {command} chat.json")
    return Path(words[0]).expanduser()


def _is_chat(path: Path) -> bool:
    try:
        _read_chat(path)
    except ConfigError:
        return False
    return True


def _read_chat(path: Path) -> Mapping[str, Any]:
    text = read(path, "chat")
    try:
        with refusing(path, ConfigError):
            saved = parse_json(text, ConfigError)
    except ConfigError:
        saved = None
    sound = (
        isinstance(saved, dict)
        and saved.get("format") == FORMAT
        and isinstance(saved.get("model"), str)
        and isinstance(saved.get("system"), str | None)
        and isinstance(saved.get("sampling"), dict)
        and isinstance(saved.get("messages"), list)
        and all(
            isinstance(message, dict)
            and all(isinstance(message.get(key), str) for key in ("role", "content"))
            for message in saved["messages"]
        )
        and [m["role"] for m in saved["messages"]] == ["user", "assistant"] * (len(saved["messages"]) // 2)
    )
    if not sound:
        raise ConfigError(f"{path} is no saved chat; /save writes one")
    return saved  # type: ignore[no-any-return]
