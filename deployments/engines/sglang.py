"""The SGLang adapter: the only place, with its neighbours, where SGLang is imported.

Checked with SGLang 0.5.23. The engine gets token ids, decoded pictures and our identities; it never gets an
address, a path or a `data:` string.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from deployments.config import EngineConfig
from deployments.engines.base import EngineGone, ServingEngine
from deployments.engines.sglang_args import (
    Unsupported,
    engine_args,
    engine_environment,
    event_source,
    known_args,
    publishes_events,
    sampling_params,
)
from deployments.engines.sglang_layouts import layouts
from deployments.engines.sglang_media import (
    MediaKeys,
    probe_media_keys,
    probe_prompt,
    request_fields,
)
from deployments.engines.sglang_output import StreamReader
from deployments.engines.sglang_process import Listening, SglangProcess, server_fields
from deployments.engines.sglang_video import ClipProcessor, images_first
from deployments.protocol import EngineMessage, EngineRequest, Failed, NotHeld
from processors import LayoutOptions, ModelFiles, layout_for
from router.link import spawn
from router.relay import EventSource
from sightline_types import EngineLoad, KeyScheme, KvGroup, LayoutContract, Modality, WorkerContract

__all__ = ["SglangEngine"]

log = logging.getLogger("sightline.deployments")

LOAD_PERIOD_S = 0.1
#: Without media there is nothing to pad, and the scheme is as good as any other.
TEXT_ONLY = MediaKeys(KeyScheme.SGLANG_WIDE, False)


class SglangEngine(ServingEngine):
    """A running `sglang.Engine` (tokenizer here, scheduler and detokenizer in child processes)."""

    def __init__(self, process: SglangProcess, args: dict[str, Any], listening: Listening) -> None:
        self._process = process
        self._manager = process.engine.tokenizer_manager
        self._args = args
        self._listening = listening
        self._keys = TEXT_ONLY
        self._clips: ClipProcessor | None = None
        self._layouts: tuple[LayoutContract, ...] = ()
        self._fields = request_fields()
        self._load: EngineLoad | None = None
        self._load_watch: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, config: EngineConfig) -> SglangEngine:
        for name, value in engine_environment(config).items():
            os.environ.setdefault(name, value)
        listening = Listening.at(config.kv_events_port_base)
        try:
            args = engine_args(config, listening.source)
            args = known_args(args, config.engine_args, await asyncio.to_thread(server_fields))
            process = await asyncio.to_thread(SglangProcess.start, args)
        except BaseException:
            listening.stop()
            raise
        engine = cls(process, args, listening)
        try:
            if config.enable_multimodal and engine._manager.mm_processor is not None:
                await engine._probe(config.model)
        except BaseException:
            engine.shutdown()  # or its processes outlive a start that failed
            raise
        engine._load_watch = spawn(engine._watch_load())
        engine._load_watch.add_done_callback(engine._forget_load)
        return engine

    async def _probe(self, model: str) -> None:
        files = await asyncio.to_thread(ModelFiles.load, model)
        layout = layout_for(files, LayoutOptions(engine="sglang"))
        if layout is None or Modality.IMAGE not in layout.placeholders:
            self._keys = MediaKeys(KeyScheme.SGLANG_SINGLE, False, "no layout is known for this family")
        else:
            self._keys = await probe_media_keys(self._manager, probe_prompt(layout, files))
        if self._keys.doubt:
            log.warning("media earn no credit on this engine: %s", self._keys.doubt)
        processor = self._manager.mm_processor
        if layout is not None and Modality.VIDEO in layout.placeholders:
            self._clips = await asyncio.to_thread(ClipProcessor, processor, layout)
        self._layouts = await layouts(processor, files, self._keys, self._clips)

    async def contract(self) -> WorkerContract:
        import sglang

        return WorkerContract(
            engine="sglang",
            engine_version=sglang.__version__,
            block_size=int(self._process.setting("page_size")),
            scheme=self._keys.scheme,
            model=str(self._args["model_path"]),
            max_model_len=self._process.max_request_tokens,
            publishes_events=publishes_events(self._args),
            kv_groups=_kv_groups(self._manager.model_config),
            layouts=self._layouts,
            kv_capacity_tokens=self._process.kv_capacity_tokens,
        )

    def event_source(self) -> EventSource | None:
        return event_source(self._args) if publishes_events(self._args) else None

    async def generate(self, request: EngineRequest, media: Sequence[Any]) -> AsyncGenerator[EngineMessage]:
        if any(item is None for item in media):
            yield NotHeld(keeps_media=False)  # SGLang takes no picture by its name alone
            return
        try:
            fields = await self._request(request, media)
            async with contextlib.aclosing(self._generate(fields, request)) as messages:
                async for message in messages:
                    yield message
        except Unsupported as error:
            yield Failed(str(error), 400, code="unsupported_by_engine")
        except ValueError as error:
            yield Failed(f"the model cannot take this input: {error}", 400)

    async def _generate(
        self, fields: dict[str, Any], request: EngineRequest
    ) -> AsyncGenerator[EngineMessage]:
        from sglang.srt.managers.io_struct import GenerateReqInput

        if self.is_dead:
            raise EngineGone("a process of the engine has ended")
        reader = StreamReader(request.sampling)
        # Closing it makes SGLang abort the request.
        outputs = self._manager.generate_request(GenerateReqInput(**fields), None)
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                for message in reader.read(output):
                    yield message

    async def _request(self, request: EngineRequest, media: Sequence[Any]) -> dict[str, Any]:
        """Fields of SGLang's `GenerateReqInput`."""
        self._check(request, media)
        sampling = request.sampling
        deterministic = bool(self._args.get("enable_deterministic_inference"))
        fields: dict[str, Any] = {
            "rid": str(request.decision_id),
            "sampling_params": sampling_params(sampling, is_deterministic=deterministic),
            "stream": True,
            "return_prompt_token_ids": request.wants_prompt_ids,
            **await self._prompt(request, media),
        }
        if request.cache_salt:
            fields["cache_salt"] = request.cache_salt
        if sampling.logprobs is not None:
            fields |= {"return_logprob": True, "top_logprobs_num": sampling.logprobs}
            fields["return_text_in_logprobs"] = True
        return {name: value for name, value in fields.items() if name in self._fields}

    async def _prompt(self, request: EngineRequest, media: Sequence[Any]) -> dict[str, Any]:
        """Token ids, media, and the identities in the order in which SGLang counts the items."""
        fields: dict[str, Any] = {"input_ids": list(request.token_ids)}
        modalities = [item.modality for item in request.media]
        takes_hashes = bool(media) and self._keys.takes_hashes
        if Modality.VIDEO in modalities and self._clips is not None:
            ready = await self._clips.ready(request.token_ids, media)
            fields = {"input_ids": ready.token_ids, "video_data": [ready.data]}
            takes_hashes = takes_hashes and ready.are_apart
        elif media:
            fields["image_data"] = list(media)
        if takes_hashes:
            order = images_first(modalities)
            fields["mm_hashes"] = [request.media[index].media_id.hex for index in order]
        return fields

    def _check(self, request: EngineRequest, media: Sequence[Any]) -> None:
        if request.mm_processor_kwargs:
            names = ", ".join(sorted(request.mm_processor_kwargs))
            raise Unsupported(
                f"mm_processor_kwargs ({names}): this engine (SGLang) takes no processor options per "
                "request; leave them out, or set mm_process_config among its engine_args"
            )
        if self._clips is None and any(item.modality is Modality.VIDEO for item in request.media):
            raise Unsupported(
                "video: with this engine (SGLang) clips are served of the Qwen-VL families only"
            )
        if request.cache_salt and "cache_salt" not in self._fields:
            raise Unsupported("cache_salt: this SGLang cannot keep caches apart; use a newer release")
        if len(media) != len(request.media):
            raise ValueError(f"{len(request.media)} media items announced, {len(media)} given")

    async def reset_prefix_cache(self) -> bool:
        return bool((await self._manager.flush_cache()).success)

    async def _watch_load(self) -> None:
        """SGLang writes its load into shared memory: reading it costs the scheduler nothing."""
        while not self.is_dead:
            snapshots = await self._manager.get_loads()
            if snapshots:
                self._load = EngineLoad(
                    sum(snapshot.num_running_reqs for snapshot in snapshots),
                    sum(snapshot.num_waiting_reqs for snapshot in snapshots),
                    float(max(snapshot.token_usage for snapshot in snapshots)),
                )
            await asyncio.sleep(LOAD_PERIOD_S)

    def _forget_load(self, watch: asyncio.Task[None]) -> None:
        """What nobody brings up to date is not known."""
        self._load = None
        if not watch.cancelled() and watch.exception() is not None:
            log.error("the engine's load is not known any more: %r", watch.exception())

    def load(self) -> EngineLoad | None:
        return self._load

    @property
    def is_dead(self) -> bool:
        return self._process.is_dead

    async def check_health(self) -> None:
        if self.is_dead:
            raise EngineGone("a process of the engine has ended")

    def shutdown(self) -> None:
        if self._load_watch is not None:
            self._load_watch.get_loop().call_soon_threadsafe(self._load_watch.cancel)
        self._process.stop()
        self._listening.stop()


def _kv_groups(model_config: Any) -> tuple[KvGroup, ...]:
    """One group with full attention, or a name that no prediction exists for: a hybrid model's caches are
    not in SGLang's events."""
    text = model_config.hf_text_config
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    if kinds == {"full_attention"}:
        return (KvGroup("full_attention"),)
    return (KvGroup("sglang_hybrid"),)
