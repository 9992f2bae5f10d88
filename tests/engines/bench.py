"""One real engine, its relay and the router's core in one process: every part that must agree, without Serve.

`Bench.ask` does what ingress, router and replica do for one request, one after the other.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from deployments.config import EngineConfig
from deployments.engines import start_engine
from deployments.media import MediaDecoder
from deployments.protocol import Delta, EngineRequest, Finished, Sampling
from deployments.queries import route_query
from deployments.transport import pack
from processors import Fetcher, LayoutOptions, MediaConfig, ModelFiles, PromptBuilder, VideoConfig
from router.config import RouterConfig
from router.core import RouterCore
from router.keys import block_keys
from router.relay import EventRelay
from sightline_types import (
    Decision,
    DecisionId,
    LifecycleEvent,
    LifecycleKind,
    PreparedPrompt,
    PushReply,
    WorkerId,
    WorkerPush,
)
from tests.engines.forked_engines import forked_engines

#: Marks of the tests that run an engine in their own process: what it and its libraries deprecate among
#: themselves is not ours to mend.
ENGINE_IN_PROCESS = [
    *(
        pytest.mark.filterwarnings(f"ignore::{kind}")
        for kind in (
            "DeprecationWarning",
            "FutureWarning",
            "UserWarning",
            "ResourceWarning",
            "pytest.PytestUnraisableExceptionWarning",
        )
    ),
]

ENGINE_ARGS = {
    "vllm": {
        "num_gpu_blocks_override": 130,
        "kv_cache_memory_bytes": 16 << 20,
        "max_model_len": 4096,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 2048,
    },
    "sglang": {
        "max_total_tokens": 130 * 32,
        "context_length": 4096,
        "max_running_requests": 8,
        "chunked_prefill_size": 2048,
    },
}


@dataclass(frozen=True, slots=True)
class Seen:
    """One request: what was foretold, and what the engine said."""

    decision: Decision
    prompt: PreparedPrompt
    prompt_tokens: int
    cached_tokens: int

    @property
    def overlap(self) -> int:
        return self.decision.chosen.overlap_blocks

    @property
    def media_overlap(self) -> int:
        return self.decision.chosen.media_overlap_blocks

    @property
    def media_blocks(self) -> int:
        return self.decision.chosen.media_total_blocks

    @property
    def predicted_cached(self) -> int:
        return self.decision.predicted_cached_tokens


class Bench:
    """`alter` changes the prepared prompt before it is keyed: how the mutation tests break it."""

    def __init__(
        self,
        model: str,
        *,
        engine: str = "vllm",
        kv_events_port_base: int | None = None,
        **engine_args: Any,
    ) -> None:
        self._config = EngineConfig(
            model=model,
            engine=engine,
            enable_multimodal=True,
            engine_args=ENGINE_ARGS[engine] | engine_args,
            kv_events_port_base=kv_events_port_base,
            video=VideoConfig(decode="ingress"),
        )
        self._worker = WorkerId("bench")
        self._counter = itertools.count(1)
        self.alter: Callable[[PreparedPrompt], PreparedPrompt] = lambda prompt: prompt
        self.listens = True

    async def start(self) -> None:
        self.core = RouterCore(RouterConfig(), clock=time.monotonic, epoch=1, random=random.Random(0))
        self.core.begin_warm(())
        media = MediaConfig(identity="content", allow_private_addresses=True)
        files = ModelFiles.load(self._config.model)
        self.fetcher = Fetcher(media)
        self.prompts = PromptBuilder(
            files,
            media,
            enable_multimodal=True,
            fetcher=self.fetcher,
            layout_options=LayoutOptions(engine=self._config.engine),
            video=self._config.video,
        )
        self.media = await MediaDecoder.for_model(self._config)
        with forked_engines(self._config):
            self.engine = await start_engine(self._config)
        self.contract = await self.engine.contract()
        self.relay = EventRelay(self._worker, self.contract, self.engine.event_source(), self._push)
        await self.relay.start()

    async def _push(self, message: WorkerPush) -> PushReply:
        if not self.listens and not message.table:
            message = replace(message, deltas=())
        return self.core.push(message)

    async def stop(self) -> None:
        await self.relay.close()
        await self.prompts.aclose()
        await self.media.aclose()
        self.engine.shutdown()
        if hasattr(self.engine, "_process"):
            await close_sockets(self.engine._process.engine)
        del self.engine
        gc.collect()  # sockets that the engine's client leaves open are named now, where they are forgiven

    async def wait_idle(self, timeout_s: float = 120.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not all(status.idle for status in self.core.workers()):
                await asyncio.sleep(0.01)

    async def flush(self) -> None:
        """Empty the engine's cache, and wait until the core knows: it is idle from before."""
        await self.wait_idle()
        assert await self.engine.reset_prefix_cache()
        self.relay.clear()
        async with asyncio.timeout(120):
            while len(self.core.held_keys(self._worker)):
                await asyncio.sleep(0.01)
        await self.wait_idle()

    async def ask(self, messages: list[dict[str, Any]], max_tokens: int = 2) -> Seen:
        await self.wait_idle()
        prompt = self.alter(await self.prompts.prepare(messages))
        decision_id = DecisionId(f"{next(self._counter):016x}")
        views = {self.contract.spec: block_keys(prompt.view, self.contract.spec)}
        decision = self.core.decide(route_query(decision_id, prompt, views, (), max_tokens))
        finished = await self._generate(decision_id, prompt, max_tokens)
        return Seen(decision, prompt, finished.prompt_tokens, finished.cached_tokens)

    async def _generate(self, decision_id: DecisionId, prompt: PreparedPrompt, max_tokens: int) -> Finished:
        media, payload = pack(prompt.media, [item.source.data for item in prompt.media])
        request = EngineRequest(
            decision_id,
            prompt.token_ids,
            Sampling(max_tokens=max_tokens, temperature=0, ignore_eos=True),
            media,
        )
        decoded = await self.media.decode(media, payload)
        self.relay.report(LifecycleEvent(LifecycleKind.STARTED, decision_id))
        finished = None
        async for message in self.engine.generate(request, decoded):
            if not isinstance(message, Delta):
                assert isinstance(message, Finished), message
                finished = message
        assert finished is not None
        self.relay.report(
            LifecycleEvent(LifecycleKind.END, decision_id, finished.cached_tokens, finished.prompt_tokens)
        )
        return finished


