"""Several KV cache groups: what is foretold from the events is what vLLM's own cache manager finds.

The manager is the engine's real one, fed without a model: thousands of lookups, evictions included, in
seconds. That the scheduler of a whole engine agrees is shown on a tiny Qwen3.5 (Mamba and full attention).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
import pytest_asyncio

from app.tiny_models import tiny_model
from deployments.engines.vllm_groups import kv_groups, unit_size
from router.events import decode_batch
from router.keys import block_keys
from router.kv_groups import cached_tokens, is_predictable
from router.residency import Residency
from sightline_types import DegradeReason, KeyScheme, Tier, TokenView, WorkerContract
from tests.engines.bench import ENGINE_IN_PROCESS, Bench, Seen
from tests.engines.pictures import data_url, png
from tests.engines.service import image_part, messages

pytestmark = ENGINE_IN_PROCESS

WINDOW, CHUNK = 40, 64
#: Block size and kind of each group, as models have them: Gemma-3, Llama-4, three kinds, uneven sizes.
GROUPS: dict[str, list[tuple[str, int]]] = {
    "window": [("sliding_window", 16), ("full_attention", 16)],
    "two windows": [("full_attention", 16), ("sliding_window", 16), ("sliding_window", 16)],
    "chunks": [("chunked_local_attention", 16), ("full_attention", 16)],
    "uneven": [("full_attention", 32), ("sliding_window", 16)],
    "larger window blocks": [("full_attention", 16), ("sliding_window", 32)],
    "window alone": [("sliding_window", 16)],
}


class Cache:
    """vLLM's cache manager, and what our relay makes of its events."""

    def __init__(self, groups: list[tuple[str, int]], num_blocks: int = 90) -> None:
        import torch
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import (
            ChunkedLocalAttentionSpec,
            FullAttentionSpec,
            KVCacheConfig,
            KVCacheGroupSpec,
            SlidingWindowSpec,
        )

        init_none_hash(sha256)
        shape = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
        make = {
            "full_attention": lambda size: FullAttentionSpec(block_size=size, **shape),
            "sliding_window": lambda size: SlidingWindowSpec(block_size=size, sliding_window=WINDOW, **shape),
            "chunked_local_attention": lambda size: ChunkedLocalAttentionSpec(
                block_size=size, attention_chunk_size=CHUNK, **shape
            ),
        }
        sizes = [size for _, size in groups]
        specs = [KVCacheGroupSpec([f"layer{n}"], make[kind](size)) for n, (kind, size) in enumerate(groups)]
        unit = math.gcd(*sizes)
        self.manager = KVCacheManager(
            KVCacheConfig(num_blocks, [], specs), 4096, math.lcm(*sizes), unit, enable_kv_cache_events=True
        )
        metadata = [
            {
                "group_idx": n,
                "kind": kind,
                "block_size": size,
                "sliding_window": WINDOW if kind == "sliding_window" else None,
            }
            for n, (kind, size) in enumerate(groups)
        ]
        named = kv_groups(metadata, attention_chunk=CHUNK)
        assert unit_size(named) == unit
        self.contract = WorkerContract("vllm", "0.32.0", unit, KeyScheme.VLLM, "m", 4096, kv_groups=named)
        self.residency = Residency(self.contract.spec, groups=named)
        self._hasher = get_request_block_hasher(unit, sha256)
        self._params = SamplingParams(max_tokens=1)
        self._count = 0

    def request(self, tokens: list[int]) -> Any:
        from vllm.v1.request import Request

        self._count += 1
        return Request(f"r{self._count}", tokens, self._params, None, block_hasher=self._hasher)

    def foretold(self, tokens: list[int]) -> int:
        view = TokenView(np.array(tokens, dtype=np.int64), (), len(tokens))
        keys = block_keys(view, self.contract.spec).key_array()
        held = {delta.tier: np.frombuffer(delta.stored, "<u8") for delta in self.residency.table()}
        nothing = np.empty(0, np.uint64)
        presence = [
            np.isin(keys, held.get(Tier(place), nothing)) for place in range(len(self.contract.kv_groups))
        ]
        return cached_tokens(self.contract, presence, len(tokens) - 1)

    def serve(self, tokens: list[int], chunk: int) -> int:
        """Compute a prompt in chunks; what of it was found in the cache."""
        request = self.request(tokens)
        blocks, found, _ = self.manager.get_computed_blocks(request)
        computed = found
        while computed < len(tokens):
            size = min(chunk, len(tokens) - computed)
            first = computed == found
            slots = self.manager.allocate_slots(
                request, size, found if first else 0, blocks if first else None
            )
            assert slots is not None, "the pool is too small for one prompt"
            computed += size
            request.num_computed_tokens = computed
        self.manager.free(request)
        self._follow()
        return found

    def _follow(self) -> None:
        events = self.manager.take_events()
        for event in decode_batch(msgspec.msgpack.encode([0.0, events, 0])).events:
            self.residency.apply(event)
        self.residency.check_integrity()


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_foretold_of_several_groups_is_what_the_manager_finds(name: str, seed: int) -> None:
    cache, random = Cache(GROUPS[name]), Random(seed)
    assert is_predictable(cache.contract)
    stems = [[random.randrange(1000) for _ in range(400)] for _ in range(3)]
    alignment = math.lcm(*(size for _, size in GROUPS[name]))
    asked: list[list[int]] = []
    seen: Counter[str] = Counter()
    for _ in range(250):
        stem = random.choice(stems)
        tokens = stem[: random.randrange(1, 300)] + [random.randrange(1000)] * random.randrange(0, 60)
        tokens = asked[-1] if asked and random.random() < 0.15 else tokens or [1]
        asked.append(tokens)
        foretold = cache.foretold(tokens)
        found = cache.serve(tokens, chunk=random.choice([16, 48, 64, 512]))
        assert foretold == found, (name, len(tokens))
        most = (len(tokens) - 1) // alignment * alignment
        seen["none" if not found else "all" if found == most else "part"] += 1
    assert all(seen[kind] > 5 for kind in ("none", "part", "all")), seen


