"""The visible proof: a few requests with pictures, and a table of what was foreseen and what happened."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import numpy as np
from PIL import Image

__all__ = ["Outcome", "Question", "questions", "render_table", "run_showcase"]

#: One per album: what all questions about it begin with.
INTRODUCTIONS = (
    "You look at pictures and answer questions about them in plain words, shortly and to the point, and "
    "you say so when you cannot see what was asked for. The pictures come from one album. " * 2,
    "These pictures are from another album altogether, and whoever asks about them wants to know the place "
    "and the season, so look at the light and at the plants before you give an answer of one sentence. " * 2,
)
SIZE = (320, 256)
IDLE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Question:
    """One request of the showcase: what it shows, the pictures (by path) and the text.

    while_busy: ask it while the replica of the first album is answering another question.
    """

    title: str
    pictures: tuple[str, ...]
    text: str
    album: int = 0
    while_busy: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the router foresaw and what the engine found."""

    title: str
    worker: str
    overlap: str
    media_overlap: str
    predicted_cached: int
    cached: int
    predicted_prompt: int
    prompt: int
    ttft_ms: float

    @property
    def is_exact(self) -> bool:
        return self.predicted_cached == self.cached and self.predicted_prompt == self.prompt


def questions() -> tuple[Question, ...]:
    return (
        Question("first time", ("a.png",), "What is in the picture?"),
        Question("the same again", ("a.png",), "What is in the picture?"),
        Question("same picture, new question", ("a.png",), "Which colours do you see?"),
        Question("same picture, other address", ("copy/a.png",), "What is in the picture?"),
        Question("other picture, same size", ("b.png",), "What is in the picture?"),
        Question("two pictures", ("a.png", "b.png"), "What differs?"),
        Question("the two swapped", ("b.png", "a.png"), "What differs?"),
        Question("other size (600x100)", ("wide.png",), "What is in the picture?"),
        Question("other size, again", ("wide.png",), "What is in the picture?"),
        Question("other album, meanwhile", ("c.png",), "Where is this?", album=1, while_busy=True),
        Question("other album, again", ("c.png",), "Where is this?", album=1),
        Question("first album, again", ("a.png",), "What is in the picture?"),
    )


def run_showcase(base_url: str, model: str) -> bool:
    """Ask every question, print the table; True when every prediction was exact."""
    with picture_server() as pictures, httpx.Client(base_url=base_url, timeout=300) as client:
        outcomes = []
        for question in questions():
            wait_idle(client)
            with busy(client, model) if question.while_busy else nullcontext():
                outcomes.append(ask(client, model, question, pictures))
    print("\n" + render_table(outcomes) + "\n", flush=True)
    return all(outcome.is_exact for outcome in outcomes)


@contextmanager
def busy(client: httpx.Client, model: str) -> Iterator[None]:
    """The replica that holds the first album is answering a long question meanwhile."""
    body = {
        "model": model,
        "messages": [
            {"role": "system", "content": INTRODUCTIONS[0]},
            {"role": "user", "content": "Tell a story."},
        ],
        "max_tokens": 400,
        "ignore_eos": True,
        "stream": True,
    }
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError(f"{response.status_code} {response.read().decode()}")
        chunks = events(response)
        next(chunks)
        yield


def ask(client: httpx.Client, model: str, question: Question, pictures: str) -> Outcome:
    """One streamed request; the receipt comes from the response headers and the router."""
    content: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": f"{pictures}/{name}"}} for name in question.pictures
    ]
    body = {
        "model": model,
        "messages": [
            {"role": "system", "content": INTRODUCTIONS[question.album]},
            {
                "role": "user",
                "content": [*content, {"type": "text", "text": question.text + " Please say." * 24}],
            },
        ],
        "max_tokens": 8,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.monotonic()
    ttft = 0.0
    usage: dict[str, Any] = {}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError(f"{question.title}: {response.status_code} {response.read().decode()}")
        for chunk in events(response):
            if not ttft and chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                ttft = time.monotonic() - began
            usage = chunk.get("usage") or usage
        headers = response.headers
    return _outcome(client, question, headers, usage, ttft or time.monotonic() - began)


def _outcome(
    client: httpx.Client, question: Question, headers: httpx.Headers, usage: dict[str, Any], ttft: float
) -> Outcome:
    receipt = client.get(f"/router/decisions/{headers['x-sightline-decision']}").json()
    decision = receipt.get("decision", receipt)
    return Outcome(
        title=question.title,
        worker=headers["x-sightline-worker"],
        overlap=headers.get("x-sightline-overlap", "-"),
        media_overlap=headers.get("x-sightline-media-overlap", "-"),
        predicted_cached=int(headers.get("x-sightline-overlap", "0/0").split("/")[0])
        * decision["block_size"],
        cached=usage["prompt_tokens_details"]["cached_tokens"],
        predicted_prompt=decision["num_tokens"],
        prompt=usage["prompt_tokens"],
        ttft_ms=ttft * 1000,
    )


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The objects of an SSE stream, until [DONE]."""
    for line in response.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            chunk: dict[str, Any] = json.loads(line[6:])
            if "error" in chunk:
                raise RuntimeError(str(chunk["error"]))
            yield chunk


def wait_idle(client: httpx.Client) -> None:
    """Until every worker is idle and all its cache events are known: then predictions are exact."""
    deadline = time.monotonic() + IDLE_TIMEOUT_S
    while time.monotonic() < deadline:
        response = client.get("/router/workers")
        workers = response.json().get("workers", []) if response.status_code == 200 else []
        if workers and all(worker["idle"] for worker in workers):
            return
        time.sleep(0.05)
    raise RuntimeError(f"the workers were not idle within {IDLE_TIMEOUT_S:.0f} s: {workers}")


def render_table(outcomes: list[Outcome]) -> str:
    header = (
        "request",
        "replica",
        "blocks held",
        "of pictures",
        "cached: foreseen",
        "engine",
        "prompt: foreseen",
        "engine",
        "TTFT ms",
        "",
    )
    rows = [
        (
            o.title,
            o.worker,
            o.overlap,
            o.media_overlap,
            str(o.predicted_cached),
            str(o.cached),
            str(o.predicted_prompt),
            str(o.prompt),
            f"{o.ttft_ms:.0f}",
            "exact" if o.is_exact else "DIFFERS",
        )
        for o in outcomes
    ]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    line = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in (header, *rows)
    ]
    return "\n".join([line[0], "-" * len(line[0]), *line[1:]])


@contextmanager
def picture_server() -> Iterator[str]:
    """Pictures of this process's own, on a free loopback port; yields the base URL."""
    files = {
        "/a.png": _picture(1, SIZE),
        "/b.png": _picture(2, SIZE),
        "/c.png": _picture(4, SIZE),
        "/wide.png": _picture(3, (600, 100)),
    }
    files["/copy/a.png"] = files["/a.png"]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = files.get(self.path)
            self.send_response(200 if data else 404)
            self.send_header("content-length", str(len(data or b"")))
            self.end_headers()
            self.wfile.write(data or b"")

        def log_message(self, format: str, *args: object) -> None:
            """The requests are shown by the service's own log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()


def _picture(seed: int, size: tuple[int, int]) -> bytes:
    tiles = np.random.default_rng(seed).integers(0, 255, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(tiles).resize(size).save(buffer, "PNG")
    return buffer.getvalue()
