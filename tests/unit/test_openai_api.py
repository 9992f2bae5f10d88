"""OpenAI's request as it may be, and the answers as they must be."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.openai_api import ChatResponse, parse_chat_request
from deployments.protocol import Delta, Finished, TokenLogprob
from processors import RequestError


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields


def refusal(given: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse_chat_request(given)
    return caught.value


def test_a_plain_request_is_taken() -> None:
    request = parse_chat_request(body(temperature=0.5, stop="END", max_completion_tokens=7))
    sampling = request.sampling()
    assert (sampling.temperature, sampling.stop, sampling.max_tokens) == (0.5, ("END",), 7)


def test_max_completion_tokens_wins_over_its_old_name() -> None:
    assert parse_chat_request(body(max_tokens=3, max_completion_tokens=5)).output_limit == 5


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"messages": []}, "messages"),
        ({"stream": "yes"}, "stream"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"logit_bias": {"word": 1}}, "logit_bias"),
        ({"stop": [""]}, "stop"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"temperature": "0.5"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_k": 2**31}, "top_k"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"min_tokens": 2**31}, "min_tokens"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"model": None}, "model"),
    ],
)
def test_a_wrong_value_is_refused_by_the_parameters_name(fields: dict[str, Any], param: str) -> None:
    def parse() -> None:
        parse_chat_request(body(**fields)).sampling()

    with pytest.raises(RequestError) as caught:
        parse()
    assert caught.value.status == 400
    assert caught.value.param == param


def test_an_unknown_parameter_gets_a_suggestion() -> None:
    error = refusal(body(temprature=1))
    assert "did you mean 'temperature'" in str(error)


@pytest.mark.parametrize("name", ["stream", "stop_token_ids", "min_tokens", "tool_choice", "response_format"])
def test_null_stands_for_a_parameters_default(name: str) -> None:
    assert parse_chat_request(body(**{name: None})) == parse_chat_request(body())


def test_a_whole_number_is_a_temperature() -> None:
    assert parse_chat_request(body(temperature=1)).temperature == 1.0


@pytest.mark.parametrize(
    "given", [{"x" * 100_000: 1}, {"seed": "x" * 100_000}, {"logit_bias": {"x" * 9999: "y"}}]
)
def test_a_refusal_stays_short_however_long_the_request(given: dict[str, Any]) -> None:
    error = refusal(body(**given))
    assert len(str(error)) < 300 and len(str(error.param)) < 100


@pytest.mark.parametrize("given", [[], "text", None, 3])
def test_a_body_that_is_no_object_is_refused(given: object) -> None:
    assert refusal(given).status == 400


def test_a_missing_model_is_named() -> None:
    assert refusal({"messages": [{"role": "user", "content": "hi"}]}).param == "model"


def test_bookkeeping_fields_are_taken_and_ignored() -> None:
    parse_chat_request(body(user="me", metadata={"a": "b"}, store=False))


FINISHED = Finished("stop", prompt_tokens=10, completion_tokens=2, cached_tokens=8, prompt_token_ids=(1, 2))


def response(**fields: Any) -> ChatResponse:
    return ChatResponse("chatcmpl-1", "m", 0, **fields)


def test_a_completion_joins_the_deltas_and_counts_what_was_cached() -> None:
    answer = response(with_token_ids=True)
    answer.add(Delta("Hel", (1,)))
    answer.add(Delta("lo", (2,)))
    result = answer.completion(FINISHED)
    assert result["choices"][0]["message"]["content"] == "Hello"
    assert result["choices"][0]["token_ids"] == [1, 2]
    assert result["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 8},
    }


def test_logprobs_have_openais_shape() -> None:
    entry = TokenLogprob("a", 5, -0.5, (("a", 5, -0.5), ("b", 6, -1.5)))
    chunk = response(with_logprobs=True).delta_chunk(Delta("a", (5,), (entry,)))
    (token,) = chunk["choices"][0]["logprobs"]["content"]
    assert token["logprob"] == -0.5
    assert [t["token"] for t in token["top_logprobs"]] == ["a", "b"]


def test_the_usage_chunk_has_no_choices() -> None:
    assert response().usage_chunk(FINISHED)["choices"] == []
