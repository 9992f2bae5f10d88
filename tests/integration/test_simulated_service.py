"""`engine: simulated` behind Serve, over HTTP: the real publisher, relay, router actor and receipts. What is
foretold is what the engine finds, through evictions, flushes, aborts and deaths."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines import pictures as make
from tests.engines.conftest import ROUTER
from tests.engines.pictures import PictureServer, picture_server
from tests.engines.service import QUESTION, Service, deploy, image_part, messages
from tests.engines.test_eviction import Recount, replay_endpoints, router_keys
from tests.engines.test_failures import many_turns, replica_pids, stream_all
from tests.engines.test_never_lost import empty_both

BLOCK = 16
#: 1,600 tokens a replica; a prompt of these tests has 150 to 400.
NUM_BLOCKS = 101


@pytest.fixture(scope="module")
def pictures() -> Iterator[PictureServer]:
    with picture_server() as server:
        yield server


@pytest.fixture(scope="module")
def service(serve_url: str) -> Iterator[Service]:
    from ray import serve

    args: dict[str, Any] = {
        "model": "tiny:qwen3_vl",
        "served_model_name": "tiny",
        "accelerator": "cpu",
        "engine": "simulated",
        "enable_multimodal": True,
        "num_workers": 2,
        "block_size": BLOCK,
        "max_model_len": 1200,
        "max_stream_s": 60,
        "media": {"identity": "content", "allow_private_addresses": True},
        "router": ROUTER,
        "simulation": {
            "profile": {"decode_base_ms": 2.0},
            "num_blocks": NUM_BLOCKS,
            "max_num_seqs": 16,
        },
    }
    running = deploy(args, serve_url, app_name="simulated")
    running.wait_idle(timeout_s=300)
    yield running
    running.close()
    serve.delete("simulated")


def test_a_repeated_picture_reaches_the_replica_that_holds_it(
    service: Service, pictures: PictureServer
) -> None:
    turns = messages(image_part(pictures.put("a.png", make.png(1))), QUESTION)
    other = messages(image_part(pictures.put("b.png", make.png(2))), QUESTION)
    first = service.ask_exact(turns)
    assert first.overlap == 0
    again = service.ask_exact(turns)
    assert again.worker == first.worker
    assert again.media_overlap == again.media_blocks >= 5
    assert 0 < service.ask_exact(other).overlap < again.overlap
    assert again.text == first.text


def test_the_second_turn_is_credited_with_the_words_of_the_first_answer(
    service: Service, pictures: PictureServer
) -> None:
    turns = messages(image_part(pictures.put("turns.png", make.png(3))), "And now?", system="Short.")
    first = service.ask_exact(turns, max_tokens=64)
    turns = [*turns, {"role": "assistant", "content": first.text}, {"role": "user", "content": QUESTION}]
    second = service.ask_exact(turns)
    assert second.worker == first.worker
    # The last generated token was never computed.
    assert second.cached == (first.prompt_tokens + 64 - 1) // BLOCK * BLOCK


def test_through_evictions_the_view_is_the_engines_own(service: Service, pictures: PictureServer) -> None:
    asked = [unique(pictures, n) for n in range(12)]
    for turns in asked:
        service.ask_exact(turns)
    held = [service.ask_exact(turns).overlap for turns in reversed(asked)]
    assert max(held) > 10 and min(held) < 3, "some are held whole, and some not at all"
    service.wait_idle()
    evicted = 0
    for worker, endpoint in replay_endpoints(service).items():
        recount = Recount(endpoint, service)
        assert router_keys(worker, service) == recount.keys
        evicted += len(recount.key_of) - len(recount.keys)
    # Ties fall as the replicas' random names have it: one of the two may have got too little to evict.
    assert evicted > 0, "the prompts need more blocks than both caches have"


def unique(pictures: PictureServer, number: int) -> list[dict[str, Any]]:
    """Shares nothing with any other prompt but the template's first words."""
    url = pictures.put(f"unique{number}.png", make.png(400 + number))
    return messages(image_part(url), QUESTION, system=f"{number} is the number of this prompt. " * 4)


def test_sixteen_streams_run_at_once(service: Service, pictures: PictureServer) -> None:
    outcomes = stream_all(service, many_turns(pictures, 16, 300), max_tokens=16)
    assert all(o["status"] == 200 and o["done"] and o["error"] is None for o in outcomes), outcomes
    assert {o["worker"] for o in outcomes} == {row["worker"] for row in service.workers()}
    assert all(row["load"]["active_requests"] == 0 for row in service.wait_idle())


def test_a_client_that_goes_away_frees_the_engine_and_the_booking(service: Service) -> None:
    service.wait_idle()
    stream = service.stream(messages("Tell me a story.", system="Long."), max_tokens=1000)
    headers = next(stream)["headers"]
    for _ in range(3):
        next(stream)
    stream.close()
    rows = {row["worker"]: row for row in service.wait_idle()}
    row = rows[headers["x-sightline-worker"]]
    assert row["engine"]["num_running"] == 0 and row["load"]["active_requests"] == 0
    receipt = service.client.get(f"/router/decisions/{headers['x-sightline-decision']}").json()
    assert receipt["outcome"]["kind"] == "abort", "it was stopped, not finished"


def test_a_prompt_beyond_the_model_s_length_is_refused_with_the_limit(service: Service) -> None:
    refused = service.ask(messages("word " * 1500), expect=400)
    assert "1200" in refused.body["error"]["message"]


def test_a_flushed_engine_holds_nothing_and_the_router_knows(
    service: Service, pictures: PictureServer
) -> None:
    turns = messages(image_part(pictures.put("flushed.png", make.png(5))), QUESTION)
    service.ask_exact(turns)
    service.wait_idle()
    empty_both(service)
    assert service.ask_exact(turns).cached == 0


def test_a_killed_replica_is_chosen_no_more_and_replaced(service: Service, pictures: PictureServer) -> None:
    turns = messages(image_part(pictures.put("killed.png", make.png(6))), QUESTION)
    victim = service.ask_exact(turns).worker
    before = {row["worker"] for row in service.workers()}
    os.kill(replica_pids(service)[victim], signal.SIGKILL)
    assert service.ask(turns).worker != victim
    service.wait_for(lambda: {row["worker"] for row in service.workers()} - before, 400)
    again = service.ask(turns)
    assert again.worker != victim and again.overlap > 10
