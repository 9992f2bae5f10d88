"""Through a redeploy, kills, losses, doubles and delays: the router's view ends as what the engines hold."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.conftest import app_args
from tests.engines.faulty_engine import HIDDEN, PLAN, Faults
from tests.engines.never_lost import (
    Prompts,
    assert_exact_again,
    assert_recounted,
    event_sources,
    indexed,
    kill_router_actor,
    recount,
    replay,
    under_load,
)
from tests.engines.redeployment import Redeployment, redeploy_under_load
from tests.engines.service import Service
from tests.engines.test_failures import router_actors

#: A twentieth of what `make soak` does, and at least once.
KILLS, LOAD_S, ROUNDS = 1, 4.0, 3


@pytest.fixture(scope="module")
def redeployed(service: Service, models: Path) -> Redeployment:
    """The running application, deployed once more."""
    return redeploy_under_load(service, app_args(models, ingress_replicas=2))


@pytest.fixture(scope="module")
def faulty(service: Service, redeployed: Redeployment) -> Iterator[Service]:
    """Two real replicas whose messages can be made to go astray."""
    service.wait_idle(timeout_s=400)
    yield service
    PLAN.unlink(missing_ok=True)
    shutil.rmtree(HIDDEN, ignore_errors=True)


@pytest.fixture(autouse=True)
def no_faults_before_or_after() -> Iterator[None]:
    Faults().plan()
    yield
    Faults().plan()


def test_a_redeploy_under_load_fails_no_request(service: Service, redeployed: Redeployment) -> None:
    assert not redeployed.failures, redeployed.failures[:3]
    assert redeployed.served > 10
    service.wait_idle()
    service.wait_for(lambda: len(router_actors()) == 1)


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
    assert not any(row["relay"]["partial"] for row in rows)
    assert assert_recounted(faulty) > 20
    assert sum(row["relay"]["replayed_batches"] for row in faulty.workers()) > 0
    assert_exact_again(faulty, ROUNDS, seed=3)


def test_what_is_lost_beyond_the_replay_buffer_is_promised_no_more(faulty: Service) -> None:
    """A partial epoch holds less than the engine, never more; an emptied cache is known whole again."""
    sources = event_sources(faulty)
    shutil.rmtree(HIDDEN, ignore_errors=True)
    with under_load(faulty):
        Faults(hides=True).plan()
        # That an engine has published is not enough: what its relay reads later would not be hidden any more.
        pids = {source["pid"] for source in sources.values()}
        faulty.wait_for(lambda: HIDDEN.exists() and pids <= {path.name for path in HIDDEN.iterdir()})
        Faults().plan()
        # Each notices with its next batch.
        faulty.wait_for(lambda: all(row["relay"]["partial"] for row in faulty.workers()))
    rows = faulty.wait_idle(timeout_s=120)
    for worker, source in sources.items():
        surplus = indexed(worker) - recount(replay(source["kv_replay"]))
        assert not surplus, f"{worker}: {len(surplus)} blocks are not held"
    differed = sum(row["audit"]["differed"] for row in rows)
    empty_both(faulty)
    rows = stepped(faulty)
    assert not any(row["relay"]["partial"] for row in rows)
    assert_exact_again(faulty, ROUNDS, seed=4)
    rows = faulty.wait_idle()
    assert not any(row["relay"]["partial"] for row in rows)
    assert sum(row["audit"]["differed"] for row in rows) == differed
    assert_recounted(faulty)


def stepped(service: Service) -> list[dict[str, Any]]:
    """When each engine has served a request; vLLM tells of an emptied cache with its next step."""
    prompts, served = Prompts(5, "steps"), set[str]()
    for _ in range(100):  # ties are settled by hash: each may go to either
        served.add(service.ask_exact(prompts.fresh()).worker)
        if len(served) == 2:
            break
    return service.wait_idle()


def empty_both(service: Service) -> None:
    """Until both engines have been told; Serve chooses who hears it."""
    from ray import serve

    handle = serve.get_deployment_handle("Engine", service.app_name)

    def both_are_empty() -> bool:
        for response in [handle.reset_prefix_cache.remote() for _ in range(8)]:
            response.result(timeout_s=60)
        return not any(row["num_blocks"] for row in service.workers())

    service.wait_for(both_are_empty)
    service.wait_idle()
