"""One process that sends: prepares its share of a plan, warms up, measures."""

from __future__ import annotations

import asyncio
import gc
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from app.load.client import Client
from app.load.machine import own_cpu_s
from app.load.pictures import DataUrls, Picture, make_pictures
from app.load.plan import Plan
from app.load.requests import Addresses, Bodies, Source, make_source
from app.load.run import Limit, OpenLoop, Runner
from app.load.samples import Sample
from app.load.texts import Texts, TokenRate
from app.load.workload import Kind

__all__ = ["Outcome", "Session", "Share", "loop_factory", "plan_pictures"]

#: Files that are really encoded; the others derive from them.
_FAMILIES = 8


@dataclass(frozen=True, slots=True)
class Share:
    """One sender's part. index of count; pictures_at: the image server's address, where there is one."""

    model: str
    rate: TokenRate
    index: int = 0
    count: int = 1
    pictures_at: str = ""

    def limit(self, limit: Limit) -> Limit:
        return limit if limit.requests is None else replace(limit, requests=self.of(limit.requests))

    def loop(self, loop: OpenLoop) -> OpenLoop:
        outstanding = max(1, self.of(loop.max_outstanding))
        return replace(loop, rate=loop.rate / self.count, max_outstanding=outstanding)

    def of(self, total: int) -> int:
        return total // self.count + (self.index < total % self.count)


@dataclass(frozen=True, slots=True)
class Outcome:
    """began, ended: of the measured part, in seconds of the monotonic clock. cpu_s: of the sender.

    unsent: due but never sent. unprepared: bodies made during the run. warmup_failed: of the warm-up.
    """

    samples: list[Sample] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0
    cpu_s: float = 0.0
    unsent: int = 0
    unprepared: int = 0
    warmup_failed: int = 0
    is_stopped: bool = False


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def plan_pictures(plan: Plan) -> list[Picture]:
    load = plan.workload
    if not load.has_pictures:
        return []
    return make_pictures(_FAMILIES, load.picture_size, load.picture_bytes, zlib.crc32(plan.seed.encode()))


class Session:
    """Belongs to one running loop: `warm_up`, then `measure`, each once."""

    def __init__(self, plan: Plan, share: Share, pictures: list[Picture] | None = None) -> None:
        self._plan, self._share = plan, share
        self._client = Client(plan.target, timeout_s=plan.timeout_s)
        self._source = _source(plan, share, plan_pictures(plan) if pictures is None else pictures)
        self._runner: Runner | None = None
        self._is_stopped = False
        self._warmup_failed = 0
        total = share.of(plan.warmup_requests) + share.of(plan.prepared_requests)
        self._source.prepare(total)

    def stop(self) -> None:
        """End what runs, and begin nothing more."""
        self._is_stopped = True
        if self._runner is not None:
            self._runner.stop()

    async def warm_up(self) -> None:
        count = self._share.of(self._plan.warmup_requests)
        runner = await self._run(Limit(count), None) if count and not self._is_stopped else None
        self._warmup_failed = sum(not s.is_good for s in runner.samples) if runner is not None else 0

    async def measure(self) -> Outcome:
        if self._is_stopped:
            return Outcome(is_stopped=True)
        made = self._source.unprepared
        limit, loop = self._share.limit(self._plan.limit), self._plan.open
        gc.collect()
        gc.freeze()  # the prepared bodies are many: a collection among them would be seen in the figures
        began, cpu = time.perf_counter(), own_cpu_s()
        runner = await self._run(limit, self._share.loop(loop) if loop is not None else None)
        ended, cpu = time.perf_counter(), own_cpu_s() - cpu
        gc.unfreeze()
        return Outcome(
            samples=runner.samples,
            began=began,
            ended=ended,
            cpu_s=cpu,
            unsent=runner.unsent,
            unprepared=self._source.unprepared - made,
            warmup_failed=self._warmup_failed,
            is_stopped=self._is_stopped,
        )

    def close(self) -> None:
        self._client.close()

    async def _run(self, limit: Limit, loop: OpenLoop | None) -> Runner:
        self._runner = runner = Runner(self._client, self._source, self._plan.is_streamed)
        if loop is None:
            await runner.closed(max(1, self._share.of(self._plan.concurrency)), limit)
        else:
            await runner.open(loop, limit, f"{self._plan.seed}/{self._share.index}/arrivals")
        return runner


def _source(plan: Plan, share: Share, pictures: list[Picture]) -> Source:
    bodies = Bodies(
        share.model,
        plan.max_tokens,
        stream=plan.is_streamed,
        usage=plan.wants_usage,
        extra=plan.extra,
    )
    return make_source(
        plan.workload,
        bodies,
        Texts(f"{plan.seed}/{share.index}"),
        share.rate,
        shared=Texts(plan.seed),
        pictures=_addresses(plan, share, pictures),
        held=share.of(plan.concurrency),
        step=(share.index, share.count),
    )


def _addresses(plan: Plan, share: Share, pictures: list[Picture]) -> Addresses:
    if plan.workload.kind is Kind.DATA_PICTURE:
        return DataUrls(pictures).url
    return lambda number: (f"{share.pictures_at}/{number}.jpg".encode(),)
