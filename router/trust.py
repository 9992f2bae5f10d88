"""Whether an engine's event stream is believed: too much garbage in it, and nothing of it is."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StreamTrust"]

#: Unreadable batches, less than `CLEAN_BATCHES` apart, that end the trust.
GARBAGE_BATCHES = 3
#: Readable batches in a row that restore it, and that forgive what came before.
CLEAN_BATCHES = 200


@dataclass(slots=True)
class StreamTrust:
    """reason: why the stream is distrusted; empty while it is believed."""

    reason: str = ""
    _num_garbage: int = 0
    _num_clean: int = 0

    @property
    def is_trusted(self) -> bool:
        return not self.reason

    def note_garbage(self, why: str) -> None:
        self._num_garbage += 1
        self._num_clean = 0
        if self._num_garbage >= GARBAGE_BATCHES:
            self.reason = why

    def note_clean(self) -> bool:
        """Returns whether trust has just returned."""
        self._num_clean += 1
        if self._num_clean < CLEAN_BATCHES:
            return False
        was_trusted = self.is_trusted
        self.reason, self._num_garbage, self._num_clean = "", 0, 0
        return not was_trusted
