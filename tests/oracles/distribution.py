"""The sampled distribution written down once more, with dictionaries and floats and nothing of the package."""

import math


def naive_distribution(logits, prefix, prompt_length, params, eos_ids=()):
    """Return {token: probability} after bias, penalties, minimum length, temperature, min-p, top-k, top-p."""
    values = {token: float(value) for token, value in enumerate(logits)}
    for token, bias in params.logit_bias.items():
        values[token] += bias
    output = list(prefix[prompt_length:])
    for token in values:
        if token in list(prefix) and params.repetition_penalty != 1.0:
            scale = params.repetition_penalty
            values[token] = values[token] / scale if values[token] > 0 else values[token] * scale
        values[token] -= params.frequency_penalty * output.count(token)
        values[token] -= params.presence_penalty * (token in output)
    if len(output) < params.min_tokens:
        for token in (*params.stop_token_ids, *(() if params.ignore_eos else eos_ids)):
            values[token] = -math.inf
    for ids in params.bad_word_ids:
        if [*output, ids[-1]][-len(ids) :] == list(ids):
            values[ids[-1]] = -math.inf
    if params.allowed_token_ids is not None:
        for token in set(values) - set(params.allowed_token_ids):
            values[token] = -math.inf
    order = sorted(values, key=lambda token: (-values[token], token))
    order = [token for token in order if values[token] > -math.inf]
    if params.temperature == 0:
        return {order[0]: 1.0}
    largest = values[order[0]]
    masses = {token: math.exp((values[token] - largest) / params.temperature) for token in order}
    kept = [token for token in order if masses[token] >= params.min_p]
    if params.top_k > 0:
        kept = kept[: params.top_k]
    if params.top_p < 1:
        total, running, nucleus = sum(masses[token] for token in kept), 0.0, []
        for token in kept:
            nucleus.append(token)
            running += masses[token]
            if running >= params.top_p * total:
                break
        kept = nucleus
    total = sum(masses[token] for token in kept)
    return {token: masses[token] / total for token in kept}
