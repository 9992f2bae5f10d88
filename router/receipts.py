"""The last decisions and what became of them, bounded by bytes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from router.candidates import CandidateTable
from sightline_types import Decision, DecisionId, LifecycleKind

__all__ = ["Outcome", "Receipt", "ReceiptRing"]

#: A receipt without its candidates and media; a medium; a candidate that is an object. Measured in
#: CPython 3.11, rounded up.
_BASE_BYTES, _MEDIUM_BYTES, _SCORE_BYTES = 1200, 300, 500


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended.

    kind: END or ABORT (also where the decision was taken back).
    predicted_tokens, cached_tokens: the router's figure and the engine's own.
    agreed: whether they agree; None where they cannot be compared.
    first_token_ms: on the replica's own clock, from its start.
    """

    kind: LifecycleKind
    predicted_tokens: int
    cached_tokens: int | None = None
    prompt_tokens: int | None = None
    agreed: bool | None = None
    first_token_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """A decision; outcome: None while its request runs (or was never heard of again)."""

    decision: Decision
    outcome: Outcome | None = None

    @property
    def memory_bytes(self) -> int:
        """An estimate, never much too low."""
        candidates = self.decision.candidates
        if isinstance(candidates, CandidateTable):
            table = candidates.nbytes + 8 * len(candidates)
        else:
            table = _SCORE_BYTES * len(candidates)
        return _BASE_BYTES + table + _MEDIUM_BYTES * len(self.decision.media)


class ReceiptRing:
    """Receipts by decision id; beyond `memory_bytes` the oldest goes. The newest always stays."""

    def __init__(self, memory_bytes: int) -> None:
        self.limit_bytes = memory_bytes
        self.memory_bytes = 0
        self._receipts: OrderedDict[DecisionId, Receipt] = OrderedDict()

    def __len__(self) -> int:
        return len(self._receipts)

    def get(self, decision_id: DecisionId) -> Receipt | None:
        return self._receipts.get(decision_id)

    def put(self, decision: Decision) -> None:
        """Enter a new decision; an earlier one of the same id is forgotten."""
        self._forget(decision.decision_id)
        self._keep(Receipt(decision))
        while self.memory_bytes > self.limit_bytes and len(self._receipts) > 1:
            self._forget(next(iter(self._receipts)))

    def amend(self, decision: Decision) -> None:
        """Replace a kept decision; one that is not kept stays forgotten."""
        receipt = self._receipts.get(decision.decision_id)
        if receipt is not None:
            self.memory_bytes -= receipt.memory_bytes
            self._keep(Receipt(decision, receipt.outcome))

    def settle(self, decision_id: DecisionId, outcome: Outcome) -> None:
        """Enter the outcome of a kept decision; the first one stands."""
        receipt = self._receipts.get(decision_id)
        if receipt is not None and receipt.outcome is None:
            self._receipts[decision_id] = Receipt(receipt.decision, outcome)

    def check_integrity(self) -> None:
        """Raise AssertionError where the bytes are not those of the receipts."""
        assert self.memory_bytes == sum(receipt.memory_bytes for receipt in self._receipts.values())
        assert self.memory_bytes <= self.limit_bytes or len(self) == 1

    def _keep(self, receipt: Receipt) -> None:
        self._receipts[receipt.decision.decision_id] = receipt
        self.memory_bytes += receipt.memory_bytes

    def _forget(self, decision_id: DecisionId) -> None:
        gone = self._receipts.pop(decision_id, None)
        if gone is not None:
            self.memory_bytes -= gone.memory_bytes
