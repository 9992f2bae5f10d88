"""The `Ingress` deployment: OpenAI's HTTP API, the same through Python handles, and the router's receipts."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from ray import serve
from ray.exceptions import RayError
from ray.serve.handle import DeploymentHandle
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.chat import ChatService, PoolFull
from deployments.config import IngressConfig
from deployments.degraded import DegradedRequests
from deployments.engine_call import EngineFailed, Reply
from deployments.event_stream import DONE, EventStream
from deployments.hints import read_hints
from deployments.json_bodies import plain, read_json
from deployments.layout_source import LayoutSource
from deployments.openai_api import ChatRequest, ChatResponse, parse_chat_request, quoted
from deployments.protocol import Finished
from deployments.router import finder
from deployments.stages import Stage, StageTimes
from processors import Fetcher, ModelFiles, PromptBuilder, RequestError
from router import keys
from router.client import RouterClient
from router.link import ActorLink, spawn
from router.live import live_replicas
from sightline_types import DecisionId, WorkerId

__all__ = ["Ingress", "ingress_api"]

log = logging.getLogger("sightline.deployments")

PROCESSOR_THREADS = 2
GC_OBJECTS = 10_000
POOL_POLL_S = 1.0
POOL_TIMEOUT_S = 2.0
CHAT_PATH = "/v1/chat/completions"

ingress_api = FastAPI(title="Sightline", docs_url=None, redoc_url=None)


def _model_files(config: IngressConfig) -> ModelFiles:
    return ModelFiles.load(config.model, revision=config.revision, trust_remote_code=config.trust_remote_code)


class Ingress:
    """Serve deployment, any number of replicas; holds no state that another one would miss."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        config: IngressConfig,
        engine: DeploymentHandle[Any],
        router: DeploymentHandle[Any],
        set_up_logs: Callable[[], None] | None = None,
        renderer: DeploymentHandle[Any] | None = None,
    ) -> None:
        if set_up_logs is not None:
            set_up_logs()
        self._config = config
        self._router = router
        self._executor = ThreadPoolExecutor(PROCESSOR_THREADS, thread_name_prefix="sightline-processors")
        loop = asyncio.get_running_loop()
        files = await loop.run_in_executor(self._executor, _model_files, config)
        await loop.run_in_executor(self._executor, keys.warm_up)
        self._fetcher = fetcher = Fetcher(config.media)
        self._prompts = PromptBuilder(
            files,
            config.media,
            enable_multimodal=config.enable_multimodal,
            fetcher=fetcher,
            executor=self._executor,
            token_cache_bytes=config.token_cache_bytes,
            layout_options=config.layout,
            video=config.video,
        )
        self._link = ActorLink(finder(router))
        self._link.start()
        self._client = RouterClient(
            self._link,
            budget_s=config.router.decision_budget_ms / 1000,
            lease_s=config.router.lease_start_s,
        )
        self._app_name = serve.get_replica_context().app_name
        live = live_replicas(config.engine_deployment, self._app_name)
        self._degraded = DegradedRequests(config.served_model_name)
        self._layouts = LayoutSource(
            config.layout_mode,
            config.served_model_name,
            renderer,
            timeout_s=config.renderer_timeout_ms / 1000,
        )
        self._stages = stages = StageTimes()
        self._service = ChatService(
            config, self._prompts, fetcher, self._client, engine, live, self._degraded, self._layouts, stages
        )
        self._pool_poll = spawn(self._learn_pool())
        # What is here by now stays; to look it through for garbage stops all requests for 0.25 s.
        gc.freeze()
        # Requests leave few cycles: at 700 objects, the default, looking for them takes 2 % of the time.
        gc.set_threshold(GC_OBJECTS)

    async def _learn_pool(self) -> None:
        """Requests are checked against the workers' limits, known once the first of them has registered."""
        while await self._max_model_len() is None:
            await asyncio.sleep(POOL_POLL_S)

    async def _max_model_len(self) -> int | None:
        """Tokens, as the pool has it now; None while no worker has registered, or no router was found."""
        if not await self._link.wait_up(POOL_POLL_S):
            return None
        pool = await self._client.pool(POOL_TIMEOUT_S) or self._client.known_pool
        return None if pool is None else pool.max_model_len

    # The same work for HTTP and for Python handles.

    async def chat(self, request: dict[str, Any], hints: Mapping[str, str] | None = None) -> dict[str, Any]:
        """A chat completion: `handle.chat.remote({...}).result()`.

        The object of OpenAI's API, with the response headers of HTTP under `sightline`.
        hints: what HTTP's `x-sightline-*` request headers say, under their names.

        Raises:
            RequestError: as HTTP would answer with an error.
        """
        parsed = parse_chat_request(request)
        reply, response = await self._begin(parsed, headers=hints)
        body = await self._collect(reply, response)
        return body | {"sightline": reply.receipt.headers}

    async def chat_stream(
        self, request: dict[str, Any], hints: Mapping[str, str] | None = None
    ) -> AsyncGenerator[dict[str, Any]]:
        """Its streaming form: `handle.options(stream=True).chat_stream.remote({...})`; yields chunks.

        The first chunk carries the response headers of HTTP under `sightline`.
        """
        parsed = parse_chat_request(request | {"stream": True})
        reply, response = await self._begin(parsed, headers=hints)
        first: dict[str, Any] = {"sightline": reply.receipt.headers}
        async with contextlib.aclosing(self._chunks(parsed, reply, response)) as batches:
            async for chunks in batches:
                for chunk in chunks:
                    yield chunk | first
                    first = {}

    async def _begin(
        self, request: ChatRequest, tenant: str | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[Reply, ChatResponse]:
        names = (self._config.served_model_name, self._config.model)
        if request.model not in names:
            message = f"model {quoted(request.model)} is not served here; served: {names[0]!r}"
            raise RequestError(message, status=404, param="model", code="model_not_found")
        hints = read_hints(headers or {}, self._config.router.hints, tenant=tenant)
        response = ChatResponse(
            response_id=f"chatcmpl-{secrets.token_hex(12)}",
            model=request.model,
            created=int(time.time()),
            with_token_ids=request.return_token_ids,
            with_logprobs=bool(request.logprobs),
        )
        try:
            async with asyncio.timeout(self._config.request_timeout_s):
                return await self._service.start(request, tenant=tenant, hints=hints), response
        except TimeoutError:
            message = f"no answer began within {self._config.request_timeout_s:.0f} s (request_timeout_s)"
            raise RequestError(message, status=408, code="timeout", type="timeout_error") from None

    async def _collect(self, reply: Reply, response: ChatResponse) -> dict[str, Any]:
        try:
            async for message in reply.messages:
                if isinstance(message, Finished):
                    return response.completion(message)
                response.add(message)
        finally:
            await reply.close()
        raise EngineFailed("the engine's answer ended without its last message", 500)

    async def _chunks(
        self, request: ChatRequest, reply: Reply, response: ChatResponse
    ) -> AsyncGenerator[list[dict[str, Any]]]:
        """OpenAI's chunks; those that are ready together, at once."""
        chunks = [response.role_chunk()]
        watch = self._stages.begin()
        try:
            async for batch in reply.batches:
                for message in batch:
                    chunks += response.chunks(message, includes_usage=request.includes_usage)
                yield chunks
                chunks = []
            watch.note(Stage.STREAM)
        finally:
            await reply.close()

    # HTTP

    @ingress_api.post(CHAT_PATH, response_model=None)
    async def chat_completions(self, request: Request) -> Response | EventStream:
        """Reached by way of `ChatRoute`; the route itself is here to be listed."""
        watch = self._stages.begin()
        body = await read_json(request, self._config.body_limit_bytes)
        parsed = parse_chat_request(body)
        watch.note(Stage.PARSE)
        tenant = None
        if self._config.tenant_header is not None:
            tenant = request.headers.get(self._config.tenant_header)
        reply, response = await self._begin(parsed, tenant, request.headers)
        if parsed.stream:
            return EventStream(self._events(parsed, reply, response), reply)
        answer = msgspec.json.encode(await self._collect(reply, response))
        return Response(answer, headers=reply.receipt.headers, media_type="application/json")

    async def _events(
        self, request: ChatRequest, reply: Reply, response: ChatResponse
    ) -> AsyncGenerator[bytes]:
        """Server-sent events. After the headers an error can only be an event of its own."""
        try:
            async with contextlib.aclosing(self._chunks(request, reply, response)) as batches:
                async for chunks in batches:
                    events = b"".join(map(_event, chunks))
                    if response.is_finished:
                        yield events + DONE
                        return
                    yield events
            yield DONE
        except RequestError as error:
            yield _event(error.body()) + DONE

    @ingress_api.get("/v1/models")
    async def models(self) -> dict[str, Any]:
        card = {
            "id": self._config.served_model_name,
            "object": "model",
            "created": 0,
            "owned_by": "sightline",
            "root": self._config.model,
            "max_model_len": await self._max_model_len(),
        }
        return {"object": "list", "data": [card]}

    @ingress_api.get("/v1/models/{name:path}")
    async def model(self, name: str) -> dict[str, Any]:
        listed = await self.models()
        card: dict[str, Any] = listed["data"][0]
        if name != card["id"]:
            raise RequestError(
                f"model {quoted(name)} is not served here; served: {card['id']!r}",
                status=404,
                code="model_not_found",
            )
        return card

    @ingress_api.get("/health")
    async def health(self) -> Response:
        """200 while at least one engine replica takes requests, else 503."""
        pool = await self._client.pool(POOL_TIMEOUT_S)
        if pool is not None and pool.contracts:
            return JSONResponse({"status": "ok", "workers": len(pool.contracts)})
        live = live_replicas(self._config.engine_deployment, self._app_name).ids
        if pool is None and live:
            return JSONResponse({"status": "ok", "router": "unreachable", "workers": len(live)})
        return JSONResponse({"status": "no engine replica is ready"}, status_code=503)

    @ingress_api.get("/version")
    async def version(self) -> dict[str, str]:
        return {"version": package_version()}

    @ingress_api.get("/router/workers")
    async def router_workers(self) -> Response:
        statuses = await self._ask_router(self._router.workers.remote())
        restarts = await self._ask_router(self._router.restarts.remote())
        stats = await self._ask_router(self._router.stats.remote())
        return JSONResponse(
            plain(
                {
                    "workers": statuses,
                    "router": stats,
                    "router_restarts": restarts,
                    "degraded_here": self._degraded.counts,
                    "undecided_here": self._client.undecided,
                    "token_cache_here": self._prompts.token_cache_stats,
                    "renderer_here": self._layouts.costs,
                    "fetches_here": self._fetcher.counts,
                    "stages_here": self._stages.means,
                }
            )
        )

    @ingress_api.post("/router/workers/{worker:path}/trust")
    async def trust_worker(self, worker: str) -> Response:
        """An operator's word: the predictions for this worker earn credit again."""
        restored = await self._ask_router(self._router.trust.remote(_worker_id(worker)))
        if restored is None:
            message = f"no worker {quoted(worker)} in the pool; GET /router/workers lists them"
            raise RequestError(message, status=404, code="worker_not_found")
        return JSONResponse({"worker": worker, "trusted_again": list(restored)})

    @ingress_api.get("/router/decisions/{decision_id}")
    async def router_decision(self, decision_id: str) -> Response:
        receipt = await self._ask_router(self._router.receipt.remote(DecisionId(decision_id)))
        if receipt is None:
            kept = self._config.router.receipts_memory_bytes
            message = (
                f"no decision {quoted(decision_id)}: it is unknown, or older than what {kept} bytes hold "
                "(router.receipts_memory_bytes)"
            )
            raise RequestError(message, status=404, code="decision_not_found")
        return JSONResponse(plain(receipt))

    async def _ask_router(self, call: Any) -> Any:
        try:
            return await asyncio.wait_for(_awaited(call), 10.0)
        except (RayError, TimeoutError) as error:
            message = f"the router does not answer ({type(error).__name__}); requests are served meanwhile"
            raise EngineFailed(message, code="router_unreachable") from error

    async def __del__(self) -> None:
        if getattr(self, "_pool_poll", None) is not None:
            self._pool_poll.cancel()
            await self._link.close()
            await self._prompts.aclose()
            self._executor.shutdown(wait=False)


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


class ChatRoute:
    """ASGI middleware: chat completions past FastAPI's routing, which takes as much CPU as checking a
    request and making its prompt."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or _path(scope) != CHAT_PATH:
            await self._app(scope, receive, send)
            return
        ingress: Ingress = serve.get_replica_context().servable_object
        request = Request(scope, receive)
        response: ASGIApp
        try:
            response = await ingress.chat_completions(request)
        except RequestError as error:
            response = await _request_error(request, error)
        await response(scope, receive, send)


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


ingress_api.add_middleware(ChatRoute)


@ingress_api.exception_handler(RequestError)
async def _request_error(request: Request, error: RequestError) -> JSONResponse:
    return JSONResponse(
        error.body(),
        status_code=error.status,
        headers=_retry_after(error),
    )


@ingress_api.exception_handler(HTTPException)
async def _http_error(request: Request, error: HTTPException) -> JSONResponse:
    message = f"{request.method} {request.url.path}: {error.detail}"
    known = RequestError(
        message, status=error.status_code, code="not_found" if error.status_code == 404 else None
    )
    return JSONResponse(known.body(), status_code=error.status_code, headers=error.headers)


@ingress_api.exception_handler(Exception)
async def _unforeseen(request: Request, error: Exception) -> JSONResponse:
    log.error("unforeseen error in %s", request.url.path, exc_info=error)
    known = EngineFailed(f"unforeseen error: {type(error).__name__}", 500, "internal_error")
    return JSONResponse(known.body(), status_code=500)


def _retry_after(error: RequestError) -> dict[str, str] | None:
    if error.status not in (429, 503):
        return None
    return {"retry-after": str(error.retry_after_s if isinstance(error, PoolFull) else 1)}


def _worker_id(name: str) -> WorkerId:
    """A replica alone is its first rank.

    Raises:
        RequestError: 400, the rank is no number.
    """
    try:
        return WorkerId.parse(name)
    except ValueError:
        message = f"{quoted(name)} is no worker's id; it is `replica/rank`, as GET /router/workers says"
        raise RequestError(message, code="bad_worker_id") from None


def package_version() -> str:
    try:
        return version("sightline")
    except PackageNotFoundError:
        return "0.1.0 (source tree)"


async def _awaited(response: Any) -> Any:
    return await response
