"""Which chains of keys are under way on which slots: a tree of runs, shared by all slots.

A key names all that lies before it, so a request's keys are a path from the root, and requests with a common
beginning share its runs. Coming and going costs a step a run, not a block, and the runs are the requests'
own arrays: nothing is kept by block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from router.copies import SharedRun

__all__ = ["Chains"]

KeyArray = npt.NDArray[np.uint64]
CountArray = npt.NDArray[np.int32]


@dataclass(slots=True, eq=False)
class _Run:
    """keys: not empty. users: chains through all of it, by slot, never 0; total: their sum.

    children: by their first key.
    """

    keys: KeyArray
    users: dict[int, int] = field(default_factory=dict)
    total: int = 0
    children: dict[int, _Run] = field(default_factory=dict)

    def enter(self, slot: int) -> int:
        """One chain more at `slot`; how many keys are new to it."""
        before = self.users.get(slot, 0)
        self.users[slot] = before + 1
        self.total += 1
        return 0 if before else len(self.keys)

    def leave(self, slot: int) -> int:
        """One chain less; how many keys `slot` has no longer."""
        left = self.users[slot] - 1
        self.total -= 1
        if left:
            self.users[slot] = left
            return 0
        del self.users[slot]
        return len(self.keys)

    def cut(self, length: int) -> None:
        """Keep the first `length` keys; the others, if any, become a child with all that hung here."""
        if length == len(self.keys):
            return
        rest = _Run(self.keys[length:], self.users.copy(), self.total, self.children)
        self.keys = self.keys[:length]
        self.children = {rest.keys.item(0): rest}

    def join_only_child(self) -> None:
        """Undo a cut that nobody needs any more: all chains go on to the one child."""
        if len(self.children) != 1:
            return
        (child,) = self.children.values()
        if child.total == self.total:
            self.keys = np.concatenate([self.keys, child.keys])
            self.children = child.children


class Chains:
    """Chains of keys by slot, each counted; arrays have shape (n,), uint64, and are not changed.

    Two sequences share what they begin with alike; for keys of one scheme that is the same as sharing
    keys. One owner reads and changes it.
    """

    def __init__(self) -> None:
        self._roots: dict[int, _Run] = {}
        self._counts: dict[int, int] = {}  # by slot, never 0

    def acquire(self, slot: int, keys: KeyArray) -> int:
        """One chain more at `slot`; how many of its blocks were not under way there before."""
        added, at, children = 0, 0, self._roots
        while at < len(keys):
            first = keys.item(at)
            run = children.get(first)
            if run is None:
                run = children[first] = _Run(keys[at:])
            else:
                run.cut(_common(run.keys, keys[at:]))
            added += run.enter(slot)
            at += len(run.keys)
            children = run.children
        self._count(slot, added)
        return added

    def release(self, slot: int, keys: KeyArray) -> int:
        """One chain less; how many blocks are no longer under way at `slot`.

        Raises:
            KeyError: the chain was never acquired there.
        """
        gone, at, children = 0, 0, self._roots
        last: _Run | None = None
        while at < len(keys):
            first = keys.item(at)
            run = children[first]
            gone += run.leave(slot)
            at += len(run.keys)
            if not run.total:
                # No other chain goes through here, so the rest of this one is all that hangs here.
                del children[first]
                gone += len(keys) - at
                break
            last, children = run, run.children
        if last is not None:
            last.join_only_child()
        self._count(slot, -gone)
        return gone

    def count(self, slot: int) -> int:
        """Distinct blocks under way at `slot`."""
        return self._counts.get(slot, 0)

    def total(self) -> int:
        """(slot, block) pairs under way."""
        return sum(self._counts.values())

    def reach(self, keys: KeyArray) -> dict[int, int]:
        """By slot, how many leading `keys` are under way there; slots with none are left out."""
        reached: dict[int, int] = {}
        for run, at, length in self._path(keys):
            reached.update(dict.fromkeys(run.users, at + length))
        return reached

    def would_add(self, keys: KeyArray, num_slots: int) -> CountArray:
        """By slot, how many blocks `acquire` would add; shape (num_slots,)."""
        added = np.full(num_slots, len(keys), dtype=np.int32)
        for slot, length in self.reach(keys).items():
            added[slot] -= length
        return added

    def shared(self, keys: KeyArray) -> list[SharedRun]:
        """The parts of `keys` that are under way, from the beginning on; each ends where somebody left."""
        runs = self._path(keys)
        return [SharedRun(at + length, run.total, len(run.users)) for run, at, length in runs]

    def _path(self, keys: KeyArray) -> Iterator[tuple[_Run, int, int]]:
        """The runs that `keys` go along: each with its place, and how many of its keys are theirs."""
        at, children = 0, self._roots
        while at < len(keys):
            run = children.get(keys.item(at))
            if run is None:
                return
            length = _common(run.keys, keys[at:])
            yield run, at, length
            if length < len(run.keys):
                return
            at += length
            children = run.children

    def _count(self, slot: int, more: int) -> None:
        count = self._counts.get(slot, 0) + more
        if count:
            self._counts[slot] = count
        else:
            self._counts.pop(slot, None)

    def check_integrity(self) -> None:
        """Raise AssertionError where runs and counts contradict each other."""
        counts: dict[int, int] = {}
        waiting = [(self._roots, -1)]
        while waiting:
            children, total = waiting.pop()
            assert total < 0 or sum(run.total for run in children.values()) <= total, "chains from nowhere"
            for first, run in children.items():
                assert len(run.keys) and run.keys.item(0) == first, "a run that its key does not name"
                assert 0 < run.total == sum(run.users.values()), "a run that nobody uses"
                assert min(run.users.values()) > 0, "a user without a chain"
                only = len(run.children) == 1 and next(iter(run.children.values())).total == run.total
                assert not only, "a run that should be one with its child"
                for slot in run.users:
                    counts[slot] = counts.get(slot, 0) + len(run.keys)
                waiting.append((run.children, run.total))
        assert counts == self._counts, "counts by slot are wrong"


def _common(one: KeyArray, other: KeyArray) -> int:
    """How many keys they begin with alike."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    first = int(differs.argmax())
    return first if differs[first] else length
