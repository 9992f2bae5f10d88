"""Predictions held against what the engines report, and contracts at registration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.audit import Audit, AuditCounters, Difference, LayoutAudit, Prediction, Verdict
from router.contracts import ContractRefused, check_contract, family_statuses, worker_reasons
from router.receipts import Outcome, Receipt, ReceiptRing
from sightline_types import (
    CandidateScore,
    Decision,
    DecisionId,
    DecisionReason,
    DegradeReason,
    KeyScheme,
    KvGroup,
    LayoutContract,
    LifecycleKind,
    WorkerContract,
    WorkerId,
    WorkerPush,
)

A = WorkerId("a")
ONE = DecisionId("one")
LAYOUT = LayoutContract("qwen3_vl", "f1", exact=True)
CONTRACT = WorkerContract("vllm", "0.32.0", 16, KeyScheme.VLLM, "m", 4096, layouts=(LAYOUT,))

DISTRUSTED = AuditCounters(layouts=(LayoutAudit(layout="f1", distrust=DegradeReason.LENGTH_DISTRUST),))


def decision(decision_id: DecisionId = ONE) -> Decision:
    score = CandidateScore(A, 3, 3, 6, 0, 0, 0.0, 0.0, 0.0, 0.0)
    return Decision(decision_id, A, 16, DecisionReason.COST, (score,), 100, 0, 1)


def hold(audit, *reported, least=48, most=48, layout="f1", is_explained=False):
    """Compare the engine's figures with one prediction."""
    predicted = Prediction(ONE, least, most)
    return [
        audit.compare_cached(A, layout, predicted, figure, is_explained=is_explained) for figure in reported
    ]


AGREED, DIFFERED = Verdict.AGREED, Verdict.DIFFERED


def test_an_equal_figure_agrees_and_any_other_differs():
    audit = Audit()
    assert hold(audit, 48, 32, 64) == [AGREED, DIFFERED, DIFFERED]
    counters = audit.of(A)
    assert (counters.agreed, counters.differed) == (1, 2)
    assert counters.last_difference == Difference(ONE, 48, 64)


def test_blocks_that_were_expected_make_the_prediction_a_range():
    figures = hold(Audit(), 0, 16, 32, 48, 64, least=16)
    assert figures == [DIFFERED, AGREED, AGREED, AGREED, DIFFERED]


def test_what_cannot_be_compared_is_counted_as_such():
    audit = Audit()
    audit.skip(A, "f1")
    assert hold(audit, 0, is_explained=True) == [Verdict.EXPLAINED]
    counters = audit.of(A)
    assert (counters.not_compared, counters.explained, counters.differed) == (1, 1, 0)


def test_cached_differences_distrust_only_when_they_repeat_without_an_agreement():
    audit = Audit(distrust_after=3)
    hold(audit, 0, 0, 48, 0, 0)
    assert audit.distrust_of(A, "f1") is None
    hold(audit, 0)
    assert audit.distrust_of(A, "f1") is DegradeReason.CACHED_DISTRUST
    assert audit.distrust_of(A, "f2") is None
    assert audit.distrust_of(A, None) is None


def test_differences_with_an_explanation_distrust_nothing_however_many():
    audit = Audit(distrust_after=2)
    hold(audit, *[0] * 20, is_explained=True)
    assert audit.distrust_of(A, "f1") is None


def test_a_prompt_length_that_differs_distrusts_that_layout_on_that_worker_at_once():
    audit = Audit()
    audit.compare_length(A, "f1", ONE, 100, 101)
    assert audit.distrust_of(A, "f1") is DegradeReason.LENGTH_DISTRUST
    assert audit.distrust_of(A, "f2") is None
    assert audit.distrust_of(WorkerId("b"), "f1") is None
    assert audit.of(A).last_length_difference == Difference(ONE, 100, 101)


def test_an_equal_prompt_length_distrusts_nothing():
    audit = Audit()
    audit.compare_length(A, "f1", ONE, 100, 100)
    assert (audit.of(A).length_agreed, audit.of(A).distrusted) == (1, ())


def test_text_can_lose_its_trust_like_any_layout():
    audit = Audit()
    audit.compare_length(A, None, ONE, 100, 101)
    assert audit.of(A).distrusted == ("",)


def test_trust_returns_after_a_run_of_right_shadow_predictions():
    audit = Audit(trust_after=3)
    audit.compare_length(A, "f1", ONE, 100, 101)
    for wrong in (101, 100, 100):
        audit.compare_length(A, "f1", ONE, 100, wrong)
        hold(audit, 48)
    assert audit.distrust_of(A, "f1") is not None, "a wrong length began the run anew"
    assert audit.of(A).layouts[0].shadow_agreements == 2
    audit.compare_length(A, "f1", ONE, 100, 100)
    hold(audit, 48)
    assert audit.distrust_of(A, "f1") is None


def test_a_wrong_shadow_prediction_begins_the_run_anew():
    audit = Audit(distrust_after=1, trust_after=2)
    hold(audit, 0, 48, 0, 48)
    assert audit.distrust_of(A, "f1") is DegradeReason.CACHED_DISTRUST
    hold(audit, 48)
    assert audit.distrust_of(A, "f1") is None


