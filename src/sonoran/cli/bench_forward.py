"""``sonoran bench forward``: milliseconds per pass by rows."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated, Any, cast, get_args

import typer
from rich.table import Table

from sonoran.backends.placement import place_threads
from sonoran.bench.forward import check_rows, context_tokens, measure
from sonoran.bench.machine import describe_processor
from sonoran.bench.native_subject import READ_LOOP_BYTES, NativeSubject
from sonoran.bench.peers import LlamaCpp, check_peer
from sonoran.cli.bench_options import numbers, step_progress
from sonoran.cli.common import command, err, out, print_json
from sonoran.cli.engine import JsonOption, ModelOption, QuantizeOption, load_progress
from sonoran.config import Precision, parse_cores
from sonoran.errors import ConfigError, nearest
from sonoran.models.registry import DEFAULT_TARGET
from sonoran.models.source import open_model, resolve_model

EXAMPLES = (
    "Examples:  sonoran bench forward --rows 1,2,4,6,8,16 --context 256 --cores 0  |  "
    "sonoran bench forward --cores 0,1 --threads 1,2 --rows 1,4 --json  |  "
    "sonoran bench forward --cores 0 --peer llama.cpp"
)


def register(app: typer.Typer) -> None:
    """Add the command to the group."""
    app.command("forward", epilog=EXAMPLES)(forward)


@command
def forward(
    model: ModelOption = DEFAULT_TARGET,
    rows: Annotated[str, typer.Option(help="Rows of a pass, in turn.")] = "1,2,4,6,8,16",
    context: Annotated[int, typer.Option(help="Tokens that each row sees before itself.")] = 256,
    threads: Annotated[
        str | None,
        typer.Option(help="Threads; several counts (1,2) are compared, each on the first of the cores."),
    ] = None,
    cores: Annotated[str | None, typer.Option(help="Pin threads to these cores: 0,2-5.")] = None,
    quantize: QuantizeOption = None,
    repeats: Annotated[int, typer.Option(help="Measured rounds over all row counts, after a warm-up.")] = 15,
    peer: Annotated[str | None, typer.Option(help="Measure another engine beside: llama.cpp.")] = None,
    peer_python: Annotated[
        str | None, typer.Option(help="Interpreter that has the peer's package; default: this one.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Time passes of several rows over one context; report bandwidth, prefill and, if asked, a peer."""
    counts = check_rows(numbers("--rows", rows))
    placements = place(numbers("--threads", threads) if threads else None, parse_cores(cores))
    if quantize is not None and quantize not in get_args(Precision):
        raise ConfigError(f"unknown --quantize {quantize!r}{nearest(quantize, get_args(Precision))}")
    if peer is not None:
        check_peer(peer)
    elif peer_python is not None:
        raise ConfigError("--peer-python without a peer; add --peer llama.cpp")
    with ExitStack() as stack:
        with load_progress() as reporting:
            path = resolve_model(model, progress=reporting.pull)
            file = open_model(path)
            ids = context_tokens(context, file.config.vocab_size)
            owns = []
            for count, places in placements:
                own = NativeSubject(
                    path,
                    ids,
                    max_rows=max(counts),
                    threads=count,
                    cores=places,
                    quantize=cast("Precision | None", quantize),
                    loading=reporting.loading(file),
                )
                stack.callback(own.close)
                owns.append(own)
        peers = []
        if peer is not None:
            for count, places in placements:
                other = LlamaCpp(
                    path, ids.tolist(), max_rows=max(counts), threads=count, cores=places, python=peer_python
                )
                stack.callback(other.close)
                peers.append(other)
        with step_progress() as progress:
            result = measure(
                owns,
                peers,
                counts,
                context=context,
                read_loop_bytes=READ_LOOP_BYTES,
                repeats=repeats,
                progress=progress,
            )
    result = {"model": model, "quantize": quantize, **result, "processor": describe_processor()}
    if json:
        print_json(result)
    else:
        show(result)


def place(
    counts: list[int] | None, cores: tuple[int, ...] | None
) -> list[tuple[int, tuple[int, ...] | None]]:
    """Return threads and cores of each measured placement; n threads take the first n of the cores."""
    wanted: list[int | None] = [*counts] if counts else [None]
    placements = []
    for count in wanted:
        settled, pinned = place_threads(count, cores)
        placements.append((settled, pinned[:settled] or None))
    if len({count for count, _ in placements}) < len(placements):
        raise ConfigError("--threads names a count twice")
    return placements


def show(result: dict[str, Any]) -> None:
    """Print tables: the main subject, then each other beside it."""
    err.print(f"{result['model']}, context {result['context']}, {result['repeats']} repeats", style="dim")
    for document in (result, *result["others"]):
        own = "read_gb_per_s" in document
        table = Table(title=document["name"], box=None, header_style="bold", title_justify="left")
        titles = ["rows", "ms median", "min", "spread", "x fewest rows"]
        titles += ["GB/s", "of read loop"] if own else ["sonoran / this"]
        for title in titles:
            table.add_column(title, justify="right")
        for entry in document["results"]:
            cells = [
                str(entry["rows"]),
                f"{entry['ms_median']:.2f}",
                f"{entry['ms_min']:.2f}",
                f"{entry['spread']:.0%}",
                f"{entry['relative_to_fewest_rows']:.2f}",
            ]
            if own:
                cells += [f"{entry['gb_per_s']:.1f}", f"{entry['share_of_read_loop']:.0%}"]
            else:
                cells.append(f"{document['main_to_this']['ms'][str(entry['rows'])]:.2f}")
            table.add_row(*cells)
        out.print(table)
        line = f"prefill {document['prefill_tokens_per_s']:.0f} tokens/s"
        if own:
            load = document["load"]
            line += (
                f", read loop {document['read_gb_per_s']:.1f} GB/s, load {load['seconds']:.1f} s, memory "
                f"{load['resident_without_kv_per_file_byte']:.2f} x the file plus KV"
            )
        if "main_to_this" in document:
            ratios = document["main_to_this"]
            line += f"; first to this: prefill {ratios['prefill_ms']:.2f}"
            if own:
                line += ", rows " + ", ".join(f"{rows}: {x:.2f}" for rows, x in ratios["ms"].items())
        out.print(line + "\n", highlight=False, soft_wrap=True)
