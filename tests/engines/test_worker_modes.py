"""Workers that are not as by default: fixed ports for events, and an engine that publishes none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from app.tiny_models import tiny_model
from sightline_types import DegradeReason
from tests.engines import pictures as make
from tests.engines.bench import ENGINE_IN_PROCESS, Bench, check_repeat
from tests.engines.service import QUESTION, image_part, messages

pytestmark = ENGINE_IN_PROCESS


@asynccontextmanager
async def running(models: Path, **options: Any) -> AsyncIterator[Bench]:
    bench = Bench(str(tiny_model("qwen3_vl", models)), **options)
    await bench.start()
    try:
        yield bench
    finally:
        await bench.stop()


TURNS = messages(image_part(make.data_url(make.png(800))), QUESTION)


async def test_events_on_fixed_ports_are_followed(models: Path) -> None:
    base = 28_800
    async with running(models, kv_events_port_base=base) as bench:
        source = bench.engine.event_source()
        assert source is not None and source.replay_endpoint is not None
        ports = [int(endpoint.rsplit(":", 1)[1]) for endpoint in (source.endpoint, source.replay_endpoint)]
        assert ports[1] == ports[0] + 1
        assert ports[0] >= base
        await check_repeat(bench, TURNS)


async def test_an_engine_without_events_is_approximate_by_name(models: Path) -> None:
    async with running(models, kv_events_config={"enable_kv_cache_events": False}) as bench:
        assert bench.engine.event_source() is None
        (status,) = bench.core.workers()
        assert DegradeReason.KV_EVENTS_OFF in status.reasons
        await bench.ask(TURNS)
        again = await bench.ask(TURNS)
        assert again.cached_tokens > 0
        assert again.overlap == 0, "what was not confirmed is not reported"
        assert again.decision.chosen.expected_blocks > 6, "what was sent there counts in the cost"
