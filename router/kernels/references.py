"""Tables of references by (lane, key).

    payload: lane (16 bits) | references (20 bits) | generation (28 bits)

The lane belongs to a cell's identity. A generation tells an entry from a later one of the same key and
lane: who referred to the first one does not release the other.
"""

from __future__ import annotations

import numpy as np

from router.kernels.cells import (
    DONE,
    NEED,
    NEEDS_CELLS,
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

__all__ = ["KERNELS", "LANE_MASK", "acquire_keys", "end_keys", "live_keys", "release_keys"]

LANE_MASK = np.uint64(0xFFFF)
ONE_REFERENCE = np.uint64(1 << 16)
REFERENCES = np.uint64((1 << 20) - 1)
S16, S36 = np.uint64(16), np.uint64(36)
AHEAD = 16


@helper
def look_ahead(table, own, keys, at):  # type: ignore[no-untyped-def]
    if at < len(keys):
        hashed = hash_of(keys[at], own)
        prefetch(home_cell(table, segment_of(table, hashed), hashed))


@helper
def look_at_first(table, own, keys, first):  # type: ignore[no-untyped-def]
    for at in range(first, first + AHEAD):
        look_ahead(table, own, keys, at)


@helper
def stop(report, segment):  # type: ignore[no-untyped-def]
    report[SEGMENT], report[NEED], report[ROW_WORDS] = segment, NEEDS_CELLS, 0


@kernel(
    "int64(int64[:, ::1], int64, Array(uint64, 1, 'C', readonly=True), int64, uint64, uint32[::1],"
    " uint64[::1], int64[::1])"
)
def acquire_keys(table, lane, keys, first, generation, generations, fresh, report):  # type: ignore[no-untyped-def]
    """One reference more to keys[first:]. Writes each entry's generation, and the keys that had none to
    `fresh`, counted in DONE. Returns the number of keys done: all, or up to a need for cells."""
    own = np.uint64(lane)
    look_at_first(table, own, keys, first)
    for at in range(first, len(keys)):
        look_ahead(table, own, keys, at + AHEAD)
        if keys[at] == ZERO:
            continue  # never a key
        hashed = hash_of(keys[at], own)
        segment = segment_of(table, hashed)
        cell = find(table, segment, hashed, keys[at], LANE_MASK, own)
        if cell > 0:
            payload = load(cell + WORD_BYTES) + ONE_REFERENCE
            save(cell + WORD_BYTES, payload)
            generations[at] = payload >> S36
            continue
        if lacks_room(table, segment):
            stop(report, segment)
            return at
        save(-cell, keys[at])
        save(-cell + WORD_BYTES, own | ONE_REFERENCE | (generation << S36))
        table[USED, segment] += 1
        generations[at] = generation
        fresh[report[DONE]] = keys[at]
        report[DONE] += 1
    return len(keys)


@kernel(
    "int64(int64[:, ::1], int64, Array(uint64, 1, 'C', readonly=True), int64,"
    " Array(uint32, 1, 'C', readonly=True), uint64[::1], int64[::1])"
)
def release_keys(table, lane, keys, first, generations, gone, report):  # type: ignore[no-untyped-def]
    """One reference less to keys[first:], where the entry is of that generation (any, where there are
    none given). Writes the keys that have none left to `gone`, counted in DONE."""
    own = np.uint64(lane)
    look_at_first(table, own, keys, first)
    for at in range(first, len(keys)):
        look_ahead(table, own, keys, at + AHEAD)
        hashed = hash_of(keys[at], own)
        segment = segment_of(table, hashed)
        cell = find(table, segment, hashed, keys[at], LANE_MASK, own)
        if cell <= 0 or keys[at] == ZERO:
            continue
        payload = load(cell + WORD_BYTES)
        if len(generations) and np.uint64(generations[at]) != payload >> S36:
            continue
        if ((payload >> S16) & REFERENCES) > np.uint64(1):
            save(cell + WORD_BYTES, payload - ONE_REFERENCE)
            continue
        erase(table, segment, cell, LANE_MASK)
        gone[report[DONE]] = keys[at]
        report[DONE] += 1
        if is_too_large(table, segment):
            stop(report, segment)
            return at + 1
    return len(keys)


@kernel("int64(int64[:, ::1], int64, Array(uint64, 1, 'C', readonly=True), int64, uint64[::1], int64[::1])")
def end_keys(table, lane, keys, first, gone, report):  # type: ignore[no-untyped-def]
    """Drop the entries of keys[first:] whatever refers to them; like `release_keys`."""
    own = np.uint64(lane)
    for at in range(first, len(keys)):
        hashed = hash_of(keys[at], own)
        segment = segment_of(table, hashed)
        cell = find(table, segment, hashed, keys[at], LANE_MASK, own)
        if cell <= 0 or keys[at] == ZERO:
            continue
        erase(table, segment, cell, LANE_MASK)
        gone[report[DONE]] = keys[at]
        report[DONE] += 1
        if is_too_large(table, segment):
            stop(report, segment)
            return at + 1
    return len(keys)


@kernel(
    "void(int64[:, ::1], int64, Array(uint64, 1, 'C', readonly=True), Array(uint32, 1, 'C', readonly=True),"
    " boolean[::1])"
)
def live_keys(table, lane, keys, generations, live):  # type: ignore[no-untyped-def]
    """Which entries are still those of the generations."""
    own = np.uint64(lane)
    for at in range(len(keys)):
        hashed = hash_of(keys[at], own)
        cell = find(table, segment_of(table, hashed), hashed, keys[at], LANE_MASK, own)
        live[at] = cell > 0 and load(cell + WORD_BYTES) >> S36 == np.uint64(generations[at])


KERNELS = (acquire_keys, release_keys, end_keys, live_keys)
