"""SGLang's own processor of a model that its engine does not run on a CPU: Qwen3.5 (docs/sglang.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.tiny_models import tiny_model
from deployments.config import EngineConfig
from deployments.engines.sglang_args import engine_args, engine_environment
from deployments.engines.sglang_layouts import layouts
from deployments.engines.sglang_media import MediaKeys
from deployments.engines.sglang_video import ClipProcessor
from processors import LayoutOptions, ModelFiles, layout_for
from router.relay import EventSource
from sightline_types import KeyScheme
from tests.engines.bench import ENGINE_IN_PROCESS

pytestmark = ENGINE_IN_PROCESS

NOWHERE = EventSource("ipc:///nowhere/events", "ipc:///nowhere/replay")


@contextmanager
def installed_processor(model: str) -> Iterator[Any]:
    """As SGLang's tokenizer manager makes it, without an engine."""
    # With larger pages SGLang refuses a hybrid model on a CPU.
    config = EngineConfig(model=model, engine="sglang", enable_multimodal=True, block_size=1)
    os.environ.update(engine_environment(config))
    from sglang.srt.managers.multimodal_processor import get_mm_processor, import_processors
    from sglang.srt.runtime_context import publish, restore_context, snapshot_context
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.utils.hf_transformers_utils import get_config, get_processor

    settings = ServerArgs(**engine_args(config, NOWHERE) | {"kv_events_config": None})
    settings.resolve_once()
    before = snapshot_context()
    publish(settings, role="tokenizer")
    try:
        import_processors("sglang.srt.multimodal.processors")
        described = get_config(model, trust_remote_code=False)
        processor = get_mm_processor(described, settings, get_processor(model), "default")
        yield processor
        processor.shutdown()
    finally:
        restore_context(before)


async def test_qwen3_5_is_laid_out_as_sglangs_processor_lays_it_out(models: Path) -> None:
    """Pictures, clips, and both together."""
    model = str(tiny_model("qwen3_5", models))
    files = ModelFiles.load(model)
    layout = layout_for(files, LayoutOptions(engine="sglang"))
    assert layout is not None
    with installed_processor(model) as processor:
        clips = ClipProcessor(processor, layout)
        found = await layouts(processor, files, MediaKeys(KeyScheme.SGLANG_WIDE, True), clips)
    assert [(one.exact, one.detail) for one in found] == [(True, "")] * 3
