"""A request has ended: its prediction against the engine's word, and what it tells of the worker's speed."""

from __future__ import annotations

from router.audit import Audit, Prediction, Verdict
from router.bookings import OpenRequest, keys_of
from router.candidates import reasons_of
from router.config import RouterConfig
from router.fleet import Fleet, Member
from router.rates import Observation
from sightline_types import DegradeReason, LifecycleEvent

__all__ = ["Comparison"]

_DISTRUST = (DegradeReason.LENGTH_DISTRUST, DegradeReason.CACHED_DISTRUST)


class Comparison:
    """Tells the audit and the workers' rates."""

    def __init__(self, config: RouterConfig, fleet: Fleet, audit: Audit) -> None:
        self._config = config
        self._fleet = fleet
        self._audit = audit

    def configure(self, config: RouterConfig) -> None:
        """Live settings."""
        self._config = config

    def compare(self, ended: OpenRequest, event: LifecycleEvent, *, is_partial: bool) -> bool | None:
        """Whether they agree; None where they cannot be compared.

        Only a prediction that claims to be exact is held against the engine; one without credit for want
        of trust is, too, as what it would have been.
        is_partial: the worker's events were lost for a while, so that its blocks are not all known.
        """
        decision, layout = ended.decision, ended.query.layout
        worker = decision.worker
        is_exact = not ended.query.reasons
        if is_exact and event.prompt_tokens is not None:
            self._audit.compare_length(
                worker, layout, decision.decision_id, decision.num_tokens, event.prompt_tokens
            )
        doubts = [reason for reason in reasons_of(ended.row) if reason not in _DISTRUST]
        member = self._fleet.get(worker)
        comparable = is_exact and event.comparable and not (is_partial or doubts or ended.is_late)
        if not comparable or member is None or event.cached_tokens is None:
            self._audit.skip(worker, layout)
            return None
        predicted = _prediction(ended)
        verdict = self._audit.compare_cached(
            worker,
            layout,
            predicted,
            event.cached_tokens,
            is_explained=_is_explained(ended, member, predicted, event.cached_tokens),
        )
        return verdict is Verdict.AGREED if verdict in (Verdict.AGREED, Verdict.DIFFERED) else None

    def learn(self, ended: OpenRequest, event: LifecycleEvent, now: float) -> None:
        """How fast the worker is, from a request that had its prefill to itself."""
        member = self._fleet.get(ended.decision.worker)
        if event.first_token_ms is None or event.cached_tokens is None or member is None:
            return
        n = event.prompt_tokens or ended.query.num_tokens
        squares = (n * n - event.cached_tokens**2) / 1e6
        seen = Observation(
            elapsed_ms=event.first_token_ms,
            prefill_tokens=n - event.cached_tokens,
            encode_tokens=ended.row.encode_tokens,
            attention_ms=self._config.attention_ms_per_kilotoken2 * squares,
        )
        member.rates.learn(seen, now, self._config)


def _is_explained(ended: OpenRequest, member: Member, predicted: Prediction, reported: int) -> bool:
    nearest = predicted.nearest(reported)
    if nearest == reported:
        return False
    size = ended.decision.block_size
    # Rounded away from the prediction: a figure between two block ends needs the block it cuts.
    blocks = -(-reported // size) if reported > nearest else reported // size
    since, keys = ended.decision.applied_seq, keys_of(ended, member)
    return member.changes.may_explain(since, keys, nearest // size, blocks)


def _prediction(ended: OpenRequest) -> Prediction:
    """The shadow columns are the plain ones where the worker is trusted."""
    row = ended.row
    least, most = row.shadow, row.shadow_expected
    return Prediction(ended.decision.decision_id, least * row.block_size, max(least, most) * row.block_size)
