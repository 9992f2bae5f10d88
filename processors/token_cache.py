"""Token ids of texts that come again: a conversation that grows is tokenized only where it is new."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from sys import getsizeof

import numpy as np
import numpy.typing as npt

__all__ = ["TokenCache", "TokenCacheStats"]

Ids = npt.NDArray[np.int32]

#: What an entry costs beside its text and its ids: the array's and the table's own bytes.
_ENTRY_BYTES = 250


@dataclass(frozen=True, slots=True)
class TokenCacheStats:
    """Since the start: parts found and not found, and the tokens of each; and what is held now."""

    hits: int = 0
    misses: int = 0
    hit_tokens: int = 0
    missed_tokens: int = 0
    entries: int = 0
    bytes: int = 0


class TokenCache:
    """Parts of prompts and their ids, least recently used first out. Safe from several threads.

    The text itself is the key: no hash can mistake one part for another.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, Ids] = OrderedDict()
        self._bytes = 0
        self._hits = self._misses = self._hit_tokens = self._missed_tokens = 0
        self._lock = threading.Lock()

    def ids_of(self, parts: Sequence[str], encode: Callable[[list[str]], list[Ids]]) -> list[Ids]:
        """The ids of each part; `encode` is called once, outside the lock, for those that are not held."""
        with self._lock:
            found = [self._get(part) for part in parts]
        missing = list(dict.fromkeys(p for p, ids in zip(parts, found, strict=True) if ids is None))
        new = dict(zip(missing, encode(missing), strict=True)) if missing else {}
        result = [new[p] if ids is None else ids for p, ids in zip(parts, found, strict=True)]
        with self._lock:
            self._count(found, result)
            for part, ids in new.items():
                self._put(part, ids)
        return result

    @property
    def stats(self) -> TokenCacheStats:
        with self._lock:
            return TokenCacheStats(
                self._hits,
                self._misses,
                self._hit_tokens,
                self._missed_tokens,
                len(self._entries),
                self._bytes,
            )

    def check_integrity(self) -> None:
        """
        Raises:
            AssertionError: the bytes counted are not those held, or more than allowed.
        """
        with self._lock:
            held = sum(_size(part, ids) for part, ids in self._entries.items())
            assert held == self._bytes <= self._max_bytes, (held, self._bytes, self._max_bytes)

    def _get(self, part: str) -> Ids | None:
        ids = self._entries.get(part)
        if ids is not None:
            self._entries.move_to_end(part)
        return ids

    def _count(self, found: Sequence[Ids | None], result: Sequence[Ids]) -> None:
        for before, ids in zip(found, result, strict=True):
            if before is None:
                self._misses += 1
                self._missed_tokens += len(ids)
            else:
                self._hits += 1
                self._hit_tokens += len(ids)

    def _put(self, part: str, ids: Ids) -> None:
        size = _size(part, ids)
        if size > self._max_bytes or part in self._entries:
            return
        self._entries[part] = ids
        self._bytes += size
        while self._bytes > self._max_bytes:
            old_part, old_ids = self._entries.popitem(last=False)
            self._bytes -= _size(old_part, old_ids)


def _size(part: str, ids: Ids) -> int:
    return getsizeof(part) + ids.nbytes + _ENTRY_BYTES
