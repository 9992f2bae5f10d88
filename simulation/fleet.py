"""A fleet without engines and without time: the router's own core, and simulated workers around it.

Discrete events in the order of simulated time; the same seed gives the same run, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from router import RouterCore
from sightline_types import KeyScheme, LayoutContract, WorkerContract, WorkerId
from simulation.clients import Clients
from simulation.engine import SimulatedEngine, Step
from simulation.event_queue import EventQueue
from simulation.keying import LAYOUT
from simulation.metrics import RequestRecord, Summary, summarize
from simulation.prompts import Session
from simulation.replica import Replica
from simulation.sampling import Samples
from simulation.scenario import Change, Scenario, config_of
from simulation.uplink import Link, Uplink

__all__ = ["FleetRun", "Progress", "simulate"]

#: Told how many requests are left, and the simulated seconds.
Progress = Callable[[int, float], None]

_SWEEP_MS = 1000.0


@dataclass(frozen=True, slots=True)
class FleetRun:
    """One policy's run. records: of each request, in the order of sending. num_events: planned actions."""

    policy: str
    summary: Summary
    records: tuple[RequestRecord, ...]
    samples: Samples
    num_events: int


def simulate(
    sessions: Sequence[Session], scenario: Scenario, policy: str, progress: Progress | None = None
) -> FleetRun:
    """Serve all sessions with one of `POLICIES`, and say what became of them."""
    return _Fleet(sessions, scenario, policy).run(progress)


class _Fleet:
    def __init__(self, sessions: Sequence[Session], scenario: Scenario, policy: str) -> None:
        self._scenario = scenario
        self._policy = policy
        self._queue = EventQueue()
        config = config_of(policy, scenario)
        self._core = RouterCore(
            config, clock=self._queue.clock_s, epoch=1, random=Random(f"{scenario.seed}/policy")
        )
        self._contract = _contract(scenario)
        self._sees_all = policy == "oracle"
        self._link = Link(
            self._core.push,
            interval_ms=0.0 if self._sees_all else config.push_interval_ms,
            heartbeat_ms=config.heartbeat_ms,
            renewal_ms=config.renewal_s * 1e3,
            delay_ms=0.0 if self._sees_all else scenario.event_delay_ms,
            loss=0.0 if self._sees_all else scenario.event_loss,
            random=Random(f"{scenario.seed}/loss"),
        )
        self._replicas: dict[WorkerId, Replica] = {}
        self._clients = Clients(
            sessions, scenario, self._contract.spec, self._queue, self._core, self._replicas
        )
        self._samples = Samples(scenario.sample_ms, sessions, self._contract.spec)
        self._join(scenario.num_workers)
        for change in sorted(scenario.changes, key=lambda change: change.at_s):
            self._queue.at(change.at_s * 1e3, self._change, change)
        self._queue.after(_SWEEP_MS, self._sweep)
        self._queue.after(scenario.sample_ms, self._sample)

    def run(self, progress: Progress | None) -> FleetRun:
        clients, queue = self._clients, self._queue

        def is_over() -> bool:
            if progress is not None and queue.num_done % 4096 == 0:
                progress(clients.num_left, queue.now_ms / 1e3)
            return clients.num_left == 0

        queue.run(is_over)
        self._core.check_integrity()
        busy = [replica.busy_ms for replica in self._replicas.values()]
        encoded = sum(replica.encoded_tokens for replica in self._replicas.values())
        summary = summarize(clients.records, clients.gaps, busy, encoded)
        return FleetRun(self._policy, summary, tuple(clients.records), self._samples, queue.num_done)

    def _join(self, count: int) -> None:
        for number in range(len(self._replicas), len(self._replicas) + count):
            worker = WorkerId(f"w{number:03}")
            engine = SimulatedEngine(self._scenario.engine, self._scenario.profile)
            uplink = Uplink(worker, self._contract, self._queue, self._link, engine.load)
            self._replicas[worker] = Replica(
                engine, uplink, self._queue, self._step_over, tells_early=self._sees_all
            )

    def _step_over(self, replica: Replica, step: Step) -> None:
        self._clients.take(step)

    # What befalls the fleet

    def _change(self, change: Change) -> None:
        if change.kind == "join":
            self._join(change.number)
            return
        replica = list(self._replicas.values())[change.number]
        if change.kind == "leave":
            replica.uplink.leave()
        elif not replica.is_dead:
            replica.die()
            self._clients.fail_over(replica)
            self._queue.after(self._scenario.notice_ms, self._core.forget, replica.worker)

    # Time

    def _sweep(self) -> None:
        self._core.sweep()
        self._queue.after(_SWEEP_MS, self._sweep)

    def _sample(self) -> None:
        self._samples.look(self._queue.now_ms, self._replicas)
        self._queue.after(self._scenario.sample_ms, self._sample)


def _contract(scenario: Scenario) -> WorkerContract:
    engine = scenario.engine
    return WorkerContract(
        engine="simulated",
        engine_version="1",
        block_size=engine.block_size,
        scheme=KeyScheme.VLLM,
        model=scenario.profile.name,
        max_model_len=engine.max_model_len,
        layouts=(LayoutContract("simulated", LAYOUT, exact=True),),
        kv_capacity_tokens=engine.kv_capacity_tokens,
        encoder_cache_tokens=engine.encoder_cache,
    )
