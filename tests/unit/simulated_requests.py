"""Requests for a simulated engine, with keys that chain as real ones do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash

from simulation import SimulatedMedia, SimulatedRequest

BLOCK = 4


def keys_of(tokens: Sequence[int], block_size: int = BLOCK) -> list[int]:
    """A chained 64-bit key of every full block of `tokens`."""
    keys, parent = [], 0
    for start in range(0, len(tokens) - block_size + 1, block_size):
        block = np.array([parent, *tokens[start : start + block_size]], dtype=np.uint64)
        parent = xxhash.xxh3_64_intdigest(block.tobytes()) or 1
        keys.append(parent)
    return keys


def request(
    request_id: str,
    prompt: Sequence[int],
    output_tokens: int = 1,
    media: Sequence[SimulatedMedia] = (),
    block_size: int = BLOCK,
) -> SimulatedRequest:
    """Its output is unlike that of every other request: (id, position)."""
    output = [xxhash.xxh3_64_intdigest(f"{request_id} {i}".encode()) for i in range(output_tokens)]
    tokens = list(prompt)
    for item in media:
        tokens[item.offset : item.end] = [item.media_id] * item.length
    keys = keys_of([*tokens, *output], block_size)
    return SimulatedRequest(
        request_id, len(prompt), output_tokens, np.array(keys, dtype=np.uint64), tuple(media)
    )
