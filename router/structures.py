"""The router's large tables, compiled where numba can be imported and plain Python where not."""

from __future__ import annotations

from functools import cache

from router import keys
from router.compiling import can_compile
from router.index import BlockIndex
from router.plain_index import PlainIndex

__all__ = ["make_index", "warm_up"]


def make_index(memory_bytes: int = 0) -> BlockIndex:
    """An empty index.

    memory_bytes: of its tables at most; 0 is unlimited. The plain index cannot keep to it.
    """
    if not can_compile():
        return PlainIndex()
    _compile_tables()
    from router.compiled_index import CompiledIndex

    return CompiledIndex(memory_bytes)


def warm_up() -> None:
    """Have everything compiled now rather than at the first request. Idempotent.

    The first process on a node takes some 20 s and keeps the code on disk; later ones load it in a second.
    """
    keys.warm_up()
    if can_compile():
        _compile_tables()


@cache
def _compile_tables() -> None:
    from router.kernels import cells, holders, matching, rows
    from router.kernels.compiling import compile_kernels

    for module in (cells, rows, holders, matching):
        compile_kernels(module.__name__, module.KERNELS)
