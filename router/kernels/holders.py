"""Tables from key to the set of lanes that hold it: stores, removals, and what is put off.

A kernel that needs memory stops at that key and reports which segment needs what; the caller sees to it
and calls again from there.
"""

from __future__ import annotations

import numpy as np

from router.kernels.cells import (
    ARENA_LIVE,
    ARENA_WORDS,
    CAPACITY,
    CELL_BYTES,
    CELLS,
    DONE,
    NEED,
    NEEDS_ARENA,
    NEEDS_CELLS,
    ONE,
    REFUSED,
    REPEATED,
    ROW_WORDS,
    SEGMENT,
    USED,
    WORD_BYTES,
    ZERO,
    erase,
    find,
    hash_of,
    home_cell,
    is_too_large,
    lacks_room,
    load,
    prefetch,
    save,
    segment_of,
)
from router.kernels.compiling import helper, kernel
from router.kernels.rows import (
    ADDED,
    IS_EMPTY,
    NEEDS_ROW,
    S48,
    WAS_MISSING,
    add_lane,
    class_for,
    drop_lane,
    has_lane,
    lowest_bit,
    read_set,
)

__all__ = ["KERNELS", "add_keys", "clean_segments", "drop_keys", "list_holders", "missing_keys"]

MIN_ARENA_WORDS = 16
AHEAD = 16


@helper
def stop(report, segment, need, words):  # type: ignore[no-untyped-def]
    report[SEGMENT], report[NEED], report[ROW_WORDS] = segment, need, words


@helper
def arena_is_too_large(table, segment):  # type: ignore[no-untyped-def]
    words, live = table[segment, ARENA_WORDS], table[segment, ARENA_LIVE]
    return words > MIN_ARENA_WORDS and 4 * live < words


@helper
def look_ahead(table, keys, at):  # type: ignore[no-untyped-def]
    if at < len(keys):
        hashed = hash_of(keys[at])
        prefetch(home_cell(table, segment_of(table, hashed), hashed))


@helper
def look_at_first(table, keys, first):  # type: ignore[no-untyped-def]
    for at in range(first, first + AHEAD):
        look_ahead(table, keys, at)


@kernel("int64(int64[:, ::1], int64, Array(uint64, 1, 'C', readonly=True), int64, int64, int64[::1])")
def add_keys(table, lane, keys, first, refuses, report):  # type: ignore[no-untyped-def]
    """`lane` holds keys[first:]. Returns the number of keys done, all of them or up to a need.

    refuses: 1 where no memory can be had: keys that need it are passed over, counted in REFUSED.
    """
    look_at_first(table, keys, first)
    for at in range(first, len(keys)):
        look_ahead(table, keys, at + AHEAD)
        key = keys[at]
        hashed = hash_of(key)
        segment = segment_of(table, hashed)
        cell = find(table, segment, hashed, key)
        if key == ZERO:
            report[REPEATED] += 1
        elif cell > 0:
            outcome = add_lane(table, segment, cell, lane)
            if outcome == NEEDS_ROW:
                if not refuses:
                    stop(report, segment, NEEDS_ARENA, widest(table, segment, cell, lane))
                    return at
                report[REFUSED] += 1
            else:
                report[DONE if outcome == ADDED else REPEATED] += 1
        elif not lacks_room(table, segment):
            save(-cell, key)
            save(-cell + WORD_BYTES, (ONE << S48) | np.uint64(lane))
            table[segment, USED] += 1
            report[DONE] += 1
        elif refuses:
            report[REFUSED] += 1
        else:
            stop(report, segment, NEEDS_CELLS, 0)
            return at
    return len(keys)


@helper
def widest(table, segment, cell, lane):  # type: ignore[no-untyped-def]
    """Words of the row that the cell's lanes and `lane` need."""
    size, payload = class_for(lane), load(cell + WORD_BYTES)
    if (payload >> S48) <= np.uint64(3):
        for field in range(3):
            size = max(size, class_for(np.int64((payload >> np.uint64(16 * field)) & np.uint64(0xFFFF))))
    return 1 << size


