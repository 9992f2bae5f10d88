"""A cache that is filled until the engine evicts: the router's view follows, key for key."""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any

import msgpack
import xxhash

from tests.engines import pictures as make
from tests.engines.never_lost import event_sources, replay
from tests.engines.pictures import PictureServer
from tests.engines.service import QUESTION, Service, image_part, messages
from tests.engines.test_failures import the_router_actor

#: Fewer tokens than these are what the chat template begins every prompt with: small pages hold them always.
TEMPLATE_HEAD = 32


class Recount:
    """A second subscriber with a decoder of its own: no code shared with the relay.

    Reads the engine's event buffer from its beginning, counts stores and removals per engine hash, and
    keys every block by hand. SGLang removes once what it may have told of more than once.
    """

    def __init__(self, replay_endpoint: str, service: Service) -> None:
        self._block = service.block
        self._is_vllm = service.engine != "sglang"
        self.counts: Counter[int] = Counter()
        self.key_of: dict[int, int] = {}
        for payload in replay(replay_endpoint):
            for event in msgpack.unpackb(payload, strict_map_key=False)[1]:
                self._apply(event)

    def _apply(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "AllBlocksCleared":
            self.counts.clear()
        elif kind == "BlockRemoved":
            self.counts.subtract(event["block_hashes"])
        else:
            self._store(event)

    def _store(self, event: dict[str, Any]) -> None:
        parent = event.get("parent_block_hash")
        extras = event.get("extra_keys") or [None] * len(event["block_hashes"])
        for index, block in enumerate(event["block_hashes"]):
            tokens = event["token_ids"][index * self._block : (index + 1) * self._block]
            above = (
                self.key_of[parent]
                if parent is not None
                else root(event, extras[index], is_vllm=self._is_vllm)
            )
            self.key_of[block] = key(above, tokens, extras[index])
            self.counts[block] = self.counts[block] + 1 if self._is_vllm else 1
            parent = block

    @property
    def keys(self) -> set[int]:
        return {self.key_of[block] for block, count in self.counts.items() if count > 0}


def root(event: dict[str, Any], extras: list[Any] | None, *, is_vllm: bool) -> int:
    from router.keys import root_key
    from sightline_types import KeyScheme

    if not is_vllm:
        return int(root_key(KeyScheme.SGLANG_WIDE, event.get("cache_salt") or ""))
    salts = [entry for entry in extras or [] if isinstance(entry, str)]
    return int(root_key(KeyScheme.VLLM, salts[0] if salts else ""))


def key(parent: int, tokens: list[int], extras: list[Any] | None) -> int:
    data = struct.pack("<Q", parent) + b"".join(struct.pack("<q", token) for token in tokens)
    for entry in extras or []:
        if not isinstance(entry, str):
            identifier, offset = entry
            data += struct.pack("<Qq", int(identifier[:16], 16), offset)
    return xxhash.xxh3_64_intdigest(data)


def router_keys(worker: str, service: Service) -> set[int]:
    import numpy as np
    import ray

    from sightline_types import WorkerId

    actor = ray.get_actor(the_router_actor(service), namespace="sightline")
    held = ray.get(actor.resident_keys.remote(WorkerId.parse(worker)), timeout=60)
    return set(np.frombuffer(held, dtype="<u8").tolist())


def replay_endpoints(service: Service) -> dict[str, str]:
    return {worker: source["kv_replay"] for worker, source in event_sources(service).items()}


def unique(pictures: PictureServer, number: int) -> list[dict[str, Any]]:
    """Shares nothing with any other prompt."""
    url = pictures.put(f"unique{number}.png", make.png(400 + number))
    return messages(image_part(url), QUESTION, system=f"Prompt number {number} of many, all different. " * 8)


def related(pictures: PictureServer, number: int) -> list[dict[str, Any]]:
    """Shares its system turn, and every third one its picture, with its relatives."""
    url = pictures.put(f"related{number}.png", make.png(500 + number // 3))
    text = f"Question number {number}. " + QUESTION
    return messages(image_part(url), text, system="A family of prompts that begin alike. " * 10)


def test_through_evictions_the_view_is_the_engines_own(service: Service, pictures: PictureServer) -> None:
    service.wait_idle()
    asked = [unique(pictures, n) for n in range(14)]
    related_ones = [related(pictures, n) for n in range(12)]
    asked += related_ones
    asked += [unique(pictures, n) for n in range(14, 24)]
    for turns in asked:
        service.ask_exact(turns)
    service.wait_idle()
    evicted = 0
    for worker, endpoint in replay_endpoints(service).items():
        recount = Recount(endpoint, service)
        held = router_keys(worker, service)
        assert held == recount.keys
        evicted += len(recount.key_of) - len(held)
    assert evicted > 0, "the prompts need more blocks than both caches have"

    kinds = Kinds(service)
    # The last first: they are still held; the related ones in part; the oldest not at all.
    for turns in reversed(asked):
        kinds.ask(turns)
    # Ties fall as the replicas' random names have it; what that left too rare is asked for once more.
    while (rarest := kinds.too_rare()) is not None and kinds.total < 4 * len(asked):
        new_relative = related(pictures, len(related_ones) + kinds.total)
        kinds.ask({"all": kinds.last, "part": new_relative, "none": oldest(asked, kinds)}[rarest])
    assert kinds.too_rare() is None, kinds.counts


class Kinds:
    """How much of each prompt was cached when it was asked again; every prediction exact."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.counts: Counter[str] = Counter({"none": 0, "part": 0, "all": 0})
        self.last: list[dict[str, Any]] = []
        self.asked_at: dict[str, int] = {}

    @property
    def total(self) -> int:
        return self.counts.total()

    def ask(self, turns: list[dict[str, Any]]) -> None:
        answer = self._service.ask_exact(turns)
        most = (answer.prompt_tokens - 1) // self._service.block
        held = answer.overlap * self._service.block
        kind = "none" if held < TEMPLATE_HEAD else "all" if answer.overlap == most else "part"
        self.counts[kind] += 1
        self.last = turns
        self.asked_at[str(turns)] = self.total

    def too_rare(self) -> str | None:
        """A kind that makes up less than a quarter, the rarest."""
        kind, count = min(self.counts.items(), key=lambda item: item[1])
        return kind if count < self.total / 4 else None


def oldest(prompts: list[list[dict[str, Any]]], kinds: Kinds) -> list[dict[str, Any]]:
    """Of those that share nothing, the one that was asked longest ago."""
    alone = [turns for turns in prompts if "all different" in turns[0]["content"]]
    return min(alone, key=lambda turns: kinds.asked_at.get(str(turns), 0))
