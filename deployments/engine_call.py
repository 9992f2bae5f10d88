"""One call to an engine replica: its first messages, its stream, and the booking that goes with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError

from deployments.batches import unpack_messages
from deployments.protocol import (
    Delta,
    EngineMessage,
    EngineRequest,
    Failed,
    Finished,
    NotHeld,
    Refused,
    Started,
)
from processors import RequestError
from router.calls import Undecided
from router.client import RouterClient
from router.pinned import Pin
from sightline_types import Decision, DecisionId, DecisionReason, WorkerId

__all__ = ["EngineCall", "EngineFailed", "NotHeldThere", "NothingProduced", "Receipt", "Reply"]

log = logging.getLogger("sightline.deployments")


class EngineFailed(RequestError):
    """The engine, not the request, is to blame: a 5xx."""

    def __init__(self, message: str, status: int = 503, code: str = "engine_failed") -> None:
        super().__init__(message, status=status, code=code, type="server_error")

    def __reduce__(self) -> tuple[Any, ...]:
        return (EngineFailed, (str(self), self.status, self.code))


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the response headers say: who served, and how much of the request it was known to hold."""

    decision_id: DecisionId
    worker: WorkerId
    decision: Decision | None
    reason: str

    @property
    def headers(self) -> dict[str, str]:
        headers = {
            "x-sightline-worker": str(self.worker),
            "x-sightline-decision": self.decision_id,
            "x-sightline-reason": self.reason,
        }
        score = None
        if self.decision is not None:
            score = next((c for c in self.decision.candidates if c.worker == self.worker), None)
        if score is not None:
            headers["x-sightline-overlap"] = f"{score.overlap_blocks}/{score.total_blocks}"
            headers["x-sightline-media-overlap"] = f"{score.media_overlap_blocks}/{score.media_total_blocks}"
        return headers


@dataclass(slots=True)
class Reply:
    """A request that an engine has begun to answer: `receipt` is final, the messages are still to come.

    batches: those that came together at once.
    """

    receipt: Receipt
    batches: AsyncIterator[tuple[Delta | Finished, ...]]
    close: Callable[[], Awaitable[None]]

    @property
    async def messages(self) -> AsyncIterator[Delta | Finished]:
        """One by one; instead of `batches`."""
        async for batch in self.batches:
            for message in batch:
                yield message


class NothingProduced(Exception):
    """A replica failed before its first token; another one may try."""

    def __init__(self, message: str, worker: WorkerId | None) -> None:
        super().__init__(message)
        self.worker = worker


class NotHeldThere(Exception):
    """A replica's engine does not hold items that were sent without their bytes."""

    def __init__(self, worker: WorkerId, keeps_media: bool) -> None:
        super().__init__(f"{worker} does not hold the media")
        self.worker = worker
        self.keeps_media = keeps_media