# The named checks: each is what a test asserts, and what a mutation must break.


async def check_lengths(bench: Bench, turns: list[dict[str, Any]]) -> Seen:
    """The engine's prompt is as long as foretold."""
    seen = await bench.ask(turns)
    assert seen.decision.num_tokens == seen.prompt_tokens, (seen.decision.num_tokens, seen.prompt_tokens)
    return seen


async def check_repeat(bench: Bench, turns: list[dict[str, Any]]) -> Seen:
    """A repeat is foretold block for block, its pictures included, and is not 0 = 0."""
    await bench.ask(turns)
    again = await bench.ask(turns)
    assert again.predicted_cached == again.cached_tokens, (again.predicted_cached, again.cached_tokens)
    assert again.overlap >= 6
    assert again.media_overlap >= 3
    return again


async def check_no_false_credit(
    bench: Bench, first: list[dict[str, Any]], other: list[dict[str, Any]]
) -> Seen:
    """Another picture of the same size earns the blocks before it, and no more."""
    await bench.ask(first)
    seen = await bench.ask(other)
    assert seen.predicted_cached == seen.cached_tokens, (seen.predicted_cached, seen.cached_tokens)
    assert seen.media_overlap == 0
    assert seen.overlap == seen.prompt.view.spans[0].offset // bench.contract.block_size >= 3
    return seen


async def close_sockets(sglang: Any) -> None:
    """SGLang 0.5.23 leaves its own open, which a process that goes on (this one) is warned of at its end."""
    tasks = list(sglang.tokenizer_manager.asyncio_tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for socket in (sglang.tokenizer_manager.recv_from_detokenizer, sglang.send_to_rpc):
        socket.context.destroy(linger=0)
