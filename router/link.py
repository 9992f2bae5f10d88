"""The way to the router actor: found through the `Router` deployment, found again when it dies.

What every request needs (`router.calls`) goes over a direct line (`router.line`) as soon as there is one,
and by Ray's calls as long as there is none, or when it breaks. A line that breaks says nothing about the
actor but that it is time to look: so a dead actor is noticed at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from router.calls import CALLS, BadCall, HotCall
from router.line import CallFailed, Line, LineAddress, LineDown, LineError

__all__ = ["ActorAddress", "ActorLink", "RouterUnreachable", "spawn"]

log = logging.getLogger("sightline.router")

#: Between two looks for a newer actor (a rolling update of `Router` has two for a moment).
REFRESH_PERIOD_S = 3.0
#: Between two tries while there is no actor.
RETRY_PERIOD_S = 0.25
LOOK_TIMEOUT_S = 10.0
#: Between two tries to open a line that is refused or breaks: at first, and at most.
REDIAL_S = (1.0, 60.0)
#: A line that was up for so long is worth another one at once.
STABLE_S = 5.0


class RouterUnreachable(Exception):
    """The router actor cannot be found, died while it was asked, or could not answer."""


@dataclass(frozen=True, slots=True)
class ActorAddress:
    """Where the router actor is registered in Ray."""

    name: str
    namespace: str


def spawn(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a background task outside of any request.

    In an empty context: a Serve call made in a request's context takes over that request's internal
    id, and two calls with one id disturb each other in the request router.
    """
    return asyncio.get_running_loop().create_task(coroutine, context=contextvars.Context())


class ActorLink:
    """A handle to the pool's router actor and a direct line to it, kept fresh in the background.

    find: asks the `Router` deployment for the newest actor's address. May raise.
    """

    def __init__(self, find: Callable[[], Awaitable[ActorAddress]]) -> None:
        self._find = find
        self._address: ActorAddress | None = None
        self._actor: ActorHandle[Any] | None = None
        self._dialer = _Dialer(self._look_soon)
        self._wake = asyncio.Event()
        self._found = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._keeper = spawn(self._keep())

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        self._dialer.hang_up()

    @property
    def is_up(self) -> bool:
        return self._actor is not None

    @property
    def has_line(self) -> bool:
        """Whether the direct line is up."""
        return self._dialer.line is not None

    async def wait_up(self, timeout_s: float) -> bool:
        """Whether an actor was found within `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._found.wait()
        return self.is_up

    async def call(self, method: str, *args: Any) -> Any:
        """Call the actor.

        A call whose line broke under it is made again by Ray: all of `router.calls` may be.

        Raises:
            RouterUnreachable: there is no actor, it died meanwhile, or the method raised.
        """
        packed = CALLS.get(method)
        if packed is None:
            return await self._call_by_ray(method, *args)
        try:
            return packed.unpack_result(await self._ask(packed, packed.pack(args)))
        except BadCall as error:
            raise RouterUnreachable(str(error)) from error

    async def _ask(self, call: HotCall, body: bytes) -> bytes:
        line = self._dialer.line
        if line is not None:
            try:
                return await line.call(call.number, body)
            except CallFailed as error:
                raise RouterUnreachable(f"{error} (in {call.method})") from error
            except LineError as error:
                log.debug("%s goes by Ray: %s", call.method, error)
        answer: bytes = await self._call_by_ray("ask", call.number, body)
        return answer

    async def _call_by_ray(self, method: str, *args: Any) -> Any:
        actor = self._actor
        if actor is None:
            raise RouterUnreachable("no router actor")
        try:
            return await getattr(actor, method).remote(*args)
        except RayTaskError as error:  # it lives, and has said no
            raise RouterUnreachable(f"{error.cause!r} (in {method})") from error
        except RayError as error:
            self._lost(actor)
            raise RouterUnreachable(f"{type(error).__name__} in {method}") from error

    def _lost(self, actor: ActorHandle[Any]) -> None:
        if self._actor is actor:
            self._actor = None
            self._found.clear()
        self._look_soon()

    def _look_soon(self) -> None:
        self._wake.set()

    async def _keep(self) -> None:
        while True:
            self._wake.clear()
            await self._look()
            period = REFRESH_PERIOD_S if self.is_up else RETRY_PERIOD_S
            # Not `wait_for`: in Python 3.11 it can swallow the cancellation that ends this task.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(period):
                    await self._wake.wait()
            if not self.is_up:
                await asyncio.sleep(RETRY_PERIOD_S)

    async def _look(self) -> None:
        try:
            address, actor = await self._newest()
            if actor is self._actor and self.has_line:
                return
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                line = await self._line_of(actor)
        except (RayError, RayServeException, ValueError, TimeoutError, RuntimeError) as error:
            # Nobody is served worse for it: requests fall open by name until the next look.
            log.debug("router actor not found yet: %s: %s", type(error).__name__, error)
            return
        self._address, self._actor = address, actor
        self._found.set()
        await self._dialer.dial(line)

    async def _newest(self) -> tuple[ActorAddress, ActorHandle[Any]]:
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            address = await self._find()
        if self._actor is not None and address == self._address:
            return address, self._actor
        loop = asyncio.get_running_loop()
        return address, await loop.run_in_executor(None, _get_actor, address)

    async def _line_of(self, actor: ActorHandle[Any]) -> LineAddress | None:
        """Where its direct line is: asked by Ray, so the answer shows that it lives, too."""
        try:
            line: LineAddress | None = await actor.line.remote()
        except RayError:
            self._lost(actor)
            raise
        return line


class _Dialer:
    """Keeps one line, as well as it can. on_lost: called when it breaks."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost
        self._to: LineAddress | None = None
        self._failures = 0
        self._not_before = 0.0
        self._since = 0.0
        self.line: Line | None = None

    async def dial(self, address: LineAddress | None) -> None:
        """Open a line to `address`, unless there is one, or one failed a moment ago; None: have none."""
        if address != self._to:
            self.hang_up()
            self._to, self._failures, self._not_before = address, 0, 0.0
        now = asyncio.get_running_loop().time()
        if address is None or self.line is not None or now < self._not_before:
            return
        try:
            self.line = await Line.open(address, on_lost=self._lost)
        except LineDown as error:
            if not self._failures:
                log.warning("no direct line to the router actor (%s): Ray's calls are used", error)
            self._failed()
        else:
            self._since = now
            log.info("direct line to the router actor: %s", address)

    def _failed(self) -> None:
        first, most = REDIAL_S
        wait_s = min(most, first * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self._not_before = asyncio.get_running_loop().time() + wait_s

    def _lost(self, line: Line) -> None:
        if line is not self.line:
            return  # hung up, or never more than tried
        self.line = None
        if asyncio.get_running_loop().time() - self._since > STABLE_S:
            self._failures = 0
        else:
            self._failed()
        self._on_lost()

    def hang_up(self) -> None:
        line, self.line = self.line, None
        if line is not None:
            line.abort()


def _get_actor(address: ActorAddress) -> ActorHandle[Any]:
    return ray.get_actor(address.name, namespace=address.namespace)
