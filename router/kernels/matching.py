"""Leading runs of a request's keys, for all lanes at once."""

from __future__ import annotations

import numpy as np

from router.kernels.cells import (
    ONE,
    WORD_BYTES,
    ZERO,
    find,
    find_from,
    hash_of,
    home_cell,
    load,
    prefetch,
    segment_of,
)
from router.kernels.compiling import helper, kernel
from router.kernels.rows import (
    S48,
    count_bits,
    has_lane,
    inline_lane,
    is_row,
    lowest_bit,
    read_set,
    row_of,
    row_words,
)

__all__ = ["KERNELS", "add_sets", "lengthen_runs", "match_runs", "runs_of_sets", "spread_sets"]

CHUNK = 32


@helper
def note(counts, slots, gone, word, count):  # type: ignore[no-untyped-def]
    """The lanes in `gone` have exactly `count` leading blocks."""
    while gone:
        counts[slots[64 * word + np.int64(lowest_bit(gone))]] = count
        gone &= gone - ONE


@helper
def keep(left, word, kept, counts, slots, count):  # type: ignore[no-untyped-def]
    """Only `kept` of a word stay in `left`; how many went."""
    gone = left[word] & ~kept
    if not gone:
        return 0
    left[word] &= kept
    note(counts, slots, gone, word, count)
    return np.int64(count_bits(gone))


@helper
def narrow_to_words(left, num_left, words, counts, slots, count):  # type: ignore[no-untyped-def]
    """Who is in `words` too stays in `left`; how many these are."""
    for word in range(len(left)):
        num_left -= keep(left, word, words[word], counts, slots, count)
    return num_left


@helper
def narrow_to_row(left, num_left, row, num_words, counts, slots, count):  # type: ignore[no-untyped-def]
    for word in range(len(left)):
        kept = load(row + WORD_BYTES * word) if word < num_words else ZERO
        num_left -= keep(left, word, kept, counts, slots, count)
    return num_left


@helper
def narrow(table, segment, payload, left, num_left, words, counts, slots, count):  # type: ignore[no-untyped-def]
    """The same for a payload's set. words: to work in."""
    if is_row(payload):
        row = row_of(table, segment, payload)
        return narrow_to_row(left, num_left, row, row_words(payload), counts, slots, count)
    kept = 0
    for field in range(np.int64(payload >> S48)):
        lane = inline_lane(payload, field)
        if (lane >> 6) < len(left) and (left[lane >> 6] >> np.uint64(lane & 63)) & ONE:
            kept += 1
    if kept == num_left:
        return num_left
    clear(words)
    read_set(table, segment, payload, words)
    return narrow_to_words(left, num_left, words, counts, slots, count)


@helper
def clear(words):  # type: ignore[no-untyped-def]
    for word in range(len(words)):
        words[word] = ZERO


@helper
def payload_of(table, key):  # type: ignore[no-untyped-def]
    hashed = hash_of(key)
    segment = segment_of(table, hashed)
    found = find(table, segment, hashed, key)
    return load(found + WORD_BYTES) if found > 0 and key != ZERO else ZERO


@helper
def read_chunk(table, keys, first, segments, payloads):  # type: ignore[no-untyped-def]
    """Payloads of the next chunk of keys (0: none), in three rounds, so that memory is read side by side."""
    count = min(CHUNK, len(keys) - first)
    for at in range(count):
        hashed = hash_of(keys[first + at])
        segments[at] = segment_of(table, hashed)
        cell = home_cell(table, segments[at], hashed)
        payloads[at] = np.uint64(cell)
        prefetch(cell)
    for at in range(count):
        key = keys[first + at]
        found = find_from(table, segments[at], np.int64(payloads[at]), key)
        payloads[at] = load(found + WORD_BYTES) if found > 0 and key != ZERO else ZERO
        if is_row(payloads[at]):
            prefetch(row_of(table, segments[at], payloads[at]))
    return count


@helper
def count_lanes(words):  # type: ignore[no-untyped-def]
    count = ZERO
    for word in range(len(words)):
        count += count_bits(words[word])
    return np.int64(count)


@kernel("void(int64[:, ::1], Array(uint64, 1, 'C', readonly=True), uint64[::1], int32[::1], int32[::1])")
def match_runs(table, keys, live, slots, counts):  # type: ignore[no-untyped-def]
    """By slot, the leading keys held. slots: by lane."""
    segments, payloads = np.empty(CHUNK, dtype=np.int64), np.empty(CHUNK, dtype=np.uint64)
    left, words, num_left = live.copy(), np.empty_like(live), count_lanes(live)
    first = 0
    while first < len(keys) and num_left > 0:
        for at in range(read_chunk(table, keys, first, segments, payloads)):
            num_left = narrow(
                table, segments[at], payloads[at], left, num_left, words, counts, slots, first + at
            )
            if num_left == 0:
                break
        first += CHUNK
    finish(left, counts, slots, len(keys))


@kernel("void(int64[:, ::1], Array(uint64, 1, 'C', readonly=True), int64[::1], int64[::1])")
def lengthen_runs(table, keys, lanes, lengths):  # type: ignore[no-untyped-def]
    """To each lane's length, add how many keys in a row it holds from there on."""
    for at in range(len(lanes)):
        lane, block = lanes[at], lengths[at]
        while block < len(keys):
            segment = segment_of(table, hash_of(keys[block]))
            if not has_lane(table, segment, payload_of(table, keys[block]), lane):
                break
            block += 1
        lengths[at] = block


@helper
def finish(left, counts, slots, count):  # type: ignore[no-untyped-def]
    for word in range(len(left)):
        note(counts, slots, left[word], word, count)


@kernel("void(int64[:, ::1], Array(uint64, 1, 'C', readonly=True), uint64[:, ::1])")
def add_sets(table, keys, sets):  # type: ignore[no-untyped-def]
    """Add each key's lanes to its row of `sets`, shape (n, words)."""
    for at in range(len(keys)):
        segment = segment_of(table, hash_of(keys[at]))
        read_set(table, segment, payload_of(table, keys[at]), sets[at])


@kernel("void(uint64[:, ::1], uint64[::1], int32[::1], int32[::1])")
def runs_of_sets(sets, live, slots, counts):  # type: ignore[no-untyped-def]
    """By slot, how many leading rows of `sets` its lane is in."""
    left, num_left = live.copy(), count_lanes(live)
    for at in range(len(sets)):
        num_left = narrow_to_words(left, num_left, sets[at], counts, slots, at)
        if num_left == 0:
            return
    finish(left, counts, slots, len(sets))


@kernel("void(uint64[:, ::1], uint64[::1], int32[::1], boolean[:, ::1])")
def spread_sets(sets, live, slots, found):  # type: ignore[no-untyped-def]
    """found[slot, i]: whether the slot's lane is in row i of `sets`."""
    for at in range(len(sets)):
        for word in range(len(live)):
            bits = sets[at, word] & live[word]
            while bits:
                found[slots[64 * word + np.int64(lowest_bit(bits))], at] = True
                bits &= bits - ONE


KERNELS = (match_runs, lengthen_runs, add_sets, runs_of_sets, spread_sets)
