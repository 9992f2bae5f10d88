"""Through kills, losses, doubles and delays: the router's view ends as what the engines hold."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import app.build
from tests.engines.conftest import app_args
from tests.engines.faulty_engine import PLAN, Faults, FaultyEngine
from tests.engines.never_lost import (
    assert_exact_again,
    assert_recounted,
    event_sources,
    indexed,
    kill_router_actor,
    recount,
    replay,
    under_load,
)
from tests.engines.service import Service, deploy

#: A twentieth of what `make soak` does, and at least once.
KILLS, LOAD_S, ROUNDS = 1, 4.0, 3


@pytest.fixture(scope="module")
def faulty(ray_url: str, models: Path) -> Iterator[Service]:
    """Two real replicas whose messages can be made to go astray."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app.build, "Engine", FaultyEngine)
        service = deploy(app_args(models), ray_url)
    service.wait_idle(timeout_s=400)
    yield service
    service.close()
    PLAN.unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def no_faults_before_or_after() -> Iterator[None]:
    Faults().plan()
    yield
    Faults().plan()


def test_a_killed_router_actor_comes_back_knowing_what_the_engines_hold(faulty: Service) -> None:
    for _ in range(KILLS):
        with under_load(faulty) as load:
            time.sleep(LOAD_S)
            kill_router_actor(faulty)
            time.sleep(LOAD_S)
        assert not load.failures, load.failures[:3]
        assert assert_recounted(faulty) > 20
    assert_exact_again(faulty, ROUNDS)


def test_pushes_that_are_lost_doubled_or_late_leave_no_trace(faulty: Service) -> None:
    Faults(push_lost=0.1, reply_lost=0.1, push_doubled=0.2, push_late=0.2).plan()
    with under_load(faulty) as load:
        time.sleep(2 * LOAD_S)
        Faults().plan()
    assert not load.failures, load.failures[:3]
    assert assert_recounted(faulty) > 20
    assert_exact_again(faulty, ROUNDS, seed=2)


def test_event_batches_lost_doubled_or_garbled_are_replayed(faulty: Service) -> None:
    Faults(batch_lost=0.2, batch_doubled=0.2, batch_garbled=0.1).plan()
    with under_load(faulty) as load:
        time.sleep(2 * LOAD_S)
        Faults(batch_lost=1.0).plan()  # the last ones, too, which no other follows
    assert not load.failures, load.failures[:3]
    Faults().plan()
    rows = faulty.wait_idle(timeout_s=120)
    assert sum(row["relay"]["replayed_batches"] for row in rows) > 0
    assert not any(row["relay"]["partial"] for row in rows)
    assert assert_recounted(faulty) > 20
    assert_exact_again(faulty, ROUNDS, seed=3)


def test_what_is_lost_beyond_the_replay_buffer_is_promised_no_more(faulty: Service) -> None:
    """A partial epoch holds less than the engine, never more; an emptied cache is known whole again."""
    sources = event_sources(faulty)

    def published() -> dict[str, int]:
        return {worker: len(replay(source["kv_replay"])) for worker, source in sources.items()}

    with under_load(faulty):
        Faults(hides=True).plan()
        before = published()
        faulty.wait_for(lambda: all(count > before[worker] for worker, count in published().items()), 120)
        Faults().plan()
        # Each notices with its next batch.
        faulty.wait_for(lambda: all(row["relay"]["partial"] for row in faulty.workers()), 120)
    rows = faulty.wait_idle(timeout_s=120)
    for worker, source in sources.items():
        surplus = indexed(worker) - recount(replay(source["kv_replay"]))
        assert not surplus, f"{worker}: {len(surplus)} blocks are not held"
    differed = sum(row["audit"]["differed"] for row in rows)
    empty_both(faulty)
    assert_exact_again(faulty, ROUNDS, seed=4)
    rows = faulty.wait_idle()
    assert not any(row["relay"]["partial"] for row in rows)
    assert sum(row["audit"]["differed"] for row in rows) == differed
    assert_recounted(faulty)


def empty_both(service: Service) -> None:
    """Until both engines have been told; Serve chooses who hears it."""
    from ray import serve

    handle = serve.get_deployment_handle("Engine", service.app_name)

    def both_are_empty() -> bool:
        for response in [handle.reset_prefix_cache.remote() for _ in range(8)]:
            response.result(timeout_s=30)
        return not any(row["num_blocks"] for row in service.workers())

    service.wait_for(both_are_empty, 60)
    service.wait_idle()
