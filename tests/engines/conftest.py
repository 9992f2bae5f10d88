"""Fixtures of the engine tests: models made on the spot, one Ray, one application per kind of test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.tiny_models import tiny_model
from tests.engines.pictures import PictureServer, picture_server
from tests.engines.service import Service, deploy, free_port, running_ray

ENGINE_TIMEOUT_S = 900
#: One application serves these, and the last of them ends it; the other modules come after, as they are.
ORDER = (
    "test_main_job",
    "test_video_routing",
    "test_http_api",
    "test_uuids",
    "test_eviction",
    "test_failures",
    "test_never_lost",
    "test_shutdown",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if "engines" in item.path.parts]
    for item in here:
        item.add_marker(pytest.mark.engine)
        # Engines start within a test's time, and slow machines start them slowly: only a hang may fail.
        item.add_marker(pytest.mark.timeout(ENGINE_TIMEOUT_S), append=False)
    here.sort(key=lambda item: [*ORDER, item.path.stem].index(item.path.stem))
    items[:] = [item for item in items if item not in here] + here


@pytest.fixture(scope="session")
def models() -> Path:
    cache = Path(os.environ.get("SIGHTLINE_CACHE", Path.home() / ".cache" / "sightline"))
    return cache / "models"


@pytest.fixture(scope="session")
def ray_url() -> Iterator[str]:
    with running_ray(free_port()) as url:
        yield url


@pytest.fixture(scope="session")
def pictures() -> Iterator[PictureServer]:
    with picture_server() as server:
        yield server


#: No speeds are learned: which replica a busy machine made slower for a while must not decide who gets what.
#: And a decision may take as long as such a machine needs.
ROUTER = {"rate_gain": 0.0, "decision_budget_ms": 30_000.0}


def app_args(models: Path, **more: object) -> dict[str, object]:
    """Two replicas with a cache of 100 blocks each."""
    args: dict[str, object] = {
        "model": str(tiny_model("qwen3_vl", models)),
        "served_model_name": "tiny",
        "accelerator": "cpu",
        "enable_multimodal": True,
        "num_workers": 2,
        "max_stream_s": 60,
        "engine_args": {
            "num_gpu_blocks_override": 100,
            "kv_cache_memory_bytes": 16 << 20,
            "max_model_len": 2048,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 2048,
        },
        "media": {"identity": "content", "allow_private_addresses": True, "fetch_timeout_s": 120},
        "video": {"decode": "ingress", "timeout_s": 120},
        "router": ROUTER,
    }
    return args | more


@pytest.fixture(scope="session")
def service(ray_url: str, models: Path) -> Iterator[Service]:
    service = deploy(app_args(models, ingress_replicas=2), ray_url)
    service.wait_idle(timeout_s=400)
    yield service
    service.close()
