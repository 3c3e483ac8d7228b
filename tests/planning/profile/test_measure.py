"""A whole calibration over toy models, with a clock that only ticks when asked."""

import itertools
import threading

import pytest

from sonoran.backends.load import Loaded
from sonoran.errors import ConfigError, NumericsError
from sonoran.planning.profile.choose import choose
from sonoran.planning.profile.measure import (
    Settings,
    core_splits,
    fitting,
    measure,
    quick_settings,
)
from sonoran.planning.profile.overheads import measure_host, measure_message
from sonoran.planning.profile.passes import MAX_ROUNDS, MIN_ROUNDS, TimedModel, measure_passes
from sonoran.planning.profile.placement import Workload, placements
from sonoran.planning.profile.predict import predict_all
from sonoran.planning.profile.profile import Profile
from tests.planning.profile.made_up import key
from tests.toy_backend import ToyBackend, toy_config
from tests.toy_tokenizer import ToyTokenizer

SETTINGS = Settings(
    seconds=1.0, rows=(1, 2, 4), contexts=(8, 40), temperatures=(0.0, 0.8), max_tokens=24, max_prompt=5
)


class Ticking:
    """A clock on which every reading is a millisecond after the one before, whoever reads."""

    def __init__(self):
        self._lock, self._count = threading.Lock(), itertools.count()

    def __call__(self):
        with self._lock:
            return next(self._count) / 1000.0


class Toys:
    """Loads toy models and remembers them."""

    def __init__(self):
        self.loaded = []

    def __call__(self, role, cores, num_blocks):
        # Timing counts in the real block size; toys have smaller blocks.
        backend = ToyBackend(num_blocks=8 * num_blocks, salt=int(role == "draft"))
        self.loaded.append((role, cores, backend))
        return Loaded(backend)


def run(cores=(0, 1), draft="draft", settings=SETTINGS, **options):
    toys = Toys()
    one = measure(
        key(cores, draft),
        toys,
        ToyTokenizer(),
        [[1, 2, 3], [4] * 9],
        settings,
        prompts_name="toys",
        **options,
    )
    return one, toys


def test_a_profile_of_two_cores():
    seen = []
    one, toys = run(progress=lambda what, share: seen.append((what, share)))
    assert [(role, cores) for role, cores, _ in toys.loaded] == [
        ("target", (0, 1)), ("draft", (0, 1)), ("target", (0,)), ("draft", (1,)),
    ]  # fmt: skip
    assert all(backend.closed for _, _, backend in toys.loaded)
    assert [str(p) for p in placements(one) if p.kind == "split"] == ["0 | 1"]
    curves = {(c.role, c.cores, c.context, c.beside) for c in one.passes}
    assert ("target", (0,), 40, (1,)) in curves and ("draft", (1,), 8, (0,)) in curves
    assert ("target", (0, 1), 8, None) in curves
    assert [(a.verification, a.temperature) for a in one.acceptance] == [
        ("coupled", 0.0), ("coupled", 0.8), ("rejection", 0.8),
    ]  # fmt: skip
    assert [s.temperature for s in one.sampling] == [0.0, 0.8]
    assert one.host.ms > 0.0 and one.message.ms > 0.0
    assert one.elapsed_s > 0.0 and one.prompts == "toys" and not one.quick
    assert Profile.from_json(one.to_json()) == one
    assert {"passes on cores 0 | 1", "acceptance at temperature 0.8", "loading the draft on cores 1"} <= {
        what for what, _ in seen
    }
    assert all(0.0 <= share <= 1.0 for _, share in seen)
    predictions = predict_all(one, Workload(), k_values=(1, 3), budgets=(4,))
    assert set(choose(predictions).by_mode) == {"ar", "sd", "ssd"}


def test_one_core_has_no_split_and_no_message():
    one, toys = run((3,))
    assert len(toys.loaded) == 2
    assert {c.beside for c in one.passes} == {None}
    assert one.message.ms == 0.0


def test_without_a_draft_only_the_target_is_timed():
    one, toys = run(draft=None)
    assert [role for role, _, _ in toys.loaded] == ["target"]
    assert one.acceptance == () and {c.role for c in one.passes} == {"target"}


def test_the_same_calibration_finds_the_same_acceptance():
    assert run()[0].acceptance == run()[0].acceptance


