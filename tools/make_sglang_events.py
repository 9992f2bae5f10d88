"""Add to a golden file what the installed SGLang publishes of one small cache, in each format that it knows.

    SGLANG_USE_CPU_ENGINE=1 python -m tools.make_sglang_events --out tests/data/sglang_kv_events.json

Another release is read where it lies first on PYTHONPATH. No engine is started: the cache's own recorder
(of older releases: the event types) makes the events, and msgpack, as SGLang uses it, the payloads.
"""

from __future__ import annotations

import argparse
import json
from array import array
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from router.pads import pad_values
from sightline_types import KeyScheme, MediaId

PAGE = 4
MEDIA = MediaId(0xC0FFEE)
#: Three pages; the picture lies on all of them.
RUN = range(2, 10)
SALT, ADAPTER, ADAPTER_ID = "tenant", "poet", "f" * 32


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    args = parser.parse_args(argv)
    golden = json.loads(args.out.read_text()) if args.out.exists() else {"releases": {}}
    golden |= {"page": PAGE, "media": MEDIA.hex, "run": [RUN.start, RUN.stop], "num_tokens": 3 * PAGE}
    golden |= {"salt": SALT, "adapter": ADAPTER}
    for label, payload, scheme in payloads():
        golden["releases"][label] = {"scheme": scheme.value, "payload": payload.hex()}
    args.out.write_text(json.dumps(golden, indent=1) + "\n")
    return 0


def payloads() -> Iterator[tuple[str, bytes, KeyScheme]]:
    """One per format: label, the batch as it is published, scheme of the pads."""
    version = import_module("sglang").__version__
    kinds = import_module("sglang.srt.disaggregation.kv_events")
    if not hasattr(kinds, "namespaced_block_hash"):
        yield version, encoded(kinds, plain(kinds)), KeyScheme.SGLANG_SINGLE
        return
    for dynamo in (False, True):
        events = recorded(kinds, dynamo=dynamo)
        yield f"{version} {'dynamo' if dynamo else 'default'}", encoded(kinds, events), KeyScheme.SGLANG_WIDE


def encoded(kinds: Any, events: list[Any]) -> bytes:
    return msgspec.msgpack.encode(kinds.KVEventBatch(ts=1.0, events=events))


def tokens(scheme: KeyScheme) -> list[int]:
    pads = pad_values(scheme, MEDIA)
    ids = list(range(100, 100 + 3 * PAGE))
    for index in RUN:
        ids[index] = pads[(index - RUN.start) % len(pads)]
    return ids


def plain(kinds: Any) -> list[Any]:
    """Of the event types alone; hashes are opaque, and so any will do."""
    ids, media = tokens(KeyScheme.SGLANG_SINGLE), kinds.StorageMedium

    def stored(hashes: list[int], parent: int | None, pages: list[int], medium: Any, **more: Any) -> Any:
        kind = getattr(kinds, "BlockStoredWithMetadata", kinds.BlockStored) if more else kinds.BlockStored
        text = [token for page in pages for token in ids[page * PAGE : (page + 1) * PAGE]]
        return kind(hashes, parent, text, PAGE, None, medium, **more)

    events = [stored([11, -12], None, [0, 1], media.GPU), stored([13], -12, [2], media.GPU)]
    if hasattr(kinds, "BlockStoredMetadata"):
        metadata = kinds.BlockStoredMetadata(cache_salt=SALT)
        events.append(stored([21], None, [0], media.GPU, metadata=metadata))
    elif "cache_salt" in kinds.BlockStored.__struct_fields__:
        events.append(stored([21], None, [0], media.GPU, cache_salt=SALT))
    return [
        *events,
        stored([11, -12], None, [0, 1], media.CPU),
        kinds.BlockRemoved([13], media.GPU),
        stored([11], None, [0], media.DISK),
        kinds.BlockRemoved([-12], media.GPU),
    ]


def recorded(kinds: Any, *, dynamo: bool) -> list[Any]:
    """Of the cache's recorder, from nodes as its radix tree has them."""
    events = import_module("sglang.srt.mem_cache.events")
    ids, media = tokens(KeyScheme.SGLANG_WIDE), kinds.StorageMedium
    names = events.KvEventLoraNames()
    adapted = SimpleNamespace(lora_id=ADAPTER_ID, extra_key=ADAPTER_ID)
    names.register(adapted, ADAPTER)
    recorder = events.KVCacheEventRecorder(
        enabled=True, page_size=PAGE, dynamo_format=dynamo, lora_names=names
    )
    root = node(None, [])
    top = node(root, ids[:PAGE])
    middle = node(top, ids[PAGE : 2 * PAGE])
    leaf = node(middle, ids[2 * PAGE :])
    for stored in (top, middle, leaf):
        recorder.record_store(stored)
    recorder.record_store(node(root, ids[:PAGE], cache_salt=SALT))
    recorder.record_store(node(root, ids[:PAGE], extra_key=ADAPTER_ID))
    for stored in (top, middle):
        recorder.record_store(stored, media.CPU)
    recorder.record_remove(leaf)
    recorder.record_store(top, media.DISK)
    recorder.record_remove(middle)
    return list(recorder.take())


def node(parent: Any, ids: list[int], **namespace: str) -> Any:
    key = import_module("sglang.srt.mem_cache.radix_cache").RadixKey(array("q", ids), **namespace)
    return SimpleNamespace(parent=parent, key=key, hash_value=None if ids else [], event_hash_value=None)


if __name__ == "__main__":
    raise SystemExit(main())
