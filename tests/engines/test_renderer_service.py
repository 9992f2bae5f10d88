"""A family that only the engine knows, served whole: ingress, renderer, router and engine in Ray Serve."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import pictures as make
from tests.engines.conftest import app_args
from tests.engines.service import QUESTION, Service, deploy, image_part, messages
from tests.engines.tiny_onevision import tiny_onevision


@pytest.fixture(scope="module")
def rendered(ray_url: str, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    from ray import serve

    model = str(tiny_onevision(tmp_path_factory.mktemp("onevision")))
    args = app_args(models, model=model, num_workers=1, renderer_replicas=1, renderer_timeout_ms=60_000)
    service = deploy(args, ray_url)
    service.wait_idle(1, timeout_s=400)
    yield service
    service.close()
    serve.delete(service.app_name)


def test_a_repeat_is_foretold_and_the_cost_is_shown(rendered: Service) -> None:
    turns = messages(image_part(make.data_url(make.png(1))), QUESTION)
    for _ in range(2):
        rendered.wait_idle(1)
        answer = rendered.ask(turns)
        rendered.assert_exact(answer)
    assert answer.media_overlap == answer.media_blocks >= 3
    shown = rendered.client.get("/router/workers").json()["renderer_here"]
    assert (shown["rendered"], shown["refused"], shown["unavailable"]) == (2, 0, 0)
    assert shown["mean_ms"] > 0


def test_a_broken_picture_is_the_clients_error(rendered: Service) -> None:
    turns = messages(image_part(make.data_url(b"GIF89a, but no picture", "image/gif")), QUESTION)
    answer = rendered.client.post("/v1/chat/completions", json=rendered.request(turns))
    assert 400 <= answer.status_code < 500
