from sonoran.bench.verdict import verdict


def mode(speed, length=None):
    return {"tokens_per_s": speed, "mean_acceptance_length": length}


def test_the_fastest_is_named_with_the_reason_and_what_to_type():
    modes = {"ar": mode(10.0), "sd": mode(15.0, 3.0), "ssd": mode(20.0, 3.5)}
    assert verdict(modes, "ar", {"ssd": "sonoran generate --mode ssd"}) == (
        "Fastest here: ssd, 20.0 tokens/s, 2.00 x ar. A round of ssd yields 3.50 tokens and lasts as long as 1.75 tokens "
        "of ar. Type: sonoran generate --mode ssd"
    )


def test_where_plain_decoding_wins_the_best_draft_says_why():
    modes = {"AR": mode(10.0), "SD": mode(8.0, 3.0), "SSD": mode(9.0, 3.6), "AR, all cores": mode(19.0)}
    assert verdict(modes, "AR", {}) == (
        "Fastest here: AR, all cores, 19.0 tokens/s, 1.90 x AR. A round of SSD yields 3.60 tokens and lasts as long as "
        "4.00 tokens of AR."
    )


def test_speeds_that_hardly_differ_are_not_told_apart():
    assert verdict({"sd": mode(10.0, 2.0), "ngram": mode(9.9)}, None, {}) == (
        "Fastest here: sd, 10.0 tokens/s (ngram within 3%)."
    )
