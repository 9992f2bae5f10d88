"""The paged KV cache: vLLM 0.32's `BlockPool` for one group of full attention, block for block.

Blocks are numbers from 1 (vLLM's block 0 is the null block, which is never handed out). A block that nobody
references waits in the free queue; it is found by its key until it is handed out again. The free queue has
three parts, in the order in which they are taken:

    spare      blocks without a key (vLLM prepends them; which of them comes first, nobody can tell)
    untouched  blocks never handed out yet, ascending
    evictable  blocks with a key, the longest unused first (vLLM appends them)

vLLM keeps one linked list of the three; they never mix, because only a block with a key is appended and
only one with a key can be taken back by a hit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

__all__ = ["BlockPool"]


class BlockPool:
    """`num_blocks` as vLLM counts them (`num_gpu_blocks`): one of them is the null block."""

    def __init__(self, num_blocks: int, *, enable_prefix_caching: bool = True) -> None:
        self.num_usable = num_blocks - 1
        self.num_free = num_blocks - 1
        self._caching = enable_prefix_caching
        self._spare: list[int] = []
        self._evictable: OrderedDict[int, None] = OrderedDict()
        # Of every block handed out so far, by its number; 0 is "no key".
        self._refs: list[int] = [0]
        self._keys: list[int] = [0]
        # A key's block, or its blocks where it is held several times; the first one serves hits.
        self._cached: dict[int, int | dict[int, None]] = {}

    @property
    def usage(self) -> float:
        """Share of the blocks that requests hold, 0 to 1."""
        return 1.0 - self.num_free / self.num_usable

    @property
    def num_cached_keys(self) -> int:
        """Distinct keys that a request would find."""
        return len(self._cached)

    def longest_hit(self, keys: Sequence[int], limit: int) -> list[int]:
        """The blocks of the leading keys that are held, of at most `limit` keys."""
        hits: list[int] = []
        if not self._caching:
            return hits
        for held in map(self._cached.get, keys[:limit]):
            if held is None:
                break
            hits.append(next(iter(held)) if isinstance(held, dict) else held)
        return hits

    def count_idle(self, blocks: Sequence[int]) -> int:
        """How many of these nobody references: a hit on them takes them out of the free queue."""
        refs = self._refs
        return [refs[block] for block in blocks].count(0)

    def touch(self, blocks: Sequence[int]) -> None:
        """One more request references these blocks."""
        refs, evictable = self._refs, self._evictable
        for block in blocks:
            if not refs[block]:
                del evictable[block]
                self.num_free -= 1
            refs[block] += 1

    def take(self, count: int) -> tuple[list[int], list[int]]:
        """Hand out `count` blocks (at most `num_free`): the blocks, and the keys that they lost."""
        if count > self.num_free:
            raise ValueError(f"{count} blocks asked of {self.num_free} free ones")
        self.num_free -= count
        blocks = self._take_spare(count)
        blocks += self._take_untouched(count - len(blocks))
        if len(blocks) == count:
            return blocks, []
        evictable = self._evictable
        victims = [evictable.popitem(last=False)[0] for _ in range(count - len(blocks))]
        return blocks + victims, self._evict(victims)

    def _evict(self, victims: Sequence[int]) -> list[int]:
        """Their keys, which find them no more."""
        refs, keys, cached = self._refs, self._keys, self._cached
        evicted = []
        for block in victims:
            refs[block] = 1
            if not (key := keys[block]):
                continue  # cleared since it was freed
            keys[block] = 0
            evicted.append(key)
            held = cached.pop(key)
            if isinstance(held, dict) and len(held) > 1:
                del held[block]
                cached[key] = held
        return evicted

    def _take_spare(self, count: int) -> list[int]:
        spare = self._spare
        if not spare or not count:
            return []
        blocks = spare[-count:][::-1]
        del spare[-count:]
        for block in blocks:
            self._refs[block] = 1
        return blocks

    def _take_untouched(self, count: int) -> list[int]:
        first = len(self._refs)
        blocks = list(range(first, min(first + count, self.num_usable + 1)))
        self._refs += [1] * len(blocks)
        self._keys += [0] * len(blocks)
        return blocks

    def cache(self, blocks: Sequence[int], keys: Sequence[int]) -> None:
        """These referenced blocks are full: found by these keys from now on."""
        cached = self._cached
        for block, key in zip(blocks, keys, strict=True):
            self._keys[block] = key
            held = cached.setdefault(key, block)
            if held != block:
                self._add_twin(key, held, block)

    def _add_twin(self, key: int, held: int | dict[int, None], block: int) -> None:
        if isinstance(held, dict):
            held[block] = None
        else:
            self._cached[key] = {held: None, block: None}

    def free(self, blocks: Sequence[int]) -> None:
        """A request gives back its blocks, given in its own order: its last ones are evicted first."""
        refs, keys, evictable = self._refs, self._keys, self._evictable
        for block in reversed(blocks):
            refs[block] -= 1
            if refs[block]:
                continue
            self.num_free += 1
            if keys[block]:
                evictable[block] = None
            else:
                self._spare.append(block)

    def clear(self) -> bool:
        """Forget every key; False, and nothing changes, while a request holds a block."""
        if self.num_free != self.num_usable:
            return False
        self._cached.clear()
        self._keys = [0] * len(self._keys)
        return True

    def check_integrity(self) -> None:
        """Raise AssertionError where the parts contradict each other (tests; slow)."""
        untouched = self.num_usable + 1 - len(self._refs)
        assert self.num_free == len(self._spare) + len(self._evictable) + untouched
        idle = {block for block in range(1, len(self._refs)) if not self._refs[block]}
        assert idle == set(self._spare) | set(self._evictable)
        assert not any(self._keys[block] for block in self._spare)
        holders: dict[int, set[int]] = {}
        for block, key in enumerate(self._keys):
            if key:
                holders.setdefault(key, set()).add(block)
        assert holders == {k: {v} if isinstance(v, int) else set(v) for k, v in self._cached.items()}
