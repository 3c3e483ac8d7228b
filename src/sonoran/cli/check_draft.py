"""``sonoran check-draft``: may these two models work together, and if not, why?"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from sonoran.cli.common import JsonOption, command, examples, out, print_json, say
from sonoran.cli.progress import load_progress
from sonoran.models.opening import OpenModel, open_with_tokenizer
from sonoran.models.tokenizer.compatibility import CompatibilityReport, compare

EXAMPLES = examples(
    "sonoran check-draft qwen2.5-coder-1.5b-instruct qwen2.5-coder-0.5b-instruct",
    "sonoran check-draft target.gguf draft.gguf --json",
)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("check-draft", epilog=EXAMPLES)(check_draft)


@command
def check_draft(
    target: Annotated[
        str, typer.Argument(help="The model that decides: a name, org/repo of the hub, a file or directory.")
    ],
    draft: Annotated[
        str, typer.Argument(help="The model that guesses: a name, org/repo of the hub, a file or directory.")
    ],
    json: JsonOption = False,
) -> None:
    """Say whether a draft fits a target, token by token. Exit code 1 means that it does not."""
    with load_progress() as reporting:
        models = [open_with_tokenizer(name, reporting) for name in (target, draft)]
    report = compare(models[0].tokenizer, models[1].tokenizer)
    facts = [describe(model) for model in models]
    remarks = notes(facts[0], facts[1])
    if report.compatible and report.beyond:
        remarks.insert(0, report.beyond.removeprefix("; "))
    if json:
        print_json(as_json(report, facts, remarks))
    else:
        show(report, facts, remarks)
    if not report.compatible:
        raise typer.Exit(1)


def describe(model: OpenModel) -> dict[str, Any]:
    """Return the facts of a model that matter beside another."""
    config, tokenizer = model.file.config, model.tokenizer
    return {
        "file": str(model.file.path),
        "architecture": config.architecture,
        "bytes": model.file.nbytes,
        "tokens": tokenizer.vocab_size,
        "output_rows": config.vocab_size,
        "padding": config.vocab_size - tokenizer.vocab_size,
        "context": config.max_position,
        "special_tokens": {role: list(tokens) for role, tokens in tokenizer.special_tokens().items()},
    }


def notes(target: dict[str, Any], draft: dict[str, Any]) -> list[str]:
    """Return what a user should know although it forbids nothing."""
    found = []
    if target["tokens"] == draft["tokens"] and target["output_rows"] != draft["output_rows"]:
        rows = f"{target['output_rows']} and {draft['output_rows']}"
        found.append(f"the output matrices have {rows} rows: padding, which does no harm")
    if draft["context"] < target["context"]:
        contexts = f"the draft sees {draft['context']} tokens, the target {target['context']}"
        found.append(f"{contexts}: longer texts are decoded without a draft from there on")
    if draft["bytes"] >= target["bytes"]:
        found.append("the draft is not smaller than the target, so that it cannot make it faster")
    return found


def as_json(report: CompatibilityReport, facts: list[dict[str, Any]], remarks: list[str]) -> dict[str, Any]:
    """Return the JSON document of a comparison."""
    return {
        "compatible": report.compatible,
        "verdict": str(report),
        "num_shared": report.num_shared if report.compatible else None,
        "never_proposed": max(0, report.target_vocab_size - report.num_shared) if report.compatible else None,
        "num_differences": report.num_differences,
        "differences": [
            {"token_id": d.token_id, "target": d.target, "draft": d.draft} for d in report.differences
        ],
        "special_differences": {
            role: {"target": list(target), "draft": list(draft)}
            for role, (target, draft) in report.special_differences.items()
        },
        "target": facts[0],
        "draft": facts[1],
        "notes": remarks,
    }


def show(report: CompatibilityReport, facts: list[dict[str, Any]], remarks: list[str]) -> None:
    """Print the verdict, the facts side by side, and the notes."""
    out.print(
        "may draft:", "yes" if report.compatible else "no", style="green" if report.compatible else "red"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "target", "draft"):
        table.add_column(title, overflow="fold")
    for key in ("file", "architecture", "bytes", "tokens", "output_rows", "context"):
        table.add_row(key.replace("_", " "), *(_cell(fact[key]) for fact in facts))
    for role in facts[0]["special_tokens"]:
        table.add_row(
            f"special: {role}", *(_cell(" ".join(f["special_tokens"][role]) or "none") for f in facts)
        )
    out.print(table)
    for line in ([] if report.compatible else [str(report)]) + [f"note: {remark}" for remark in remarks]:
        say(line)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
