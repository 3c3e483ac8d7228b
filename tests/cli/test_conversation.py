"""The state of a chat and its commands, without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sonoran.cli.conversation import COMMANDS, Action, Chat, OriginText, Setting, joined
from sonoran.config import EngineConfig, SpeculativeConfig
from sonoran.errors import ConfigError
from sonoran.sampling.params import SamplingParams


def chat(mode: str | None = None, sampling: dict[str, Any] | None = None, **speculative: Any) -> Chat:
    given = {SamplingParams: sampling or {}, SpeculativeConfig: speculative, EngineConfig: {}}
    return Chat(Setting("some-model", mode, given))


def talk(state: Chat, *turns: tuple[str, str]) -> Chat:
    for question, answer in turns:
        assert state.enter(question).kind == "ask"
        state.conversation.answered(answer)
    return state


def roles(state: Chat) -> list[tuple[str, str]]:
    return [(m["role"][0], m["content"]) for m in state.conversation.prompt()]


def test_questions_and_answers_alternate_behind_the_system_message() -> None:
    state = talk(chat(), ("a", "1"))
    state.enter("/system be brief")
    state.enter("b")
    assert roles(state) == [("s", "be brief"), ("u", "a"), ("a", "1"), ("u", "b")]
    state.conversation.answered("2")
    state.enter("/system none")
    assert roles(state) == [("u", "a"), ("a", "1"), ("u", "b"), ("a", "2")]


def test_a_question_without_an_answer_is_asked_again_or_replaced() -> None:
    state = talk(chat(), ("a", "1"))
    state.enter("b")
    assert state.enter("/retry") == Action("ask")
    assert roles(state)[-1] == ("u", "b")
    state.enter("c")
    assert roles(state) == [("u", "a"), ("a", "1"), ("u", "c")]


def test_retry_takes_the_last_answer_back_and_says_when_it_would_come_again() -> None:
    state = talk(chat(sampling={"temperature": 0.0}), ("a", "1"), ("b", "2"))
    action = state.enter("/retry")
    assert action.kind == "ask" and "the same answer comes again" in action.text
    assert roles(state) == [("u", "a"), ("a", "1"), ("u", "b")]
    state.conversation.answered("3")
    state.enter("/temperature 0.8")
    assert state.enter("/retry") == Action("ask")
    with pytest.raises(ConfigError, match="no question yet"):
        chat().enter("/retry")


def test_files_go_with_the_next_question_only(tmp_path: Path) -> None:
    for name in ("a.py", "b c.py"):
        (tmp_path / name).write_text(f"# {name}\n")
    state = chat()
    said = state.enter(f"/file {tmp_path}/a.py '{tmp_path}/b c.py'").text
    assert "a.py (7 characters)" in said and "b c.py (9 characters)" in said
    with pytest.raises(ConfigError, match="the attached file"):
        state.enter(f"/file {tmp_path}/nowhere")
    state.enter("what is this?")
    assert roles(state) == [
        (
            "u",
            f"what is this?\n\n{tmp_path}/a.py:\n```\n# a.py\n```\n\n{tmp_path}/b c.py:\n```\n# b c.py\n```",
        )
    ]
    state.conversation.answered("files")
    state.enter("and?")
    assert roles(state)[-1] == ("u", "and?")
    state.enter(f"/file {tmp_path}/*.py")
    assert len(state.conversation.files) == 2
    assert state.enter("").kind == "ask"
    assert state.enter("").kind == "say"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("/fil x", "did you mean '/file'?"),
        ("/temprature 1", "did you mean '/temperature'?"),
        ("/zzzz", "there is no command /zzzz; /help lists them"),
        ("/temperature hot", "/temperature must be a number, got 'hot'"),
        ("/temperature -1", "--temperature is -1"),
        ("/top-k 1.5", "/top-k must be a whole number"),
        ("/ignore-eos perhaps", "/ignore-eos must be on or off"),
        ("/mode sssd", "did you mean 'ssd'?"),
        ("/clear all", "/clear takes nothing after it, got 'all'"),
        ("/drop two", "/drop takes a number of turns"),
        ("/save", "/save takes one file"),
        ("/file 'a", "cannot read"),
        ("/load nowhere.json", "the chat file"),
    ],
)
def test_mistakes_change_nothing_and_name_the_nearest(line: str, text: str) -> None:
    state = talk(chat(), ("a", "1"))
    before = state.to_json()
    with pytest.raises(ConfigError, match=None) as raised:
        state.enter(line)
    assert text in str(raised.value)
    assert state.to_json() == before and not state.conversation.files


def test_sampling_is_shown_set_and_set_back() -> None:
    state = chat(sampling={"temperature": 0.0})
    assert "/temperature is 0.0. 0 takes" in state.enter("/temperature").text
    assert state.enter("/temperature 0.7").text == "/temperature is 0.7"
    state.enter("/seed 5")
    state.enter("/stop \\n\\n")
    state.enter("/ignore-eos on")
    params = state.params
    assert (params.temperature, params.seed, params.ignore_eos) == (0.7, 5, True)
    assert state.enter("/seed none").text == "/seed is not set"
    assert state.enter("/settings").text.startswith(
        "model some-model, mode what fits the model, temperature 0.7"
    )
    assert state.params.seed is None


def test_a_mode_keeps_the_options_that_have_a_meaning_in_it() -> None:
    state = chat("ssd", model="draft.gguf", budget=4, num_speculative_tokens=3, verification="coupled")
    settings = {mode: state.enter(f"/mode {mode}").setting for mode in ("ar", "ngram", "sd", "auto", "ssd")}
    kept = {mode: setting.given[SpeculativeConfig] for mode, setting in settings.items() if setting}
    assert kept["ar"] == {"verification": "coupled"}
    assert kept["ngram"] == {"num_speculative_tokens": 3, "verification": "coupled"}
    assert kept["sd"] == {"model": "draft.gguf", "num_speculative_tokens": 3, "verification": "coupled"}
    assert kept["ssd"] == {**kept["sd"], "budget": 4}
    assert state.setting.mode == "ssd"  # the shell sets it once the models are loaded
    from_ngram = chat("ngram", model="ngram").enter("/mode sd").setting
    assert from_ngram is not None and from_ngram.given[SpeculativeConfig] == {}
    assert state.enter("/model other").setting == Setting("other", "ssd", state.setting.given)


def test_a_chat_is_saved_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    state = talk(chat(sampling={"temperature": 0.5, "stop": ("x",)}), ("a", "1\n"), ("b", "ü"))
    state.enter("/system be brief")
    assert "written; /load" in state.enter(f"/save {path}").text
    assert "written over" in state.enter(f"/save {path}").text
    other = chat()
    assert other.enter(f"/load {path}").text == f"{path}: 2 turns"
    assert roles(other) == roles(state) and other.params == state.params
    other.setting = Setting("another", None, other.setting.given)
    assert "it was led with some-model" in other.resume(path)


@pytest.mark.parametrize("change", [{"format": "x"}, {"messages": [{"role": "user", "content": "a"}]},
                                    {"messages": [1]}, {"sampling": {"temprature": 1}}])  # fmt: skip
def test_what_is_no_chat_is_neither_loaded_nor_written_over(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "notes.json"
    path.write_text(json.dumps(json.loads(talk(chat(), ("a", "1")).to_json()) | change))
    with pytest.raises(ConfigError):
        chat().enter(f"/load {path}")
    path.write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="is no saved chat"):
        chat().enter(f"/load {path}")
    path.write_text("my notes")
    with pytest.raises(ConfigError, match="is no saved chat; choose another name"):
        chat().enter(f"/save {path}")
    assert path.read_text() == "my notes"


def test_old_turns_are_dropped_when_asked_for() -> None:
    state = talk(chat(), ("a", "1"), ("b", "2"), ("c", "3"))
    assert state.enter("/drop").text == "forgot the 1 oldest turns"
    assert roles(state)[0] == ("u", "b")
    assert state.enter("/drop 9").text == "forgot the 2 oldest turns"
    assert roles(state) == []


def test_slashes_help_and_the_end() -> None:
    state = chat()
    state.enter("//etc is a folder")
    assert roles(state) == [("u", "/etc is a folder")]
    text = state.enter("/?").text
    assert all(f"/{name}" in text for name in COMMANDS)
    assert state.enter("/exit") == state.enter("/quit") == Action("quit")
    assert "green" in state.enter("/colors").text and state.show_origin


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["a"], "a"),
        (["a\\"], None),
        (["a\\", "b"], "a\nb"),
        (['"""'], None),
        (['"""', "a", "b"], None),
        (['"""', "a", "b", '"""'], "a\nb"),
        (['"""a"""'], "a"),
    ],
)
def test_lines_are_joined(lines: list[str], text: str | None) -> None:
    assert joined(lines) == text


def test_texts_are_shared_out_to_the_tokens_they_came_from() -> None:
    shared = OriginText({1: "ab", 2: "c", 3: "", 4: "é"}.__getitem__)
    assert shared.pieces((1, 2), ("cache", "target"), "abc") == [("ab", "cache"), ("c", "target")]
    assert shared.pieces((1,), ("cache",), "") == []  # held back: a stop string may have begun
    assert shared.pieces((3, 4), ("target", "backup"), "abé") == [("ab", "cache"), ("é", "backup")]
    assert shared.pieces((1,), ("cache",), "a") == [("a", "cache")]
    assert shared.pieces((), (), "b") == [("b", "cache")]
    assert shared.pieces((), (), "\ufffd") == [("\ufffd", "target")]
