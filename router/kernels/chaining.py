"""Block keys of a whole prompt, or of a run of event blocks, in one call. The layout is `router.keys`'s."""

from __future__ import annotations

import numpy as np

from router.kernels.compiling import helper, kernel
from router.kernels.xxh3 import digest

__all__ = ["KERNELS", "chain_blocks", "chain_view"]

NO_KEY, FIRST_KEY = np.uint64(0), np.uint64(1)


@helper
def key_of(words, count):  # type: ignore[no-untyped-def]
    key = digest(words, count)
    return FIRST_KEY if key == NO_KEY else key


@helper
def lay_block(words, parent, tokens, start, size):  # type: ignore[no-untyped-def]
    words[0] = parent
    for at in range(size):
        words[1 + at] = np.uint64(tokens[start + at])


@kernel(
    "int64(uint64, Array(int64, 1, 'C', readonly=True), int64, Array(int64, 1, 'C', readonly=True),"
    " Array(int64, 1, 'C', readonly=True), Array(uint64, 1, 'C', readonly=True), uint64[::1], int64[::1])"
)
def chain_view(parent, tokens, size, offsets, ends, media_ids, keys, media_blocks):  # type: ignore[no-untyped-def]
    """Key the first `len(keys)` blocks of a view with media spans [offset, end), ordered and apart.

    Writes `keys` and the indices of the blocks that touch media; returns how many these are.
    """
    words = np.empty(1 + size + 2 * min(size, len(offsets)), dtype=np.uint64)
    first, num_media_blocks = 0, 0
    for block in range(len(keys)):
        start = block * size
        lay_block(words, parent, tokens, start, size)
        while first < len(offsets) and ends[first] <= start:
            first += 1
        span, count = first, 1 + size
        while span < len(offsets) and offsets[span] < start + size:
            words[count] = media_ids[span]
            words[count + 1] = np.uint64(offsets[span] - start)
            count += 2
            span += 1
        if span > first:
            media_blocks[num_media_blocks] = block
            num_media_blocks += 1
        parent = key_of(words, count)
        keys[block] = parent
    return num_media_blocks


@kernel(
    "void(uint64, Array(int64, 1, 'C', readonly=True), int64, Array(int64, 1, 'C', readonly=True),"
    " Array(uint64, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), uint64[::1])"
)
def chain_blocks(parent, tokens, size, starts, media_ids, offsets, keys):  # type: ignore[no-untyped-def]
    """Key `len(keys)` blocks; the extras of block i are those from starts[i] to starts[i + 1]."""
    most = 0
    for block in range(len(keys)):
        most = max(most, starts[block + 1] - starts[block])
    words = np.empty(1 + size + 2 * most, dtype=np.uint64)
    for block in range(len(keys)):
        lay_block(words, parent, tokens, block * size, size)
        count = 1 + size
        for extra in range(starts[block], starts[block + 1]):
            words[count] = media_ids[extra]
            words[count + 1] = np.uint64(offsets[extra])
            count += 2
        parent = key_of(words, count)
        keys[block] = parent


KERNELS = (chain_view, chain_blocks)