def test_a_new_epoch_ends_the_distrust_in_a_view_that_is_gone_and_none_in_a_layout():
    audit = Audit(distrust_after=2)
    hold(audit, 0, 0)
    audit.compare_length(A, "f2", DecisionId("d"), 10, 11)
    audit.start_over(A)
    assert audit.distrust_of(A, "f1") is None
    assert audit.distrust_of(A, "f2") is DegradeReason.LENGTH_DISTRUST
    hold(audit, 0)
    assert audit.distrust_of(A, "f1") is None, "the differences before the epoch count no more"
    audit.start_over(WorkerId("never heard of"))


def test_an_operator_restores_the_trust_in_all_layouts_of_a_worker():
    audit = Audit()
    audit.compare_length(A, "f1", ONE, 100, 101)
    audit.compare_length(A, None, ONE, 100, 101)
    assert set(audit.trust(A)) == {"f1", ""}
    assert audit.of(A).distrusted == ()
    assert audit.trust(WorkerId("b")) == ()


def test_the_version_changes_with_the_trust_and_only_then():
    audit = Audit(distrust_after=2)
    hold(audit, 48, 0)
    before = audit.version
    hold(audit, 0)
    assert audit.version == before + 1
    hold(audit, 0)
    assert audit.version == before + 1


def test_the_drift_follows_the_unexplained_differences_and_decays():
    audit = Audit()
    hold(audit, 48)
    assert audit.of(A).drift_tokens == 0
    hold(audit, 8)
    worst = audit.of(A).drift_tokens
    assert worst == pytest.approx(2.0)
    hold(audit, *[48] * 10)
    assert 0 < audit.of(A).drift_tokens < worst


def test_a_forgotten_worker_starts_anew():
    audit = Audit()
    audit.compare_length(A, "f1", ONE, 100, 101)
    audit.forget(A)
    assert audit.of(A) == AuditCounters()


@pytest.mark.parametrize(
    ("contract", "says"),
    [
        (None, "without a contract"),
        (replace(CONTRACT, block_size=0), "block_size=0"),
        (replace(CONTRACT, kv_groups=()), "kv_groups"),
    ],
)
def test_a_contract_that_cannot_be_served_is_refused_with_the_value(contract, says):
    with pytest.raises(ContractRefused, match=says):
        check_contract(WorkerPush(A, 1, 0, table=True, contract=contract))


@pytest.mark.parametrize(
    ("contract", "audit", "reason"),
    [
        (CONTRACT, AuditCounters(), None),
        (replace(CONTRACT, publishes_events=False), AuditCounters(), DegradeReason.KV_EVENTS_OFF),
        (replace(CONTRACT, kv_groups=(KvGroup("new_kind"),)), AuditCounters(), DegradeReason.KV_CACHE_GROUPS),
        (CONTRACT, DISTRUSTED, DegradeReason.LENGTH_DISTRUST),
        (
            replace(CONTRACT, layouts=(replace(LAYOUT, exact=False),)),
            AuditCounters(),
            DegradeReason.CONTRACT_MISMATCH,
        ),
    ],
)
def test_an_available_family_is_active_only_where_nothing_speaks_against_it(contract, audit, reason):
    (family,) = family_statuses(contract, audit)
    assert (family.available, family.active, family.reason) == (True, reason is None, reason)


def test_a_worker_names_each_reason_once():
    failed = replace(LAYOUT, exact=False, reason=DegradeReason.PLACEHOLDER_MISMATCH)
    contract = replace(
        CONTRACT, layouts=(failed, failed), publishes_events=False, kv_groups=(KvGroup("new_kind"),)
    )
    assert worker_reasons(contract, DISTRUSTED) == (
        DegradeReason.PLACEHOLDER_MISMATCH,
        DegradeReason.KV_EVENTS_OFF,
        DegradeReason.KV_CACHE_GROUPS,
        DegradeReason.LENGTH_DISTRUST,
    )


def test_the_ring_is_bounded_by_bytes_and_the_oldest_go_first():
    each = Receipt(decision()).memory_bytes
    ring = ReceiptRing(2 * each)
    for name in ("one", "two", "three"):
        ring.put(decision(DecisionId(name)))
        ring.check_integrity()
    assert (len(ring), ring.get(ONE), ring.memory_bytes) == (2, None, 2 * each)
    assert ring.get(DecisionId("three")) is not None


def test_the_newest_decision_is_kept_however_small_the_ring():
    ring = ReceiptRing(1)
    ring.put(decision())
    assert ring.get(ONE) is not None


def test_a_decision_of_the_same_id_takes_the_place_of_the_first():
    ring = ReceiptRing(1 << 20)
    ring.put(decision())
    ring.put(decision())
    ring.check_integrity()
    assert len(ring) == 1


def test_the_first_outcome_of_a_decision_stands():
    ring = ReceiptRing(1 << 20)
    ring.put(decision())
    ring.settle(ONE, Outcome(LifecycleKind.ABORT, 48))
    ring.settle(ONE, Outcome(LifecycleKind.END, 48, 48))
    receipt = ring.get(ONE)
    assert receipt is not None and receipt.outcome == Outcome(LifecycleKind.ABORT, 48)


def test_what_is_not_kept_is_neither_settled_nor_amended():
    ring = ReceiptRing(1 << 20)
    ring.settle(ONE, Outcome(LifecycleKind.END, 0))
    ring.amend(decision())
    assert ring.get(ONE) is None