# A whole engine with two kinds of groups

QUESTION = "What is in the picture, and what else would you like to say about it at some length? "


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hybrid(models: Path) -> AsyncIterator[Bench]:
    bench = Bench(str(tiny_model("qwen3_5", models)), block_size=32, num_gpu_blocks_override=60)
    await bench.start()
    yield bench
    await bench.stop()


def turns(words: int, picture: int | None = None, tail: str = "") -> list[dict[str, Any]]:
    parts: list[Any] = [QUESTION * words]
    if picture is not None:
        parts.insert(0, image_part(data_url(png(picture))))
    return messages(*parts, tail)


async def ask(bench: Bench, *args: Any, **options: Any) -> Seen:
    seen = await bench.ask(turns(*args, **options))
    assert seen.prompt_tokens == seen.decision.num_tokens
    assert seen.predicted_cached == seen.cached_tokens, (seen.predicted_cached, seen.cached_tokens)
    return seen


@pytest.mark.asyncio(loop_scope="module")
async def test_a_tiny_qwen3_5_caches_as_foretold_none_part_and_all(hybrid: Bench) -> None:
    kinds = {group.kind for group in hybrid.contract.kv_groups}
    assert kinds == {"mamba", "full_attention"} and is_predictable(hybrid.contract)
    size = hybrid.contract.block_size
    outcomes: Counter[str] = Counter()
    plan = [(30, None), (30, None), (60, None), (60, None), (45, None), (45, None), (20, 1), (20, 1)]
    plan += [(40, 1), (20, 2), (20, 2), (40, 2), (40, 1), (30, None), (60, None), (2, None), (45, None)]
    for words, picture in plan:
        seen = await ask(hybrid, words, picture=picture)
        most = (seen.prompt_tokens - 1) // size * size
        outcomes["none" if not seen.cached_tokens else "all" if seen.cached_tokens == most else "part"] += 1
    assert all(outcomes[kind] >= 2 for kind in ("none", "part", "all")), outcomes


@pytest.mark.asyncio(loop_scope="module")
async def test_full_attention_alone_would_have_promised_too_much(hybrid: Bench) -> None:
    """A shorter prompt finds its attention blocks, but no state that ends within them."""
    await ask(hybrid, 64, tail="first")
    seen = await ask(hybrid, 50, tail="second")
    candidate = seen.decision.chosen
    keys = block_keys(seen.prompt.view, hybrid.contract.spec).key_array()
    (worker,) = hybrid.core.pool().contracts
    held = set(hybrid.core.held_keys(worker).tolist())
    run = next((n for n, key in enumerate(keys.tolist()) if key not in held), len(keys))
    assert candidate.overlap_blocks < run
    assert DegradeReason.KV_CACHE_GROUPS not in candidate.reasons
