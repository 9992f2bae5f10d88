"""The `Router` deployment: the control plane. It owns the router actor, watches it, and answers for it.

The actor is named after the application and this replica, so that during a rolling update old and new
have one each; whoever asks this deployment gets the newest. It is not detached: when this process
ends, so does the actor.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import ray
from ray import serve
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.serve.handle import DeploymentHandle

from deployments.audit_gauges import AuditGauges
from router.actor import RouterActor
from router.config import RouterConfig
from router.core import CoreStats, Receipt, WorkerStatus
from router.link import ActorAddress, spawn
from router.live_settings import live_settings
from sightline_types import DecisionId, WorkerId

__all__ = ["Router", "finder"]

log = logging.getLogger("sightline.router")

WATCH_PERIOD_S = 0.5
PING_TIMEOUT_S = 10.0
#: Pings in a row that may fail before a silent (not dead) actor is replaced.
PINGS_BEFORE_REPLACED = 6
#: The audit's gauges are set once in so many rounds of the watch.
ROUNDS_PER_GAUGE = 10
NAMESPACE = "sightline"


class Router:
    """Serve deployment, one replica."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: RouterConfig, pool: str = "engine", set_up_logs: Callable[[], None] | None = None
    ) -> None:
        if set_up_logs is not None:
            set_up_logs()
        self._start_config = self._config = config
        self._set_up_logs = set_up_logs
        context = serve.get_replica_context()
        self._base_name = f"sightline:{context.app_name}:{pool}:{context.replica_id.unique_id}"
        self._generation = 0
        self._roster: list[WorkerId] = []
        self._restarts = 0
        self._failed_pings = 0
        self._gauges = AuditGauges()
        await self._create_actor()
        self._watcher = spawn(self._watch())

    async def address(self) -> ActorAddress:
        """Where clients and relays find the actor."""
        return self._address

    async def workers(self) -> tuple[WorkerStatus, ...]:
        result: tuple[WorkerStatus, ...] = await self._actor.workers.remote()
        return result

    async def stats(self) -> CoreStats:
        """Counts since the actor began, and what it holds."""
        result: CoreStats = await self._actor.stats.remote()
        return result

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Serve calls it with the deployment's `user_config`, at first and whenever that changes; see
        `router.live_settings`. What the router knows is kept.

        Raises:
            ValueError: an unknown setting, one that cannot change live, or a bad value.
        """
        given = dict(user_config)
        trusted = [WorkerId.parse(str(name)) for name in given.pop("trust", ())]
        self._config = live_settings(self._start_config, given)
        try:
            await self._actor.configure.remote(self._config)
            for worker in trusted:
                await self._actor.trust.remote(worker)
        except RayError as error:
            # The actor that takes its place begins with these settings.
            log.warning("the router actor was not reconfigured: %s", type(error).__name__)

    async def trust(self, worker: WorkerId) -> tuple[str, ...] | None:
        """Believe a distrusted worker again. Which of its layouts were not believed; None: unknown."""
        result: tuple[str, ...] | None = await self._actor.trust.remote(worker)
        return result

    async def receipt(self, decision_id: DecisionId) -> Receipt | None:
        result: Receipt | None = await self._actor.receipt.remote(decision_id)
        return result

    async def roster(self) -> list[WorkerId]:
        """Who was in the pool when the actor was last asked: whom its successor would wait for."""
        return self._roster

    async def restarts(self) -> int:
        """How often the actor was replaced since this replica began."""
        return self._restarts

    def check_health(self) -> None:
        if self._watcher.done():
            raise RuntimeError("the watch over the router actor has ended")

    async def _create_actor(self) -> None:
        """A dead actor's name may still be taken for a moment, so each one has a name of its own."""
        self._generation += 1
        address = ActorAddress(f"{self._base_name}:{self._generation}", NAMESPACE)
        actor_class = ray.remote(RouterActor).options(
            name=address.name,
            namespace=NAMESPACE,
            num_cpus=0,
            max_concurrency=1000,
            max_restarts=0,
        )
        actor: ActorHandle[Any] = actor_class.remote(self._config, self._set_up_logs)
        epoch = await actor.start.remote(self._roster)
        # Told to others only now: before its start it knows no roster and would decide in a cold pool.
        self._address, self._actor = address, actor
        log.info("router actor %s is up, epoch %x", address.name, epoch)

    async def _watch(self) -> None:
        """Replace the actor when it dies, and remember who was in the pool."""
        for round_ in itertools.count():
            await asyncio.sleep(WATCH_PERIOD_S)
            try:
                if await self._is_alive():
                    async with asyncio.timeout(PING_TIMEOUT_S):
                        self._roster = await self._actor.roster.remote()
                        if round_ % ROUNDS_PER_GAUGE == 0:
                            self._gauges.show(await self.workers())
                else:
                    await self._replace_actor()
            except (RayError, TimeoutError) as error:
                log.warning("the router actor is not well: %s: %s", type(error).__name__, error)

    async def _is_alive(self) -> bool:
        try:
            async with asyncio.timeout(PING_TIMEOUT_S):
                await self._actor.ping.remote()
        except ray.exceptions.ActorDiedError:
            return False
        except (RayError, TimeoutError):
            self._failed_pings += 1
            return self._failed_pings < PINGS_BEFORE_REPLACED
        self._failed_pings = 0
        return True

    async def _replace_actor(self) -> None:
        lost, workers = self._address.name, len(self._roster)
        log.warning("router actor %s is gone; %d workers will send their tables", lost, workers)
        ray.kill(self._actor, no_restart=True)
        self._failed_pings = 0
        self._restarts += 1
        await self._create_actor()

    async def __del__(self) -> None:
        self._watcher.cancel()
        ray.kill(self._actor, no_restart=True)


def finder(router: DeploymentHandle[Any]) -> Callable[[], Awaitable[ActorAddress]]:
    """How other deployments find the router actor: by asking this one."""

    async def find() -> ActorAddress:
        address: ActorAddress = await router.address.remote()
        return address

    return find
