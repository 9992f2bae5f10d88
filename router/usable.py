"""What of the leading blocks that a worker holds the engine will really take from its cache."""

from __future__ import annotations

from router.compiling import compiled
from sightline_types import KvGroup

__all__ = ["PLAIN_GROUPS", "usable_blocks"]

#: The simple case: one group in which every block of the prefix must be held.
PLAIN_GROUPS = (KvGroup("full_attention"),)


@compiled
def usable_blocks(held_blocks: int, num_tokens: int, block_size: int, drops_last: bool) -> int:
    """Blocks that the engine will take from its cache, of `held_blocks` leading ones, with one
    full-attention group.

    An engine computes at least the last token of the prompt; with EAGLE/MTP (`drops_last`) it also
    recomputes the last block that matched.
    """
    matched = min(held_blocks, (num_tokens - 1) // block_size)
    if drops_last:
        matched -= 1
    return max(0, matched)
