"""``sonoran generate``: one prompt, its answer as it comes, and how fast it was."""

from __future__ import annotations

import typer

from sonoran.cli.answer import generate_answer, summary, write_text
from sonoran.cli.common import JsonOption, command, examples, print_json, remark, say
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
from sonoran.cli.prompt import (
    ChatOption,
    FilesOption,
    PromptArgument,
    SystemOption,
    piped_input,
    read_prompt,
)
from sonoran.config import EngineConfig
from sonoran.models.registry import DEFAULT_TARGET

EXAMPLES = examples(
    'sonoran generate "Reverse a list in Python"',
    'sonoran generate -f sort.py -f test_sort.py "Why does the test fail?"',
    'git diff | sonoran generate "Write a commit message"',
    'sonoran generate --mode ar "Reverse a list in Python"',
    'sonoran generate --mode ssd --temperature 0.7 --seed 1 "Tell a story"',
    'sonoran generate --mode sd --draft draft.gguf "Sort a list in Go"',
    "sonoran generate -f prompt.txt --json",
    "echo 'def f(x):' | sonoran generate - --raw",
)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("generate", epilog=EXAMPLES)(generate)


@command
@offers(SAMPLING, SPECULATION, ENGINE, temperature=0.0, max_tokens=256)
def generate(
    prompt: PromptArgument = None,
    file: FilesOption = None,
    model: ModelOption = DEFAULT_TARGET,
    system: SystemOption = None,
    chat: ChatOption = None,
    mode: ModeOption = None,
    *,
    given: Given,
    json: JsonOption = False,
) -> None:
    """Generate an answer to a prompt and stream it; the speed goes to standard error.

    Files, and what is piped beside a prompt, stand behind it, each under its name. Ctrl-C stops the answer.
    """
    text = read_prompt(prompt, file or (), piped_input(wanted=prompt == "-"))
    params, speculative = decoding(mode, given)
    with load(model, speculative, **given[EngineConfig], max_num_seqs=1) as llm:
        ids = llm.tokenizer.encode_prompt(text, system=system, chat=chat)
        answer = generate_answer(llm, ids, params, None if json else write_text)
        length = llm.max_model_len
    if json:
        print_json(answer.as_json(model))
    else:
        say("")
        remark(summary(answer, params, length))
    if answer.cancelled:
        raise typer.Exit(130)
