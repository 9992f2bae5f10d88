"""The last decisions and what became of them, bounded by count."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from sightline_types import Decision, DecisionId, LifecycleKind

__all__ = ["Outcome", "Receipt", "ReceiptRing"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended.

    kind: END or ABORT (also where the decision was taken back).
    predicted_tokens, cached_tokens: the router's figure and the engine's own.
    agreed: whether they agree; None where they cannot be compared.
    """

    kind: LifecycleKind
    predicted_tokens: int
    cached_tokens: int | None = None
    prompt_tokens: int | None = None
    agreed: bool | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """A decision; outcome: None while its request runs (or was never heard of again)."""

    decision: Decision
    outcome: Outcome | None = None


class ReceiptRing:
    """Receipts by decision id; beyond `capacity` the oldest goes."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._receipts: OrderedDict[DecisionId, Receipt] = OrderedDict()

    def __len__(self) -> int:
        return len(self._receipts)

    def get(self, decision_id: DecisionId) -> Receipt | None:
        return self._receipts.get(decision_id)

    def put(self, decision: Decision) -> None:
        """Enter a new decision; an earlier one of the same id is forgotten."""
        self._receipts.pop(decision.decision_id, None)
        self._receipts[decision.decision_id] = Receipt(decision)
        while len(self._receipts) > self._capacity:
            self._receipts.popitem(last=False)

    def amend(self, decision: Decision) -> None:
        """Replace a kept decision; one that is not kept stays forgotten."""
        receipt = self._receipts.get(decision.decision_id)
        if receipt is not None:
            self._receipts[decision.decision_id] = replace(receipt, decision=decision)

    def settle(self, decision_id: DecisionId, outcome: Outcome) -> None:
        """Enter the outcome of a kept decision; the first one stands."""
        receipt = self._receipts.get(decision_id)
        if receipt is not None and receipt.outcome is None:
            self._receipts[decision_id] = replace(receipt, outcome=outcome)
