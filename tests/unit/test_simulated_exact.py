"""Prompt builder, router core, relay, publisher and simulated engine in one process, without Serve: whatever
is asked of a cache that is too small, one request after the other, the engine finds what was foretold."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from app.tiny_models import tiny_model
from deployments.config import EngineConfig
from deployments.engines import media_source
from router.relay import EventRelay
from simulation.config import SimulationConfig
from tests.engines import pictures as make
from tests.engines.bench import Bench, Seen
from tests.engines.service import image_part, messages

#: A prompt has 60 to 300 tokens; the cache holds 1,280.
BLOCK, NUM_BLOCKS = 16, 81
REQUESTS = 120
WORDS = "what which where how long red blue picture house tree river count colour left right".split()


class SimulatedBench(Bench):
    def __init__(self, model: Path) -> None:
        super().__init__(str(model))
        self._config = EngineConfig(
            model=str(model),
            engine="simulated",
            enable_multimodal=True,
            block_size=BLOCK,
            simulation=SimulationConfig(speedup=0, num_blocks=NUM_BLOCKS, max_num_batched_tokens=128),
        )

    async def start(self) -> None:
        await super().start()
        await self.relay.close()
        self.media = await media_source(self._config)
        source = self.engine.event_source()
        self.relay = EventRelay(
            self._worker, self.contract, source, self._push, push_interval_s=0.002, settle_s=0.01
        )
        await self.relay.start()

    async def wait_idle(self, timeout_s: float = 120.0) -> None:
        """With every batch that the engine published applied: a slow machine may be quiet before that."""
        async with asyncio.timeout(timeout_s):
            while not self._is_followed():
                await asyncio.sleep(0.001)

    def _is_followed(self) -> bool:
        (status,) = self.core.workers()
        return status.idle and status.relay.engine_seq >= self.engine._publisher.last_seq

    async def stop(self) -> None:
        await self.relay.close()
        await self.prompts.aclose()
        await self.media.aclose()
        await asyncio.to_thread(self.engine.shutdown)


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[SimulatedBench]:
    bench = SimulatedBench(tiny_model("qwen3_vl", tmp_path, with_weights=False))
    await bench.start()
    yield bench
    await bench.stop()


class Asker:
    """Requests that share beginnings, pictures and conversations with earlier ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._asked: list[list[dict[str, Any]]] = []
        sizes = [(64, 64), (96, 160), (224, 224), (320, 96), (256, 320)]
        self._pictures = [make.data_url(make.png(n, size)) for n, size in enumerate(sizes + sizes[:3])]

    def turns(self) -> list[dict[str, Any]]:
        draw = self._random
        kind = draw.random()
        if self._asked and kind < 0.35:
            turns = draw.choice(self._asked[-12:])
        elif self._asked and kind < 0.55:
            turns = [*draw.choice(self._asked[-12:]), {"role": "user", "content": self._text(12)}]
        else:
            pictures = [image_part(draw.choice(self._pictures)) for _ in range(draw.randrange(3))]
            parts = [*pictures, self._text(draw.randrange(1, 30))]
            draw.shuffle(parts)
            turns = messages(*parts, system=f"{draw.randrange(12)} is the system. " * 4)
        self._asked.append(turns)
        return turns

    def _text(self, count: int) -> str:
        return " ".join(self._random.choice(WORDS) for _ in range(count))


async def test_one_after_the_other_every_prediction_is_what_the_engine_finds(bench: SimulatedBench) -> None:
    asker = Asker(5)
    seen = [
        await bench.ask(asker.turns(), max_tokens=asker._random.choice((1, 5, 40))) for _ in range(REQUESTS)
    ]
    wrong = [
        s for s in seen if (s.predicted_cached, s.decision.num_tokens) != (s.cached_tokens, s.prompt_tokens)
    ]
    assert not wrong, wrong[0]
    kinds = Counter(map(kind, seen))
    assert min(kinds[name] for name in ("none", "part", "all")) >= REQUESTS // 10, kinds
    assert sum(s.media_overlap for s in seen) > REQUESTS // 2


def kind(seen: Seen) -> str:
    """How much of the prompt was cached, the template's first words aside."""
    most = (seen.prompt_tokens - 1) // BLOCK
    return "none" if seen.overlap < 2 else "all" if seen.overlap == most else "part"
