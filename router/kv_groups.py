"""Which prefix an engine with several KV cache groups takes from its cache.

The rule of vLLM 0.32 (`HybridKVCacheCoordinator.find_longest_cache_hit`): start from the longest length
that may hit, let every kind of group in turn accept it or shorten it, and begin again until nobody does.

    full attention     every block below the length is held
    sliding window     the blocks that cover the window before the length are held
    chunked attention  the blocks from the start of the last attention chunk on are held
    mamba              the state block that ends at the length is held

Every length is a multiple of the least common multiple of the groups' block sizes. A block is named by the
key of its end, in units of the contract's block size, which divides all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sightline_types import KvGroup, WorkerContract

__all__ = ["bad_groups", "cached_tokens", "group_sizes", "is_plain", "is_predictable"]

Presence = npt.NDArray[np.bool_]

_FULL = frozenset({"full_attention", "mla_attention"})
_WINDOW = frozenset({"sliding_window", "sliding_window_mla"})
_CHUNK = "chunked_local_attention"
_STATE = "mamba"
_KNOWN = _FULL | _WINDOW | {_CHUNK, _STATE}


def group_sizes(contract: WorkerContract) -> tuple[int, ...]:
    """Tokens a block, by group."""
    return tuple(group.block_size or contract.block_size for group in contract.kv_groups)


def is_plain(contract: WorkerContract) -> bool:
    """Whether the leading run of held blocks is all there is to it: one group with full attention."""
    return tuple(group.kind for group in contract.kv_groups) == ("full_attention",)


def bad_groups(contract: WorkerContract) -> str | None:
    """What is wrong with the groups of a contract, in words; None where nothing is."""
    if not contract.kv_groups:
        return "kv_groups is empty; it names each KV cache group's kind"
    for group, size in zip(contract.kv_groups, group_sizes(contract), strict=True):
        if size < 1 or size % contract.block_size:
            return (
                f"block_size={size} of its KV cache group {group.index} ({group.kind}); it must be a "
                f"multiple of the contract's block_size={contract.block_size}"
            )
    indices = [group.index for group in contract.kv_groups]
    if len(set(indices)) < len(indices):
        return f"kv_groups numbers {indices}; each group must have a number of its own"
    return None


def is_predictable(contract: WorkerContract) -> bool:
    """Whether `cached_tokens` is known to be what the engine does.

    Not with EAGLE's dropped blocks among several groups, nor where a mamba state may be found inside a
    block (vLLM's partial hits: mamba blocks larger than the unit of hashing).
    """
    groups = contract.kv_groups
    if is_plain(contract):
        return group_sizes(contract) == (contract.block_size,)
    if contract.drops_last_matched_block or any(group.kind not in _KNOWN for group in groups):
        return False
    if any(group.kind in _WINDOW | {_CHUNK} and group.window < 1 for group in groups):
        return False
    sizes = group_sizes(contract)
    if any(g.kind == _CHUNK for g in groups) and len(set(sizes)) > 1:
        return False  # vLLM asserts that they are equal
    return all(g.kind != _STATE or size == contract.block_size for g, size in zip(groups, sizes, strict=True))


def cached_tokens(contract: WorkerContract, presence: Sequence[Presence], max_tokens: int) -> int:
    """The longest prefix, in tokens, of at most `max_tokens`, that every group accepts.

    presence: by group, which keys of the prompt are held, shape (n,): one key per `contract.block_size`
        tokens.
    """
    sizes = group_sizes(contract)
    alignment = math.lcm(*sizes)
    merged = _merge(contract, presence)
    hit = min(max_tokens, contract.block_size * min((len(held) for held in presence), default=0))
    while True:
        before = hit
        for group, held in merged:
            hit = _group_hit(group, held, hit, alignment)
        if hit >= before or hit == 0:
            return hit


def _merge(contract: WorkerContract, presence: Sequence[Presence]) -> list[tuple[KvGroup, Presence]]:
    """Groups of one kind hit together: a block counts where each of them holds it. Full attention first."""
    merged: dict[KvGroup, Presence] = {}
    for group, size, held in zip(contract.kv_groups, group_sizes(contract), presence, strict=True):
        step = size // contract.block_size
        kind = KvGroup(group.kind, size, group.window)
        blocks = held[step - 1 :: step]
        merged[kind] = merged[kind] & blocks if kind in merged else blocks
    return sorted(merged.items(), key=lambda item: item[0].kind not in _FULL)


def _group_hit(group: KvGroup, held: Presence, max_tokens: int, alignment: int) -> int:
    size = group.block_size
    blocks = held[: max_tokens // size]
    if group.kind in _FULL:
        return _floor(_run(blocks) * size, alignment)
    if group.kind == _CHUNK:
        start = max_tokens // group.window * group.window // size
        return (start + _run(blocks[start:])) * size
    if group.kind == _STATE:
        ends = (np.flatnonzero(blocks) + 1) * size
        aligned = ends[ends % alignment == 0]
        return int(aligned[-1]) if len(aligned) else 0
    return _window_hit(blocks, size, group.window, alignment)


def _window_hit(blocks: Presence, size: int, window: int, alignment: int) -> int:
    """From the right: the last run that covers the window; else the run at the start."""
    need = max(1, -(-(window - 1) // size))
    run = 0
    for place in range(len(blocks) - 1, -1, -1):
        if not blocks[place]:
            run = 0
            continue
        if run == 0 and (place + 1) * size % alignment:
            continue
        run += 1
        if run >= need:
            return (place + run) * size
    return _floor(run * size, alignment)


def _run(blocks: Presence) -> int:
    """Leading True values."""
    return int(blocks.argmin()) if not blocks.all() else len(blocks)


def _floor(tokens: int, alignment: int) -> int:
    return tokens - tokens % alignment
