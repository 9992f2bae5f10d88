"""The candidates of one decision: columns while it is made and kept, objects when somebody reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from router.columns import CANDIDATE, CandidateRow, Rows
from sightline_types import CandidateScore, DegradeReason, MediaOverlap, MediaSpan, WorkerId

__all__ = ["CandidateTable", "PackedCandidates", "code_of", "reason_of", "reasons_of"]

_REASONS = tuple(DegradeReason)
_CODES = {reason: code for code, reason in enumerate(_REASONS, 1)}


def code_of(reason: DegradeReason | None) -> int:
    """How a row says it: 0 for none."""
    return 0 if reason is None else _CODES[reason]


def reason_of(code: int) -> DegradeReason | None:
    return _REASONS[code - 1] if code else None


def reasons_of(row: CandidateRow) -> tuple[DegradeReason, ...]:
    """Why the candidate is less than exact."""
    reason = reason_of(row.reason)
    named = () if reason is None else (reason,)
    return named if row.has_events else (*named, DegradeReason.KV_EVENTS_OFF)


@dataclass(frozen=True, slots=True)
class PackedCandidates:
    """A table as it travels: rows in the order of their places, as bytes."""

    rows: bytes
    workers: tuple[WorkerId, ...]
    spans: tuple[MediaSpan, ...]
    encoded: bytes | None

    def unpack(self) -> CandidateTable:
        """Raises:
        ValueError: the bytes are no rows.
        """
        rows = np.frombuffer(self.rows, CANDIDATE)
        encoded = None
        if self.encoded is not None:
            encoded = np.frombuffer(self.encoded, np.bool_).reshape(len(self.spans), len(rows))
        return CandidateTable(rows, self.workers, self.spans, encoded)


class CandidateTable(Sequence[CandidateScore]):
    """rows: `CANDIDATE`, shape (n,). workers: of the rows, in their order.

    spans: the request's media. encoded: shape (len(spans), n): whose encoder output each row's worker is
    thought to have; None where it has none. first: the row of the chosen candidate.

    As a sequence the chosen one comes first, then the others, cheapest first; the rows stay where they are,
    and their order is found when somebody reads beyond the first. Without a chosen one: as the rows.
    """

    __slots__ = ("_encoded", "_first", "_order", "_spans", "_workers", "rows")

    def __init__(
        self,
        rows: Rows,
        workers: Sequence[WorkerId],
        spans: tuple[MediaSpan, ...] = (),
        encoded: npt.NDArray[np.bool_] | None = None,
        first: int | None = None,
    ) -> None:
        self.rows = rows
        self._workers = workers
        self._spans = spans
        self._encoded = encoded
        self._first = first
        self._order: npt.NDArray[np.intp] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[CandidateScore]:
        return (self._score(self._row_at(place)) for place in range(len(self.rows)))

    @overload
    def __getitem__(self, index: int) -> CandidateScore: ...
    @overload
    def __getitem__(self, index: slice) -> CandidateTable: ...
    def __getitem__(self, index: int | slice) -> CandidateScore | CandidateTable:
        if isinstance(index, slice):
            return self.take(self._ranking()[index])
        if not -len(self.rows) <= index < len(self.rows):
            raise IndexError(index)
        return self._score(self._row_at(index % len(self.rows)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        """Rows as bytes: numpy would describe their columns each time."""
        return _unpack, (
            self.rows.tobytes(), tuple(self._workers), self._spans, self._encoded, self._first, self._order
        )  # fmt: skip

    def pack(self) -> PackedCandidates:
        table = self
        if self._first is not None or self._order is not None:
            table = self.take(self._ranking())
        encoded = None if table._encoded is None else table._encoded.tobytes()
        return PackedCandidates(table.rows.tobytes(), tuple(table._workers), table._spans, encoded)

    @property
    def nbytes(self) -> int:
        """Memory, as far as it grows with the number of candidates."""
        return int(self.rows.nbytes) + (0 if self._encoded is None else int(self._encoded.nbytes))

    @property
    def workers(self) -> Sequence[WorkerId]:
        """Of the rows, in their order."""
        return self._workers

    def worker(self, row: int) -> WorkerId:
        return self._workers[row]

    def row_of(self, worker: WorkerId) -> int | None:
        return next((row for row, known in enumerate(self._workers) if known == worker), None)

    def row(self, row: int) -> CandidateRow:
        return CandidateRow._make(self.rows[row].item())

    def ranked(self, chosen: int) -> CandidateTable:
        """The same rows, of which this one was chosen."""
        return CandidateTable(self.rows, self._workers, self._spans, self._encoded, chosen)

    def _row_at(self, place: int) -> int:
        if place == 0 and self._first is not None:
            return self._first
        return int(self._ranking()[place])

    def _ranking(self) -> npt.NDArray[np.intp]:
        """The row of each place."""
        if self._order is None:
            self._order = np.arange(len(self.rows)) if self._first is None else self._rank(self._first)
        return self._order

    def _rank(self, first: int) -> npt.NDArray[np.intp]:
        order = np.argsort(self.rows["cost_ms"], kind="stable")
        return np.concatenate([[first], order[order != first]])

    def take(self, order: npt.NDArray[np.intp]) -> CandidateTable:
        """These rows, in this order."""
        encoded = None if self._encoded is None else self._encoded[:, order]
        workers = self._workers
        return CandidateTable(
            self.rows.take(order), [workers[row] for row in order.tolist()], self._spans, encoded
        )

    def joined(self, other: CandidateTable) -> CandidateTable:
        """The rows of both, those of `other` behind; it is of the same request."""
        encoded = None
        if self._encoded is not None and other._encoded is not None:
            encoded = np.concatenate([self._encoded, other._encoded], axis=1)
        rows = np.concatenate([self.rows, other.rows])
        table = CandidateTable(rows, [*self._workers, *other._workers], self._spans, encoded)
        table._order = np.concatenate([self._ranking(), len(self) + other._ranking()])
        return table

    @classmethod
    def of_stranger(cls, worker: WorkerId, total: int, media_total: int, block_size: int) -> CandidateTable:
        """A worker of which nothing is known."""
        rows = np.zeros(1, CANDIDATE)
        rows["slot"], rows["total"], rows["media_total"] = -1, total, media_total
        rows["block_size"], rows["has_events"] = block_size, True
        rows["reason"] = code_of(DegradeReason.CONTRACT_MISSING)
        return cls(rows, [worker])

    def _score(self, row: int) -> CandidateScore:
        found = self.row(row)
        return CandidateScore(
            worker=self._workers[row],
            overlap_blocks=found.overlap,
            expected_blocks=found.expected,
            total_blocks=found.total,
            media_overlap_blocks=found.media_overlap,
            media_total_blocks=found.media_total,
            wait_ms=found.wait_ms,
            encode_ms=found.encode_ms,
            prefill_ms=found.prefill_ms,
            pressure_ms=found.pressure_ms,
            reasons=reasons_of(found),
            lower_blocks=found.lower,
            shadow_blocks=found.shadow,
            encoder_cached_tokens=found.encoder_cached,
            session_ms=found.session_ms,
            media=self._media(row, found.overlap, found.block_size),
        )

    def _media(self, row: int, overlap: int, block_size: int) -> tuple[MediaOverlap, ...]:
        encoded = self._encoded
        return tuple(
            _overlap(span, overlap, block_size, encoded is not None and bool(encoded[item, row]))
            for item, span in enumerate(self._spans)
        )


def _unpack(
    rows: bytes,
    workers: tuple[WorkerId, ...],
    spans: tuple[MediaSpan, ...],
    encoded: npt.NDArray[np.bool_] | None,
    first: int | None,
    order: npt.NDArray[np.intp] | None,
) -> CandidateTable:
    table = CandidateTable(np.frombuffer(rows, CANDIDATE), workers, spans, encoded, first)
    table._order = order
    return table


def _overlap(span: MediaSpan, overlap_blocks: int, block_size: int, is_encoded: bool) -> MediaOverlap:
    first = span.offset // block_size
    total = (span.end - 1) // block_size + 1 - first
    held = min(max(0, overlap_blocks - first), total)
    return MediaOverlap(span.media_id, held, total, is_encoded)
