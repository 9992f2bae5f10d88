"""The path of one chat request: prepare, decide, dispatch, stream. HTTP and Python handles both take it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import xxhash
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle

from deployments.config import IngressConfig
from deployments.degraded import DegradedRequests
from deployments.hints import WORKER
from deployments.layout_source import LayoutSource
from deployments.openai_api import ChatRequest
from deployments.protocol import (
    Delta,
    EngineMessage,
    EngineRequest,
    Failed,
    Finished,
    NotHeld,
    Refused,
    Sampling,
    Started,
)
from deployments.rendered import RenderRequest
from deployments.shipment import MediaShipper, Shipment
from deployments.transport import EngineCalls
from processors import Fetcher, PromptBuilder, RequestError, media_param
from router.actor import Refusal, Undecided
from router.client import RouterClient, spawn
from router.core import PoolView
from router.keys import block_keys
from router.live import LiveReplicas
from router.pinned import Pin
from sightline_types import (
    Decision,
    DecisionId,
    DecisionReason,
    KeyedView,
    KeySpec,
    MediaReport,
    PreparedPrompt,
    RouteHints,
    RouteQuery,
    WorkerId,
)

__all__ = ["ChatService", "EngineFailed", "PoolFull", "Receipt", "Reply"]

log = logging.getLogger("sightline.deployments")

#: A request that has produced nothing is tried on so many replicas in all.
TRIES = 2
#: Workers asked for a picture that only a uuid names.
MAX_HOLDERS_ASKED = 16
POOL_TIMEOUT_S = 5.0
_NO_HINTS = RouteHints()


class EngineFailed(RequestError):
    """The engine, not the request, is to blame: a 5xx."""

    def __init__(self, message: str, status: int = 503, code: str = "engine_failed") -> None:
        super().__init__(message, status=status, code=code, type="server_error")

    def __reduce__(self) -> tuple[Any, ...]:
        return (EngineFailed, (str(self), self.status, self.code))


class PoolFull(RequestError):
    """429: every worker is past its admission limit. retry_after_s: when to try again."""

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message, status=429, code="overloaded", type="rate_limit_error")
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[Any, ...]:
        return (PoolFull, (str(self), self.retry_after_s))


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
    """A request that an engine has begun to answer: `receipt` is final, `messages` are still to come."""

    receipt: Receipt
    messages: AsyncIterator[Delta | Finished]
    close: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Asked:
    """One request on its way: whatever each try needs of it."""

    request: ChatRequest
    sampling: Sampling
    prompt: PreparedPrompt
    salt: str | None
    shipment: Shipment
    tenant: str | None
    hints: RouteHints

    def engine_request(self, decision_id: DecisionId, decided: WorkerId | None) -> EngineRequest:
        return EngineRequest(
            decision_id=decision_id,
            token_ids=self.prompt.token_ids,
            sampling=self.sampling,
            media=self.shipment.media,
            decided=decided,
            cache_salt=self.salt,
            mm_processor_kwargs=self.request.mm_processor_kwargs or {},
            is_as_foreseen=self.shipment.is_as_foreseen,
        )


class ChatService:
    """One per ingress replica."""

    def __init__(
        self,
        config: IngressConfig,
        prompts: PromptBuilder,
        fetcher: Fetcher,
        client: RouterClient,
        engine: DeploymentHandle[Any],
        live: LiveReplicas,
        degraded: DegradedRequests | None = None,
        layouts: LayoutSource | None = None,
    ) -> None:
        self._config = config
        self._prompts = prompts
        self._shipper = MediaShipper(prompts, fetcher, config.media.max_request_bytes)
        self._client = client
        self._engine = EngineCalls(engine)
        self._live = live
        self._degraded = degraded
        self._layouts = layouts or LayoutSource(config.layout_mode, config.served_model_name)
        self.max_model_len: int | None = None

    async def start(
        self, request: ChatRequest, *, tenant: str | None = None, hints: RouteHints = _NO_HINTS
    ) -> Reply:
        """Everything up to the first message of an engine.

        Where there is one worker only, nothing waits for a decision: it is made beside the request, for
        the receipt and the audit.

        Raises:
            RequestError: what the user did wrong, or (`EngineFailed`) that no engine could serve it.
        """
        sampling = request.sampling()  # what is wrong with it is said before anything is fetched or booked
        alone = self._only_worker(hints)
        prompt = await self._prepare(request, tenant, size_wait_ms=0 if alone is not None else None)
        self._check_length(prompt, request)
        salt = cache_salt(request.cache_salt, tenant, self._config.tenant_secret)
        # Before the decision: a hanging origin holds no booking, and the decision is fresh when it is used.
        shipment = await self._shipper.prepare(prompt, request)
        prompt = shipment.prompt  # with what the files say, where an address had said less
        self._check_length(prompt, request)
        prompt, shipment = await self._foresee(prompt, shipment, request)
        asked = _Asked(request, sampling, prompt, salt, shipment, tenant, hints)
        return await self._dispatch(asked, alone)

    async def _prepare(
        self, request: ChatRequest, tenant: str | None, *, size_wait_ms: float | None
    ) -> PreparedPrompt:
        return await self._prompts.prepare(
            request.messages,
            tools=request.tools,
            chat_template_kwargs=request.chat_template_kwargs,
            add_generation_prompt=request.add_generation_prompt,
            mm_processor_kwargs=request.mm_processor_kwargs,
            tenant=tenant,
            size_wait_ms=size_wait_ms,
        )

    def _only_worker(self, hints: RouteHints) -> WorkerId | None:
        """The one worker that the request can go to; None where there is a choice, or something to refuse."""
        pool, live = self._client.known_pool, self._live.ids
        if pool is None or pool.is_limited or hints.worker is not None or len(pool.contracts) != 1:
            return None
        (worker,) = pool.contracts
        return worker if live == frozenset({worker.replica}) else None

    async def _foresee(
        self, prompt: PreparedPrompt, shipment: Shipment, request: ChatRequest
    ) -> tuple[PreparedPrompt, Shipment]:
        """The prompt and its items' identities as the configured layout source has them."""
        pool = self._client.known_pool
        if not self._layouts.would_render(prompt, pool.contracts if pool is not None else {}):
            return self._layouts.without_renderer(prompt), shipment
        if shipment.lacks_bytes:
            shipment = await self._shipper.prepare(prompt, request, is_complete=True)
            prompt = shipment.prompt
        kwargs = request.mm_processor_kwargs or {}
        ask = RenderRequest(prompt.token_ids, shipment.media, kwargs)
        prompt = await self._layouts.rendered(prompt, ask, shipment.payload)
        if not prompt.is_exact:
            return prompt, shipment
        self._check_length(prompt, request)
        pairs = zip(shipment.media, prompt.media, strict=True)
        media = tuple(replace(shipped, media_id=item.media_id) for shipped, item in pairs)
        # What was rendered is the file that came, whatever its address had promised.
        return prompt, replace(shipment, media=media, is_as_foreseen=True)

    def _check_length(self, prompt: PreparedPrompt, request: ChatRequest) -> None:
        limit = self.max_model_len
        if limit is None or not prompt.is_exact:
            return
        asked = request.output_limit or 1
        if prompt.num_tokens + asked <= limit:
            return
        message = f"the prompt has {prompt.num_tokens} tokens"
        if request.output_limit is not None:
            message += f" and max_tokens asks for {request.output_limit} more"
        message += f"; the model takes {limit} tokens in all. Shorten the messages or use smaller pictures."
        raise RequestError(message, param="messages", code="context_length_exceeded")

    async def _dispatch(self, asked: _Asked, alone: WorkerId | None) -> Reply:
        excluded: tuple[WorkerId, ...] = ()
        failures = 0
        while failures < TRIES:
            decision_id = DecisionId(secrets.token_hex(8))
            if alone is not None and not excluded:
                call = self._call_alone(decision_id, asked, alone)
            else:
                outcome = await self._decide(decision_id, asked, asked.prompt, excluded)
                call = _EngineCall(decision_id, outcome, self._client)
            try:
                return await call.begin(
                    self._engine,
                    asked.engine_request(decision_id, call.decided),
                    asked.shipment.payload,
                    call.pin(tie_key(asked.prompt), excluded),
                )
            except _NothingProduced as failure:
                await call.close()
                failures += 1
                log.warning("request %s: %s (try %d of %d)", decision_id, failure, failures, TRIES)
                if failure.worker is not None:
                    excluded = (*excluded, failure.worker)
            except _NotHeldThere as miss:
                await call.close()
                if asked.shipment.can_be_completed:
                    whole = await self._shipper.prepare(asked.prompt, asked.request, is_complete=True)
                    asked = replace(asked, shipment=whole, prompt=whole.prompt)
                else:
                    excluded = (*excluded, miss.worker)
                    await self._check_holders(excluded, miss, asked.prompt, asked.request)
            except BaseException:
                await call.close()
                raise
        raise EngineFailed(f"no engine replica could serve the request ({TRIES} tried); try again")

    async def _check_holders(
        self,
        excluded: tuple[WorkerId, ...],
        miss: _NotHeldThere,
        prompt: PreparedPrompt,
        request: ChatRequest,
    ) -> None:
        """Whether another worker may hold what has no bytes here.

        Raises:
            RequestError: 404 when none is left to ask; 400 where the engine never keeps media.
        """
        index = next(i for i, item in enumerate(prompt.media) if item.is_held and item.source.url is None)
        param = media_param(request.messages, index)
        if not miss.keeps_media:
            message = (
                "a uuid without its picture needs an engine that keeps pictures: vLLM, with "
                "mm_processor_cache_gb (engine_args) above 0. Send the picture beside the uuid."
            )
            raise RequestError(message, param=param, code="uuid_without_cache")
        pool = await self._client.pool(POOL_TIMEOUT_S)
        others = set() if pool is None else set(pool.contracts) - {*self._excluded(pool, excluded)}
        if not others or len(excluded) >= MAX_HOLDERS_ASKED:
            message = "no engine holds the picture of this uuid (any more); send the picture beside the uuid"
            raise RequestError(message, status=404, param=param, code="uuid_not_held")

    def _call_alone(self, decision_id: DecisionId, asked: _Asked, worker: WorkerId) -> _EngineCall:
        """A call that waits for no decision."""
        decision = spawn(self._decide(decision_id, asked, asked.prompt, ()))
        return _EngineCall(decision_id, decision, self._client, only=worker)

    async def _decide(
        self, decision_id: DecisionId, asked: _Asked, prompt: PreparedPrompt, excluded: tuple[WorkerId, ...]
    ) -> Decision | Undecided:
        """A decision, or why there is none.

        Raises:
            RequestError: the pool is full, or the request is pinned to a worker that is not here.
        """
        keyed: dict[KeySpec, KeyedView] = {}

        def build(pool: PoolView) -> RouteQuery:
            for spec in pool.specs - keyed.keys():
                keyed[spec] = block_keys(prompt.view, spec, salt=asked.salt or "")
            query = route_query(
                decision_id,
                prompt,
                dict(keyed),
                self._excluded(pool, excluded),
                asked.request.output_limit,
            )
            return replace(query, hints=asked.hints)

        outcome = await self._client.decide(build)
        if isinstance(outcome, Refusal):
            raise _refused(outcome)
        if self._degraded is not None:
            undecided = () if isinstance(outcome, Decision) else (*prompt.reasons, outcome.reason)
            self._degraded.note(outcome.degraded if isinstance(outcome, Decision) else undecided)
        _log_request(decision_id, prompt, outcome)
        return outcome

    def _excluded(self, pool: PoolView, failed: tuple[WorkerId, ...]) -> tuple[WorkerId, ...]:
        """Workers that failed this request, and those that Serve no longer routes to (they are draining)."""
        live = self._live.ids
        if not live:
            return failed
        draining = tuple(worker for worker in pool.contracts if worker.replica not in live)
        if len(draining) == len(pool.contracts):
            return failed  # the two views have nothing in common: one of them is stale
        return (*failed, *draining)


