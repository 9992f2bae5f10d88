"""What the router believes of a worker after a restart, and of one that says nonsense."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from router import NoWorker, RouterConfig, RouterCore
from router.actor import RouterActor
from router.snapshot import WorkerTable, write_snapshot
from sightline_types import (
    DecisionId,
    DegradeReason,
    KeyedView,
    KeyScheme,
    KeySpec,
    PushReply,
    RelayStatus,
    RouteQuery,
    Tier,
    TierDelta,
    WorkerContract,
    WorkerId,
    WorkerPush,
)

A, B = WorkerId("a"), WorkerId("b")
CONTRACT = WorkerContract("vllm", "0", 4, KeyScheme.VLLM, "m", 99)
SPEC = KeySpec(KeyScheme.VLLM, 4)


def packed(*keys: int) -> bytes:
    return np.array(keys, "<u8").tobytes()


def table(worker: WorkerId, *keys: int, epoch: int = 5, seq: int = 7) -> WorkerTable:
    return WorkerTable(worker, CONTRACT, epoch, seq, (TierDelta(Tier(), packed(*keys)),))


class Router:
    def __init__(self, *tables: WorkerTable) -> None:
        self.now = 100.0
        self.core = RouterCore(RouterConfig(), clock=lambda: self.now, epoch=1, random=Random(1))
        self.core.restore({t.worker: t for t in tables})
        self.core.begin_warm([t.worker for t in tables])

    def push(self, worker: WorkerId, epoch: int, seq: int, *keys: int, is_table: bool = False) -> PushReply:
        contract = CONTRACT if is_table else None
        delta = TierDelta(Tier(), packed(*keys))
        return self.core.push(WorkerPush(worker, epoch, seq, (delta,), table=is_table, contract=contract))

    def push_garbage(self, worker: WorkerId, epoch: int, seq: int) -> PushReply:
        return self.core.push(WorkerPush(worker, epoch, seq, (TierDelta(Tier(), b"garbage"),)))

    def held(self, worker: WorkerId) -> list[int]:
        self.core.check_integrity()
        return self.core.held_keys(worker).tolist()

    def foretold(self) -> int:
        view = KeyedView(packed(1, 2, 3))
        return self.core.decide(RouteQuery(DecisionId("d"), {SPEC: view}, 13)).predicted_cached_tokens


def test_a_table_of_the_same_epoch_serves_until_the_workers_own_comes():
    router = Router(table(A, 1, 2))
    assert router.push(A, 5, 12).need == "table"
    assert router.held(A) == [1, 2] and router.core.is_warm()
    assert router.foretold() == 8
    router.push(A, 5, 13, 1, is_table=True)
    assert router.held(A) == [1]


def test_a_table_is_taken_up_where_nothing_was_said_since():
    router = Router(table(A, 1, 2))
    assert router.push(A, 5, 8, 3) == PushReply(1, 8, "ok")
    assert router.held(A) == [1, 2, 3]


def test_a_table_of_another_epoch_is_dropped():
    router = Router(table(A, 1, 2))
    assert router.push(A, 6, 0).need == "table"
    with pytest.raises(NoWorker):
        router.foretold()
    assert router.push(A, 5, 8).need == "table"
    assert not router.core.workers()


def test_a_worker_that_never_comes_is_never_in_the_pool():
    router = Router(table(A, 1), table(B, 1))
    router.push(A, 5, 9)
    router.now += 10_000
    router.core.sweep()
    assert router.push(B, 5, 8).need == "table"
    assert not router.core.pool().contracts.keys() & {B}


def test_a_worker_that_talks_nonsense_holds_nothing_and_says_why():
    router = Router()
    router.push(A, 5, 0, 1, 2, 3, is_table=True)
    assert router.push_garbage(A, 5, 1).need == "ok"
    (status,) = router.core.workers()
    assert router.held(A) == [] and router.foretold() == 0
    assert "7 bytes of keys" in status.distrusted
    assert DegradeReason.EVENTS_DISTRUSTED in status.reasons
    assert router.core.stats().malformed == 1
    router.push(A, 5, 2, 1)
    assert router.held(A) == []
    router.push(A, 6, 0, 1, is_table=True)
    assert router.held(A) == [1] and not router.core.workers()[0].distrusted


def test_a_relay_that_distrusts_its_engine_is_shown():
    router = Router()
    router.push(A, 5, 0, is_table=True)
    router.core.push(WorkerPush(A, 5, 1, relay=RelayStatus(partial=True, distrusted="batch 3")))
    (status,) = router.core.workers()
    assert status.distrusted == "batch 3" and DegradeReason.EVENTS_DISTRUSTED in status.reasons


def test_late_messages_of_an_earlier_epoch_change_nothing():
    router = Router()
    router.push(A, 5, 0, 1, is_table=True)
    router.push(A, 6, 0, 2, is_table=True)
    assert router.push(A, 5, 9, 3, is_table=True).need == "ok"
    assert router.held(A) == [2]


def test_a_worker_that_left_is_not_brought_back_by_a_late_message():
    router = Router()
    router.push(A, 5, 0, 1, is_table=True)
    router.core.push(WorkerPush(A, 5, 1, leaving=True))
    router.push(A, 5, 0, 1, is_table=True)
    assert not router.core.workers()
    router.push(A, 1 << 40, 0, 1, is_table=True)
    assert router.held(A) == [1]


async def test_an_actor_reads_what_another_wrote(tmp_path, caplog):
    path = tmp_path / "view"
    config = RouterConfig(snapshot_path=str(path), warm_timeout_s=0)
    first = RouterActor(config)
    await first.start([])
    await first.push(WorkerPush(A, 5, 0, (TierDelta(Tier(), packed(1, 2)),), table=True, contract=CONTRACT))
    await first.write_snapshot(path)
    second = RouterActor(config)
    await second.start([A])
    assert (await second.push(WorkerPush(A, 5, 9))).need == "table"
    assert await second.resident_keys(A) == packed(1, 2)


async def test_a_broken_snapshot_is_named_and_ignored(tmp_path, caplog):
    path = tmp_path / "view"
    write_snapshot(path, [table(A, 1)])
    path.write_bytes(path.read_bytes()[:-3])
    actor = RouterActor(RouterConfig(snapshot_path=str(path)))
    await actor.start([])
    assert "snapshot ignored" in caplog.text and str(path) in caplog.text