class EngineCall:
    """One call to an engine replica, and the booking that goes with it.

    outcome: the decision, or why there is none; or a task that is still making it, beside a request that
    can go to `only` one worker.
    """

    def __init__(
        self,
        decision_id: DecisionId,
        outcome: Decision | Undecided | asyncio.Task[Decision | Undecided],
        client: RouterClient,
        *,
        only: WorkerId | None = None,
    ) -> None:
        self._decision_id = decision_id
        self._client = client
        self._only = only
        self._stream: Any = None
        self._worker: WorkerId | None = None
        self._pending: asyncio.Task[Decision | Undecided] | None = None
        self._outcome: Decision | Undecided | None = None
        self._ready: list[EngineMessage] = []
        if isinstance(outcome, asyncio.Task):
            self._pending = outcome
            outcome.add_done_callback(self._settle)
        else:
            self._outcome = outcome

    def _settle(self, decision: asyncio.Task[Decision | Undecided]) -> None:
        if decision.cancelled():
            return
        error = decision.exception()
        if error is not None:
            log.warning("request %s: no receipt: %r", self._decision_id, error)
        else:
            self._outcome = decision.result()

    @property
    def decided(self) -> WorkerId | None:
        """Where the request should go; None without a decision."""
        return self._outcome.worker if isinstance(self._outcome, Decision) else self._only

    def pin(self, tie_key: int, excluded: tuple[WorkerId, ...]) -> Pin:
        decided = self.decided
        if isinstance(self._outcome, Decision):
            ranked = self._outcome.ranked_workers
        else:
            ranked = () if decided is None else (decided,)
        return Pin.towards(tie_key, ranked, excluded)

    async def begin(self, engine: Any, request: EngineRequest, payload: Any, pin: Pin) -> Reply:
        """Send the request and wait for its first delta (or its end).

        Raises:
            NothingProduced: the replica died or refused.
            NotHeldThere: its engine lacks media that were sent without their bytes.
            RequestError: the engine says that the request is wrong.
        """
        self._client.hold(self._decision_id)
        self._stream = engine.remote(request, payload, pin=pin)
        worker, first = await self._first_messages()
        receipt = self._receipt(worker)
        return Reply(receipt, self._rest(first), self.close)

    async def _first_messages(self) -> tuple[WorkerId, Delta | Finished]:
        started = await self._next()
        if isinstance(started, Refused):
            raise NothingProduced(f"refused: {started.reason}", started.worker or self.decided)
        assert isinstance(started, Started), started
        self._worker = started.worker
        self._client.let_go(self._decision_id)
        if self.decided is not None and started.worker != self.decided:
            self._client.rebook(self._decision_id, started.worker)
        first = await self._next()
        if isinstance(first, Refused):
            raise NothingProduced(f"refused: {first.reason}", started.worker)
        if isinstance(first, Failed):
            raise _as_error(first)
        if isinstance(first, NotHeld):
            raise NotHeldThere(started.worker, first.keeps_media)
        assert isinstance(first, Delta | Finished), first
        return started.worker, first

    async def _next(self) -> EngineMessage:
        """The next message before the first delta was seen: a death here may be made good elsewhere."""
        if self._ready:
            return self._ready.pop(0)
        try:
            self._ready = unpack_messages(await anext(self._stream))
        except RayActorError as error:
            lost = self._forget_lost()
            raise NothingProduced(f"the replica died: {type(error).__name__}", lost) from error
        except BackPressureError as error:
            raise RequestError(str(error), status=429, code="overloaded", type="rate_limit_error") from error
        except StopAsyncIteration:
            raise NothingProduced("the replica sent nothing", self._worker or self.decided) from None
        except RayTaskError as error:
            raise _server_error(error) from error
        return self._ready.pop(0)

    async def _rest(self, first: Delta | Finished) -> AsyncIterator[tuple[Delta | Finished, ...]]:
        batch: list[EngineMessage] = [first, *self._ready]
        while batch:
            answer = _answer(batch)
            is_over = isinstance(batch[-1], Finished)
            if is_over:
                await self._drain()
            if answer:
                yield answer
            if isinstance(batch[-1], Failed):
                raise _as_error(batch[-1])
            if is_over:
                return
            batch = await self._more()

    async def _more(self) -> list[EngineMessage]:
        """The next batch; empty where the stream ends."""
        try:
            async for packed in self._stream:
                return unpack_messages(packed)
        except RayActorError as error:
            self._forget_lost()
            message = "the engine replica died while it streamed this answer; send the request again"
            raise EngineFailed(message) from error
        except RayTaskError as error:
            raise _server_error(error) from error
        return []

    async def _drain(self) -> None:
        """To the stream's end, so that `close` has nothing to cancel. Whatever still goes wrong there, the
        answer is whole."""
        with contextlib.suppress(RayActorError, RayTaskError):
            async for _ in self._stream:
                pass

    def _forget_lost(self) -> WorkerId | None:
        """The router should not wait for the silence of a dead replica's workers. One that lives after all
        comes back with its next push."""
        lost = self._worker or self.decided
        if lost is not None:
            self._client.forget_replica(lost.replica)
        return lost

    def _receipt(self, worker: WorkerId) -> Receipt:
        """What is known when the first token comes."""
        outcome = self._outcome
        if outcome is None:
            return Receipt(self._decision_id, worker, None, DecisionReason.ONLY_WORKER.value)
        if isinstance(outcome, Undecided):
            return Receipt(self._decision_id, worker, None, outcome.reason.value)
        fell_open = worker != outcome.worker
        reason = DecisionReason.FELL_OPEN if fell_open else outcome.reason
        return Receipt(self._decision_id, worker, outcome, reason.value)

    async def close(self) -> None:
        """Whatever still runs for this call is stopped: the engine aborts and its load is released.

        After a regular end it changes nothing. Before a replica took the request the booking is ours
        to undo; afterwards the replica reports the end itself, unless it died.
        """
        self._client.let_go(self._decision_id)
        if self._worker is None:
            if self._pending is not None:
                self._pending.cancel()
            if self._pending is not None or isinstance(self._outcome, Decision):
                self._client.cancel(self._decision_id)
        if self._stream is not None:
            # Where a call could not be assigned Serve (2.60) raises the reason here once more.
            with contextlib.suppress(Exception):
                self._stream.cancel()


def _answer(batch: list[EngineMessage]) -> tuple[Delta | Finished, ...]:
    """Without the failure that may end the batch. Nothing else comes once an answer has begun."""
    messages = batch[:-1] if isinstance(batch[-1], Failed) else batch
    answer = tuple(message for message in messages if isinstance(message, Delta | Finished))
    assert len(answer) == len(messages), batch
    return answer


def _as_error(failed: Failed) -> RequestError:
    if failed.status >= 500:
        return EngineFailed(failed.message, failed.status, failed.code or "engine_failed")
    return RequestError(failed.message, status=failed.status, param=failed.param, code=failed.code)


def _server_error(error: RayTaskError) -> EngineFailed:
    log.error("an engine replica raised: %s", error)
    cause = error.cause if hasattr(error, "cause") else error
    return EngineFailed(f"the engine replica failed: {type(cause).__name__}", 500)
