"""All candidates of one request, scored in one pass over the rows of the workers that may take it.

The compiled form is kept by this file's own size and age: who changes `router.cost` touches it, too.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from router.columns import CANDIDATE, MAX_TOKENS, Rows
from router.compiling import compiled, records
from router.cost import Weights, prefill_ms, pressure_ms, wait_ms
from router.index import CountArray
from router.usable import usable_blocks
from sightline_types import KeyedView, RouteQuery

__all__ = ["Asked", "Found", "Permits", "asked", "cheapest", "credit_blocks", "most_held", "score_candidates"]

IntArray = npt.NDArray[np.int64]

_NONE: IntArray = np.empty(0, dtype=np.int64)
_NO_BLOCKS: npt.NDArray[np.int32] = np.frombuffer(b"", dtype=np.int32)  # read-only, as those of a view
_NOTHING, _BEFORE_MEDIA = 0, 1  # as in `router.credit.Extent`


class Asked(NamedTuple):
    """One request in numbers, for one key spec.

    num_keys: blocks that have keys. prefix_keys: those before the first media item.
    media_blocks: ascending. item_ends, item_tokens: of each media item of exact layout, the token position
    of its end and its encoder tokens. media_tokens: of all items, estimates included. copy_*: `DueCopy`.
    """

    num_tokens: int
    num_keys: int
    prefix_keys: int
    media_tokens: int
    media_blocks: npt.NDArray[np.int32]
    item_ends: IntArray
    item_tokens: IntArray
    copy_blocks: int = 0
    copy_share: float = 1.0


class Found(NamedTuple):
    """By slot: leading blocks held, held or expected, and held in any tier."""

    held: CountArray
    expected: CountArray
    lower: CountArray


class Permits(NamedTuple):
    """By slot: `Extent` of the credit, the same if the worker were trusted, and the reason's code."""

    extent: npt.NDArray[np.uint8]
    shadow: npt.NDArray[np.uint8]
    reason: npt.NDArray[np.uint8]


def asked(query: RouteQuery, view: KeyedView | None, block_size: int) -> Asked:
    ends, tokens = _items(query, view)
    num_keys = len(view.keys) // 8 if view is not None else 0
    prefix = (query.first_media_offset or 0) // block_size
    return Asked(
        min(query.num_tokens, MAX_TOKENS),
        num_keys,
        min(num_keys, prefix),
        min(query.media_tokens, MAX_TOKENS),
        view.media_block_array() if view is not None else _NO_BLOCKS,
        _integers(ends),
        _integers(tokens),
    )


def _integers(values: Sequence[int]) -> IntArray:
    """Three times as fast as numpy's own way from a tuple."""
    return np.frombuffer(array("q", values), dtype=np.int64) if values else _NONE


def _items(query: RouteQuery, view: KeyedView | None) -> tuple[list[int], list[int]]:
    if query.spans:
        return [span.end for span in query.spans], [span.num_embeds for span in query.spans]
    ends = view.media_ends if view is not None else ()
    return [end for end, _ in ends], [tokens for _, tokens in ends]


def score_candidates(
    workers: Rows,
    slots: npt.NDArray[np.intp],
    request: Asked,
    found: Found,
    permits: Permits,
    encoded: npt.NDArray[np.bool_],
    weights: Weights,
) -> Rows:
    """`CANDIDATE` rows of the workers at `slots`, in that order.

    workers: `WORKER` rows by slot. encoded: shape (items, candidates); items beyond it are not encoded.
    """
    rows = np.zeros(len(slots), CANDIDATE)
    in_, out = records(workers, _score_all), records(rows, _score_all)
    _score_all(in_, slots, request, found, permits, encoded, weights, out)
    return rows


def credit_blocks(extent: int, query: RouteQuery, view: KeyedView, block_size: int) -> int:
    """How many of the view's blocks may earn anything."""
    return _extent_blocks(int(extent), asked(query, view, block_size))


def cheapest(rows: Rows, within_ms: float) -> npt.NDArray[np.int64]:
    """Which `CANDIDATE` rows cost the least, or `within_ms` of that, ascending. There is one at least."""
    return _cheapest(records(rows, _cheapest), within_ms)


def most_held(rows: Rows) -> int:
    """The most cached tokens that any of the `CANDIDATE` rows foresees."""
    return int(_most_held(records(rows, _most_held)))


@compiled
def _cheapest(rows: Any, within_ms: float) -> npt.NDArray[np.int64]:
    limit = rows[0].cost_ms
    for row in range(1, len(rows)):
        limit = min(limit, rows[row].cost_ms)
    limit += within_ms
    best, count = np.empty(len(rows), dtype=np.int64), 0
    for row in range(len(rows)):
        if rows[row].cost_ms <= limit:
            best[count] = row
            count += 1
    return best[:count]