class _NothingProduced(Exception):
    """A replica failed before its first token; another one may try."""

    def __init__(self, message: str, worker: WorkerId | None) -> None:
        super().__init__(message)
        self.worker = worker


class _NotHeldThere(Exception):
    """A replica's engine does not hold items that were sent without their bytes."""

    def __init__(self, worker: WorkerId, keeps_media: bool) -> None:
        super().__init__(f"{worker} does not hold the media")
        self.worker = worker
        self.keeps_media = keeps_media


class _EngineCall:
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
        return Pin(
            tie_key=tie_key,
            ranked=tuple(worker.replica for worker in ranked),
            exclude=tuple(worker.replica for worker in excluded),
        )

    async def begin(self, engine: Any, request: EngineRequest, payload: Any, pin: Pin) -> Reply:
        """Send the request and wait for its first delta (or its end).

        Raises:
            _NothingProduced: the replica died or refused.
            _NotHeldThere: its engine lacks media that were sent without their bytes.
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
            raise _NothingProduced(f"refused: {started.reason}", started.worker or self.decided)
        assert isinstance(started, Started), started
        self._worker = started.worker
        self._client.let_go(self._decision_id)
        if self.decided is not None and started.worker != self.decided:
            self._client.rebook(self._decision_id, started.worker)
        first = await self._next()
        if isinstance(first, Refused):
            raise _NothingProduced(f"refused: {first.reason}", started.worker)
        if isinstance(first, Failed):
            raise _as_error(first)
        if isinstance(first, NotHeld):
            raise _NotHeldThere(started.worker, first.keeps_media)
        assert isinstance(first, Delta | Finished), first
        return started.worker, first

    async def _next(self) -> EngineMessage:
        """The next message before the first delta was seen: a death here may be made good elsewhere."""
        try:
            message: EngineMessage = await anext(self._stream)
        except RayActorError as error:
            lost = self._forget_lost()
            raise _NothingProduced(f"the replica died: {type(error).__name__}", lost) from error
        except BackPressureError as error:
            raise RequestError(str(error), status=429, code="overloaded", type="rate_limit_error") from error
        except StopAsyncIteration:
            raise _NothingProduced("the replica sent nothing", self._worker or self.decided) from None
        except RayTaskError as error:
            raise _server_error(error) from error
        return message

    async def _rest(self, first: Delta | Finished) -> AsyncIterator[Delta | Finished]:
        yield first
        if isinstance(first, Finished):
            return
        try:
            async for message in self._stream:
                if isinstance(message, Failed):
                    raise _as_error(message)
                assert isinstance(message, Delta | Finished), message
                yield message
        except RayActorError as error:
            self._forget_lost()
            message = "the engine replica died while it streamed this answer; send the request again"
            raise EngineFailed(message) from error
        except RayTaskError as error:
            raise _server_error(error) from error

    def _forget_lost(self) -> WorkerId | None:
        """The router should not wait for a dead worker's silence. One that lives after all comes back
        with its next push."""
        lost = self._worker or self.decided
        if lost is not None:
            self._client.forget(lost)
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


def route_query(
    decision_id: DecisionId,
    prompt: PreparedPrompt,
    views: dict[KeySpec, KeyedView],
    exclude: tuple[WorkerId, ...],
    output_limit: int | None,
) -> RouteQuery:
    """What the router is asked: numbers only, never tokens."""
    spans = prompt.view.spans
    first_media = min(
        [s.offset for s in spans] + ([] if prompt.is_exact else [prompt.view.exact_until]), default=None
    )
    return RouteQuery(
        decision_id=decision_id,
        views=views,
        num_tokens=prompt.num_tokens,
        media_tokens=sum(span.num_embeds for span in spans) + prompt.estimated_media_tokens,
        layout=prompt.layout,
        first_media_offset=first_media if prompt.media else None,
        tie_key=tie_key(prompt),
        exclude=exclude,
        media=tuple(MediaReport(m.modality, m.media_id, m.size, m.num_tokens) for m in prompt.media),
        reasons=prompt.reasons,
        expected_output_tokens=output_limit or 0,
        spans=tuple(span for span in spans if span.end <= prompt.view.exact_until),
    )


def tie_key(prompt: PreparedPrompt) -> int:
    """Settles equal costs: the first media item, else the tokens of the first user turn."""
    if prompt.media:
        return prompt.media[0].media_id.value
    end = prompt.first_turn_tokens or len(prompt.view)
    return xxhash.xxh3_64_intdigest(prompt.view.token_ids[:end].tobytes())


def cache_salt(salt: str | None, tenant: str | None, secret: str | None) -> str | None:
    """The salt that the engine and the keys both get; None when nothing separates the caches.

    The client's own salt is hashed with the tenant and the deployment's secret, so that no tenant can
    name another's.
    """
    if salt is None and tenant is None and not secret:
        return None
    parts = [part.encode() for part in (secret or "", tenant or "", salt or "")]
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _refused(refusal: Refusal) -> RequestError:
    if refusal.status == 429:
        return PoolFull(refusal.message, refusal.retry_after_s)
    return RequestError(refusal.message, status=404, param=WORKER, code="worker_not_found")


def _as_error(failed: Failed) -> RequestError:
    if failed.status >= 500:
        return EngineFailed(failed.message, failed.status, failed.code or "engine_failed")
    return RequestError(failed.message, status=failed.status, param=failed.param, code=failed.code)


def _server_error(error: RayTaskError) -> EngineFailed:
    log.error("an engine replica raised: %s", error)
    cause = error.cause if hasattr(error, "cause") else error
    return EngineFailed(f"the engine replica failed: {type(cause).__name__}", 500)


def _log_request(decision_id: DecisionId, prompt: PreparedPrompt, outcome: Decision | Undecided) -> None:
    if not log.isEnabledFor(logging.DEBUG):
        return
    for item in prompt.media:
        log.debug(
            "media %s %s size=%s tokens=%s identity=%s (%s)",
            decision_id, item.modality.value, item.size, item.num_tokens, item.media_id, item.identity_mode,
        )  # fmt: skip
    exact = "exact" if prompt.is_exact else ",".join(reason.value for reason in prompt.reasons)
    blocks = outcome.chosen.total_blocks if isinstance(outcome, Decision) else "?"
    routed = "" if isinstance(outcome, Decision) else f" undecided={outcome.reason.value}"
    log.debug(
        "request %s %s items=%d tokens=%d blocks=%s%s",
        decision_id, exact, len(prompt.media), prompt.num_tokens, blocks, routed,
    )  # fmt: skip
