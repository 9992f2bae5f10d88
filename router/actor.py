"""The router actor: one per model pool, in a process of its own; a thin shell around `RouterCore`.

It is created and owned by the `Router` deployment (`deployments/router.py`). Every method is async and
none awaits between reading and changing the core, so each call is one step for all callers.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import ray

from router.admission import Overloaded
from router.calls import BadCall, Outcome, Refusal, StalePool, Undecided, unpack_call
from router.complaints import Complaints
from router.config import RouterConfig
from router.contracts import ContractRefused
from router.core import CoreStats, PoolView, Receipt, RouterCore, WorkerStatus
from router.fleet import NoWorker, UnknownWorker
from router.line import LineAddress, LineServer
from router.rehearsal import rehearse
from router.snapshot import SnapshotRefused, read_snapshot, write_snapshot
from sightline_types import (
    Decision,
    DecisionId,
    DegradeReason,
    PushReply,
    RouteQuery,
    WorkerId,
    WorkerPush,
)

__all__ = ["RouterActor"]

log = logging.getLogger("sightline.router")

SWEEP_PERIOD_S = 1.0
GC_OBJECTS = 10_000
#: Candidates that the answer to an ingress names; the receipt has all of them.
NAMED_CANDIDATES = 8
WARM_POLL_S = 0.05
#: Tried from `line_port` on: during a rolling update two actors may share a node.
LINE_PORTS = 10


class RouterActor:
    """Async Ray actor (`max_concurrency` high); not detached, so it goes away with its owner."""

    def __init__(self, config: RouterConfig, set_up_logs: Callable[[], None] | None = None) -> None:
        self._began = time.monotonic()
        if set_up_logs is not None:
            set_up_logs()
        rehearse(config)
        self._config = config
        self._core = RouterCore(
            config,
            clock=time.monotonic,
            epoch=secrets.randbits(62),
            random=random.Random(),  # only the comparison policies draw from it
        )
        self._sweeper: asyncio.Task[None] | None = None
        self._lines = LineServer(self._serve_line)
        self._line_address: LineAddress | None = None
        self._line_calls = 0
        self._on_line: set[WorkerId] = set()
        self._complaints = Complaints(log)

    async def start(self, roster: Sequence[WorkerId]) -> int:
        """Begin to serve: warm once every worker on `roster` has sent its table. Returns the epoch."""
        if self._sweeper is None and self._config.snapshot_path is not None:
            await self._restore(Path(self._config.snapshot_path))
        self._core.begin_warm(roster)
        if self._sweeper is None:
            await self._open_line()
            gc.freeze()  # what is here by now stays; to look it through for garbage would stop all requests
            gc.set_threshold(GC_OBJECTS)  # decisions leave no cycles, and their receipts are kept
            self._sweeper = asyncio.create_task(self._sweep_for_ever())
            self._warmer = asyncio.create_task(self._name_late_workers())
            self._writer = asyncio.create_task(self._snapshot_for_ever())
        return self._core.epoch

    async def _open_line(self) -> None:
        if self._config.line == "off" or uses_tls():
            log.info(
                "no direct line (%s): clients use Ray's calls", "off" if not uses_tls() else "RAY_USE_TLS"
            )
            return
        first, host = self._config.line_port, ray.util.get_node_ip_address()
        ports = range(first, first + LINE_PORTS) if first else (0,)
        try:
            self._line_address = await self._lines.listen(host, ports)
        except OSError as error:
            log.warning("no direct line on %s, port %d: %s; clients use Ray's calls", host, first, error)
        else:
            log.info("direct line on %s", self._line_address)

    async def line(self) -> LineAddress | None:
        """Where it can be called directly; None where only Ray's calls reach it."""
        return self._line_address

    async def _serve_line(self, number: int, body: bytes) -> bytes:
        self._line_calls += 1
        return await self._serve(number, body, by_line=True)

    async def ask(self, number: int, body: bytes) -> bytes:
        """One of `router.calls`, packed, of a client whose direct line is not up."""
        return await self._serve(number, body, by_line=False)

    async def _serve(self, number: int, body: bytes, *, by_line: bool) -> bytes:
        call, args = unpack_call(number, body)
        if call.method == "push":
            (self._on_line.add if by_line else self._on_line.discard)(args[0].worker)
        try:
            return call.pack_result(await getattr(self, call.method)(*args))
        except (BadCall, ContractRefused):
            raise  # told to the caller, whose fault it is
        except Exception as error:  # the caller hears of it, and goes on without; here is why
            self._complaints.note(call.method, error)
            raise

    async def _restore(self, path: Path) -> None:
        try:
            tables = await asyncio.to_thread(read_snapshot, path)
        except SnapshotRefused as error:
            log.warning("snapshot ignored: %s", error)
            return
        self._core.restore(tables)
        log.info("snapshot of %d workers read from %s", len(tables), path)

    async def _snapshot_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._config.snapshot_interval_s)
            if self._config.snapshot_path is not None and self._core.is_warm():
                await self.write_snapshot(Path(self._config.snapshot_path))

    async def write_snapshot(self, path: Path) -> None:
        """Worker by worker, so that decisions go on in between; each table is of one moment."""
        tables = []
        for worker in tuple(self._core.pool().contracts):
            tables.append(self._core.table_of(worker))
            await asyncio.sleep(0)
        try:
            held = [table for table in tables if table is not None]
            await asyncio.to_thread(write_snapshot, path, held)
        except OSError as error:
            log.warning("snapshot not written: %s: %s", path, error)

    async def _name_late_workers(self) -> None:
        while not self._core.is_warm():
            await asyncio.sleep(WARM_POLL_S)
        late = self._core.late_workers()
        if late:
            log.warning("serving without the tables of %s", ", ".join(map(str, late)))

    async def age_s(self) -> float:
        """Seconds since this actor began, its compiling or loading included."""
        return time.monotonic() - self._began

    async def ping(self) -> int:
        return self._core.epoch

    async def decide_many(self, queries: Sequence[RouteQuery]) -> list[Outcome]:
        """Decide and book every query, in order."""
        if not self._core.is_warm():
            return [Undecided(DegradeReason.ROUTER_UNREACHABLE) for _ in queries]
        return [self._decide_or_complain(query) for query in queries]

    def _decide_or_complain(self, query: RouteQuery) -> Outcome:
        """Others came in the same call: they are decided whatever becomes of this one."""
        try:
            return self._decide(query)
        except Exception as error:  # a request's edge: routing never fails one
            self._complaints.note("a decision", error)
            return Undecided(DegradeReason.ROUTER_UNREACHABLE)

    def _decide(self, query: RouteQuery) -> Outcome:
        pool = self._core.pool()
        if not pool.specs <= query.views.keys():
            return StalePool(pool)
        try:
            decision = self._core.decide(query)
        except NoWorker:
            return Undecided(DegradeReason.NO_WORKER)
        except UnknownWorker as error:
            return Refusal(str(error), 404)
        except Overloaded as error:
            return Refusal(str(error), 429, error.retry_after_s)
        if log.isEnabledFor(logging.DEBUG):
            log.debug(describe(decision))
        candidates = decision.candidates
        if len(candidates) <= NAMED_CANDIDATES:
            return decision
        return replace(decision, candidates=candidates[:NAMED_CANDIDATES])

    async def push(self, message: WorkerPush) -> PushReply:
        known = message.worker in self._core.pool().contracts
        try:
            reply = self._core.push(message)
        except ContractRefused as error:
            log.error("worker %s is refused: %s", message.worker, error)
            raise
        if not known and message.contract is not None:
            log.info("worker %s joined: %s", message.worker, describe_contract(message))
        if message.leaving:
            log.info("worker %s left", message.worker)
        return reply

    async def cancel(self, decision_ids: Sequence[DecisionId]) -> None:
        """Undo decisions that nobody acted on."""
        for decision_id in decision_ids:
            self._core.cancel(decision_id)

    async def renew(self, decision_ids: Sequence[DecisionId]) -> None:
        """Their ingress lives, and still waits for a replica to take them."""
        self._core.renew(decision_ids)

    async def configure(self, config: RouterConfig) -> None:
        """Live settings; nothing that is known is lost."""
        self._config = config
        self._core.configure(config)
        log.info("router settings changed: policy %s", config.policy)

    async def trust(self, worker: WorkerId) -> tuple[str, ...] | None:
        """An operator's word; see `RouterCore.trust`."""
        restored = self._core.trust(worker)
        if restored:
            log.warning("worker %s is trusted again by an operator: %s", worker, ", ".join(restored))
        return restored

    async def rebook(self, decision_id: DecisionId, worker: WorkerId) -> None:
        """Move a decision to the worker that really serves it."""
        self._core.rebook(decision_id, worker)
        log.debug("decision %s fell open to worker %s", decision_id, worker)

    async def forget(self, worker: WorkerId) -> None:
        self._core.forget(worker)

    async def forget_replica(self, replica: str) -> None:
        self._core.forget_replica(replica)

    async def pool(self) -> PoolView:
        return self._core.pool()

    async def roster(self) -> list[WorkerId]:
        """Who is in the pool; while it is not warm also those who are awaited, lest the next life of
        this actor forgets them."""
        late = () if self._core.is_warm() else self._core.late_workers()
        return [*self._core.pool().contracts, *late]

    async def workers(self) -> tuple[WorkerStatus, ...]:
        self._on_line &= self._core.pool().contracts.keys()
        return tuple(replace(row, by_line=row.worker in self._on_line) for row in self._core.workers())

    async def resident_keys(self, worker: WorkerId) -> bytes:
        """Every block that `worker` is known to hold: little-endian uint64, ascending. For audits."""
        return self._core.held_keys(worker).astype("<u8").tobytes()

    async def stats(self) -> CoreStats:
        return replace(self._core.stats(), lines=self._lines.num_lines, line_calls=self._line_calls)

    async def receipt(self, decision_id: DecisionId) -> Receipt | None:
        return self._core.receipt(decision_id)

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_PERIOD_S)
            self._core.sweep()


def uses_tls() -> bool:
    """Whether Ray's own traffic is encrypted: then nothing of ours may be in the clear."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def describe(decision: Decision) -> str:
    """One line: what a log reader wants of a decision."""
    chosen = decision.chosen
    degraded = ",".join(reason.value for reason in decision.degraded) or "exact"
    return (
        f"decision {decision.decision_id} worker={decision.worker} "
        f"overlap={chosen.overlap_blocks}/{chosen.total_blocks} "
        f"media_blocks={chosen.media_overlap_blocks}/{chosen.media_total_blocks} "
        f"reason={decision.reason.value} cost={chosen.cost_ms:.1f}ms view={degraded}"
    )


def describe_contract(message: WorkerPush) -> str:
    contract = message.contract
    assert contract is not None
    families = (
        "; ".join(
            f"{layout.family} {'exact' if layout.exact else f'not exact ({layout.reason}: {layout.detail})'}"
            for layout in contract.layouts
        )
        or "text only"
    )
    events = "" if contract.publishes_events else f", approximate ({DegradeReason.KV_EVENTS_OFF.value})"
    return (
        f"{contract.engine} {contract.engine_version}, block size {contract.block_size}, "
        f"keys {contract.scheme.value}, families: {families}{events}"
    )
