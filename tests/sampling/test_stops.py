"""Stop rules: against a checker that sees the whole text at once, whatever the chunks and the rounds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sonoran.sampling.params import SamplingParams
from sonoran.sampling.stops import StopChecker

PIECES = ["a", "b", "ab", "ba", "c", "", "aab", "<e>", "cab"]
EOS = (7,)


class Pieces:
    """A detokenizer for PIECES that, like one for bytes, may be one token late (``lag``)."""

    def __init__(self, lag=False):
        self.lag = lag
        self.kept = ""

    def push(self, token_id):
        text = PIECES[token_id]
        if not self.lag:
            return text
        shown, self.kept = self.kept, text
        return shown

    def flush(self):
        shown, self.kept = self.kept, ""
        return shown


def oracle(tokens, params, limit):
    """Return (ids kept, text, finish reason, stop reason) by looking at the text after every token."""
    text = ""
    limit = min(limit, params.max_tokens or limit)
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(EOS))
    for count, token in enumerate(tokens, 1):
        if count >= params.min_tokens and token in ends:
            is_eos = token in EOS and not params.ignore_eos
            text += PIECES[token] if params.include_stop_str_in_output else ""
            return count, text, "stop", None if is_eos else token
        before = len(text)
        text += PIECES[token]
        if count >= params.min_tokens:
            matches = [
                (begin + len(stop), begin, stop)
                for stop in params.stop
                for begin in range(len(text))
                if text.startswith(stop, begin) and begin + len(stop) > before
            ]
            if matches:
                end, begin, stop = min(matches)
                return count, text[: end if params.include_stop_str_in_output else begin], "stop", stop
        if count == limit:
            return count, text, "length", None
    return len(tokens), text, None, None


token_lists = st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=25)
stop_lists = st.lists(st.text("abc<", min_size=1, max_size=5), max_size=3)


@st.composite
def requests(draw):
    max_tokens = draw(st.none() | st.integers(1, 20))
    return SamplingParams(
        stop=draw(stop_lists),
        stop_token_ids=draw(st.lists(st.sampled_from([4, 7, 8]), max_size=2)),
        ignore_eos=draw(st.booleans()),
        include_stop_str_in_output=draw(st.booleans()),
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, min(6, max_tokens or 6))),
    )


@settings(max_examples=600, deadline=None)
@given(tokens=token_lists, params=requests(), limit=st.integers(1, 25), data=st.data())
def test_equals_the_oracle_in_any_rounds(tokens, params, limit, data):
    kept, text, finish, reason = oracle(tokens, params, limit)
    checker = StopChecker(params, EOS, Pieces(), limit)
    shown, total, rest = "", 0, list(tokens)
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        step = checker.advance(rest[:size])
        shown += step.text
        total += step.kept
        rest = rest[size:]
        assert text.startswith(shown)  # nothing is shown that is cut later
        assert step.kept <= size
        assert checker.count == total
        if step.finish_reason is not None:
            break
        assert step.kept == size
    assert (total, checker.text, checker.finish_reason, checker.stop_reason) == (kept, text, finish, reason)
    if finish is None:
        held = text[len(shown) :]
        assert not held or any(len(stop) > len(held) and stop.startswith(held) for stop in params.stop)
        assert checker.remaining == min(limit, params.max_tokens or limit) - kept
    else:
        assert shown == text
        assert checker.remaining == 0
        assert checker.advance([0, 1]).kept == 0
        assert checker.text == text


@settings(max_examples=200, deadline=None)
@given(tokens=token_lists, limit=st.integers(1, 25))
def test_late_text_is_flushed_at_the_end(tokens, limit):
    params = SamplingParams(ignore_eos=True)
    checker = StopChecker(params, EOS, Pieces(lag=True), limit)
    checker.advance(tokens)
    checker.cancel()
    assert checker.text == "".join(PIECES[token] for token in tokens[:limit])
    assert checker.finish_reason == ("length" if len(tokens) >= limit else "cancelled")


def make(limit=100, **values):
    return StopChecker(SamplingParams(**values), EOS, Pieces(), limit)


def test_end_token_inside_an_accepted_run():
    checker = make()
    step = checker.advance([0, 1, 7, 4, 4])
    assert (step.kept, step.text, step.finish_reason, step.stop_reason) == (3, "ab", "stop", None)


def test_stop_string_over_three_tokens_is_never_shown():
    checker = make(stop="abca")
    assert checker.advance([4, 2]).text == "c"
    assert checker.text == "cab"
    assert checker.advance([4]).text == ""
    step = checker.advance([0, 0])
    assert (step.kept, step.text, step.stop_reason) == (1, "", "abca")
    assert checker.text == "c"


def test_false_start_is_released():
    checker = make(stop="abca")
    assert checker.advance([2]).text == ""
    assert checker.advance([1]).text == "abb"


def test_the_stop_string_completed_first_counts():
    checker = make(stop=["cab", "a"])
    step = checker.advance([8])
    assert (step.stop_reason, checker.text) == ("a", "c")
    checker = make(stop=["b", "ab", "cab"])
    assert checker.advance([8]).stop_reason == "cab"


def test_end_token_beats_length_and_is_counted():
    checker = make(max_tokens=2)
    step = checker.advance([0, 7])
    assert (step.kept, step.finish_reason, checker.text) == (2, "stop", "a")


def test_stop_token_reason_and_ignore_eos():
    assert make(stop_token_ids=[4]).advance([0, 4]).stop_reason == 4
    checker = make(ignore_eos=True, max_tokens=3)
    step = checker.advance([7, 7, 0, 0])
    assert (step.kept, step.text, step.finish_reason) == (3, "<e><e>a", "length")


def test_cancel_releases_what_was_held():
    checker = make(stop="abca")
    checker.advance([2])
    step = checker.cancel()
    assert (step.text, step.finish_reason, checker.text) == ("ab", "cancelled", "ab")
    assert checker.cancel().text == ""
