"""Lanes: the small numbers under which the compiled tables know their workers.

A lane that is given up stays in the tables until a pass over them has taken it out, a slice at a time;
only then is it given again. So neither a worker's leaving nor a new table of its own touches every block.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from router.keys import RouterError

__all__ = ["Lanes", "TooManyWorkers"]


class TooManyWorkers(RouterError):
    """More workers than the tables have lanes for."""


class Lanes:
    """live: the lanes in use, 64 a word, shape (words,), uint64. slots: by lane, int32, -1 where free."""

    def __init__(self, limit: int) -> None:
        self.live = np.zeros(1, dtype=np.uint64)
        self.slots = np.full(64, -1, dtype=np.int32)
        self._limit = limit
        self._num_lanes = 0
        self._free: list[int] = []
        self._given_up: list[int] = []

    @property
    def num_given_up(self) -> int:
        return len(self._given_up)

    @property
    def is_full(self) -> bool:
        return not self._free and self._num_lanes >= self._limit

    def check_room(self) -> None:
        """Whether `take` may be called.

        Raises:
            TooManyWorkers: all lanes are in use, or not yet free.
        """
        if self.is_full:
            raise TooManyWorkers(f"the block index knows at most {self._limit} workers at a time")

    def take(self, slot: int) -> int:
        """A lane for `slot`; there must be room."""
        lane = self._free.pop() if self._free else self._new_lane()
        self.live[lane >> 6] |= np.uint64(1 << (lane & 63))
        self.slots[lane] = slot
        return lane

    def _new_lane(self) -> int:
        lane = self._num_lanes
        self._num_lanes += 1
        if lane >= len(self.slots):
            more = len(self.slots)
            self.slots = np.concatenate([self.slots, np.full(more, -1, dtype=np.int32)])
            self.live = np.concatenate([self.live, np.zeros(more // 64, dtype=np.uint64)])
        return lane

    def give_up(self, lane: int) -> None:
        """Nothing in the tables counts for `lane` any more."""
        self.live[lane >> 6] &= ~np.uint64(1 << (lane & 63))
        self.slots[lane] = -1
        self._given_up.append(lane)

    def given_up(self) -> list[int]:
        """Those to be taken out by a pass that begins now."""
        lanes, self._given_up = self._given_up, []
        return lanes

    def free(self, lanes: list[int]) -> None:
        """They are in no table any more."""
        self._free.extend(lanes)

    def in_use(self) -> npt.NDArray[np.int64]:
        return np.flatnonzero(self.slots >= 0)
