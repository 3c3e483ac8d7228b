"""Text to token ids and back, for a model read from a GGUF file or a model directory."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tokenizers import AddedToken

from sonoran.errors import CapacityError, ConfigError, check_unicode
from sonoran.models.tokenizer.chat import Markers, holds, render_chat, unused_character
from sonoran.models.tokenizer.detokenizer import Detokenizer
from sonoran.models.tokenizer.directory_source import from_directory
from sonoran.models.tokenizer.gguf_source import from_gguf
from sonoran.models.tokenizer.vocabulary import Vocabulary, is_marker, token_bytes
from sonoran.models.untrusted import is_panic, one_line, refusing

log = logging.getLogger(__name__)

CHARACTERS = 8
"""Of a token, beyond which a text is tried in part first; in ordinary text it is half of that."""


class TokenizerSource(Protocol):
    """What an open model offers: the metadata of its GGUF file, or its directory."""

    @property
    def path(self) -> Path: ...

    @property
    def metadata(self) -> Mapping[str, Any]: ...

    @property
    def directory(self) -> Path | None: ...


class Tokenizer:
    """A model's tokenizer. Make one with ``from_model``, ``from_gguf`` or ``from_directory``."""

    def __init__(self, backend: Any, vocabulary: Vocabulary) -> None:
        self._backend = backend
        self._vocabulary = vocabulary
        self._bytes: list[bytes | None] = [None] * len(vocabulary.tokens)
        self._markers = Markers(
            vocabulary.tokens[i]
            for i in vocabulary.added
            if i in vocabulary.special or is_marker(vocabulary.tokens[i])
        )
        self._plain: tuple[str, Any, dict[int, int]] | None = None  # see _without_markers
        self._warned = False
        self.most_tokens: int | None = None
        """What the model can take, if it is known: a text that has far more is refused before all of it is read."""

    @classmethod
    def from_model(cls, model: TokenizerSource) -> Tokenizer:
        """Build the tokenizer of an open model; raises ModelError when it has none that we know."""
        if model.directory is not None:
            return cls.from_directory(model.directory)
        return cls.from_gguf(model.metadata, str(model.path))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], where: str = "the file") -> Tokenizer:
        """Build from the metadata of the GGUF file ``where``.

        Raises ModelError when it has no tokenizer that we know.
        """
        with refusing(where):
            return cls(*from_gguf(metadata, where))

    @classmethod
    def from_directory(cls, directory: Path | str) -> Tokenizer:
        """Build from the tokenizer.json of a model directory and the configurations beside it."""
        with refusing(directory):
            return cls(*from_directory(Path(directory)))

    @property
    def vocab_size(self) -> int:
        """Number of real tokens: ids from here on only pad the output matrix."""
        return len(self._vocabulary.tokens)

    @property
    def padded_vocab_size(self) -> int:
        """Number of tokens that the file declares, padding included."""
        return self._vocabulary.padded_size

    @property
    def bos_id(self) -> int | None:
        """The beginning-of-sequence token, whether or not ``encode`` adds it."""
        return self._vocabulary.bos_id

    @property
    def adds_bos(self) -> bool:
        """True when ``encode`` puts ``bos_id`` before a text."""
        return self.bos_id is not None and self.bos_id in self._vocabulary.prefix

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """All tokens that end a generation, sorted: declared by the files, and well-known special ones."""
        return self._vocabulary.eos_ids

    def special_token_id(self, text: str) -> int | None:
        """Return the id of the special token that is written like that; None if there is none."""
        token = self._backend.token_to_id(text)
        return token if token in self.special_ids else None

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that ``skip_special_tokens`` leaves out of decoded text."""
        return self._vocabulary.special

    @property
    def has_chat_template(self) -> bool:
        """True when ``encode_chat`` can work."""
        return bool(self._vocabulary.chat_templates)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Special tokens written in the text are recognised.

        ``add_special_tokens`` adds what the model expects around a text, such as a beginning-of-sequence
        token. A text that begins with it already keeps the one it has, and that is warned about once.
        Raises ConfigError for text that is not valid Unicode (a lone surrogate).
        """
        check_unicode(text)
        ids = self._encode(self._backend, text)
        if not add_special_tokens:
            return ids
        prefix = list(self._vocabulary.prefix)
        if prefix and ids[: len(prefix)] == prefix:
            if not self._warned:
                self._warned = True
                log.warning(
                    "the text begins with %s, which is added to every text: it is not doubled. "
                    "Give a rendered chat to chat(), or its token ids to generate()",
                    self._vocabulary.tokens[prefix[0]],
                )
            prefix = []
        return [*prefix, *ids, *self._vocabulary.suffix]

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The text that the model's chat template makes of a conversation; see ``encode_chat``.

        A text cannot tell the template's special tokens from the same characters in a message; ids can.
        """
        variables = {**self._vocabulary.named, **(template_kwargs or {})}
        return render_chat(self._template(tools), messages, tools, add_generation_prompt, variables)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
        allow_special_tokens: bool = False,
    ) -> list[int]:
        """Token ids of a conversation ``[{"role": ..., "content": ...}]`` under the model's template.

        ``tools`` are function descriptions in the OpenAI format, ``template_kwargs`` further variables of the
        template. The template writes its own special tokens; none are added. Special tokens that are spelled out
        in messages and tools stay text, so that a message cannot end its turn and forge another one;
        ``allow_special_tokens`` lets them count, as in Hugging Face's tokenizers.
        Raises ConfigError when the model has no template or the template refuses the messages, ModelError when
        the template is not valid or never ends.
        """
        if not allow_special_tokens:
            try:
                mark = unused_character([messages, tools, self._template(tools)])
                guarded = self._markers.guard(messages, mark), self._markers.guard(tools, mark)
            except RecursionError as error:
                raise ConfigError("the messages are nested too deeply") from error
            if holds(guarded, mark):
                text = self.render_chat(*guarded, add_generation_prompt, template_kwargs)
                return self._encode_guarded(text, mark)
        text = self.render_chat(messages, tools, add_generation_prompt, template_kwargs)
        return self.encode(text, add_special_tokens=False)

    def encode_prompt(self, text: str, *, system: str | None = None, chat: bool | None = None) -> list[int]:
        """Token ids of a user's prompt: as a chat if the model has a template, else as the bare text.

        ``chat`` True or False decides it; ``system`` is a message before the prompt. Raises ConfigError for a system
        message without a chat, and what ``encode_chat`` raises.
        """
        if not (self.has_chat_template if chat is None else chat):
            if system is None:
                return self.encode(text)
            why = "the model has no chat template" if chat is None else "the prompt is not encoded as a chat"
            raise ConfigError(
                f"a system message needs a chat, and {why}; use an instruct model, or leave it out"
            )
        messages = [] if system is None else [{"role": "system", "content": system}]
        return self.encode_chat([*messages, {"role": "user", "content": text}])

    def _template(self, tools: Sequence[Mapping[str, Any]] | None) -> str:
        templates = self._vocabulary.chat_templates
        if not templates:
            raise ConfigError("the model has no chat template; give it plain text, or use an instruct model")
        name = "tool_use" if tools and "tool_use" in templates else "default"
        return templates.get(name) or next(iter(templates.values()))

    def _encode_guarded(self, text: str, mark: str) -> list[int]:
        """Ids of a text in which markers with ``mark`` inside are plain text."""
        check_unicode(text)
        text = text.replace(json.dumps(mark)[1:-1], mark)
        added = self._backend.get_added_tokens_decoder().values()
        strips = {token.content: (token.lstrip, token.rstrip) for token in added}
        joined, markers, end, rstrip = "", [], 0, False
        for begin, after in self._markers.find(text):
            piece, marker = text[end:begin], text[begin:after]
            piece = piece.lstrip() if rstrip else piece
            lstrip, rstrip = strips.get(marker, (False, False))
            joined += (piece.rstrip() if lstrip else piece).replace(mark, "") + mark
            markers.append(self._backend.token_to_id(marker))
            end = after
        rest = text[end:].lstrip() if rstrip else text[end:]
        backend, originals = self._without_markers(mark)
        anchor, following = backend.token_to_id(mark), iter(markers)
        ids = self._encode(backend, joined + rest.replace(mark, ""))
        return [next(following) if i == anchor else originals.get(i, i) for i in ids]

    def _encode(self, backend: Any, text: str) -> list[int]:
        """Ids of a text. A long one is tried in part first: a part has hardly more tokens than all of it.

        Raises CapacityError, and ConfigError for text that the tokenizer breaks down over.
        """
        try:
            return self._encode_bounded(backend, text)
        except BaseException as error:
            if not is_panic(error):
                raise
            raise ConfigError(
                f"this text of {len(text)} characters has no tokens ({one_line(str(error))})"
            ) from None

    def _encode_bounded(self, backend: Any, text: str) -> list[int]:
        most = self.most_tokens
        size = 0 if most is None else max(4096, CHARACTERS * most)
        while most is not None and size < len(text) // 2:
            found = len(backend.encode(text[:size], add_special_tokens=False).ids)
            if found > most + most // 8 + 100:
                raise CapacityError(
                    f"the first {size} of {len(text)} characters of the prompt are {found} tokens, but max_model_len "
                    f"is {most}; shorten the prompt, or load the model with a larger max_model_len if it has one"
                )
            size *= 4
        ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        return ids

    def _without_markers(self, mark: str) -> tuple[Any, dict[int, int]]:
        """The backend without tokens that mark turns, and with ``mark`` as a token: it stands where one was.

        The other added tokens close the gaps that the missing ones leave; the mapping gives their own ids.
        """
        if self._plain is None or self._plain[0] != mark:
            state = json.loads(self._backend.to_str())
            state["added_tokens"] = [
                t for t in state["added_tokens"] if t["content"] not in self._markers.tokens
            ]
            backend = type(self._backend).from_str(json.dumps(state))
            backend.add_special_tokens([AddedToken(mark, normalized=False)])
            originals = {backend.token_to_id(t["content"]): t["id"] for t in state["added_tokens"]}
            self._plain = (mark, backend, originals)
        return self._plain[1:]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True, continuation: bool = False) -> str:
        """Text of token ids; incomplete or invalid bytes become U+FFFD, padding ids nothing.

        ``continuation`` says that the ids follow others, so that a leading space belongs to the text; it
        matters for SentencePiece vocabularies only, which put a space before every text.
        """
        detokenizer = self.detokenizer(skip_special_tokens, continuation)
        return "".join([*(detokenizer.push(int(i)) for i in ids), detokenizer.flush()])

    def detokenizer(self, skip_special_tokens: bool = True, continuation: bool = False) -> Detokenizer:
        """An incremental ``decode`` with the same options."""
        skipped = self._vocabulary.special if skip_special_tokens else frozenset()

        def bytes_of(token_id: int) -> bytes:
            return b"" if token_id in skipped else self.token_bytes(token_id)

        return Detokenizer(bytes_of, strip_space=self._vocabulary.prefix_space and not continuation)

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that a token stands for; empty for padding. Raises ConfigError for a negative id."""
        if token_id < 0:
            raise ConfigError(f"token id {token_id} is negative")
        if token_id >= len(self._bytes):
            return b""
        known = self._bytes[token_id]
        if known is None:
            vocabulary = self._vocabulary
            token, added = vocabulary.tokens[token_id], token_id in vocabulary.added
            known = self._bytes[token_id] = token_bytes(token, vocabulary.spelling, added)
        return known

    def token_strings(self) -> tuple[str, ...]:
        """Every real token as the vocabulary spells it, by id."""
        return self._vocabulary.tokens

    def special_tokens(self, size: int | None = None) -> dict[str, tuple[str, ...]]:
        """Tokens whose role matters to a model that shares ids (those below ``size``, if given) with this one: what
        begins and ends a text."""
        tokens, limit = self._vocabulary.tokens, self.vocab_size if size is None else size
        return {
            "prefix": tuple(tokens[i] for i in self._vocabulary.prefix if i < limit),
            "end": tuple(tokens[i] for i in self._vocabulary.eos_ids if i < limit),
        }

    def fingerprint(self, size: int | None = None) -> str:
        """SHA-256 (hexadecimal) over token strings and special tokens, all or those below ``size``.

        Vocabularies that share their first ``size`` ids have the same.
        """
        content = json.dumps([self.token_strings()[:size], self.special_tokens(size)], ensure_ascii=True)
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def stand_in(self) -> int:
        """What a model reads in place of a token that it lacks: a line break, which belongs to no word."""
        ids = self.encode("\n", add_special_tokens=False)
        return ids[-1] if ids else 0
