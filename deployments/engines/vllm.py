"""The vLLM adapter: the only place, with its two neighbours, where vLLM is imported.

Checked with vLLM 0.32. The engine gets token ids, decoded pictures and our identities; it never gets an
address, a path or a `data:` string.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any

from deployments.config import EngineConfig
from deployments.engines.base import EngineGone, EngineRank, ServingEngine
from deployments.engines.ports import PortPair, claim_ports
from deployments.engines.vllm_args import engine_args, engine_environment, publishes_events
from deployments.engines.vllm_groups import kv_groups, unit_size
from deployments.engines.vllm_load import LoadWatch
from deployments.engines.vllm_media import engine_prompt
from deployments.engines.vllm_output import failure, finished, logprobs, sampling_params
from deployments.media import DecodedMedia
from deployments.protocol import Delta, EngineMessage, EngineRequest, Failed, NotHeld
from processors import LayoutOptions, ModelFiles, layout_for
from router.relay import EventSource
from sightline_types import EngineLoad, KeyScheme, KvGroup, LayoutContract, Modality, WorkerContract

__all__ = ["VllmEngine"]

log = logging.getLogger("sightline.deployments")


class _EngineCacheMissed(Exception):
    """The engine was given an item without its pixels and does not hold them (any more)."""


class VllmEngine(ServingEngine):
    """A running `AsyncLLM`: the frontend here, and one engine core in a child process per rank."""

    def __init__(self, llm: Any, args: dict[str, Any], load: LoadWatch, ports: PortPair | None) -> None:
        self._llm = llm
        self._args = args
        self._has_renderer = False
        self._load = load
        self._ports = ports  # keeps the claim on the ports
        self._groups: tuple[KvGroup, ...] = ()
        self._names: Mapping[Modality, str] = {}

    @classmethod
    async def start(cls, config: EngineConfig) -> VllmEngine:
        """Start the engine on the running event loop; returns when it can serve."""
        for name, value in engine_environment(config).items():
            os.environ.setdefault(name, value)
        base, num_ranks = config.kv_events_port_base, config.data_parallel_size
        ports = claim_ports(base, num_ranks) if base else None
        args = engine_args(config, (ports.events, ports.replay) if ports else None)

        from vllm.config import KVEventsConfig
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        typed = dict(args)
        if isinstance(args.get("kv_events_config"), dict):
            typed["kv_events_config"] = KVEventsConfig(**args["kv_events_config"])
        load = LoadWatch()
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**typed), stat_loggers=[load.logger_class()])
        engine = cls(llm, args, load, ports)
        engine._has_renderer = config.has_renderer
        engine._groups = await engine._kv_groups()
        engine._names = await asyncio.to_thread(engine._modality_names)
        return engine

    async def _kv_groups(self) -> tuple[KvGroup, ...]:
        groups = await self._llm.engine_core.call_utility_async("get_kv_cache_group_metadata")
        chunk = getattr(self._llm.vllm_config.model_config.hf_text_config, "attention_chunk_size", None)
        return kv_groups(groups, attention_chunk=chunk or 0)

    async def contract(self) -> WorkerContract:
        """What this worker promises: read from the running engine, not from our settings."""
        import vllm

        cache = self._llm.vllm_config.cache_config
        model = self._llm.vllm_config.model_config
        return WorkerContract(
            engine="vllm",
            engine_version=vllm.__version__,
            block_size=unit_size(self._groups),
            scheme=KeyScheme.VLLM,
            model=str(self._args["model"]),
            max_model_len=int(model.max_model_len),
            publishes_events=publishes_events(self._args),
            kv_groups=self._groups,
            layouts=await self._layouts(),
            drops_last_matched_block=self._drops_last_block(),
            # vLLM adds up the ranks' blocks (`MPClient._apply_ready_response`).
            kv_capacity_tokens=int(cache.num_gpu_blocks or 0) // self._num_ranks * int(cache.block_size),
            encoder_cache_tokens=int(self._llm.vllm_config.scheduler_config.encoder_cache_size),
            keeps_media=self._keeps_media,
        )

    async def _layouts(self) -> tuple[LayoutContract, ...]:
        if not self._llm.vllm_config.model_config.is_multimodal_model:
            return ()
        registry = await asyncio.to_thread(self._compare_layouts)
        if not self._has_renderer:
            return registry
        from deployments.engines.vllm_render import renderer_contract

        return (*registry, renderer_contract(self._llm.vllm_config.model_config))

    def _compare_layouts(self) -> tuple[LayoutContract, ...]:
        from deployments.engines.vllm_contract import layout_contracts
        from deployments.engines.vllm_probe import InstalledProcessor

        files = self._files()
        processor = InstalledProcessor(self._llm.renderer.get_mm_processor(), self._names)
        return layout_contracts(files, self._layout_options(), processor)

    def _modality_names(self) -> Mapping[Modality, str]:
        if not self._llm.vllm_config.model_config.is_multimodal_model:
            return {}
        layout = layout_for(self._files(), self._layout_options())
        return {} if layout is None else layout.engine_names

    def _files(self) -> ModelFiles:
        return ModelFiles.load(
            str(self._args["model"]),
            revision=self._args.get("revision"),
            trust_remote_code=bool(self._args.get("trust_remote_code")),
        )

    def _layout_options(self) -> LayoutOptions:
        model = self._llm.vllm_config.model_config
        _, rate = model.multimodal_config.get_video_pruning_spec() or ("evs", 0.0)
        return LayoutOptions(
            max_model_len=int(model.max_model_len),
            video_pruning_rate=float(rate),
            processor_kwargs=self._args.get("mm_processor_kwargs") or {},
        )

    def _drops_last_block(self) -> bool:
        speculative = self._llm.vllm_config.speculative_config
        return bool(speculative is not None and speculative.use_eagle())

    @property
    def _num_ranks(self) -> int:
        return int(self._llm.vllm_config.parallel_config.data_parallel_size)

    def ranks(self) -> tuple[EngineRank, ...]:
        return tuple(
            EngineRank(self._source(rank), partial(self._load.last, rank), partial(self._reset, rank))
            for rank in range(self._num_ranks)
        )

    def event_source(self) -> EventSource | None:
        return self._source(0)

    def _source(self, rank: int) -> EventSource | None:
        if not publishes_events(self._args):
            return None
        source = self._llm.get_kv_event_sources()[rank]
        endpoint, replay = (_reachable(e) for e in (source.endpoint, source.replay_endpoint))
        return EventSource(endpoint, replay, source.topic)

    async def generate(
        self, request: EngineRequest, media: Sequence[DecodedMedia]
    ) -> AsyncGenerator[EngineMessage]:
        """Deltas, then `Finished`; or `Failed` for what the request is to blame for; or `NotHeld`.

        media: None for an item that is given by its identity alone.

        Raises:
            EngineGone: the engine has died.
        """
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        try:
            params = sampling_params(request.sampling)
            # Closed at once when the caller goes away, not when it is collected: vLLM then aborts.
            async with contextlib.aclosing(self._generate(request, media, params)) as messages:
                async for message in messages:
                    yield message
        except EngineDeadError as error:
            raise EngineGone(str(error)) from error
        except EngineGenerateError as error:
            yield failure(error.__cause__ or error, request.mm_processor_kwargs)
        except (VLLMClientError, ValueError, TypeError) as error:
            yield NotHeld() if _is_cache_miss(error) else failure(error)
        except Exception as error:
            if not request.mm_processor_kwargs:
                raise
            yield failure(error, request.mm_processor_kwargs)

    async def _generate(
        self, request: EngineRequest, media: Sequence[DecodedMedia], params: Any
    ) -> AsyncGenerator[EngineMessage]:
        is_held = any(item.form == "held" for item in request.media)
        if is_held and not self._keeps_media:
            yield NotHeld(keeps_media=False)
            return
        for _ in range(2):
            try:
                async with contextlib.aclosing(self._attempt(request, media, params)) as messages:
                    async for message in messages:
                        yield message
                return
            except _EngineCacheMissed:
                # The engine's process had dropped what the frontend's cache believed to be there. By now
                # that has forgotten it too, and sends the pixels where it has them.
                if is_held:
                    yield NotHeld()
                    return
        yield Failed("the engine gave this request up", 500, code="engine_error")

    @property
    def _keeps_media(self) -> bool:
        multimodal = self._llm.vllm_config.model_config.multimodal_config
        return multimodal is not None and multimodal.mm_processor_cache_gb > 0

    async def _attempt(
        self, request: EngineRequest, media: Sequence[DecodedMedia], params: Any
    ) -> AsyncGenerator[EngineMessage]:
        """
        Raises:
            _EngineCacheMissed: nothing was produced, for want of an item's pixels.
        """
        completion_tokens = 0
        rendered = await self._render(engine_prompt(request, media, self._names))
        rank = request.dp_rank if self._num_ranks > 1 else None
        outputs = self._llm.generate(rendered, params, request.decision_id, data_parallel_rank=rank)
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                (choice,) = output.outputs
                if choice.finish_reason == "error":  # no text, no usage, and no word of what it was
                    if request.media and completion_tokens == 0:
                        raise _EngineCacheMissed
                    yield Failed("the engine gave this request up", 500, code="engine_error")
                    return
                completion_tokens += len(choice.token_ids)
                if choice.text or choice.token_ids:
                    top = request.sampling.logprobs or 0
                    yield Delta(choice.text, tuple(choice.token_ids), logprobs(choice, top))
                if output.finished:
                    wants = request.wants_prompt_ids
                    yield finished(output, choice, completion_tokens, wants_prompt_ids=wants)

    async def _render(self, prompt: dict[str, Any]) -> Any:
        """vLLM's own processing of pictures and placeholders, on a thread of vLLM's beside the event loop."""
        from vllm.renderers.inputs.preprocess import parse_model_prompt

        renderer = self._llm.renderer
        parsed = parse_model_prompt(self._llm.model_config, prompt)
        (rendered,) = await renderer.render_cmpl_async([parsed], renderer.default_cmpl_tok_params)
        return rendered

    async def abort(self, request_id: str) -> None:
        await self._llm.abort(request_id)

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks of all ranks (no request may be running)."""
        done = await asyncio.gather(*(self._reset(rank) for rank in range(self._num_ranks)))
        return all(done)

    async def _reset(self, rank: int) -> bool:
        """vLLM's own `reset_prefix_cache` tells the first rank's answer only."""
        if self._num_ranks == 1:
            return bool(await self._llm.reset_prefix_cache())
        core = self._llm.engine_core
        # Neither running requests nor a connector's cache are reset, as by default.
        args = ("reset_prefix_cache", False, False)
        return bool(await core._call_utility_async(*args, engine=core.core_engines[rank]))

    def load(self) -> EngineLoad | None:
        return self._load.last(0)

    @property
    def is_dead(self) -> bool:
        return bool(self._llm.errored)

    async def check_health(self) -> None:
        await self._llm.check_health()

    def shutdown(self) -> None:
        # As `vllm serve` ends: 0 by default. Left open it is 5 s, which an engine core on a CPU uses up.
        self._llm.shutdown(timeout=self._llm.vllm_config.shutdown_timeout)


def _reachable(endpoint: str) -> str:
    """A wildcard is where the publisher listens, not where one can connect to."""
    return endpoint.replace("*", "127.0.0.1")


def _is_cache_miss(error: BaseException) -> bool:
    """vLLM (0.32) tells a picture that it was not given and does not hold by a ValueError's words only."""
    return "Cache miss for" in str(error) and "data is not provided" in str(error)
