"""One vLLM pool and one SGLang pool in one Serve instance: two applications, two model names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.tiny_models import tiny_model
from tests.engines import pictures as make
from tests.engines.conftest import app_args
from tests.engines.pictures import PictureServer
from tests.engines.service import QUESTION, Service, deploy, image_part, messages
from tests.engines.test_failures import router_actors
from tests.engines.test_sglang_service import sglang_args


@pytest.fixture(scope="module")
def services(ray_url: str, models: Path) -> Iterator[dict[str, Service]]:
    from ray import serve

    vllm = app_args(models, num_workers=1, served_model_name="on-vllm")
    sglang = sglang_args(models) | {
        "num_workers": 1,
        "served_model_name": "on-sglang",
        "model": str(tiny_model("qwen2_5_vl", models)),
    }
    pools = {
        name: deploy(args, ray_url, app_name=f"mixed-{name}", model=f"on-{name}", prefix=f"/{name}")
        for name, args in (("vllm", vllm), ("sglang", sglang))
    }
    for service in pools.values():
        service.wait_idle(count=1, timeout_s=400)
    yield pools
    for service in pools.values():
        service.close()
        serve.delete(service.app_name)


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_each_pool_is_exact_in_its_own_blocks(
    services: dict[str, Service], pictures: PictureServer, name: str
) -> None:
    service = services[name]
    turns = messages(image_part(pictures.put("mixed.png", make.png(900))), QUESTION)
    answers = []
    for _ in range(2):
        service.wait_idle(count=1)
        answers.append(service.ask(turns))
        service.assert_exact(answers[-1])
    again = answers[1]
    assert again.overlap * service.block >= 6 * 32
    assert again.media_overlap == again.media_blocks > 0
    (worker,) = service.workers()
    assert worker["contract"]["engine"] == name


def test_a_pool_does_not_serve_the_others_model(services: dict[str, Service]) -> None:
    request = services["vllm"].request(messages("Hello.")) | {"model": "on-sglang"}
    response = services["vllm"].client.post("/v1/chat/completions", json=request)
    assert response.status_code == 404
    assert "on-vllm" in response.json()["error"]["message"]


def test_each_pool_has_a_router_of_its_own(services: dict[str, Service]) -> None:
    names = sorted(name.split(":")[1] for name in router_actors())
    assert names == ["mixed-sglang", "mixed-vllm"]
