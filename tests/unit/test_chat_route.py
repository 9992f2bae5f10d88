"""The HTTP face of a chat request, from ASGI messages to ASGI messages; a script answers for the engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from ray import serve

from deployments.config import IngressConfig
from deployments.engine_call import EngineFailed, Receipt, Reply
from deployments.ingress import CHAT_PATH, Ingress, ingress_api
from deployments.openai_api import ChatRequest
from deployments.protocol import Delta, Finished
from deployments.stages import StageTimes
from sightline_types import DecisionId, WorkerId

END = Finished("stop", 5, 2, 0)
RECEIPT = Receipt(DecisionId("d"), WorkerId("w"), None, "tie")


class Service:
    """Answers every request with the same batches; an exception among them is raised."""

    def __init__(self, *batches: Any) -> None:
        self._batches = batches
        self.closed = 0
        self.asked: list[ChatRequest] = []

    async def start(self, request: ChatRequest, **_: Any) -> Reply:
        self.asked.append(request)
        return Reply(RECEIPT, self._messages(), self._close)

    async def _messages(self) -> AsyncIterator[Any]:
        for batch in self._batches:
            if isinstance(batch, Exception):
                raise batch
            yield batch

    async def _close(self) -> None:
        self.closed += 1


class Unstarted(Ingress):
    """Without the parts that live in a Ray cluster."""

    def __init__(self) -> None:
        """Nothing is started."""

    def __del__(self) -> None:
        """Nothing is to be ended."""


def serving(service: Service, monkeypatch: pytest.MonkeyPatch) -> Any:
    ingress: Any = Unstarted()
    ingress._config = IngressConfig(model="m", served_model_name="m")
    ingress._stages = StageTimes()
    ingress._service = service
    monkeypatch.setattr(serve, "get_replica_context", lambda: SimpleNamespace(servable_object=ingress))
    return ingress_api


async def ask(app: Any, body: bytes, *, path: str = CHAT_PATH, root: str = "") -> list[dict[str, Any]]:
    request = [{"type": "http.request", "body": body[:10], "more_body": True}]
    request += [{"type": "http.request", "body": body[10:], "more_body": False}]
    sent: list[dict[str, Any]] = []

    async def receive() -> Any:
        if not request:
            await asyncio.Event().wait()
        return request.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": root + path, "root_path": root, "headers": []}
    await app(scope | {"query_string": b"", "scheme": "http", "server": ("here", 1)}, receive, send)
    return sent


def chat(**fields: Any) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    return json.dumps(body | fields).encode()


def events(message: dict[str, Any]) -> list[Any]:
    lines = message["body"].decode().split("\n\n")
    assert lines.pop() == ""
    return [line if line == "data: [DONE]" else json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("root", ["", "/under/here"])
async def test_what_came_together_is_written_together(monkeypatch: pytest.MonkeyPatch, root: str) -> None:
    service = Service((Delta(" a", (1,)),), (Delta(" b", (2,)), END))
    start, first, last = await ask(serving(service, monkeypatch), chat(stream=True), root=root)
    assert (start["status"], dict(start["headers"])[b"x-sightline-worker"]) == (200, b"w/0")
    assert [e["choices"][0]["delta"] for e in events(first)] == [
        {"role": "assistant", "content": ""},
        {"content": " a"},
    ]
    delta, final, done = events(last)
    assert delta["choices"][0]["delta"] == {"content": " b"}
    assert final["choices"][0]["finish_reason"] == "stop"
    assert (done, first["more_body"], last["more_body"]) == ("data: [DONE]", True, False)
    assert service.closed


async def test_a_failure_mid_stream_is_an_event_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service((Delta(" a", (1,)),), EngineFailed("it died"))
    *_, last = await ask(serving(service, monkeypatch), chat(stream=True))
    error, done = events(last)
    assert (error["error"]["message"], done, last["more_body"]) == ("it died", "data: [DONE]", False)


async def test_a_plain_answer_is_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service((Delta(" a", (1,)), Delta(" b", (2,)), END))
    start, body = await ask(serving(service, monkeypatch), chat())
    answer = json.loads(body["body"])
    assert answer["choices"][0]["message"]["content"] == " a b"
    assert dict(start["headers"])[b"content-type"] == b"application/json"


async def test_a_wrong_request_gets_openais_error_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    start, body = await ask(serving(Service(), monkeypatch), chat(model="other"))
    assert (start["status"], json.loads(body["body"])["error"]["code"]) == (404, "model_not_found")


async def test_another_path_is_not_taken_for_a_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    start, body = await ask(serving(Service(), monkeypatch), chat(), path="/v1/completions")
    assert (start["status"], json.loads(body["body"])["error"]["code"]) == (404, "not_found")


async def test_a_picture_of_twelve_mebibytes_in_a_body_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others answer such bodies with 404, or call them invalid JSON (sglang#6622)."""
    service = Service((Delta(" a", (1,)), END))
    url = "data:image/png;base64," + "iVBORw0K" * (12 << 17)
    content = [{"type": "image_url", "image_url": {"url": url}}]
    start, _ = await ask(serving(service, monkeypatch), chat(messages=[{"role": "user", "content": content}]))
    assert start["status"] == 200
    assert service.asked[0].messages[0]["content"] == content


async def test_a_body_over_the_limit_names_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    start, body = await ask(serving(Service(), monkeypatch), b" " * ((64 << 20) + 1))
    assert start["status"] == 413
    assert "body_limit_bytes" in json.loads(body["body"])["error"]["message"]