@compiled
def _most_held(rows: Any) -> int:
    most = 0
    for row in range(len(rows)):
        most = max(most, rows[row].overlap * rows[row].block_size)
    return most


@compiled
def _extent_blocks(extent: int, request: Asked) -> int:
    if extent == _NOTHING:
        return 0
    if extent == _BEFORE_MEDIA:
        return request.prefix_keys
    return request.num_keys


@compiled
def _encode_tokens(
    request: Asked, cached_tokens: int, encoded: npt.NDArray[np.bool_], row: int
) -> tuple[int, int]:
    """Encoder tokens to be computed, and those that the encoder cache saves. Media of unknown layout are
    never covered; an item of which the prefix covers only a part is encoded as a whole."""
    left, saved = request.media_tokens, 0
    for item in range(len(request.item_ends)):
        if request.item_ends[item] <= cached_tokens:
            left -= request.item_tokens[item]
        elif item < encoded.shape[0] and encoded[item, row]:
            left -= request.item_tokens[item]
            saved += request.item_tokens[item]
    return max(0, left), saved


@compiled
def _score_all(
    workers: Any,
    slots: Any,
    request: Asked,
    found: Found,
    permits: Permits,
    encoded: Any,
    weights: Weights,
    rows: Any,
) -> None:
    n = request.num_tokens
    for row in range(len(slots)):
        slot = slots[row]
        worker, out = workers[slot], rows[row]
        size, drops = worker.block_size, worker.drops_last
        limit = _extent_blocks(permits.extent[slot], request)
        shadow_limit = _extent_blocks(permits.shadow[slot], request)
        overlap = usable_blocks(min(found.held[slot], limit), n, size, drops)
        expected = usable_blocks(min(found.expected[slot], limit), n, size, drops)
        lower = usable_blocks(min(found.lower[slot], limit), n, size, drops)
        out.slot, out.block_size, out.credit_blocks = slot, size, limit
        out.overlap, out.expected, out.lower = overlap, expected, max(lower, overlap)
        out.shadow = usable_blocks(min(found.held[slot], shadow_limit), n, size, drops)
        out.shadow_expected = usable_blocks(min(found.expected[slot], shadow_limit), n, size, drops)
        out.total, out.media_total = n // size, len(request.media_blocks)
        out.media_overlap = np.searchsorted(request.media_blocks, overlap)
        out.reason, out.has_events = permits.reason[slot], worker.has_events
        cached = max(overlap, expected)
        left, saved = _encode_tokens(request, cached * size, encoded, row)
        out.encode_tokens, out.encoder_cached = left, saved
        due = usable_blocks(min(request.copy_blocks, limit), n, size, drops)
        behind, _ = _encode_tokens(request, max(due, cached) * size, encoded, row)
        _fill_costs(worker, out, n, cached, max(due, cached), left - behind, request.copy_share, weights)


@compiled
def _fill_costs(
    worker: Any, out: Any, n: int, cached: int, due: int, due_media: int, share: float, weights: Weights
) -> None:
    """cached, due: blocks that need not be computed, and that are due here if they are; due_media: encoder
    tokens between the two. share: of computing those, which the request answers for."""
    size = worker.block_size
    rate = worker.prefill_ms_per_token
    strange = max(0, worker.engine_waiting - worker.waiting) * weights.strange_prompt_tokens
    out.wait_ms = wait_ms(
        rate, worker.encode_ms_per_token, worker.prefill_tokens + strange, worker.encode_tokens
    )
    out.encode_ms = worker.encode_ms_per_token * out.encode_tokens
    # Blocks in a lower tier are fetched rather than computed; the prediction does not count them.
    fetched = weights.lower_tier_credit * max(0, out.lower - cached)
    out.prefill_ms = prefill_ms(rate, weights.attention_ms_per_kilotoken2, n, (cached + fetched) * size)
    attention = weights.attention_ms_per_kilotoken2
    spared = prefill_ms(rate, attention, due * size, min(due, cached + fetched) * size)
    spared = (1.0 - share) * (spared + worker.encode_ms_per_token * due_media)
    active = max(worker.requests, worker.engine_running + worker.engine_waiting)
    usage = worker.kv_usage
    if worker.capacity_blocks > 0:
        more = (out.total - out.overlap) / worker.capacity_blocks
        usage = max(worker.decode_blocks / worker.capacity_blocks, usage) + more
    out.pressure_ms = pressure_ms(weights, active, usage, out.encode_ms + out.prefill_ms, spared)
    out.cost_ms = out.wait_ms + out.encode_ms + out.prefill_ms + out.pressure_ms
