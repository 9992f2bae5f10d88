"""Where each client session was served last; bounded, the longest unused go first."""

from __future__ import annotations

from collections import OrderedDict

from sightline_types import WorkerId

__all__ = ["Sessions"]


class Sessions:
    """By the session's 64 bits."""

    def __init__(self, capacity: int, ttl_s: float) -> None:
        self.capacity = capacity
        self.ttl_s = ttl_s
        self._homes: OrderedDict[int, tuple[WorkerId, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._homes)

    def home(self, session: int | None, now: float) -> WorkerId | None:
        """None where it has none, or was not seen for `ttl_s`."""
        if session is None:
            return None
        worker, at = self._homes.get(session, (None, now))
        return worker if now - at < self.ttl_s else None

    def settle(self, session: int | None, worker: WorkerId, now: float) -> None:
        if session is None:
            return
        self._homes[session] = worker, now
        self._homes.move_to_end(session)
        while len(self._homes) > self.capacity:
            self._homes.popitem(last=False)

    def forget(self, worker: WorkerId) -> None:
        """Its sessions are free to go anywhere."""
        for session in [s for s, (home, _) in self._homes.items() if home == worker]:
            del self._homes[session]
