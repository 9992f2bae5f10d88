"""The HTTP API and the Python handle, on real engines: what works, and how each wrong request is refused."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.engines import pictures as make
from tests.engines.pictures import PictureServer
from tests.engines.service import QUESTION, Service, image_part, messages


def error_of(service: Service, status: int, **body: Any) -> dict[str, Any]:
    request = service.request(messages("Hello.")) | body
    response = service.client.post("/v1/chat/completions", json=request)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def refusal_of_part(service: Service, status: int, part: object) -> dict[str, Any]:
    return error_of(service, status, messages=[{"role": "user", "content": [part]}])


def test_models_health_and_version_answer(service: Service) -> None:
    (card,) = service.client.get("/v1/models").json()["data"]
    assert card["id"] == service.model
    assert service.client.get(f"/v1/models/{service.model}").json() == card
    assert service.client.get("/health").json()["status"] == "ok"
    assert "version" in service.client.get("/version").json()


def test_the_openai_client_works_unchanged(service: Service, pictures: PictureServer) -> None:
    openai = pytest.importorskip("openai")
    turns = messages(image_part(pictures.put("client.png", make.png(200))), QUESTION)
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none") as client:
        whole = client.chat.completions.create(
            model=service.model, messages=turns, max_tokens=4, temperature=0
        )
        assert whole.usage.completion_tokens <= 4
        assert whole.usage.prompt_tokens_details.cached_tokens >= 0
        stream = client.chat.completions.create(
            model=service.model,
            messages=turns,
            max_tokens=4,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content
        assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
        assert [m.id for m in client.models.list()] == [service.model]
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="another", messages=turns)


def test_a_stream_has_a_role_deltas_an_end_and_usage(service: Service) -> None:
    first, *chunks = list(service.stream(messages(QUESTION), max_tokens=6))
    assert first["headers"]["x-sightline-worker"]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == 6


def test_a_python_handle_does_the_same_work(service: Service, pictures: PictureServer) -> None:
    from ray import serve

    turns = messages(image_part(pictures.put("handle.png", make.png(201))), QUESTION)
    service.wait_idle()
    over_http = service.ask(turns)
    service.wait_idle()
    handle = serve.get_app_handle(service.app_name)
    result = handle.chat.remote(service.request(turns)).result(timeout_s=60)
    assert result["choices"][0]["message"]["content"] == over_http.text
    assert result["sightline"]["x-sightline-worker"] == over_http.worker
    assert result["usage"]["prompt_tokens_details"]["cached_tokens"] >= 6 * 32
    chunks = list(handle.options(stream=True).chat_stream.remote(service.request(turns)))
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
    assert text == over_http.text
    assert chunks[0]["sightline"]["x-sightline-decision"]


def test_a_python_handle_gets_our_error(service: Service) -> None:
    from ray import serve

    handle = serve.get_app_handle(service.app_name)
    with pytest.raises(Exception, match="not served here"):
        handle.chat.remote(service.request(messages("Hi.")) | {"model": "another"}).result(timeout_s=60)


@pytest.mark.parametrize(
    ("name", "value"),
    [("mm_processor_kwargs", {"patch_size": 7}), ("top_k", 2**70), ("min_tokens", 2**70)],
)
def test_a_value_that_would_end_the_engine_never_reaches_it(
    service: Service, pictures: PictureServer, name: str, value: object
) -> None:
    workers = {status["worker"] for status in service.wait_idle()}
    turns = messages(image_part(pictures.put("harm.png", make.png(203))), QUESTION)
    assert error_of(service, 400, messages=turns, **{name: value})["param"].startswith(name)
    assert {status["worker"] for status in service.wait_idle()} == workers
    assert service.ask(turns).status == 200


def test_logprobs_and_token_ids_are_returned_on_demand(service: Service) -> None:
    answer = service.ask(messages(QUESTION), logprobs=True, top_logprobs=2, return_token_ids=True)
    content = answer.body["choices"][0]["logprobs"]["content"]
    assert len(content) == len(answer.token_ids) == 4
    assert all(len(entry["top_logprobs"]) == 2 and entry["logprob"] <= 0 for entry in content)
    assert len(answer.body["prompt_token_ids"]) == answer.prompt_tokens


def test_a_seed_that_could_end_a_cpu_engine_is_refused_and_a_harmless_one_is_taken(service: Service) -> None:
    refusal = error_of(service, 400, messages=messages(QUESTION), temperature=1.5, seed=7)
    assert "seed=7" in refusal["message"] and "temperature 0" in refusal["message"]
    assert service.ask(messages(QUESTION), temperature=0, seed=7).status == 200


def test_stop_strings_end_the_answer(service: Service) -> None:
    word = service.ask(messages(QUESTION), max_tokens=8).text
    assert word
    answer = service.ask(messages(QUESTION), max_tokens=8, stop=[word[1:3]])
    assert answer.body["choices"][0]["finish_reason"] == "stop"
    assert word[1:3] not in answer.text


def test_bad_json_is_named(service: Service) -> None:
    response = service.client.post("/v1/chat/completions", content=b"{not json")
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


def test_an_unknown_model_is_not_found(service: Service) -> None:
    error = error_of(service, 404, model="another")
    assert error["code"] == "model_not_found"
    assert service.model in error["message"]


def test_an_unknown_path_has_our_error_shape(service: Service) -> None:
    response = service.client.get("/v1/nothing")
    assert response.status_code == 404
    assert "message" in response.json()["error"]
    assert service.client.get("/v1/chat/completions").status_code == 405


def test_an_unknown_decision_is_not_found(service: Service) -> None:
    assert service.client.get("/router/decisions/0000").status_code == 404


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "wizard"),
        ({"messages": [{"role": "user", "content": 7}]}, "content"),
        ({"messages": [{"role": "user"}]}, "content"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 3}, "n=3"),
    ],
)
def test_a_wrong_request_is_refused_by_name(service: Service, body: dict[str, Any], names: str) -> None:
    assert names in error_of(service, 400, **body)["message"]


def test_a_prompt_longer_than_the_model_is_refused_with_both_numbers(service: Service) -> None:
    error = error_of(service, 400, messages=messages("word " * 3000))
    assert "2048" in error["message"]
    assert error["code"] == "context_length_exceeded"


def test_an_output_that_does_not_fit_is_refused(service: Service) -> None:
    assert "2048" in error_of(service, 400, max_tokens=2048)["message"]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "audio_url", "audio_url": {"url": "http://127.0.0.1/x.wav"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "image_embeds", "image_embeds": "x"},
        {"type": "hologram"},
    ],
)
def test_parts_that_are_not_served_yet_are_named(service: Service, part: dict[str, Any]) -> None:
    error = refusal_of_part(service, 400, part)
    assert part["type"] in error["message"]
    assert "image_url" in error["message"]


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64,@@@@",
        "data:image/png",
        "ftp://example.org/a.png",
        "file:///etc/passwd",
        "not a url",
        "",
    ],
)
def test_a_malformed_address_is_refused(service: Service, url: str) -> None:
    refusal_of_part(service, 400, image_part(url))


def test_bytes_that_are_no_picture_are_refused(service: Service) -> None:
    nothing = base64.b64encode(b"certainly no picture, " * 10).decode()
    response = service.client.post(
        "/v1/chat/completions",
        json=service.request(messages(image_part(f"data:image/png;base64,{nothing}"))),
    )
    assert response.status_code in (400, 415)
    assert response.json()["error"]["message"]


def test_an_unreachable_picture_is_a_client_error(service: Service, pictures: PictureServer) -> None:
    assert error_of(service, 404, messages=messages(image_part(f"{pictures.url}/missing.png"), "?"))
    error = error_of(service, 400, messages=messages(image_part("http://127.0.0.1:9/closed.png"), "?"))
    assert "127.0.0.1" in error["message"]


def test_a_body_over_the_limit_is_refused(service: Service) -> None:
    big = "x" * (65 << 20)
    response = service.client.post("/v1/chat/completions", content=big)
    assert response.status_code == 413
    assert "body_limit_bytes" in response.json()["error"]["message"]


def test_a_picture_beyond_the_models_ratio_is_refused_not_hung(
    service: Service, pictures: PictureServer
) -> None:
    """The model's own processor raises on it; the engine's word comes through as a 400."""
    url = pictures.put("slim.png", make.png(202, (2500, 10)))
    error = error_of(service, 400, messages=messages(image_part(url), "?"))
    assert "ratio" in error["message"]


def test_text_alone_is_routed_like_anything_else(service: Service) -> None:
    turns = messages("No picture at all. " + QUESTION, system="Only text here. " * 30)
    first = service.ask_exact(turns)
    again = service.ask_exact(turns)
    assert again.worker == first.worker
    assert again.overlap >= 6
    assert again.media_blocks == 0
