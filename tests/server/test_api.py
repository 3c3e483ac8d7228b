"""The interface as clients see it: documents, streams, fields, errors."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import sonoran
from tests.server.running import NAME, Running

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


def content(chunks: list[Any], index: int = 0) -> str:
    return "".join(
        choice["delta"].get("content", "") if "delta" in choice else choice["text"]
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == index
    )


def token_ids(chunks: list[Any], index: int = 0) -> list[int]:
    return [
        token
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == index
        for token in choice.get("token_ids", ())
    ]


def test_a_chat_completion_has_what_clients_read(server: Running) -> None:
    body = server.ask(CHAT, messages=MESSAGES, seed=5, return_token_ids=True, **GREEDY)
    assert body["id"].startswith("chatcmpl-") and body["object"] == "chat.completion"
    assert body["model"] == NAME and body["system_fingerprint"] == "sonoran-test"
    (choice,) = body["choices"]
    assert choice["message"].keys() == {"role", "content", "refusal", "annotations"}
    assert (choice["finish_reason"], choice["logprobs"]) == ("length", None)
    usage = body["usage"]
    assert usage["completion_tokens"] == 12 == len(choice["token_ids"])
    assert usage["prompt_tokens"] == len(choice["prompt_token_ids"])
    assert usage["total_tokens"] == usage["prompt_tokens"] + 12
    speculation = body["metrics"]["speculative_decoding"]
    assert len(speculation["acceptance_histogram"]) == speculation["num_spec_tokens"] + 1 == 4
    assert sum(speculation["acceptance_histogram"]) == speculation["num_spec_steps"]
    assert body["metrics"]["seed"] == 5
    assert body["timings"]["predicted_n"] == 12
    assert body["timings"]["draft_n_accepted"] == speculation["num_accepted_draft_tokens"]


def test_a_second_request_finds_its_prompt_in_memory(server: Running) -> None:
    prompt = list(range(40, 80))
    server.ask(prompt=prompt, **GREEDY)
    assert server.ask(prompt=prompt, **GREEDY)["usage"]["prompt_tokens_details"]["cached_tokens"] == 32


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_says_what_the_whole_answer_says(server: Running, path: str, n: int) -> None:
    asked = {"messages": MESSAGES} if path == CHAT else {"prompt": "hello"}
    fields = {**asked, "n": n, "seed": 3, "max_tokens": 20, "return_token_ids": True}
    fields |= {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2}
    whole = server.ask(path, **fields)
    options = {"include_usage": True, "continuous_usage_stats": True, "include_speculation": True}
    *chunks, last = server.stream(path, stream_options=options, **fields)
    for choice in whole["choices"]:
        index = choice["index"]
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert content(chunks, index) == text
        assert token_ids(chunks, index) == choice["token_ids"]
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + [
            choice["finish_reason"]
        ]
        given = [part["logprobs"] for part in parts if part["logprobs"]]
        if path == CHAT:
            assert parts[0]["delta"] == {"role": "assistant", "content": ""}
            assert [entry for part in given for entry in part["content"]] == choice["logprobs"]["content"]
        else:
            for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                assert [entry for part in given for entry in part[key]] == choice["logprobs"][key]
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert last["metrics"]["speculative_decoding"] and last["timings"]
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert {chunk["id"] for chunk in [*chunks, last]} == {last["id"]}


def test_each_token_of_a_stream_says_where_it_came_from(server: Running) -> None:
    chunks = server.stream(
        CHAT, messages=MESSAGES, stream_options={"include_speculation": True}, return_token_ids=True, **GREEDY
    )
    told = [chunk["speculation"] for chunk in chunks if "speculation" in chunk]
    assert [token for part in told for token, _, _ in part["tokens"]] == token_ids(chunks)
    assert {origin for part in told for _, _, origin in part["tokens"]} == {"backup", "target"}
    assert "".join(text for part in told for _, text, _ in part["tokens"]) == content(chunks)
    for part in told:
        assert part["round_ms"] > 0 and part["accepted"] <= len(part["proposed"])


def test_without_usage_asked_for_there_is_no_chunk_without_choices(server: Running) -> None:
    assert all(chunk["choices"] for chunk in server.stream(prompt="a", **GREEDY))


def test_several_prompts_and_samples_are_choices_in_order(server: Running) -> None:
    body = server.ask(prompt=["hello", [40, 41]], n=2, seed=1, max_tokens=5, return_token_ids=True, echo=True)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    alone = server.ask(prompt=[40, 41], n=2, seed=1, max_tokens=5, return_token_ids=True)
    assert [c["token_ids"] for c in body["choices"][2:]] == [c["token_ids"] for c in alone["choices"]]
    assert body["choices"][0]["text"].startswith("hello")


def test_echo_with_log_probabilities_tells_those_of_the_prompt(server: Running) -> None:
    """What evaluation harnesses ask for, as in lm-eval."""
    prompt = [40, 41, 42, 43, 44]
    body = server.ask(prompt=prompt, echo=True, logprobs=1, max_tokens=1, temperature=0)
    found = body["choices"][0]["logprobs"]
    assert len(found["tokens"]) == len(found["token_logprobs"]) == 6
    assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    assert found["text_offset"] == [len("".join(found["tokens"][:i])) for i in range(6)]
    for i in range(1, 5):
        one = server.ask(
            prompt=prompt[:i], allowed_token_ids=[prompt[i]], logprobs=1, max_tokens=1, temperature=0
        )
        assert found["token_logprobs"][i] == one["choices"][0]["logprobs"]["token_logprobs"][0]
    (chunk, *_) = server.stream(prompt=prompt, echo=True, logprobs=1, max_tokens=1, temperature=0)
    assert chunk["choices"][0]["logprobs"] == found


def test_speculation_is_a_matter_of_each_request(server: Running) -> None:
    texts = []
    for fields in ({}, {"speculative": False}, {"num_speculative_tokens": 0}, {"num_speculative_tokens": 1}):
        body = server.ask(prompt="hello", return_token_ids=True, seed=1, max_tokens=20, **fields)
        texts.append(body["choices"][0]["token_ids"])
        speculation = body["metrics"]["speculative_decoding"]
        if fields in ({"speculative": False}, {"num_speculative_tokens": 0}):
            assert speculation is None and "draft_n" not in body["timings"]
        else:
            assert max(speculation["per_step_drafted"]) == (1 if fields else 3)
    assert texts[1:] == texts[:-1]


def test_null_is_as_good_as_absent_and_what_clients_always_send_is_taken(server: Running) -> None:
    fields = dict.fromkeys(
        ("stop", "logprobs", "seed", "tools", "response_format", "n", "logit_bias", "top_k")
    )
    body = server.ask(prompt="hello", **GREEDY, **fields, user="me", store=False, metadata={"a": "b"})
    assert body["choices"] == server.ask(prompt="hello", **GREEDY)["choices"]
    server.ask(CHAT, messages=MESSAGES, response_format={"type": "text"}, tool_choice="none", **GREEDY)


def test_contents_may_be_parts_and_roles_those_of_openai(server: Running) -> None:
    parts = [{"type": "text", "text": "hi"}]
    for role in ("system", "developer"):
        messages = [{"role": role, "content": "be brief"}, {"role": "user", "content": parts}]
        server.ask(CHAT, messages=messages, **GREEDY)


@pytest.mark.parametrize(
    ("path", "fields", "param", "code", "text"),
    [
        ("c", {"temprature": 1}, "temprature", "unknown_parameter", "did you mean 'temperature'?"),
        ("c", {"temperature": -1}, "temperature", "invalid_value", "nearest is 0"),
        ("c", {"temperature": "hot"}, "temperature", "invalid_value", "must be a number"),
        ("c", {"prompt": 5}, "prompt", "invalid_value", "list of token ids"),
        ("c", {"prompt": []}, "prompt", "invalid_value", "list of token ids"),
        ("c", {"prompt": [[]]}, "prompt", "invalid_value", "prompt is empty"),
        ("c", {"prompt": ""}, None, "invalid_value", "prompt is empty"),
        ("c", {"prompt": [1.5]}, "prompt", "invalid_value", "list of token ids"),
        ("c", {"prompt": [99999]}, None, "invalid_value", "token 99999 does not exist"),
        ("c", {"prompt": [1] * 200}, "messages", "context_length_exceeded", "max_model_len is 128"),
        ("c", {"max_tokens": 0}, "max_tokens", "invalid_value", "from 1"),
        ("c", {"n": 17}, "n", "invalid_value", "from 1 to 16"),
        ("c", {"best_of": 2}, "best_of", "unsupported_parameter", "best_of"),
        ("c", {"suffix": "x"}, "suffix", "unsupported_parameter", "suffix"),
        ("c", {"logprobs": 21}, "logprobs", "invalid_value", "from 0 to 20"),
        ("c", {"stop": ["a"] * 17}, "stop", "invalid_value", "more than 16"),
        ("c", {"stream_options": {"include_usage": True}}, "stream_options", "invalid_value", "needs stream"),
        ("c", {"stream": "yes"}, "stream", "invalid_value", "true or false"),
        (
            "c",
            {"stream": True, "stream_options": {"include_usge": True}},
            "stream_options.include_usge",
            "unknown_parameter",
            "include_usage",
        ),
        ("c", {"prediction": {"type": "content"}}, "prediction", "unsupported_parameter", "leave it out"),
        ("c", {"request_id": "a b"}, "request_id", "invalid_value", "A-Z"),
        ("c", {"logit_bias": {"1": 1000}}, "logit_bias", "invalid_value", "100"),
        ("m", {"messages": []}, "messages", "invalid_value", "at least one"),
        (
            "m",
            {"messages": [{"role": "robot", "content": "x"}]},
            "messages[0].role",
            "invalid_value",
            "robot",
        ),
        ("m", {"messages": [{"role": "user"}]}, "messages[0].content", "invalid_value", "text parts"),
        (
            "m",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            None,
            "invalid_value",
            "text only",
        ),
        ("m", {"top_logprobs": 2}, "top_logprobs", "invalid_value", "needs logprobs"),
        ("m", {"logprobs": 2}, "logprobs", "invalid_value", "true or false"),
        ("m", {"chat_template": "x"}, "chat_template", "unsupported_parameter", "not trusted"),
        ("m", {"prompt": "x"}, "prompt", "unknown_parameter", "unknown field"),
    ],
)
def test_what_cannot_be_is_refused_with_its_name(
    server: Running, path: str, fields: dict[str, Any], param: str | None, code: str, text: str
) -> None:
    base = {"model": NAME, **({"messages": MESSAGES} if path == "m" else {"prompt": "a"})}
    status, body, headers = server.call(CHAT if path == "m" else "/v1/completions", {**base, **fields})
    assert status == 400
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert (body["error"]["type"], body["error"]["param"]) == ("invalid_request_error", param)
    assert body["error"]["code"] == code and text in body["error"]["message"]
    assert headers["x-request-id"]


def test_models_that_are_not_there(server: Running) -> None:
    status, body, _ = server.call("/v1/completions", {"model": "gpt", "prompt": "a"})
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    status, body, _ = server.call("/v1/completions", {"prompt": "a"})
    assert (status, body["error"]["param"]) == (400, "model")
    assert server.call("/v1/models/gpt")[0] == 404


def test_models_name_what_benchmarks_read(server: Running) -> None:
    (card,) = server.call("/v1/models")[1]["data"]
    assert (card["id"], card["object"], card["max_model_len"], card["root"]) == (NAME, "model", 128, NAME)
    assert server.call(f"/v1/models/{NAME}")[1] == card


def test_paths_methods_types_and_sizes(server: Running) -> None:
    status, body, _ = server.call("/v1/chat/completion", {})
    assert status == 404 and "did you mean '/v1/chat/completions'?" in body["error"]["message"]
    status, body, headers = server.call(CHAT)
    assert (status, body["error"]["code"], headers["allow"]) == (405, "method_not_allowed", "POST")
    status, body, _ = server.call(CHAT, {}, headers={"Content-Type": "text/plain"})
    assert (status, body["error"]["code"]) == (415, "unsupported_media_type")
    status, body, _ = server.call(CHAT, b" " * (5 * 2**20))
    assert (status, body["error"]["code"]) == (413, "request_too_large")


def test_tokens_there_and_back(server: Running) -> None:
    for prefix in ("", "/v1"):
        body = server.call(f"{prefix}/tokenize", {"prompt": "hello world", "return_token_strs": True})[1]
        assert body["count"] == len(body["tokens"]) == len(body["token_strs"])
        assert body["max_model_len"] == 128
        assert server.call(f"{prefix}/detokenize", {"tokens": body["tokens"]})[1] == {"prompt": "hello world"}
    chat = server.call("/tokenize", {"messages": MESSAGES})[1]
    asked = server.ask(CHAT, messages=MESSAGES, return_token_ids=True, **GREEDY)
    assert chat["tokens"] == asked["choices"][0]["prompt_token_ids"]
    assert server.call("/tokenize", {"prompt": "a", "messages": MESSAGES})[0] == 400
    assert server.call("/detokenize", {"tokens": [-1]})[0] == 400
    info = server.call("/tokenizer_info")[1]
    assert info["eos_token"] == "<|im_end|>" and info["has_chat_template"]


def test_health_version_and_page(server: Running) -> None:
    assert server.call("/health")[:2] == (200, "")
    assert server.call("/version")[1] == {"version": sonoran.__version__}
    status, text, headers = server.call("/")
    assert status == 200 and "<title>" in text
    assert "default-src 'none'" in headers["content-security-policy"]
    assert server.call("/ui/../app.py")[0] == server.call("/ui/none.js")[0] == 404


def test_request_ids_are_taken_and_given_back(server: Running) -> None:
    status, body, headers = server.call(
        "/v1/completions", {"model": NAME, "prompt": "a", **GREEDY}, headers={"X-Request-Id": "mine-1"}
    )
    assert status == 200 and body["id"] == "cmpl-mine-1" and headers["x-request-id"] == "mine-1"
    assert server.call("/health", headers={"X-Request-Id": "bad id"})[2]["x-request-id"] != "bad id"


def test_metrics_are_those_that_readers_know(server: Running) -> None:
    def read() -> dict[str, float]:
        families = text_string_to_metric_families(server.call("/metrics")[1])
        return {
            sample.name
            + "".join(
                f",{v}" for k, v in sample.labels.items() if k in ("position", "finished_reason")
            ): sample.value
            for family in families
            for sample in family.samples
            if sample.labels.get("model_name") == NAME and "le" not in sample.labels
        }

    before = read()
    body = server.ask(prompt="hello", max_tokens=12, temperature=0, ignore_eos=True)
    after = read()
    speculation = body["metrics"]["speculative_decoding"]

    def grew(name: str) -> float:
        return after[name] - before[name]

    assert grew("vllm:generation_tokens_total") == 12
    assert grew("vllm:spec_decode_num_drafts_total") == speculation["num_spec_steps"]
    assert grew("vllm:spec_decode_num_draft_tokens_total") == speculation["num_draft_tokens"]
    assert grew("vllm:spec_decode_num_accepted_tokens_total") == speculation["num_accepted_draft_tokens"]
    for position, accepted in enumerate(speculation["accepted_per_position"]):
        assert grew(f"vllm:spec_decode_num_accepted_tokens_per_pos_total,{position}") == accepted
    assert grew("vllm:request_success_total,length") == 1
    assert (
        grew("vllm:time_to_first_token_seconds_count") == grew("vllm:e2e_request_latency_seconds_count") == 1
    )
    assert grew("vllm:inter_token_latency_seconds_count") == 11
    assert after["vllm:num_requests_running"] == after["vllm:num_requests_waiting"] == 0


def test_the_status_says_what_the_server_is(server: Running) -> None:
    status = server.call("/v1/status")[1]
    assert status["names"] == [NAME] and status["requests"] == []
    assert status["engine"]["num_running"] == 0 and status["num_speculative_tokens"] == 3
