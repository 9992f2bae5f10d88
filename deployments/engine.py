"""The `Engine` deployment: one engine, its event relay, and the requests that were sent to it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.batches import pack_messages, together
from deployments.config import EngineConfig
from deployments.engines import EngineGone, EngineRank, media_source, start_engine
from deployments.engines.reaper import start_reaper
from deployments.media import OddPictures
from deployments.protocol import (
    Delta,
    EngineMessage,
    EngineRequest,
    Failed,
    Finished,
    Refused,
    Started,
)
from deployments.ranks import RankWorker, ReplicaRanks
from deployments.router import finder
from deployments.transport import Payload
from deployments.uuids import UuidLedger
from processors import RequestError
from router.link import ActorLink, spawn
from router.pinned import Pin
from router.relay import EventRelay
from sightline_types import (
    DecisionId,
    LifecycleEvent,
    LifecycleKind,
    PushReply,
    WorkerContract,
    WorkerId,
    WorkerPush,
)

__all__ = ["Engine"]

log = logging.getLogger("sightline.deployments")

ENGINE_WATCH_PERIOD_S = 0.2
#: Between an engine's death and the end of its replica: time to tell the router and refuse requests.
EXIT_DELAY_S = 1.0
GC_OBJECTS = 10_000


class Engine:
    """Serve deployment; every data-parallel rank of every replica is a worker of the pool."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        config: EngineConfig,
        router: DeploymentHandle[Any],
        set_up_logs: Callable[[], None] | None = None,
    ) -> None:
        if set_up_logs is not None:
            set_up_logs()
        began = time.monotonic()
        self._config = config
        self._replica = serve.get_replica_context().replica_id.unique_id
        self._is_leaving = False
        self._uuids = UuidLedger()
        self._odd = OddPictures()
        self._surprised: set[DecisionId] = set()  # open requests whose media were not what was foreseen
        start_reaper()
        log.info("replica %s: starting %s with %s", self._replica, config.engine, config.model)
        self._media = await media_source(config)
        self._engine = await start_engine(config)
        self._link = ActorLink(finder(router))
        self._link.start()
        contract = await self._engine.contract()
        engines = enumerate(self._engine.ranks())
        self._ranks = ReplicaRanks([self._rank(number, engine, contract) for number, engine in engines])
        await self._ranks.start()
        self._watcher = spawn(self._watch_engine())
        gc.freeze()  # what is here by now stays; to look it through for garbage would stop all requests
        gc.set_threshold(GC_OBJECTS)  # what comes later is mostly the blocks that the engine holds
        log.info("replica %s: ready after %.0f s", self._replica, time.monotonic() - began)

    def _rank(self, number: int, engine: EngineRank, contract: WorkerContract) -> RankWorker:
        worker, router = WorkerId(self._replica, number), self._config.router
        relay = EventRelay(
            worker,
            contract,
            engine.source,
            self._push,
            push_interval_s=router.push_interval_ms / 1000,
            heartbeat_s=router.heartbeat_ms / 1000,
            renewal_s=router.renewal_s,
            load=engine.load,
        )
        return RankWorker(worker, engine, relay)

    async def _push(self, message: WorkerPush) -> PushReply:
        reply: PushReply = await self._link.call("push", message)
        return reply

    async def generate(
        self, request: EngineRequest, payload: Payload, pin: Pin | None = None
    ) -> AsyncGenerator[bytes]:
        """Serve one request: its messages, in the packed form in which they travel."""
        async with contextlib.aclosing(self._serve(request, payload, pin)) as messages:
            pause_s = self._config.coalesce_ms / 1000
            batches = together(messages, hold_s=self._config.start_hold_ms / 1000, pause_s=pause_s)
            async with contextlib.aclosing(batches):
                async for batch in batches:
                    yield pack_messages(batch)

    async def _serve(
        self, request: EngineRequest, payload: Payload, pin: Pin | None
    ) -> AsyncGenerator[EngineMessage]:
        """Serve one request: `Started`, then deltas, then `Finished` or `Failed`.

        `Refused` instead of a delta means that nothing was produced and another replica may try.
        `pin` was for the request router; here it says which rank is meant where that is not decided.
        """
        rank = self._ranks.pick(request.decided, pin)
        if self._is_leaving:
            yield Refused("engine_dead", rank.worker)
            return
        if rank.worker.dp_rank != request.dp_rank:
            request = replace(request, dp_rank=rank.worker.dp_rank)
        rank.relay.report(LifecycleEvent(LifecycleKind.STARTED, request.decision_id))
        began = time.monotonic()
        finished: Finished | None = None
        first_token_ms: float | None = None
        try:
            yield Started(rank.worker)
            # Closed with this one, not when it is collected: the engine's work ends at once.
            async with contextlib.aclosing(self._messages(request, payload)) as messages:
                async for message in messages:
                    if isinstance(message, Finished):
                        finished = message
                    if isinstance(message, Delta) and first_token_ms is None:
                        first_token_ms = (time.monotonic() - began) * 1e3
                        rank.relay.report(LifecycleEvent(LifecycleKind.FIRST_TOKEN, request.decision_id))
                    yield message
        except EngineGone as error:
            self._leave_soon(str(error))
            yield (
                Failed("the engine died while it served this request", 503, code="engine_dead")
                if first_token_ms is not None
                else Refused("engine_dead", rank.worker)
            )
        finally:
            rank.relay.report(self._end(request, finished, first_token_ms))
            self._surprised.discard(request.decision_id)

    async def _messages(self, request: EngineRequest, payload: Payload) -> AsyncGenerator[EngineMessage]:
        """The engine's messages; those of a request whose media cannot be decoded are one, a refusal."""
        try:
            media = await self._media.decode(request.media, payload)
            is_known = self._uuids.note(request.media, payload)
            if not is_known or self._odd.are_among(request.media, media):
                self._surprised.add(request.decision_id)
        except RequestError as error:
            yield Failed(str(error), error.status, error.param, error.code)
            return
        # Closing this iterator makes vLLM abort the request: a client that goes away frees its work.
        async with contextlib.aclosing(self._engine.generate(request, media)) as messages:
            async for message in messages:
                yield message

    def _end(
        self, request: EngineRequest, finished: Finished | None, first_token_ms: float | None
    ) -> LifecycleEvent:
        if finished is None:
            return LifecycleEvent(LifecycleKind.ABORT, request.decision_id)
        comparable = request.is_as_foreseen and request.decision_id not in self._surprised
        return LifecycleEvent(
            LifecycleKind.END,
            request.decision_id,
            cached_tokens=finished.cached_tokens,
            prompt_tokens=finished.prompt_tokens if comparable else None,
            comparable=comparable,
            first_token_ms=first_token_ms,
        )

    async def _watch_engine(self) -> None:
        while not self._engine.is_dead:
            await asyncio.sleep(ENGINE_WATCH_PERIOD_S)
        self._leave_soon("the engine process has ended")

    def _leave_soon(self, why: str) -> None:
        """Leave the router, refuse what still comes, and end, so that Serve starts another replica."""
        if self._is_leaving:
            return
        self._is_leaving = True
        log.error("replica %s: engine dead (%s); the replica ends", self._replica, why)
        self._leaving = spawn(self._leave())

    async def _leave(self) -> None:
        await self._ranks.leave()
        await asyncio.sleep(EXIT_DELAY_S)
        os._exit(1)  # Serve replaces an actor that died at once, an unhealthy one only after a while

    async def check_health(self) -> None:
        if self._is_leaving:
            raise RuntimeError("the engine is dead")
        await self._engine.check_health()

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks of this replica's engine, on every rank."""
        return await self._ranks.reset_prefix_caches()

    def record_replica_metadata(self) -> dict[str, str]:
        """The first rank's events; shown by Serve, and read by tests that follow them on their own."""
        source = self._engine.event_source()
        if source is None:
            return {}
        return {
            "kv_events": source.endpoint,
            "kv_replay": source.replay_endpoint or "",
            "topic": source.topic,
        }

    async def event_source(self) -> dict[str, str]:
        worker = WorkerId(self._replica)
        return {"worker": str(worker), "pid": str(os.getpid()), **self.record_replica_metadata()}

    async def __del__(self) -> None:
        if getattr(self, "_watcher", None) is not None:
            self._watcher.cancel()
        if getattr(self, "_ranks", None) is not None:
            await self._ranks.leave()
            await self._ranks.close()
            await self._link.close()
        if getattr(self, "_media", None) is not None:
            await self._media.aclose()
        if getattr(self, "_engine", None) is not None:
            await asyncio.to_thread(self._engine.shutdown)
