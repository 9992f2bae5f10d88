"""Block keys in plain Python: the oracle of the compiled ones, and their fallback.

The layout is in `router.keys`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from sightline_types import MediaId, MediaSpan

__all__ = ["chain_blocks", "chain_view", "digest", "warm_up"]

Extras = Sequence[tuple[MediaId, int]]

_EXTRA = struct.Struct("<Qq")
_TOKEN_BYTES = 8


def digest(data: bytes) -> int:
    """xxh3_64 with seed 0; never 0."""
    return xxhash.xxh3_64_intdigest(data) or 1


def chain_view(
    root: int, tokens: npt.NDArray[np.int64], block_size: int, num_blocks: int, spans: Sequence[MediaSpan]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Keys of the first `num_blocks` blocks of a view, and which of them touch a span."""
    extras = _extras_by_block(spans, block_size, num_blocks)
    by_block = [extras.get(block, b"") for block in range(num_blocks)]
    return _chain(root, tokens, block_size, by_block), np.array(sorted(extras), dtype=np.int64)


def chain_blocks(
    parent: int, tokens: npt.NDArray[np.int64], block_size: int, extras: Sequence[Extras]
) -> npt.NDArray[np.uint64]:
    """Keys of len(extras) blocks after `parent`, each with its own extras."""
    return _chain(parent, tokens, block_size, [_pack(own) for own in extras])


def warm_up() -> None:
    """Nothing to compile."""


def _chain(
    parent: int, tokens: npt.NDArray[np.int64], block_size: int, extras: Sequence[bytes]
) -> npt.NDArray[np.uint64]:
    packed = memoryview(np.ascontiguousarray(tokens, dtype="<i8").tobytes())
    stride = block_size * _TOKEN_BYTES
    keys, key = [], parent
    for block, own in enumerate(extras):
        key = digest(b"".join((key.to_bytes(8, "little"), packed[block * stride :][:stride], own)))
        keys.append(key)
    return np.array(keys, dtype=np.uint64)


def _extras_by_block(spans: Sequence[MediaSpan], block_size: int, num_blocks: int) -> dict[int, bytes]:
    """Packed extras of the first `num_blocks` blocks; a block that no span touches has no entry."""
    extras: dict[int, bytes] = {}
    for span in spans:
        first, last = span.offset // block_size, (span.end - 1) // block_size
        for block in range(first, min(last + 1, num_blocks)):
            packed = _EXTRA.pack(span.media_id.value, span.offset - block * block_size)
            extras[block] = extras.get(block, b"") + packed
    return extras


def _pack(extras: Extras) -> bytes:
    return b"".join(_EXTRA.pack(media_id.value, offset) for media_id, offset in extras)
