"""A Sightline application under test: two real engine replicas in Ray Serve, spoken to over HTTP."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.ray_cluster import start_ray

#: For Serve's proxy. Those that Linux gives away begin at 32,768; Ray's and the tests' own end before these.
PORTS = range(30_000, 32_000)
#: 90 blocks of 32 for the tiny model (256 bytes a token): small enough to be filled by a test.
BLOCK = 32
SGLANG_PAGE = 16
INTRODUCTION = "You look at pictures and answer questions about them, shortly and in plain words. " * 8
QUESTION = "What is in the picture, and what else would you like to say about it? " * 6


@dataclass(frozen=True, slots=True)
class Answer:
    """One request as its client saw it."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]
    chunks: int = 0

    @property
    def worker(self) -> str:
        return self.headers["x-sightline-worker"]

    @property
    def decision_id(self) -> str:
        return self.headers["x-sightline-decision"]

    @property
    def reason(self) -> str:
        return self.headers["x-sightline-reason"]

    @property
    def overlap(self) -> int:
        return int(self.headers["x-sightline-overlap"].split("/")[0])

    @property
    def total_blocks(self) -> int:
        return int(self.headers["x-sightline-overlap"].split("/")[1])

    @property
    def media_overlap(self) -> int:
        return int(self.headers["x-sightline-media-overlap"].split("/")[0])

    @property
    def media_blocks(self) -> int:
        return int(self.headers["x-sightline-media-overlap"].split("/")[1])

    @property
    def cached(self) -> int:
        return int(self.body["usage"]["prompt_tokens_details"]["cached_tokens"])

    @property
    def prompt_tokens(self) -> int:
        return int(self.body["usage"]["prompt_tokens"])

    @property
    def text(self) -> str:
        return str(self.body["choices"][0]["message"]["content"])

    @property
    def token_ids(self) -> list[int]:
        return list(self.body["choices"][0]["token_ids"])


def image_part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def messages(*parts: dict[str, Any] | str, system: str = INTRODUCTION) -> list[dict[str, Any]]:
    """A system turn of several blocks, then one user turn of the given parts (strings are text)."""
    content = [text_part(part) if isinstance(part, str) else part for part in parts]
    return [{"role": "system", "content": system}, {"role": "user", "content": content}]


@dataclass(slots=True)
class Service:
    """The running application. block: tokens of one block of its engine."""

    url: str
    app_name: str
    model: str
    engine: str = "vllm"
    block: int = BLOCK
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=120)

    def close(self) -> None:
        self.client.close()

    def request(self, turns: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": turns,
            "max_tokens": 4,
            "temperature": 0,
            "ignore_eos": True,
        } | options

    def ask(self, turns: list[dict[str, Any]], *, expect: int = 200, **options: Any) -> Answer:
        response = self.client.post("/v1/chat/completions", json=self.request(turns, **options))
        assert response.status_code == expect, f"{response.status_code}: {response.text}"
        return Answer(response.status_code, response.json(), dict(response.headers))

    def ask_exact(self, turns: list[dict[str, Any]], **options: Any) -> Answer:
        """One request with the pool at rest: what was predicted must be what the engine found."""
        self.wait_idle()
        answer = self.ask(turns, **options)
        self.assert_exact(answer)
        return answer

    def assert_exact(self, answer: Answer) -> None:
        decision = self.decision(answer.decision_id)
        assert answer.reason not in ("router_unreachable", "decision_timeout", "fell_open"), answer.reason
        assert decision["num_tokens"] == answer.prompt_tokens, (
            "predicted prompt length differs from the engine's"
        )
        assert answer.overlap * self.block == answer.cached, (
            f"predicted {answer.overlap * self.block} tokens cached, the engine found {answer.cached}"
        )

    def stream(self, turns: list[dict[str, Any]], **options: Any) -> Iterator[dict[str, Any]]:
        """Chunks of a streamed request; the first yielded object has the response headers."""
        body = self.request(turns, stream=True, stream_options={"include_usage": True}, **options)
        with self.client.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200, response.read()
            yield {"headers": dict(response.headers)}
            for line in response.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield json.loads(line[6:])

    def workers(self) -> list[dict[str, Any]]:
        response = self.client.get("/router/workers")
        assert response.status_code == 200, response.text
        return list(response.json()["workers"])

    def decision(self, decision_id: str) -> dict[str, Any]:
        response = self.client.get(f"/router/decisions/{decision_id}")
        assert response.status_code == 200, response.text
        receipt = response.json()
        return dict(receipt.get("decision", receipt))

    def wait_idle(self, count: int = 2, timeout_s: float = 120.0) -> list[dict[str, Any]]:
        """Until `count` workers are registered and every one is at rest, with all its events applied."""
        return self.wait_for(
            lambda: (
                (rows := self.workers()) and len(rows) == count and all(row["idle"] for row in rows) and rows
            ),
            timeout_s,
        )

    def wait_for(self, condition: Callable[[], Any], timeout_s: float = 120.0) -> Any:
        """Poll until `condition` is truthy; its value. Errors of a service that is not whole are retried."""
        deadline = time.monotonic() + timeout_s
        last: Any = None
        while time.monotonic() < deadline:
            try:
                last = condition()
                if last:
                    return last
            except (AssertionError, httpx.HTTPError) as error:
                last = error
            time.sleep(0.05)
        raise AssertionError(f"not within {timeout_s} s; last: {last}")


def idle_rows(rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]] | None:
    return rows if len(rows) == count and all(row["idle"] for row in rows) else None


def free_port() -> int:
    """Not of those that the system gives to whoever asks for any, as Ray does hundreds of times meanwhile."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no free port from {PORTS.start} on")


@contextmanager
def running_ray(port: int) -> Iterator[str]:
    """Ray and Serve's proxy; yields the base URL. Ends only what it started."""
    import ray
    from ray import serve

    start_ray()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


def deploy(
    args: dict[str, Any], url: str, *, app_name: str = "sightline", model: str = "tiny", prefix: str = "/"
) -> Service:
    """(Re)deploy the application as `serve run` would; returns when it serves."""
    from ray import serve

    from app.build import build

    serve.run(build(args), name=app_name, route_prefix=prefix, logging_config={"enable_access_log": False})
    engine = str(args.get("engine", "vllm"))
    block = args.get("block_size") or (BLOCK if engine == "vllm" else SGLANG_PAGE)
    return Service(url + prefix.rstrip("/"), app_name, model, engine, int(block))
