"""The path of one chat request: prepare, decide, dispatch, stream. HTTP and Python handles both take it."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass, replace
from typing import Any

from ray.serve.handle import DeploymentHandle

from deployments.config import IngressConfig
from deployments.degraded import DegradedRequests
from deployments.engine_call import EngineCall, EngineFailed, NotHeldThere, NothingProduced, Reply
from deployments.hints import WORKER
from deployments.holdings import Holdings
from deployments.layout_source import LayoutSource
from deployments.openai_api import ChatRequest
from deployments.protocol import EngineRequest, Sampling
from deployments.queries import cache_salt, route_query, tie_key
from deployments.rendered import RenderRequest
from deployments.shipment import MediaShipper, Shipment
from deployments.stages import Stage, StageTimes
from deployments.transport import EngineCalls
from processors import Fetcher, PromptBuilder, RequestError, media_param
from router.calls import Refusal, Undecided
from router.client import RouterClient
from router.core import PoolView
from router.keys import block_keys
from router.link import spawn
from router.live import LiveReplicas
from sightline_types import (
    Decision,
    DecisionId,
    KeyedView,
    KeySpec,
    PreparedPrompt,
    RouteHints,
    RouteQuery,
    WorkerId,
)

__all__ = ["ChatService", "PoolFull"]

log = logging.getLogger("sightline.deployments")

#: A request that has produced nothing is tried on so many replicas in all.
TRIES = 2
#: Workers asked for a picture that only a uuid names.
MAX_HOLDERS_ASKED = 16
POOL_TIMEOUT_S = 5.0
_NO_HINTS = RouteHints()


class PoolFull(RequestError):
    """429: every worker is past its admission limit. retry_after_s: when to try again."""

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message, status=429, code="overloaded", type="rate_limit_error")
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[Any, ...]:
        return (PoolFull, (str(self), self.retry_after_s))


@dataclass(frozen=True, slots=True)
class _Asked:
    """One request on its way: whatever each try needs of it.

    repeats_files: even to a worker that was given them before.
    """

    request: ChatRequest
    sampling: Sampling
    prompt: PreparedPrompt
    salt: str | None
    shipment: Shipment
    tenant: str | None
    hints: RouteHints
    repeats_files: bool = False

    def engine_request(
        self, decision_id: DecisionId, decided: WorkerId | None, sent: Shipment
    ) -> EngineRequest:
        return EngineRequest(
            decision_id=decision_id,
            token_ids=self.prompt.token_ids,
            sampling=self.sampling,
            media=sent.media,
            decided=decided,
            cache_salt=self.salt,
            mm_processor_kwargs=self.request.mm_processor_kwargs or {},
            is_as_foreseen=sent.is_as_foreseen,
            wants_prompt_ids=self.request.return_token_ids,
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
        stages: StageTimes | None = None,
    ) -> None:
        self._config = config
        self._prompts = prompts
        self._shipper = MediaShipper(prompts, fetcher, config.media.max_request_bytes)
        self._client = client
        self._engine = EngineCalls(engine)
        self._live = live
        self._holdings = Holdings()
        self._degraded = degraded
        self._layouts = layouts or LayoutSource(config.layout_mode, config.served_model_name)
        self._stages = stages or StageTimes()

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
        watch = self._stages.begin()
        prompt = await self._prepare(request, tenant, size_wait_ms=0 if alone is not None else None)
        watch.note(Stage.PROMPT)
        self._check_length(prompt, request)
        salt = cache_salt(request.cache_salt, tenant, self._config.tenant_secret)
        # Before the decision: a hanging origin holds no booking, and the decision is fresh when it is used.
        shipment = await self._shipper.prepare(prompt, request)
        prompt = shipment.prompt  # with what the files say, where an address had said less
        self._check_length(prompt, request)
        prompt, shipment = await self._foresee(prompt, shipment, request)
        watch.note(Stage.MEDIA)
        repeats_files = self._config.media.repeat_files or bool(request.mm_processor_kwargs)
        asked = _Asked(request, sampling, prompt, salt, shipment, tenant, hints, repeats_files)
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
        pool = self._client.known_pool
        limit = None if pool is None else pool.max_model_len
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
            watch = self._stages.begin()
            if alone is not None and not excluded:
                call = self._call_alone(decision_id, asked, alone)
            else:
                outcome = await self._decide(decision_id, asked, asked.prompt, excluded)
                call = EngineCall(decision_id, outcome, self._client)
                watch.note(Stage.DECIDE)
            sent = self._sent(asked, call.decided)
            try:
                reply = await call.begin(
                    self._engine,
                    asked.engine_request(decision_id, call.decided, sent),
                    sent.payload,
                    call.pin(tie_key(asked.prompt), excluded),
                )
                watch.note(Stage.FIRST_TOKEN)
                self._holdings.note(reply.receipt.worker, asked.shipment.media)
                return reply
            except NothingProduced as failure:
                await call.close()
                failures += 1
                log.warning("request %s: %s (try %d of %d)", decision_id, failure, failures, TRIES)
                if failure.worker is not None:
                    excluded = (*excluded, failure.worker)
            except NotHeldThere as miss:
                await call.close()
                if sent is not asked.shipment:
                    self._holdings.forget(miss.worker, sent.media)
                    asked = replace(asked, repeats_files=True)
                elif asked.shipment.can_be_completed:
                    whole = await self._shipper.prepare(asked.prompt, asked.request, is_complete=True)
                    asked = replace(asked, shipment=whole, prompt=whole.prompt)
                else:
                    excluded = (*excluded, miss.worker)
                    await self._check_holders(excluded, miss, asked.prompt, asked.request)
            except RequestError as error:
                await call.close()
                if sent is asked.shipment or error.status == 429:
                    raise
                asked = replace(asked, repeats_files=True)  # if it was for want of its files, it is no more
            except BaseException:
                await call.close()
                raise
        raise EngineFailed(f"no engine replica could serve the request ({TRIES} tried); try again")

    def _sent(self, asked: _Asked, decided: WorkerId | None) -> Shipment:
        """What travels: no files that the decided worker was given before, where its engine keeps them."""
        pool = self._client.known_pool
        if asked.repeats_files or not asked.shipment.media or decided is None or pool is None:
            return asked.shipment
        contract = pool.contracts.get(decided)
        if contract is None or not contract.keeps_media:
            return asked.shipment
        self._holdings.keep(pool.contracts.keys())
        return self._holdings.without_files(asked.shipment, decided)

    async def _check_holders(
        self,
        excluded: tuple[WorkerId, ...],
        miss: NotHeldThere,
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

    def _call_alone(self, decision_id: DecisionId, asked: _Asked, worker: WorkerId) -> EngineCall:
        """A call that waits for no decision."""
        decision = spawn(self._decide(decision_id, asked, asked.prompt, ()))
        return EngineCall(decision_id, decision, self._client, only=worker)

    async def _decide(
        self, decision_id: DecisionId, asked: _Asked, prompt: PreparedPrompt, excluded: tuple[WorkerId, ...]
    ) -> Decision | Undecided:
        """A decision, or why there is none.

        Raises:
            RequestError: the pool is full, or the request is pinned to a worker that is not here.
        """
        keyed: dict[KeySpec, KeyedView] = {}

        def build(pool: PoolView) -> RouteQuery:
            watch = self._stages.begin()
            for spec in pool.specs - keyed.keys():
                keyed[spec] = block_keys(prompt.view, spec, salt=asked.salt or "")
            watch.note(Stage.KEYS)
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
        """Workers that failed this request, with the other ranks of their replicas; and those that Serve no
        longer routes to (they are draining)."""
        live = self._live.ids
        if failed:
            lost = {worker.replica for worker in failed}
            failed = (*failed, *(w for w in pool.contracts if w.replica in lost and w not in failed))
        if not live:
            return failed
        draining = tuple(worker for worker in pool.contracts if worker.replica not in live)
        if len(draining) == len(pool.contracts):
            return failed  # the two views have nothing in common: one of them is stale
        return (*failed, *draining)


def _refused(refusal: Refusal) -> RequestError:
    if refusal.status == 429:
        return PoolFull(refusal.message, refusal.retry_after_s)
    return RequestError(refusal.message, status=404, param=WORKER, code="worker_not_found")


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
