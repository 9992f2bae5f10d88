"""A simulated worker's channel: its times are the relay's."""

from __future__ import annotations

from random import Random

import pytest
from fleets import run, single

from router.config import RouterConfig
from sightline_types import (
    DecisionId,
    EngineLoad,
    KeyScheme,
    LifecycleEvent,
    LifecycleKind,
    PushReply,
    WorkerContract,
    WorkerId,
    WorkerPush,
)
from simulation.event_queue import EventQueue
from simulation.uplink import Link, Uplink

CONTRACT = WorkerContract("simulated", "1", 16, KeyScheme.VLLM, "m", 4096)


def messages(renewal_ms: float, until_ms: float) -> list[tuple[float, WorkerPush]]:
    """Of a worker that runs one request."""
    queue, sent = EventQueue(), []

    def push(message: WorkerPush) -> PushReply:
        sent.append((queue.now_ms, message))
        return PushReply(1, message.seq)

    link = Link(
        push, interval_ms=15, heartbeat_ms=500, renewal_ms=renewal_ms, delay_ms=0, loss=0, random=Random(0)
    )
    uplink = Uplink(WorkerId("w"), CONTRACT, queue, link, EngineLoad)
    uplink.report(LifecycleEvent(LifecycleKind.STARTED, DecisionId("one")))
    queue.run(lambda: queue.now_ms >= until_ms)
    return sent


@pytest.mark.parametrize("renewal_ms", [1000.0, 4000.0])
def test_what_runs_is_listed_as_often_as_the_lease_asks_for(renewal_ms):
    listed = [at for at, message in messages(renewal_ms, 16_500.0) if message.running is not None]
    assert len(listed) == 16_000 / renewal_ms


def test_a_short_lease_is_renewed_in_the_fleet():
    """Answers take seconds, leases half a one: were they not renewed, the router would think busy workers
    idle, and choose otherwise."""
    sessions = [single(n * 60.0, n, output=900 if n % 3 else 100) for n in range(60)]
    brief, usual = (
        run(sessions, "least_loaded", router=RouterConfig(lease_s=lease_s, heartbeat_ms=50.0))
        for lease_s in (0.5, 60.0)
    )
    assert [r.worker for r in brief.records] == [r.worker for r in usual.records]