@kernel("int64(int64[:, ::1], int64, Array(uint64, 1, 'C', readonly=True), int64, int64[::1])")
def drop_keys(table, lane, keys, first, report):  # type: ignore[no-untyped-def]
    """`lane` holds keys[first:] no longer; like `add_keys`. Stops after a key where memory can go."""
    look_at_first(table, keys, first)
    for at in range(first, len(keys)):
        look_ahead(table, keys, at + AHEAD)
        key = keys[at]
        hashed = hash_of(key)
        segment = segment_of(table, hashed)
        cell = find(table, segment, hashed, key)
        outcome = drop_lane(table, segment, cell, lane) if cell > 0 and key != ZERO else WAS_MISSING
        if outcome == WAS_MISSING:
            report[REPEATED] += 1
            continue
        report[DONE] += 1
        if outcome == IS_EMPTY:
            erase(table, segment, cell)
        if is_too_large(table, segment) or arena_is_too_large(table, segment):
            stop(report, segment, NEEDS_CELLS if is_too_large(table, segment) else NEEDS_ARENA, 0)
            return at + 1
    return len(keys)


@kernel("void(int64[:, ::1], int64, Array(uint64, 1, 'C', readonly=True), boolean[::1])")
def missing_keys(table, lane, keys, missing):  # type: ignore[no-untyped-def]
    """Which of `keys` the lane does not hold."""
    look_at_first(table, keys, 0)
    for at in range(len(keys)):
        look_ahead(table, keys, at + AHEAD)
        hashed = hash_of(keys[at])
        segment = segment_of(table, hashed)
        cell = find(table, segment, hashed, keys[at])
        held = cell > 0 and keys[at] != ZERO and has_lane(table, segment, load(cell + WORD_BYTES), lane)
        missing[at] = not held


@kernel("int64(int64[:, ::1], int64, int64, uint64[::1], int64[::1])")
def clean_segments(table, first, num_cells, live, report):  # type: ignore[no-untyped-def]
    """Take lanes that are not in `live` out of the segments from `first` on, about `num_cells` cells.

    Returns the next segment. Stops after one in which something was taken out; its cells must be moved.
    """
    words, left = np.zeros(len(live), dtype=np.uint64), num_cells
    for segment in range(first, table.shape[0]):
        if left <= 0:
            return segment
        left -= table[segment, CAPACITY] + 1
        if clean_segment(table, segment, live, words):
            stop(report, segment, NEEDS_CELLS, 0)
            return segment + 1
    return table.shape[0]


@helper
def clean_segment(table, segment, live, words):  # type: ignore[no-untyped-def]
    """Whether something was taken out."""
    cleaned = False
    for at in range(table[segment, CAPACITY]):
        cell = table[segment, CELLS] + CELL_BYTES * at
        if load(cell) == ZERO:
            continue
        words[:] = ZERO
        read_set(table, segment, load(cell + WORD_BYTES), words)
        for word in range(len(words)):
            gone = words[word] & ~live[word]
            while gone:
                lane = 64 * word + np.int64(lowest_bit(gone))
                gone &= gone - ONE
                cleaned = True
                if drop_lane(table, segment, cell, lane) == IS_EMPTY:
                    table[segment, USED] -= 1
    return cleaned


@kernel("int64(int64[:, ::1], int64, uint64[::1], int64[::1], int64)")
def list_holders(table, segment, keys, lanes, num_words):  # type: ignore[no-untyped-def]
    """Write the segment's (key, lane) pairs as far as there is room; returns how many there are."""
    words, count = np.zeros(num_words, dtype=np.uint64), 0
    for at in range(table[segment, CAPACITY]):
        cell = table[segment, CELLS] + CELL_BYTES * at
        if load(cell) == ZERO:
            continue
        words[:] = ZERO
        read_set(table, segment, load(cell + WORD_BYTES), words)
        for word in range(num_words):
            bits = words[word]
            while bits:
                if count < len(keys):
                    keys[count], lanes[count] = load(cell), 64 * word + np.int64(lowest_bit(bits))
                bits &= bits - ONE
                count += 1
    return count


KERNELS = (add_keys, drop_keys, missing_keys, clean_segments, list_holders)
