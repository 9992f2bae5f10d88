"""The KV cache as sequences use it: vLLM 0.32's `KVCacheManager` with one group of full attention.

Everything that it changes becomes an event, in vLLM's order; a lower tier, if there is one, takes in what the
GPU evicts.
"""

from __future__ import annotations

from typing import NamedTuple

from simulation.blocks import BlockPool
from simulation.events import Cleared, Event, Removed, Stored
from simulation.lower_tier import LowerTier
from simulation.sequence import Sequence
from simulation.spec import EngineSpec

__all__ = ["Found", "KvCache"]


class Found(NamedTuple):
    """What a sequence need not compute: blocks that are held, and further ones in the lower tier."""

    hits: list[int]
    loaded: int

    @property
    def num_blocks(self) -> int:
        return len(self.hits) + self.loaded


class KvCache:
    """Blocks of all sequences of one engine."""

    def __init__(self, spec: EngineSpec) -> None:
        self._block_size = spec.block_size
        self._caching = spec.enable_prefix_caching
        self.pool = BlockPool(spec.num_blocks, enable_prefix_caching=spec.enable_prefix_caching)
        self.lower = LowerTier(spec.lower_tier_blocks) if spec.lower_tier_blocks else None
        self._events: list[Event] = []

    def take_events(self) -> tuple[Event, ...]:
        """What has happened since the last call, in order."""
        events = tuple(self._events)
        self._events.clear()
        return events

    def find(self, sequence: Sequence) -> Found:
        """The longest beginning that is held; its last token is always computed."""
        limit = (sequence.num_tokens - 1) // self._block_size
        hits = self.pool.longest_hit(sequence.keys, limit)
        if self.lower is None:
            return Found(hits, 0)
        return Found(hits, self.lower.leading(sequence.keys[len(hits) : limit]))

    def would_fit(self, sequence: Sequence, hits: list[int]) -> bool:
        """Whether the whole of it, as long as it is now, finds blocks (`scheduler_reserve_full_isl`)."""
        missing = -(-sequence.num_tokens // self._block_size) - len(hits)
        return missing + self.pool.count_idle(hits) <= self.pool.num_free

    def adopt(self, sequence: Sequence, found: Found) -> None:
        """Give an admitted sequence what was found for it. `grow` gives it the blocks to load into."""
        self.pool.touch(found.hits)
        count = len(found.hits)
        sequence.blocks = found.hits
        sequence.num_cached_blocks = count
        sequence.next_full = (count + 1) * self._block_size
        if found.loaded and self.lower is not None:
            self.lower.touch(sequence.keys[count : count + found.loaded])

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Blocks for `num_tokens` more tokens; False, and nothing changes, where too few are free."""
        end = sequence.num_computed + num_tokens
        missing = -(-end // self._block_size) - len(sequence.blocks)
        if missing > self.pool.num_free:
            return False
        if missing > 0:
            self._take(sequence, missing)
        self.cache(sequence, min(end, sequence.num_tokens))
        return True

    def _take(self, sequence: Sequence, count: int) -> None:
        blocks, evicted = self.pool.take(count)
        sequence.blocks += blocks
        if evicted:
            self._events.append(Removed(tuple(evicted)))
            if self.lower is not None:
                self._events += self.lower.put(evicted)

    def cache(self, sequence: Sequence, num_tokens: int) -> None:
        """The first `num_tokens` of the sequence are computed: its full blocks can be found."""
        first, end = sequence.num_cached_blocks, num_tokens // self._block_size
        if end <= first or not self._caching:
            return
        self.pool.cache(sequence.blocks[first:end], sequence.keys[first:end])
        parent = sequence.keys[first - 1] if first else None
        request = sequence.request
        self._events.append(Stored(request.request_id, first, request.keys[first:end], parent))
        sequence.num_cached_blocks = end
        sequence.next_full = (end + 1) * self._block_size

    def free(self, sequence: Sequence) -> None:
        """Its full blocks stay findable until they are needed."""
        self.pool.free(sequence.blocks)
        sequence.blocks = []
        sequence.num_cached_blocks = 0
        sequence.next_full = self._block_size

    def clear(self) -> bool:
        """Forget every block; False, and nothing changes, while a sequence holds one."""
        if not self.pool.clear():
            return False
        if self.lower is not None:
            self.lower.clear()
        self._events.append(Cleared())
        return True
