"""A cache that is filled until the engine evicts: the router's view follows, key for key."""

from __future__ import annotations

import struct
import time
from collections import Counter
from typing import Any

import msgpack
import xxhash
import zmq

from tests.engines import pictures as make
from tests.engines.pictures import PictureServer
from tests.engines.service import BLOCK, QUESTION, Service, image_part, messages
from tests.engines.test_failures import router_actors


class Recount:
    """A second subscriber with a decoder of its own: no code shared with the relay.

    Reads the engine's event buffer from its beginning, counts stores and removals per engine hash, and
    keys every block by hand.
    """

    def __init__(self, replay_endpoint: str) -> None:
        self.counts: Counter[int] = Counter()
        self.key_of: dict[int, int] = {}
        for payload in self._read(replay_endpoint):
            for event in msgpack.unpackb(payload, strict_map_key=False)[1]:
                self._apply(event)

    def _read(self, endpoint: str) -> list[bytes]:
        socket = zmq.Context.instance().socket(zmq.DEALER)
        socket.connect(endpoint)
        socket.send_multipart([b"", (0).to_bytes(8, "big")])
        payloads = []
        while socket.poll(10_000):
            _, _, seq, payload = socket.recv_multipart()
            if seq == b"\xff" * 8:
                socket.close(linger=0)
                return payloads
            payloads.append(payload)
        raise AssertionError("the engine's replay did not end")

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
            tokens = event["token_ids"][index * BLOCK : (index + 1) * BLOCK]
            above = self.key_of[parent] if parent is not None else root(extras[index])
            self.key_of[block] = key(above, tokens, extras[index])
            self.counts[block] += 1
            parent = block

    @property
    def keys(self) -> set[int]:
        return {self.key_of[block] for block, count in self.counts.items() if count > 0}


def root(extras: list[Any] | None) -> int:
    from router.keys import root_key
    from sightline_types import KeyScheme

    salts = [entry for entry in extras or [] if isinstance(entry, str)]
    return int(root_key(KeyScheme.VLLM, salts[0] if salts else ""))


def key(parent: int, tokens: list[int], extras: list[Any] | None) -> int:
    data = struct.pack("<Q", parent) + b"".join(struct.pack("<q", token) for token in tokens)
    for entry in extras or []:
        if not isinstance(entry, str):
            identifier, offset = entry
            data += struct.pack("<Qq", int(identifier[:16], 16), offset)
    return xxhash.xxh3_64_intdigest(data)


def router_keys(worker: str) -> set[int]:
    import numpy as np
    import ray

    from sightline_types import WorkerId

    (name,) = router_actors()
    actor = ray.get_actor(name, namespace="sightline")
    held = ray.get(actor.resident_keys.remote(WorkerId.parse(worker)), timeout=30)
    return set(np.frombuffer(held, dtype="<u8").tolist())


def replay_endpoints(service: Service) -> dict[str, str]:
    from ray import serve

    handle = serve.get_deployment_handle("Engine", service.app_name)
    endpoints: dict[str, str] = {}
    deadline = time.monotonic() + 60
    while len(endpoints) < 2 and time.monotonic() < deadline:
        found = handle.event_source.remote().result(timeout_s=30)
        endpoints[found["worker"]] = found["kv_replay"]
    return endpoints


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
    asked += [related(pictures, n) for n in range(12)]
    asked += [unique(pictures, n) for n in range(14, 24)]
    for turns in asked:
        service.ask_exact(turns)
    service.wait_idle()
    for worker, endpoint in replay_endpoints(service).items():
        recount = Recount(endpoint)
        held = router_keys(worker)
        assert held == recount.keys
        assert len(held) > 60, "the cache is nearly full"
        assert len(recount.key_of) > len(held), "the engine has evicted"

    kinds: Counter[str] = Counter()
    # The last first: they are still held; the related ones in part; the oldest not at all.
    for turns in reversed(asked):
        answer = service.ask_exact(turns)
        most = (answer.prompt_tokens - 1) // BLOCK
        kinds["none" if answer.overlap == 0 else "all" if answer.overlap == most else "part"] += 1
    assert all(kinds[kind] >= len(asked) / 4 for kind in ("none", "part", "all")), kinds
