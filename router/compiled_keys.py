"""Block keys by the compiled kernels: the functions of `router.plain_keys`, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from router.kernels.chaining import KERNELS
from router.kernels.chaining import chain_blocks as blocks_kernel
from router.kernels.chaining import chain_view as view_kernel
from router.kernels.compiling import compile_kernels
from router.plain_keys import Extras
from sightline_types import MediaSpan

__all__ = ["chain_blocks", "chain_view", "warm_up"]


@cache
def warm_up() -> None:
    """Compile what block keys need, once a process."""
    compile_kernels("block keys", KERNELS)


def chain_view(
    root: int, tokens: npt.NDArray[np.int64], block_size: int, num_blocks: int, spans: Sequence[MediaSpan]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Keys of the first `num_blocks` blocks of a view, and which of them touch a span."""
    warm_up()
    keys = np.empty(num_blocks, dtype=np.uint64)
    media_blocks = np.empty(num_blocks, dtype=np.int64)
    num_media_blocks = view_kernel.run(
        np.uint64(root),
        np.ascontiguousarray(tokens, dtype=np.int64),
        block_size,
        np.array([span.offset for span in spans], dtype=np.int64),
        np.array([span.end for span in spans], dtype=np.int64),
        np.array([span.media_id.value for span in spans], dtype=np.uint64),
        keys,
        media_blocks,
    )
    return keys, media_blocks[:num_media_blocks]


def chain_blocks(
    parent: int, tokens: npt.NDArray[np.int64], block_size: int, extras: Sequence[Extras]
) -> npt.NDArray[np.uint64]:
    """Keys of len(extras) blocks after `parent`, each with its own extras."""
    warm_up()
    keys = np.empty(len(extras), dtype=np.uint64)
    flat = [extra for own in extras for extra in own]
    blocks_kernel.run(
        np.uint64(parent),
        np.ascontiguousarray(tokens, dtype=np.int64).reshape(-1),
        block_size,
        np.cumsum([0, *map(len, extras)], dtype=np.int64),
        np.array([media_id.value for media_id, _ in flat], dtype=np.uint64),
        np.array([offset for _, offset in flat], dtype=np.int64),
        keys,
    )
    return keys
