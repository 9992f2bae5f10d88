"""Media bytes between ingress and engine replica: by value up to 1 MiB, above that one object ref, put once.

A ref must be a top-level argument of the call (Serve resolves it there), and the call must be one by
reference, which it is not in Serve's gRPC transport unless it is told: `EngineCalls` sees to both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import ray

from deployments.protocol import EngineMedia, EngineRequest
from sightline_types import MediaItem

__all__ = ["INLINE_LIMIT_BYTES", "EngineCalls", "Payload", "pack", "part", "ship"]

INLINE_LIMIT_BYTES = 1 << 20

#: What a replica receives: bytes by value, or a read-only array out of the object store.
Payload = bytes | npt.NDArray[np.uint8] | None


def pack(items: Sequence[MediaItem], files: Sequence[bytes | None]) -> tuple[tuple[EngineMedia, ...], bytes]:
    """Lay the items' bytes end to end.

    files: the encoded bytes of each item; None where the item carries its pixels or frames, or is held
        by an engine.
    Returns the description of each item and the joined bytes.
    """
    media: list[EngineMedia] = []
    chunks: list[bytes | memoryview] = []
    offset = 0
    for item, data in zip(items, files, strict=True):
        pixels = item.source.pixels if item.source.frames is None else item.source.frames
        if pixels is not None:
            form: Literal["pixels", "frames"] = "pixels" if item.source.frames is None else "frames"
            described = _described(item, form, offset, pixels.size, pixels.shape)
            chunks.append(pixels.reshape(-1).data)
        elif data is not None:
            described = _described(item, "file", offset, len(data))
            chunks.append(data)
        elif item.is_held:
            described = _described(item, "held", offset, 0)
        else:
            raise ValueError(f"media item {item.media_id} has neither pixels, frames nor bytes")
        media.append(described)
        offset += described.length
    return tuple(media), b"".join(chunks)


def _described(
    item: MediaItem,
    form: Literal["file", "pixels", "frames", "held"],
    offset: int,
    length: int,
    shape: Any = None,
) -> EngineMedia:
    is_named = item.identity_mode == "uuid"
    return EngineMedia(
        item.modality, item.media_id, form, offset, length, shape, item.video, item.size, is_named
    )


def ship(payload: bytes) -> Any:
    """The payload as the call's argument: itself when small, else a ref to one copy in the object store."""
    if len(payload) <= INLINE_LIMIT_BYTES:
        return payload or None
    return ray.put(np.frombuffer(payload, dtype=np.uint8))


class EngineCalls:
    """Calls of the engine deployment's `generate`, each in the way that its payload needs."""

    def __init__(self, engine: Any) -> None:
        """engine: the deployment's handle."""
        # What travels is importable at both ends, so that cloudpickle, twice as slow, is not needed.
        pickled = {"request_serialization": "pickle", "response_serialization": "pickle"}
        quick = engine.options(stream=True, **pickled)
        self._by_value = quick.generate
        # Serve (2.60) has no public name for it. Over gRPC the ref would be resolved here, and copied.
        self._by_reference = quick.options(_by_reference=True).generate

    def remote(self, request: EngineRequest, payload: Any, *, pin: Any) -> Any:
        """The replica's messages, packed (`deployments.batches`), as Serve streams them."""
        calls = self._by_reference if isinstance(payload, ray.ObjectRef) else self._by_value
        return calls.remote(request, payload, pin=pin)


def part(payload: Payload, media: EngineMedia) -> memoryview:
    """One item's bytes, without a copy."""
    if payload is None:
        raise ValueError("the request has media but no payload")
    view = memoryview(payload) if isinstance(payload, bytes) else payload.data
    return view[media.offset : media.offset + media.length]
