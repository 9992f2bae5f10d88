"""Segmented open-addressing tables: 64-bit keys with 64-bit payloads, in memory that numpy owns.

A table is a directory of shape (segments, NUM_FIELDS), int64. A segment is an array of cells (key,
payload), hashed by linear probing without tombstones, and an arena of words for what its payloads cannot
hold. Every segment grows and shrinks alone, so that no step is long. Key 0 is an empty cell.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from router.kernels.compiling import helper, intrinsic, kernel

__all__ = ["KERNELS", "move_cells"]

CELLS, CAPACITY, USED, ARENA, ARENA_WORDS, ARENA_TOP, ARENA_LIVE, FREE_ROWS = range(8)
NUM_ROW_CLASSES = 8
NUM_FIELDS = FREE_ROWS + NUM_ROW_CLASSES

#: What a kernel tells beside its result: counts, and why it stopped.
DONE, REPEATED, REFUSED, SEGMENT, NEED, ROW_WORDS = range(6)
NUM_REPORTS = 6
NEEDS_NOTHING, NEEDS_CELLS, NEEDS_ARENA = range(3)

#: A segment grows when more than FILL sixteenths of its cells are used, and shrinks below a third of
#: that, never under LEAST cells.
FILL, LEAST = 10, 8
SIXTEENTHS, THIRDS = 16, 3

CELL_BYTES, WORD_BYTES = 16, 8
ZERO, ONE = np.uint64(0), np.uint64(1)
SPREAD = np.uint64(0x9E3779B97F4A7C15)
S32 = np.uint64(32)
LOW_HALF = np.uint64(0xFFFFFFFF)

_WORD = ir.IntType(64)


@intrinsic
def load(typing_context: Any, address: Any) -> Any:
    """The word at `address`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], _WORD.as_pointer()))

    return types.uint64(types.int64), generate


@intrinsic
def save(typing_context: Any, address: Any, word: Any) -> Any:
    """Write `word` to `address`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], _WORD.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), generate


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Have the cache line at `address` on its way; any address is harmless."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i32, byte_pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte_pointer, i32, i32, i32])
        name = "llvm.prefetch.p0"
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        constants = [ir.Constant(i32, value) for value in (0, 3, 1)]  # read, keep, data
        builder.call(function, [builder.inttoptr(args[0], byte_pointer), *constants])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@helper
def hash_of(key):  # type: ignore[no-untyped-def]
    return (key ^ (key >> S32)) * SPREAD


@helper
def segment_of(table, hashed):  # type: ignore[no-untyped-def]
    """The hash's highest bits; the number of segments is a power of two up to 2^16."""
    return np.int64((hashed >> np.uint64(48)) & np.uint64(table.shape[0] - 1))


@helper
def home_of(hashed, capacity):  # type: ignore[no-untyped-def]
    """The cell where probing starts: 32 other bits of the hash, scaled."""
    return np.int64((((hashed >> np.uint64(16)) & LOW_HALF) * np.uint64(capacity)) >> S32)


@helper
def home_cell(table, segment, hashed):  # type: ignore[no-untyped-def]
    return table[segment, CELLS] + CELL_BYTES * home_of(hashed, table[segment, CAPACITY])


@helper
def find_from(table, segment, cell, key):  # type: ignore[no-untyped-def]
    """The key's cell; where there is none, minus the empty cell that ends its probing (0: no cells)."""
    if table[segment, CAPACITY] == 0:
        return 0
    end = table[segment, CELLS] + CELL_BYTES * table[segment, CAPACITY]
    while True:
        found = load(cell)
        if found == key:
            return cell
        if found == ZERO:
            return -cell
        cell += CELL_BYTES
        if cell == end:
            cell = table[segment, CELLS]


@helper
def find(table, segment, hashed, key):  # type: ignore[no-untyped-def]
    return find_from(table, segment, home_cell(table, segment, hashed), key)


@helper
def lacks_room(table, segment):  # type: ignore[no-untyped-def]
    return SIXTEENTHS * (table[segment, USED] + 1) > FILL * table[segment, CAPACITY]


@helper
def is_too_large(table, segment):  # type: ignore[no-untyped-def]
    capacity = table[segment, CAPACITY]
    is_empty_enough = THIRDS * SIXTEENTHS * table[segment, USED] < FILL * capacity
    return is_empty_enough and capacity > LEAST


@helper
def erase(table, segment, cell):  # type: ignore[no-untyped-def]
    """Empty a cell, and move those back that probed past it."""
    start, capacity = table[segment, CELLS], table[segment, CAPACITY]
    hole = (cell - start) // CELL_BYTES
    at = hole
    while True:
        at = at + 1 if at + 1 < capacity else 0
        key = load(start + CELL_BYTES * at)
        if key == ZERO:
            break
        payload = load(start + CELL_BYTES * at + WORD_BYTES)
        home = home_of(hash_of(key), capacity)
        past_home = at - home if at >= home else at - home + capacity
        past_hole = at - hole if at >= hole else at - hole + capacity
        if past_home >= past_hole:
            save(start + CELL_BYTES * hole, key)
            save(start + CELL_BYTES * hole + WORD_BYTES, payload)
            hole = at
    save(start + CELL_BYTES * hole, ZERO)
    save(start + CELL_BYTES * hole + WORD_BYTES, ZERO)
    table[segment, USED] -= 1


@kernel("void(int64[:, ::1], int64, int64, int64)")
def move_cells(table, segment, cells, capacity):  # type: ignore[no-untyped-def]
    """Take the segment's cells to an array of zeros at address `cells`; those with payload 0 are gone."""
    start, end = table[segment, CELLS], table[segment, CAPACITY]
    table[segment, CELLS], table[segment, CAPACITY] = cells, capacity
    used = 0
    for at in range(end):
        key = load(start + CELL_BYTES * at)
        payload = load(start + CELL_BYTES * at + WORD_BYTES)
        if key == ZERO or payload == ZERO:
            continue
        # No two are equal, so this ends at an empty cell.
        cell = -find(table, segment, hash_of(key), key)
        save(cell, key)
        save(cell + WORD_BYTES, payload)
        used += 1
    table[segment, USED] = used


@kernel("int64(int64[:, ::1], int64)")
def count_misplaced(table, segment):  # type: ignore[no-untyped-def]
    """Cells of a segment that probing does not find: 0 in a sound table."""
    start, misplaced = table[segment, CELLS], 0
    for at in range(table[segment, CAPACITY]):
        cell = start + CELL_BYTES * at
        key = load(cell)
        if key == ZERO:
            continue
        hashed = hash_of(key)
        if segment_of(table, hashed) != segment or find(table, segment, hashed, key) != cell:
            misplaced += 1
    return misplaced


KERNELS = (move_cells, count_misplaced)
