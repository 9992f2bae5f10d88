"""Predictions held against what the engines report, and contracts at registration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.audit import (
    Audit,
    AuditCounters,
    ContractRefused,
    Difference,
    check_contract,
    family_statuses,
    worker_reasons,
)
from router.receipts import Outcome, ReceiptRing
from sightline_types import (
    CandidateScore,
    Decision,
    DecisionId,
    DecisionReason,
    DegradeReason,
    KeyScheme,
    KvGroup,
    LayoutContract,
    LifecycleEvent,
    LifecycleKind,
    WorkerContract,
    WorkerId,
    WorkerPush,
)

A = WorkerId("a")
ONE = DecisionId("one")
LAYOUT = LayoutContract("qwen3_vl", "f1", exact=True)
CONTRACT = WorkerContract("vllm", "0.32.0", 16, KeyScheme.VLLM, "m", 4096, layouts=(LAYOUT,))


def decision(overlap: int = 3, expected: int = 3, decision_id: DecisionId = ONE) -> Decision:
    score = CandidateScore(A, overlap, expected, 6, 0, 0, 0.0, 0.0, 0.0, 0.0)
    return Decision(decision_id, A, 16, DecisionReason.COST, (score,), 100, 0, 1)


def end(cached: int | None = 48, prompt: int | None = 100, comparable: bool = True) -> LifecycleEvent:
    return LifecycleEvent(LifecycleKind.END, ONE, cached, prompt, comparable)


def test_an_equal_figure_agrees_and_any_other_differs():
    audit = Audit()
    figures = [audit.compare_cached(decision(), end(cached), comparable=True) for cached in (48, 32, 64)]
    assert figures == [True, False, False]
    counters = audit.of(A)
    assert (counters.agreed, counters.differed) == (1, 2)
    assert counters.last_difference == Difference(ONE, 48, 64)


def test_blocks_that_were_expected_make_the_prediction_a_range():
    audit = Audit()
    twin = decision(overlap=1, expected=3)
    figures = [audit.compare_cached(twin, end(cached), comparable=True) for cached in (0, 16, 32, 48, 64)]
    assert figures == [False, True, True, True, False]


@pytest.mark.parametrize(
    ("event", "comparable"), [(end(comparable=False), True), (end(cached=None), True), (end(), False)]
)
def test_what_cannot_be_compared_is_counted_as_such(event, comparable):
    audit = Audit()
    assert audit.compare_cached(decision(), event, comparable=comparable) is None
    assert audit.of(A) == AuditCounters(not_compared=1)


def test_a_cached_difference_alone_distrusts_nothing():
    audit = Audit()
    audit.compare_cached(decision(), end(cached=0), comparable=True)
    assert not audit.would_distrust(A, "f1")


def test_a_prompt_length_that_differs_distrusts_that_layout_on_that_worker():
    audit = Audit()
    audit.compare_length(decision(), "f1", end(prompt=101))
    assert audit.would_distrust(A, "f1")
    assert not audit.would_distrust(A, "f2")
    assert not audit.would_distrust(WorkerId("b"), "f1")
    assert audit.of(A).last_length_difference == Difference(ONE, 100, 101)


def test_an_equal_prompt_length_distrusts_nothing():
    audit = Audit()
    audit.compare_length(decision(), "f1", end(prompt=100))
    audit.compare_length(decision(), "f1", end(prompt=None))
    assert audit.of(A) == AuditCounters(length_agreed=1)


def test_a_text_prompt_whose_length_differs_is_counted_though_there_is_no_layout_to_distrust():
    audit = Audit()
    audit.compare_length(decision(), None, end(prompt=101))
    assert (audit.of(A).length_differed, audit.of(A).distrusted) == (1, ())
    assert not audit.would_distrust(A, None)


def test_a_forgotten_worker_starts_anew():
    audit = Audit()
    audit.compare_length(decision(), "f1", end(prompt=101))
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
        (CONTRACT, AuditCounters(distrusted=("f1",)), DegradeReason.LENGTH_DISTRUST),
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
    groups = (KvGroup("new_kind"),)
    contract = replace(CONTRACT, layouts=(failed, failed), publishes_events=False, kv_groups=groups)
    assert worker_reasons(contract, AuditCounters(distrusted=("f1",))) == (
        DegradeReason.PLACEHOLDER_MISMATCH,
        DegradeReason.KV_EVENTS_OFF,
        DegradeReason.KV_CACHE_GROUPS,
        DegradeReason.LENGTH_DISTRUST,
    )


def test_the_ring_keeps_the_newest_decisions():
    ring = ReceiptRing(2)
    for name in ("one", "two", "three"):
        ring.put(decision(decision_id=DecisionId(name)))
    assert (len(ring), ring.get(ONE)) == (2, None)
    assert ring.get(DecisionId("three")) is not None


def test_the_first_outcome_of_a_decision_stands():
    ring = ReceiptRing(2)
    ring.put(decision())
    ring.settle(ONE, Outcome(LifecycleKind.ABORT, 48))
    ring.settle(ONE, Outcome(LifecycleKind.END, 48, 48))
    receipt = ring.get(ONE)
    assert receipt is not None and receipt.outcome == Outcome(LifecycleKind.ABORT, 48)


def test_what_is_not_kept_is_neither_settled_nor_amended():
    ring = ReceiptRing(2)
    ring.settle(ONE, Outcome(LifecycleKind.END, 0))
    ring.amend(decision())
    assert ring.get(ONE) is None
