"""The router's large tables, compiled where numba can be imported and plain Python where not."""

from __future__ import annotations

from router import keys
from router.active import ActiveBlocks, PlainActiveBlocks
from router.index import BlockIndex
from router.plain_index import PlainIndex

__all__ = ["make_active_blocks", "make_index", "warm_up"]


def make_index(memory_bytes: int = 0) -> BlockIndex:
    """An empty index. memory_bytes: at most so many in its tables; 0 is unlimited."""
    return PlainIndex()


def make_active_blocks() -> ActiveBlocks:
    return PlainActiveBlocks()


def warm_up() -> None:
    """Have everything compiled now rather than at the first request. Idempotent."""
    keys.warm_up()
