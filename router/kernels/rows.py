"""Sets of small integers (lanes) as payloads: up to three inline, more of them as a row of bits.

    inline: count << 48 | three fields of 16 bits
    row:    (256 | class) << 48 | word offset in the segment's arena; 2^class words of 64 lanes

Freed rows are listed per class, through their own first words.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from router.kernels.cells import (
    ARENA,
    ARENA_LIVE,
    ARENA_TOP,
    ARENA_WORDS,
    CAPACITY,
    CELL_BYTES,
    CELLS,
    FREE_ROWS,
    NUM_ROW_CLASSES,
    ONE,
    WORD_BYTES,
    ZERO,
    load,
    save,
)
from router.kernels.compiling import helper, intrinsic, kernel

__all__ = ["KERNELS", "MAX_LANES", "add_lane", "drop_lane", "has_lane", "move_rows", "read_set"]

MAX_INLINE = 3
MAX_LANES = 64 << (NUM_ROW_CLASSES - 1)
ROW = np.uint64(256)
S16, S48, S64 = np.uint64(16), np.uint64(48), np.uint64(64)
FIELD = np.uint64(0xFFFF)
OFFSET = np.uint64((1 << 48) - 1)

ADDED, WAS_THERE, NEEDS_ROW = range(3)
DROPPED, WAS_MISSING, IS_EMPTY = range(3)


@intrinsic
def lowest_bit(typing_context: Any, word: Any) -> Any:
    """The position of the lowest set bit of a word that is not 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], context.get_constant(types.boolean, True))

    return types.uint64(types.uint64), generate


@intrinsic
def count_bits(typing_context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), generate


@helper
def inline_lane(payload, field):  # type: ignore[no-untyped-def]
    return np.int64((payload >> (S16 * np.uint64(field))) & FIELD)


@helper
def row_of(table, segment, payload):  # type: ignore[no-untyped-def]
    return table[segment, ARENA] + WORD_BYTES * np.int64(payload & OFFSET)


@helper
def row_words(payload):  # type: ignore[no-untyped-def]
    return np.int64(ONE << ((payload >> S48) - ROW))


@helper
def is_row(payload):  # type: ignore[no-untyped-def]
    return (payload >> S48) >= ROW


@helper
def class_for(lane):  # type: ignore[no-untyped-def]
    """The smallest class of rows with room for `lane`."""
    size = 0
    while (64 << size) <= lane:
        size += 1
    return size


@helper
def take_row(table, segment, size):  # type: ignore[no-untyped-def]
    """A row of zeros of class `size` as payload; 0 where the arena has no room."""
    head, words = table[segment, FREE_ROWS + size], 1 << size
    if head:
        offset = head - 1
        table[segment, FREE_ROWS + size] = np.int64(load(table[segment, ARENA] + WORD_BYTES * offset))
    else:
        offset = table[segment, ARENA_TOP]
        if offset + words > table[segment, ARENA_WORDS]:
            return ZERO
        table[segment, ARENA_TOP] = offset + words
    for word in range(words):
        save(table[segment, ARENA] + WORD_BYTES * (offset + word), ZERO)
    table[segment, ARENA_LIVE] += words
    return ((ROW + np.uint64(size)) << S48) | np.uint64(offset)


@helper
def free_row(table, segment, payload):  # type: ignore[no-untyped-def]
    size = np.int64((payload >> S48) - ROW)
    save(row_of(table, segment, payload), np.uint64(table[segment, FREE_ROWS + size]))
    table[segment, FREE_ROWS + size] = np.int64(payload & OFFSET) + 1
    table[segment, ARENA_LIVE] -= 1 << size


@helper
def set_bit(row, lane):  # type: ignore[no-untyped-def]
    word = row + WORD_BYTES * (lane >> 6)
    save(word, load(word) | (ONE << np.uint64(lane & 63)))


@helper
def has_lane(table, segment, payload, lane):  # type: ignore[no-untyped-def]
    if is_row(payload):
        if (lane >> 6) >= row_words(payload):
            return False
        word = load(row_of(table, segment, payload) + WORD_BYTES * (lane >> 6))
        return (word >> np.uint64(lane & 63)) & ONE != ZERO
    for field in range(np.int64(payload >> S48)):  # noqa: SIM110 (numba has no generators here)
        if inline_lane(payload, field) == lane:
            return True
    return False


@helper
def add_lane(table, segment, cell, lane):  # type: ignore[no-untyped-def]
    """ADDED, WAS_THERE, or NEEDS_ROW: nothing is changed, the arena needs 1 << class_for(lane) words."""
    payload = load(cell + WORD_BYTES)
    if has_lane(table, segment, payload, lane):
        return WAS_THERE
    if not is_row(payload):
        count = np.int64(payload >> S48)
        if count < MAX_INLINE:
            grown = payload + (ONE << S48) + (np.uint64(lane) << (S16 * np.uint64(count)))
            save(cell + WORD_BYTES, grown)
            return ADDED
        return spill(table, segment, cell, payload, lane)
    if (lane >> 6) < row_words(payload):
        set_bit(row_of(table, segment, payload), lane)
        return ADDED
    return widen(table, segment, cell, payload, lane)


