import numpy as np
import pytest

from sonoran.bench.forward import check_rows, context_tokens, measure
from sonoran.bench.native_subject import PREFILL_ROWS, NativeSubject
from sonoran.errors import ConfigError, ModelError
from tests.bench.fakes import FakeOwn, FakeSubject
from tests.tiny_models import make_gguf


def run(owns, peers, rows, **options):
    options = {"context": 100, "read_loop_bytes": 10**9, "repeats": 2, "settle": lambda: None} | options
    return measure(owns, peers, rows, **options)


def test_arithmetic_of_the_results():
    result = run([FakeOwn("own", 0.002, 0.001)], [], [4, 1])
    assert [entry["rows"] for entry in result["results"]] == [1, 4]
    one, four = result["results"]
    assert (one["ms_median"], one["ms_min"], one["ms_max"], one["spread"]) == (2.0, 2.0, 2.0, 0.0)
    assert four["ms_median"] == pytest.approx(5.0)
    assert four["relative_to_fewest_rows"] == pytest.approx(2.5)
    assert four["bytes_read"] == 1_004_000
    assert four["gb_per_s"] == pytest.approx(1_004_000 / 0.005 / 1e9)
    assert result["read_gb_per_s"] == pytest.approx(2.0)
    assert four["share_of_read_loop"] == pytest.approx(four["gb_per_s"] / 2.0)
    assert result["prefill_tokens_per_s"] == pytest.approx(100 / 0.02)
    assert result["prefill"]["tokens"] == 100
    assert (result["context"], result["repeats"], result["others"]) == (100, 2, [])


def test_others_are_compared_with_the_first():
    owns = [FakeOwn("one", 0.004, 0.0), FakeOwn("two", 0.002, 0.0)]
    peer = FakeSubject("peer", 0.005, 0.005)
    result = run(owns, [peer], [1, 2])
    two, other = result["others"]
    assert two["main_to_this"] == {"ms": {"1": 2.0, "2": 2.0}, "prefill_ms": pytest.approx(2.0)}
    assert other["main_to_this"]["ms"] == {"1": pytest.approx(0.8), "2": pytest.approx(0.4)}
    assert other["name"] == "peer"
    assert "read_gb_per_s" in two
    assert "read_gb_per_s" not in other
    assert "gb_per_s" not in other["results"][0]


def test_prefill_comes_first_and_row_counts_alternate():
    own = FakeOwn("own", 0.001, 0.0)
    run([own], [], [1, 2], repeats=3)
    # One warm-up and three repeats of each part.
    assert own.calls == ["prefill"] * 4 + ["read loop", 1, 2] * 4


@pytest.mark.parametrize("counts", [[], [0, 1], [257]])
def test_wrong_row_counts(counts):
    with pytest.raises(ConfigError, match="rows must be numbers from 1 to 256"):
        check_rows(counts)


def test_row_counts_are_sorted_and_different():
    assert check_rows([4, 1, 4]) == [1, 4]


def test_no_repeats_are_refused():
    with pytest.raises(ConfigError, match="repeats must be at least 1, got 0"):
        run([FakeOwn("own", 0.001, 0.0)], [], [1], repeats=0)


def test_context_is_the_same_each_time():
    tokens = context_tokens(50, 320)
    assert tokens.dtype == np.int32
    assert np.array_equal(tokens, context_tokens(50, 320))
    assert tokens.max() < 320
    with pytest.raises(ConfigError, match="at least 1 token, got 0"):
        context_tokens(0, 320)


class Ticks:
    """A clock that advances by one second whenever it is read."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.gguf"
    make_gguf(path, "qwen2", types="Q8_0")
    return path


def test_native_subject_times_each_pass(tiny):
    context = context_tokens(PREFILL_ROWS + 4, 320)
    subject = NativeSubject(tiny, context, max_rows=4, threads=1, clock=Ticks())
    assert subject.name == "sonoran, 1 thread"
    assert subject.load_seconds == 1.0
    assert subject.prefill_seconds() == 2.0  # two passes
    assert subject.forward_seconds(4) == 1.0
    facts = subject.describe()
    # 264 positions in 17 blocks of 16; keys and values of 2 layers, 2 heads of 64, two bytes each.
    assert facts["load"]["kv_bytes"] == 17 * 16 * 2 * 2 * 2 * 64 * 2
    assert facts["load"]["file_bytes"] > 0
    # Thirteen rows reach into one block more than four.
    assert subject.bytes_read(13) - subject.bytes_read(4) == facts["load"]["kv_bytes"] // 17
    subject.close()


def test_native_subject_measures_a_read_loop(tiny):
    subject = NativeSubject(tiny, context_tokens(8, 320), max_rows=1, threads=1)
    assert subject.read_loop_seconds() > 0
    subject.close()


def test_native_subject_refuses_what_is_no_model(tmp_path):
    path = tmp_path / "no.gguf"
    path.write_bytes(b"no model")
    with pytest.raises(ModelError):
        NativeSubject(path, context_tokens(8, 320), max_rows=1)
