"""One vLLM pool and one SGLang pool in one Serve instance: two applications, two model names.

The SGLang pool, with pages of one token, runs the main job's list: the tests that run on vLLM, word for word.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from app.tiny_models import tiny_model
from tests.engines import pictures as make
from tests.engines.conftest import app_args
from tests.engines.pictures import PictureServer
from tests.engines.service import QUESTION, Service, deploy, image_part, messages
from tests.engines.test_eviction import test_through_evictions_the_view_is_the_engines_own as test_evictions
from tests.engines.test_failures import replica_pids, router_actors
from tests.engines.test_failures import (
    test_a_client_that_goes_away_frees_the_engine_and_the_booking as test_abort,
)
from tests.engines.test_failures import (
    test_a_replica_killed_while_serving_costs_only_started_streams as test_replica_death,
)
from tests.engines.test_failures import test_sixteen_streams_run_at_once as test_sixteen_streams
from tests.engines.test_failures import (
    test_the_router_actor_dies_and_is_exact_again as test_actor_death,
)
from tests.engines.test_main_job import (
    test_a_cache_salt_separates_equal_prompts,
    test_a_new_question_about_an_old_picture_earns_everything_before_it,
    test_a_repeated_picture_reaches_the_replica_that_holds_it,
    test_after_a_flush_nothing_is_foretold,
    test_another_picture_of_the_same_size_stops_where_it_begins,
    test_content_identity_knows_a_picture_by_another_address,
    test_content_identity_knows_a_picture_given_as_data,
    test_the_last_block_is_counted_as_the_engine_counts_it,
    test_the_second_turn_is_credited_with_the_generated_blocks,
    test_two_pictures_in_swapped_order_earn_no_false_credit,
)
from tests.engines.test_sglang_service import sglang_args

__all__ = [
    "test_a_cache_salt_separates_equal_prompts",
    "test_a_new_question_about_an_old_picture_earns_everything_before_it",
    "test_a_repeated_picture_reaches_the_replica_that_holds_it",
    "test_abort",
    "test_actor_death",
    "test_after_a_flush_nothing_is_foretold",
    "test_another_picture_of_the_same_size_stops_where_it_begins",
    "test_content_identity_knows_a_picture_by_another_address",
    "test_content_identity_knows_a_picture_given_as_data",
    "test_evictions",
    "test_replica_death",
    "test_sixteen_streams",
    "test_the_last_block_is_counted_as_the_engine_counts_it",
    "test_the_second_turn_is_credited_with_the_generated_blocks",
    "test_two_pictures_in_swapped_order_earn_no_false_credit",
]

REPLICAS = {"vllm": 1, "sglang": 2}


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As another environment would have one of its own: it says which it is."""
    script = tmp_path_factory.mktemp("environment") / "python"
    script.write_text(f'#!/bin/sh\nSIGHTLINE_TEST_ENVIRONMENT=own exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return script


@pytest.fixture(scope="module")
def services(ray_url: str, models: Path, interpreter: Path) -> Iterator[dict[str, Service]]:
    from ray import serve

    vllm = app_args(models, num_workers=1, model=str(tiny_model("qwen2_5_vl", models)))
    sglang = sglang_args(models) | {
        "block_size": 1,
        "engine_runtime_env": {"py_executable": str(interpreter)},
    }
    pools = {
        name: deploy(
            args | {"served_model_name": f"on-{name}"},
            ray_url,
            app_name=f"mixed-{name}",
            model=f"on-{name}",
            prefix=f"/{name}",
        )
        for name, args in (("vllm", vllm), ("sglang", sglang))
    }
    for name, service in pools.items():
        service.wait_idle(count=REPLICAS[name], timeout_s=400)
    yield pools
    for service in pools.values():
        service.close()
        serve.delete(service.app_name)


@pytest.fixture(scope="module")
def service(services: dict[str, Service]) -> Service:
    """Of the list."""
    return services["sglang"]


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_each_pool_is_exact_in_its_own_blocks(
    services: dict[str, Service], pictures: PictureServer, name: str
) -> None:
    service = services[name]
    turns = messages(image_part(pictures.put("mixed.png", make.png(900))), QUESTION)
    answers = []
    for _ in range(2):
        service.wait_idle(count=REPLICAS[name])
        answers.append(service.ask(turns))
        service.assert_exact(answers[-1])
    again = answers[1]
    assert again.overlap * service.block >= 6 * 32
    assert again.media_overlap == again.media_blocks > 0
    assert {worker["contract"]["engine"] for worker in service.workers()} == {name}


def test_a_pool_does_not_serve_the_others_model(services: dict[str, Service]) -> None:
    request = services["vllm"].request(messages("Hello.")) | {"model": "on-sglang"}
    response = services["vllm"].client.post("/v1/chat/completions", json=request)
    assert response.status_code == 404
    assert "on-vllm" in response.json()["error"]["message"]


def test_each_pool_has_a_router_of_its_own(services: dict[str, Service]) -> None:
    for app_name in ("mixed-sglang", "mixed-vllm"):
        assert len(router_actors(app_name)) == 1


def test_a_pools_engines_run_on_the_interpreter_that_it_names(services: dict[str, Service]) -> None:
    found = {
        name: {psutil.Process(pid).environ().get("SIGHTLINE_TEST_ENVIRONMENT") for pid in pids.values()}
        for name, pids in ((name, replica_pids(service)) for name, service in services.items())
    }
    assert found == {"vllm": {None}, "sglang": {"own"}}


def test_a_page_has_one_token(service: Service) -> None:
    assert {worker["contract"]["block_size"] for worker in service.wait_idle()} == {1}