@helper
def spill(table, segment, cell, payload, lane):  # type: ignore[no-untyped-def]
    highest = lane
    for field in range(MAX_INLINE):
        highest = max(highest, inline_lane(payload, field))
    fresh = take_row(table, segment, class_for(highest))
    if fresh == ZERO:
        return NEEDS_ROW
    row = row_of(table, segment, fresh)
    for field in range(MAX_INLINE):
        set_bit(row, inline_lane(payload, field))
    set_bit(row, lane)
    save(cell + WORD_BYTES, fresh)
    return ADDED


@helper
def widen(table, segment, cell, payload, lane):  # type: ignore[no-untyped-def]
    fresh = take_row(table, segment, class_for(lane))
    if fresh == ZERO:
        return NEEDS_ROW
    old, row = row_of(table, segment, payload), row_of(table, segment, fresh)
    for word in range(row_words(payload)):
        save(row + WORD_BYTES * word, load(old + WORD_BYTES * word))
    set_bit(row, lane)
    free_row(table, segment, payload)
    save(cell + WORD_BYTES, fresh)
    return ADDED


@helper
def drop_lane(table, segment, cell, lane):  # type: ignore[no-untyped-def]
    """DROPPED, WAS_MISSING, or IS_EMPTY: it was the last one, and the payload is 0 now."""
    payload = load(cell + WORD_BYTES)
    if not has_lane(table, segment, payload, lane):
        return WAS_MISSING
    if is_row(payload):
        word = row_of(table, segment, payload) + WORD_BYTES * (lane >> 6)
        save(word, load(word) & ~(ONE << np.uint64(lane & 63)))
        shrink_row(table, segment, cell, payload)
    else:
        save(cell + WORD_BYTES, without_lane(payload, lane))
    return IS_EMPTY if load(cell + WORD_BYTES) == ZERO else DROPPED


@helper
def without_lane(payload, lane):  # type: ignore[no-untyped-def]
    kept, count = ZERO, ZERO
    for field in range(np.int64(payload >> S48)):
        own = inline_lane(payload, field)
        if own != lane:
            kept |= np.uint64(own) << (S16 * count)
            count += ONE
    return kept | (count << S48)


@helper
def shrink_row(table, segment, cell, payload):  # type: ignore[no-untyped-def]
    """A row of three lanes or fewer becomes inline."""
    row, count = row_of(table, segment, payload), ZERO
    for word in range(row_words(payload)):
        count += count_bits(load(row + WORD_BYTES * word))
    if count > np.uint64(MAX_INLINE):
        return
    kept, field = count << S48, ZERO
    for word in range(row_words(payload)):
        bits = load(row + WORD_BYTES * word)
        while bits:
            kept |= (np.uint64(64 * word) + lowest_bit(bits)) << (S16 * field)
            field += ONE
            bits &= bits - ONE
    free_row(table, segment, payload)
    save(cell + WORD_BYTES, kept)


@helper
def read_set(table, segment, payload, words):  # type: ignore[no-untyped-def]
    """Add the set's lanes to `words`, 64 lanes each; lanes beyond them are left out."""
    if is_row(payload):
        row = row_of(table, segment, payload)
        for word in range(min(row_words(payload), len(words))):
            words[word] |= load(row + WORD_BYTES * word)
        return
    for field in range(np.int64(payload >> S48)):
        lane = inline_lane(payload, field)
        if (lane >> 6) < len(words):
            words[lane >> 6] |= ONE << np.uint64(lane & 63)


@kernel("void(int64[:, ::1], int64, int64, int64)")
def move_rows(table, segment, arena, num_words):  # type: ignore[no-untyped-def]
    """Take the segment's rows, packed, to an array of `num_words` at address `arena`."""
    start, top = table[segment, CELLS], 0
    for at in range(table[segment, CAPACITY]):
        cell = start + CELL_BYTES * at
        payload = load(cell + WORD_BYTES)
        if not is_row(payload):
            continue
        old = row_of(table, segment, payload)
        for word in range(row_words(payload)):
            save(arena + WORD_BYTES * (top + word), load(old + WORD_BYTES * word))
        save(cell + WORD_BYTES, (payload & ~OFFSET) | np.uint64(top))
        top += row_words(payload)
    table[segment, ARENA], table[segment, ARENA_WORDS] = arena, num_words
    table[segment, ARENA_TOP], table[segment, ARENA_LIVE] = top, top
    for size in range(NUM_ROW_CLASSES):
        table[segment, FREE_ROWS + size] = 0


KERNELS = (move_rows,)
