"""The main job's list on real SGLang: two replicas behind Serve over HTTP, page size 16.

The tests are those that run on vLLM, word for word; only the application differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines import pictures as make
from tests.engines.conftest import app_args
from tests.engines.pictures import PictureServer
from tests.engines.service import QUESTION, Service, deploy, image_part, messages
from tests.engines.test_eviction import test_through_evictions_the_view_is_the_engines_own as test_evictions
from tests.engines.test_failures import (
    test_a_client_that_goes_away_frees_the_engine_and_the_booking as test_abort,
)
from tests.engines.test_failures import (
    test_a_dead_engine_ends_its_replica_and_requests_go_on as test_engine_death,
)
from tests.engines.test_failures import (
    test_a_replica_killed_while_serving_costs_only_started_streams as test_replica_death,
)
from tests.engines.test_failures import test_sixteen_streams_run_at_once as test_sixteen_streams
from tests.engines.test_failures import (
    test_the_router_actor_dies_and_is_exact_again as test_actor_death,
)
from tests.engines.test_http_api import (
    test_a_picture_beyond_the_models_ratio_is_refused_not_hung,
    test_a_python_handle_does_the_same_work,
    test_a_stream_has_a_role_deltas_an_end_and_usage,
    test_a_value_that_would_end_the_engine_never_reaches_it,
    test_logprobs_and_token_ids_are_returned_on_demand,
    test_stop_strings_end_the_answer,
    test_the_openai_client_works_unchanged,
)
from tests.engines.test_main_job import (
    test_a_cache_salt_separates_equal_prompts,
    test_a_new_question_about_an_old_picture_earns_everything_before_it,
    test_a_repeated_picture_reaches_the_replica_that_holds_it,
    test_after_a_flush_nothing_is_foretold,
    test_another_picture_of_the_same_size_stops_where_it_begins,
    test_content_identity_knows_a_picture_by_another_address,
    test_content_identity_knows_a_picture_given_as_data,
    test_odd_pictures_are_foreseen_like_plain_ones,
    test_the_engine_opens_no_socket_for_media,
    test_the_last_block_is_counted_as_the_engine_counts_it,
    test_the_second_turn_is_credited_with_the_generated_blocks,
    test_two_pictures_in_swapped_order_earn_no_false_credit,
)
from tests.engines.test_uuids import named, test_a_uuid_with_its_picture_is_exact_again_and_again

__all__ = [
    "test_a_cache_salt_separates_equal_prompts",
    "test_a_new_question_about_an_old_picture_earns_everything_before_it",
    "test_a_picture_beyond_the_models_ratio_is_refused_not_hung",
    "test_a_python_handle_does_the_same_work",
    "test_a_repeated_picture_reaches_the_replica_that_holds_it",
    "test_a_stream_has_a_role_deltas_an_end_and_usage",
    "test_a_uuid_with_its_picture_is_exact_again_and_again",
    "test_a_value_that_would_end_the_engine_never_reaches_it",
    "test_abort",
    "test_actor_death",
    "test_after_a_flush_nothing_is_foretold",
    "test_another_picture_of_the_same_size_stops_where_it_begins",
    "test_content_identity_knows_a_picture_by_another_address",
    "test_content_identity_knows_a_picture_given_as_data",
    "test_engine_death",
    "test_evictions",
    "test_logprobs_and_token_ids_are_returned_on_demand",
    "test_odd_pictures_are_foreseen_like_plain_ones",
    "test_replica_death",
    "test_sixteen_streams",
    "test_stop_strings_end_the_answer",
    "test_the_engine_opens_no_socket_for_media",
    "test_the_last_block_is_counted_as_the_engine_counts_it",
    "test_the_openai_client_works_unchanged",
    "test_the_second_turn_is_credited_with_the_generated_blocks",
    "test_two_pictures_in_swapped_order_earn_no_false_credit",
]


def sglang_args(models: Path) -> dict[str, Any]:
    """Two replicas with a cache of 200 pages each."""
    engine_args = {
        "max_total_tokens": 3200,
        "context_length": 2048,
        "max_running_requests": 8,
        "chunked_prefill_size": 2048,
    }
    return app_args(models, engine="sglang", engine_args=engine_args)


@pytest.fixture(scope="module")
def service(ray_url: str, models: Path) -> Iterator[Service]:
    from ray import serve

    service = deploy(sglang_args(models), ray_url)
    service.wait_idle(timeout_s=400)
    yield service
    service.close()
    serve.delete(service.app_name)


def test_processor_options_are_refused_in_the_engines_name(service: Service, pictures: PictureServer) -> None:
    turns = messages(image_part(pictures.put("options.png", make.png(117))), QUESTION)
    answer = service.ask(turns, mm_processor_kwargs={"min_pixels": 4096}, expect=400)
    assert "SGLang" in answer.body["error"]["message"]
    assert "min_pixels" in answer.body["error"]["message"]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"seed": 7, "temperature": 1.0}, "enable_deterministic_inference"),
        ({"stop_token_ids": [5], "ignore_eos": True}, "stop_token_ids"),
        ({"min_tokens": 2, "stop": ["x"]}, "min_tokens"),
        ({"repetition_penalty": 3.0}, "repetition_penalty"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
    ],
)
def test_a_parameter_that_sglang_cannot_follow_is_refused_by_its_name(
    service: Service, options: dict[str, Any], name: str
) -> None:
    assert name in service.ask(messages("Hello."), **options, expect=400).body["error"]["message"]


def test_an_answer_is_as_long_as_asked_up_to_the_limit_that_is_told(service: Service) -> None:
    (card,) = service.client.get("/v1/models").json()["data"]
    turns = messages("word " * 1500)
    room = card["max_model_len"] - service.ask(turns, max_tokens=1).prompt_tokens
    assert service.ask(turns, max_tokens=room).body["usage"]["completion_tokens"] == room
    error = service.ask(turns, max_tokens=room + 1, expect=400).body["error"]
    assert error["code"] == "context_length_exceeded"
    assert str(card["max_model_len"]) in error["message"]


def test_a_uuid_without_its_picture_is_refused_with_the_way_out(service: Service) -> None:
    error = service.ask(named("absent", None), expect=400).body["error"]
    assert (error["code"], error["param"]) == ("uuid_without_cache", "messages[1].content[0].image_url")
    assert "Send the picture" in error["message"]


def test_log_probabilities_are_those_of_the_tokens(service: Service) -> None:
    answer = service.ask(messages("Hello."), logprobs=True, top_logprobs=2, return_token_ids=True)
    entries = answer.body["choices"][0]["logprobs"]["content"]
    assert len(entries) == len(answer.token_ids) == 4
    for entry in entries:
        assert len(entry["top_logprobs"]) == 2
        best = entry["top_logprobs"][0]
        assert (best["token"], best["logprob"]) == (entry["token"], entry["logprob"]), "greedy"
