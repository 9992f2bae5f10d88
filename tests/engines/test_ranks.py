"""One replica, two data-parallel ranks of one real vLLM engine: to the router two workers, each exact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import pictures as make
from tests.engines.conftest import ROUTER, app_args
from tests.engines.never_lost import command_line
from tests.engines.service import QUESTION, Answer, Service, deploy, image_part, messages
from tests.engines.test_failures import engine_children

RANKS = 2


@pytest.fixture(scope="module")
def ranked(ray_url: str, models: Path) -> Iterator[Service]:
    from ray import serve

    router = {"hints": {"pin": True}} | ROUTER
    args = app_args(models, num_workers=1, data_parallel_size=RANKS, router=router)
    service = deploy(args, ray_url)
    service.wait_idle(RANKS, timeout_s=400)
    yield service
    service.close()
    serve.delete(service.app_name)


def turns_about(number: int) -> list[dict[str, object]]:
    """Shares nothing with another number's."""
    picture = image_part(make.data_url(make.png(700 + number)))
    return messages(picture, QUESTION, system=f"Picture {number} of many, all different. " * 8)


def ask_exact(ranked: Service, turns: list[dict[str, object]], worker: str | None = None) -> Answer:
    """worker: who must serve it."""
    ranked.wait_idle(RANKS)
    headers = {} if worker is None else {"x-sightline-worker": worker}
    response = ranked.client.post("/v1/chat/completions", json=ranked.request(turns), headers=headers)
    assert response.status_code == 200, response.text
    answer = Answer(response.status_code, response.json(), dict(response.headers))
    ranked.assert_exact(answer)
    assert worker in (None, answer.worker)
    return answer


def test_both_ranks_are_workers_of_the_one_replica(ranked: Service) -> None:
    rows = ranked.workers()
    assert len({row["worker"].split("/")[0] for row in rows}) == 1
    assert {row["worker"].split("/")[1] for row in rows} == {"0", "1"}
    # 100 blocks each, though the engine adds its ranks' blocks up.
    assert [row["contract"]["kv_capacity_tokens"] for row in rows] == [100 * ranked.block] * RANKS


def test_new_pictures_spread_over_the_ranks_and_each_repeat_finds_its_own(ranked: Service) -> None:
    latest: dict[str, tuple[int, Answer]] = {}
    for number in range(24):  # ties are settled by hash: each picture may go to either
        answer = ask_exact(ranked, turns_about(number))
        latest[answer.worker] = (number, answer)
        if len(latest) == RANKS:
            break
    assert len(latest) == RANKS
    for worker, (number, first) in latest.items():
        again = ask_exact(ranked, turns_about(number))
        assert again.worker == worker
        assert again.media_overlap == again.media_blocks >= 3
        assert again.text == first.text


def test_what_one_rank_holds_the_other_does_not(ranked: Service) -> None:
    turns = turns_about(30)
    home, other = (row["worker"] for row in ranked.workers())
    assert ask_exact(ranked, turns, home).overlap == 0
    assert ask_exact(ranked, turns, other).overlap == 0
    assert ask_exact(ranked, turns, other).overlap >= 6


def test_a_picture_that_only_its_uuid_names_is_known_at_either_rank(ranked: Service) -> None:
    """The ranks share the frontend, and what it keeps of pictures."""
    named = {"type": "image_url", "image_url": {"url": make.data_url(make.png(735))}, "uuid": "shared"}
    home, other = (row["worker"] for row in ranked.workers())
    first = ask_exact(ranked, messages(named, QUESTION), home)
    alone = ask_exact(ranked, messages(named | {"image_url": None}, QUESTION), other)
    assert (alone.prompt_tokens, alone.text) == (first.prompt_tokens, first.text)


def test_a_flush_empties_both_ranks(ranked: Service) -> None:
    from ray import serve

    turns = turns_about(40)
    workers = [row["worker"] for row in ranked.workers()]
    for worker in workers:
        ask_exact(ranked, turns, worker)
    ranked.wait_idle(RANKS)
    engine = serve.get_deployment_handle("Engine", ranked.app_name)
    assert engine.reset_prefix_cache.remote().result(timeout_s=60)
    ranked.wait_for(lambda: all(row["num_blocks"] == 0 for row in ranked.workers()))
    for worker in workers:
        assert ask_exact(ranked, turns, worker).cached == 0


def test_when_one_rank_dies_the_other_leaves_the_pool_with_it(ranked: Service) -> None:
    """Last in this file: nobody waits for the replica that takes its place."""
    from ray import serve

    before = [row["worker"] for row in ranked.workers()]
    assert len(before) == RANKS
    engine = serve.get_deployment_handle("Engine", ranked.app_name)
    pid = int(engine.event_source.remote().result(timeout_s=60)["pid"])
    (core,) = (p for p in engine_children(pid) if "EngineCore_DP1" in command_line(p))
    core.kill()
    # Its successor may be there before anybody has looked.
    ranked.wait_for(lambda: not {row["worker"] for row in ranked.workers()} & set(before))
