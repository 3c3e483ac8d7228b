"""The Python interface over a toy model: shapes of input, streams, asyncio, threads, interruptions."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sonoran.errors import CapacityError, ConfigError, NumericsError, SonoranError
from sonoran.llm import LLM
from sonoran.sampling.params import SamplingParams
from sonoran.types import RequestOutput
from tests.engine.helpers import alone, engine, greedy, model_drafter
from tests.tiny_models import make_gguf
from tests.toy_backend import ToyBackend
from tests.toy_tokenizer import ToyTokenizer


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM.from_core(engine(drafter=model_drafter()), ToyTokenizer()) as llm:
        yield llm
        llm.check_invariants()


def ids(output: RequestOutput) -> list[int]:
    return output.outputs[0].token_ids


def slow(pause: float = 0.01) -> tuple[LLM, ToyBackend]:
    target = ToyBackend(num_blocks=256)
    target.before_forward = lambda: time.sleep(pause)
    return LLM.from_core(engine(target), ToyTokenizer()), target


def test_texts_and_token_ids_alone_and_in_lists(llm: LLM) -> None:
    expected = alone([0, 1, 2], greedy())[0][0]
    for prompts in ("abc", ["abc"], [0, 1, 2], [[0, 1, 2]], ["abc", [0, 1, 2]]):
        outputs = llm.generate(prompts, greedy())
        assert [ids(output) for output in outputs] == [expected] * len(outputs)
        assert all(output.prompt_token_ids == [0, 1, 2] and output.finished for output in outputs)
    assert llm.generate("abc", greedy())[0].prompt == "abc"
    assert llm.generate([0, 1, 2], greedy())[0].prompt is None


def test_parameters_for_all_or_for_each(llm: LLM) -> None:
    outputs = llm.generate(["abc", "de"], [greedy(3, ignore_eos=True), greedy(5, ignore_eos=True)])
    assert [len(ids(output)) for output in outputs] == [3, 5]
    with pytest.raises(ConfigError, match="2 prompts need as many"):
        llm.generate(["a", "b"], [greedy()])


@pytest.mark.parametrize("prompts", [7, [None], {"a": 1}])
def test_other_shapes_are_refused(llm: LLM, prompts: Any) -> None:
    with pytest.raises(ConfigError, match="a prompt must be"):
        llm.generate(prompts, greedy())


@pytest.mark.parametrize(
    "prompts", [[["a"]], [[1.5]], [1.5], [True], b"abc", [b"abc"], [[1, None]], np.array([1.5])]
)
def test_token_ids_are_whole_numbers(llm: LLM, prompts: Any) -> None:
    with pytest.raises(ConfigError, match="a prompt must be a text or a list of token ids"):
        llm.generate(prompts, greedy())


def test_token_ids_may_be_numpys(llm: LLM) -> None:
    expected = alone([0, 1, 2], greedy())[0][0]
    row = np.arange(3)
    for prompts in (row, [row], np.array([row, row]), list(row), [list(row)], [row, "abc"], (0, 1, 2)):
        outputs = llm.generate(prompts, greedy())  # type: ignore[arg-type]
        assert [ids(output) for output in outputs] == [expected] * len(outputs)
    assert ids(list(llm.stream(row, greedy()))[-1]) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("params", [{"max_tokens": 2}, [{"max_tokens": 2}], "greedy", 5, [None, 5]])
def test_sampling_parameters_of_the_wrong_type_are_named(llm: LLM, params: Any) -> None:
    with pytest.raises(ConfigError, match=r"sampling_params must be SamplingParams|need as many"):
        llm.generate("abc", params)
    with pytest.raises(ConfigError, match="sampling_params must be SamplingParams"):
        list(llm.stream("abc", params))


@pytest.mark.parametrize("model", [None, 5, "", b"x", ["a"]])
def test_a_model_of_the_wrong_type_is_named(model: Any) -> None:
    with pytest.raises(ConfigError, match="model must be a name, a file or a folder"):
        LLM(model)


def test_speculation_of_the_wrong_type_is_named() -> None:
    with pytest.raises(ConfigError, match="speculative_config must be a dictionary"):
        LLM("model", speculative_config="ssd")  # type: ignore[arg-type]


def test_more_kv_memory_than_there_is_memory_is_refused_before_it_is_allocated(tmp_path: Path) -> None:
    make_gguf(tmp_path / "t.gguf")
    for options in (
        {"num_kv_blocks": 2**24},
        {"kv_cache_bytes": 2**45},
        {"block_size": 4096, "num_kv_blocks": 2**20},
    ):
        with pytest.raises(
            ConfigError, match=r"KV memory of .* blocks .* this machine has \d+; at most \d+ blocks"
        ):
            LLM(tmp_path / "t.gguf", **options)


def test_nothing_starts_unless_all_requests_are_valid(llm: LLM) -> None:
    with pytest.raises(CapacityError):
        llm.generate(["abc", [1] * 9999], greedy())
    assert llm.statistics()["num_requests"] == 0


def test_chat_takes_one_conversation_or_several(llm: LLM) -> None:
    message = [{"role": "user", "content": "abc"}]
    one = llm.chat(message, greedy())
    two = llm.chat([message, message], greedy())
    assert [ids(output) for output in two] == [ids(one[0])] * 2
    assert one[0].prompt_token_ids == ToyTokenizer().encode("u:abc;")


def test_a_text_is_a_conversation_of_one_message(llm: LLM) -> None:
    expected = ids(llm.chat([{"role": "user", "content": "abc"}], greedy())[0])
    assert ids(llm.chat("abc", greedy())[0]) == expected
    assert [ids(output) for output in llm.chat(["abc", "abc"], greedy())] == [expected] * 2
    for wrong in (7, b"abc", [7], None):
        with pytest.raises(ConfigError, match="a conversation must be a text or a list of messages"):
            llm.chat(wrong, greedy())  # type: ignore[arg-type]


def test_streams_take_conversations(llm: LLM) -> None:
    messages = [{"role": "user", "content": "abc"}]
    expected = ids(llm.chat(messages, greedy())[0])
    assert ids(list(llm.stream(messages, greedy()))[-1]) == expected
    assert [i for d in llm.deltas(messages, greedy()) for i in d.samples[0].token_ids] == expected

    async def last() -> RequestOutput:
        return [output async for output in llm.generate_async(messages, greedy())][-1]

    assert ids(asyncio.run(last())) == expected
    with pytest.raises(ConfigError, match=r"give messages to chat\(\) or stream\(\)"):
        llm.generate(messages, greedy())  # type: ignore[arg-type]


def test_what_a_prompt_shows_is_short(llm: LLM) -> None:
    [output] = llm.generate("abc", greedy(30, ignore_eos=True))
    assert repr(output).startswith("RequestOutput(request-0: 3 tokens of prompt; 30 tokens '")
    assert repr(output).endswith("(length))") and len(repr(output)) < 140
    assert repr(llm) == f"LLM('', max_model_len={llm.max_model_len}, num_speculative_tokens=4)"


def test_a_stream_grows_and_ends_like_generate(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=40, stop=("zz",), logit_bias={63: -100.0})
    parts = list(llm.stream("abc", params))
    texts = [part.outputs[0].text for part in parts]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert [part.finished for part in parts] == [False] * (len(parts) - 1) + [True]
    assert ids(parts[-1]) == ids(llm.generate("abc", params)[0])
    assert parts[-1].metrics["num_generated_tokens"] == len(ids(parts[-1]))
    assert len(parts) > 3


def test_a_stop_string_is_never_shown_in_part() -> None:
    with LLM.from_core(engine(), ToyTokenizer()) as llm:
        params = greedy(40, logit_bias={63: -100.0})
        text = llm.generate("abc", params)[0].outputs[0].text
        stop = text[6:9]
        shown = [
            part.outputs[0].text for part in llm.stream("abc", greedy(40, stop=stop, logit_bias={63: -100.0}))
        ]
        assert all(text[: text.index(stop)].startswith(part) for part in shown)
        assert shown[-1] == text[: text.index(stop)]


def test_closing_a_stream_cancels_the_request() -> None:
    llm, _ = slow()
    with llm:
        stream = llm.stream("abc", greedy(500, ignore_eos=True))
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        totals = llm.statistics()
        assert (totals["num_cancelled"], totals["num_running"], totals["kv_usage"]) == (1, 0, 0.0)
        llm.check_invariants()


@pytest.mark.parametrize("streaming", [False, True])
def test_ctrl_c_cancels_and_leaves_a_usable_engine(streaming: bool) -> None:
    llm, target = slow()
    with llm:
        started = threading.Event()
        pause = target.before_forward

        def announce() -> None:
            started.set()
            pause()

        target.before_forward = announce

        def interrupt() -> None:
            started.wait(30)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            if streaming:
                list(llm.stream("abc", greedy(490, ignore_eos=True)))
            else:
                llm.generate(["abc", "de", "f"], greedy(490, ignore_eos=True))
        thread.join()
        target.before_forward = lambda: None
        llm.check_invariants()
        assert llm.statistics()["num_running"] == llm.statistics()["num_waiting"] == 0
        assert ids(llm.generate("abc", greedy())[0]) == alone([0, 1, 2], greedy())[0][0]


def test_requests_of_several_threads_share_the_engine(llm: LLM) -> None:
    results: dict[int, list[int]] = {}

    def work(seed: int) -> None:
        results[seed] = ids(llm.generate("abc", SamplingParams(seed=seed, max_tokens=30))[0])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, result in results.items():
        assert result == alone([0, 1, 2], SamplingParams(seed=seed, max_tokens=30))[0][0]
    assert len(results) == 6


def test_async_streams_run_together(llm: LLM) -> None:
    async def collect(seed: int) -> RequestOutput:
        last = None
        async for output in llm.generate_async("abc", SamplingParams(seed=seed, max_tokens=30)):
            last = output
        assert last is not None
        return last

    async def everything() -> list[RequestOutput]:
        return await asyncio.gather(*(collect(seed) for seed in range(5)))

    for seed, output in enumerate(asyncio.run(everything())):
        assert output.finished
        assert ids(output) == alone([0, 1, 2], SamplingParams(seed=seed, max_tokens=30))[0][0]


def test_a_cancelled_task_cancels_its_request() -> None:
    llm, _ = slow()

    async def endless() -> None:
        async for _ in llm.generate_async("abc", greedy(500, ignore_eos=True)):
            pass

    async def cancelled() -> None:
        task = asyncio.create_task(endless())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with llm:
        asyncio.run(cancelled())
        assert llm.statistics()["num_cancelled"] == 1
        llm.check_invariants()


def test_an_event_loop_that_is_closed_is_a_cancelled_request(caplog: pytest.LogCaptureFixture) -> None:
    llm, _ = slow()
    streams = []

    async def abandon() -> None:
        for _ in range(3):
            stream = llm.generate_async("abc", greedy(500, ignore_eos=True))
            streams.append(stream)
            await anext(stream)  # type: ignore[arg-type]

    loop = asyncio.new_event_loop()
    loop.run_until_complete(abandon())
    loop.close()  # without asyncio.run, nobody ends the streams
    with llm:
        end = time.monotonic() + 30
        while llm.statistics()["num_cancelled"] < 3:
            assert time.monotonic() < end
            time.sleep(0.01)
        llm.check_invariants()
    assert "listener" not in caplog.text


def test_after_asyncio_run_nothing_is_said_about_cancelled_tasks(caplog: pytest.LogCaptureFixture) -> None:
    llm, _ = slow(0.001)

    async def read() -> None:
        async for _ in llm.generate_async("abc", greedy(500, ignore_eos=True)):
            pass

    async def main() -> None:
        tasks = [asyncio.create_task(read()) for _ in range(30)]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()

    with llm:
        for _ in range(5):
            asyncio.run(main())
        llm.check_invariants()
    assert "listener" not in caplog.text


def test_a_listener_that_fails_at_once_does_not_end_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    with LLM.from_core(engine(), ToyTokenizer()) as llm:
        llm._runner.core.add = fails  # type: ignore[method-assign,assignment]

        def listen(news: Any) -> None:
            raise ValueError("oh")

        llm._runner.submit(llm._prepare("abc", greedy()), listen, streaming=False)
        del llm._runner.core.add
        assert llm.generate("abc", greedy())
    assert "the listener of request request-0 failed: oh" in caplog.text


def fails(*_: Any) -> None:
    raise ConfigError("no")


def test_a_request_can_be_cancelled_by_name() -> None:
    llm, _ = slow()

    async def main() -> RequestOutput:
        last = None
        async for output in llm.generate_async("abc", greedy(500, ignore_eos=True), request_id="mine"):
            last = output
            llm.cancel("mine")
        assert last is not None
        return last

    with llm:
        output = asyncio.run(main())
        assert output.outputs[0].finish_reason == "cancelled"
        assert output.finished
        assert 0 < len(ids(output)) < 500


def fails_once(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def test_numbers_that_are_not_finite_are_an_error_of_the_request() -> None:
    target = ToyBackend()
    with LLM.from_core(engine(target), ToyTokenizer()) as llm:
        target.before_forward = fails_once(NumericsError("row 0 has nan"))
        with pytest.raises(NumericsError, match="row 0 has nan"):
            llm.generate(["abc", "de"], greedy())
        target.before_forward = lambda: None
        llm.check_invariants()
        assert ids(llm.generate("abc", greedy())[0]) == alone([0, 1, 2], greedy())[0][0]


def test_a_bug_in_a_round_reaches_every_caller_and_the_engine_goes_on() -> None:
    target = ToyBackend()
    with LLM.from_core(engine(target), ToyTokenizer()) as llm:
        target.before_forward = fails_once(ValueError("impossible"))
        with pytest.raises(SonoranError, match="ValueError: impossible"):
            list(llm.stream("abc", greedy()))
        target.before_forward = lambda: None
        llm.check_invariants()
        assert ids(llm.generate("abc", greedy())[0]) == alone([0, 1, 2], greedy())[0][0]


def test_closing_ends_what_runs_and_frees_the_models() -> None:
    llm, target = slow()
    stream = llm.stream("abc", greedy(500, ignore_eos=True))
    next(stream)
    llm.close()
    llm.close()
    assert target.closed
    last = list(stream)[-1]
    assert last.outputs[0].finish_reason == "cancelled"
    with pytest.raises(SonoranError, match="closed"):
        llm.generate("abc")


def test_an_engine_that_nobody_holds_frees_its_models() -> None:
    llm, target = slow(0.0)
    llm.generate("abc", greedy(3))
    gone = weakref.ref(llm)
    del llm
    gc.collect()
    assert gone() is None
    assert target.closed


def test_unknown_options_name_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown engine key 'max_num_seq'; did you mean 'max_num_seqs'"):
        LLM("model", max_num_seq=3)
    with pytest.raises(ConfigError, match="did you mean 'num_speculative_tokens'"):
        LLM("model", speculative_config={"num_speculativ_tokens": 3})