def test_prompts_keep_their_ends():
    """A prompt of 9 tokens is cut to the last 5, so it equals one of 5."""
    one = measure(key((0,)), Toys(), ToyTokenizer(), [[4] * 9], SETTINGS)
    other = measure(key((0,)), Toys(), ToyTokenizer(), [[4] * 5], SETTINGS)
    assert one.acceptance == other.acceptance


@pytest.mark.parametrize(
    ("seconds", "rows", "contexts", "rounds"),
    [
        (1e9, Settings().rows, (128, 1024), MIN_ROUNDS),
        (20.0, (1, 2, 4, 8, 16), (128, 1024), MIN_ROUNDS),
        (10.0, (1, 2, 4, 8, 16), (128,), MIN_ROUNDS),
        (2.0, (1, 4, 8), (128,), 1),
        (0.0, (1, 4, 8), (128,), 1),
    ],
)
def test_fewer_passes_are_timed_where_all_do_not_fit(seconds, rows, contexts, rounds):
    times = [(0.1, 1.0), (0.02, 0.2)]
    found, least = fitting(Settings(), times, seconds, beside=True)
    assert (found.rows, found.contexts, least) == (rows, contexts, rounds)


def test_rounds_end_with_the_time():
    def rounds(seconds):
        model = TimedModel(ToyBackend(), (8,), 4, clock=Ticking())
        [curve] = measure_passes(
            {"target": (model, (0,))},
            rows=(1, 4),
            contexts=(8,),
            beside=False,
            seconds=seconds,
            clock=Ticking(),
        )
        return curve.points[0].time.count

    assert rounds(0.0) == MIN_ROUNDS
    assert rounds(1e9) == MAX_ROUNDS


def test_timing_counts_ticks():
    model = TimedModel(ToyBackend(), (8, 20), 4, clock=Ticking())
    assert model.seconds(3, 20) == pytest.approx(1e-3)


def test_the_other_model_really_works_meanwhile():
    target, draft = ToyBackend(), ToyBackend(salt=1)
    models = {"target": (TimedModel(target, (8,), 8), (0,)), "draft": (TimedModel(draft, (8,), 8), (1,))}
    draft.row_counts.clear()
    target.row_counts.clear()
    curves = measure_passes(models, rows=(1,), contexts=(8,), beside=True, seconds=0.0)
    assert [(c.role, c.beside) for c in curves] == [
        ("target", None), ("draft", None), ("target", (1,)), ("draft", (0,)),
    ]  # fmt: skip
    assert 4 in draft.row_counts  # steps of tree decoding beside the target
    assert 5 in target.row_counts  # verifications beside the draft


def test_a_failure_beside_is_not_lost():
    broken = TimedModel(ToyBackend(), (8,), 8)

    def fail(rows):
        raise NumericsError("a logit is not finite")

    broken.backend.forward = fail
    with pytest.raises(NumericsError), broken.working(2, 8):
        pass


def test_timing_needs_memory():
    with pytest.raises(ConfigError, match="timing needs 3 KV blocks, the backend has 2"):
        TimedModel(ToyBackend(num_blocks=2), (8,), 4)


def test_host_and_message():
    host, message = measure_host(toy_config(), ToyTokenizer()), measure_message(rounds=20)
    assert host.count == 45 and host.ms > 0.0
    assert message.count == 18 and message.ms > 0.0


@pytest.mark.parametrize(
    ("cores", "splits"),
    [
        ((0,), []),
        ((0, 1), [((0,), (1,))]),
        ((0, 1, 2, 5), [((0, 1, 2), (5,)), ((0, 1), (2, 5))]),
        (tuple(range(8)), [(tuple(range(7)), (7,)), (tuple(range(6)), (6, 7)), ((0, 1, 2, 3), (4, 5, 6, 7))]),
    ],
)
def test_splits(cores, splits):
    assert core_splits(cores) == splits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seconds": 0.5}, "at least 1 s"),
        ({"rows": ()}, "row counts"),
        ({"contexts": (0,)}, "at least 1"),
        ({"temperatures": (-1.0,)}, "temperatures"),
    ],
)
def test_settings_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        Settings(**options)


def test_a_pair_needs_prompts():
    with pytest.raises(ConfigError, match="at least one prompt"):
        measure(key(), Toys(), ToyTokenizer(), [], SETTINGS)


def test_quick_settings_are_marked():
    assert quick_settings().quick
    assert run((0,), settings=Settings(1.0, (1,), (8,), (0.0,), 24, 5, True))[0].quick
