"""The router actor's hot calls, packed: what comes out is what went in, and garbage is refused by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.actor import RouterActor
from router.calls import CALLS, BadCall, Outcome, Refusal, StalePool, Undecided, unpack_call
from router.config import RouterConfig
from router.status import PoolView
from sightline_types import (
    DecisionId,
    DegradeReason,
    EmbedRun,
    EngineLoad,
    ImageSize,
    KeyedView,
    KeyScheme,
    KeySpec,
    LifecycleEvent,
    LifecycleKind,
    MediaId,
    MediaReport,
    MediaSpan,
    Modality,
    PushReply,
    RelayStatus,
    RouteHints,
    RouteQuery,
    Tier,
    TierDelta,
    WorkerId,
    WorkerPush,
)
from tests.integration.worker import CONTRACT, KEYS, A, B, Channel, builder, packed, query

DECIDE, PUSH = CALLS["decide_many"], CALLS["push"]
MEDIA = MediaId((1 << 64) - 1)
FULL_QUERY = RouteQuery(
    DecisionId("f" * 16),
    {
        KeySpec(KeyScheme.VLLM, 16): KeyedView(packed(KEYS), packed((1,)), ((40, 16),)),
        KeySpec(KeyScheme.SGLANG_WIDE, 1): KeyedView(b""),
    },
    num_tokens=100,
    media_tokens=16,
    layout="finger",
    first_media_offset=24,
    tie_key=(1 << 64) - 1,
    exclude=(A, B),
    media=(MediaReport(Modality.IMAGE, MEDIA, ImageSize(28, 56), 16),),
    reasons=(DegradeReason.SIZE_UNKNOWN,),
    expected_output_tokens=7,
    spans=(MediaSpan(24, 16, MEDIA, (EmbedRun(25, 14),)),),
    hints=RouteHints(session=(1 << 64) - 1, is_session_hard=True, priority=-100, worker="a/0"),
)
FULL_PUSH = WorkerPush(
    A,
    (1 << 62) - 1,
    9,
    (TierDelta(Tier(1, "CPU"), packed(KEYS), packed((9,))),),
    (LifecycleEvent(LifecycleKind.END, DecisionId("one"), 96, 100, False, 3.5),),
    RelayStatus(5, True, True, 1, 2, 3, "why"),
    EngineLoad(1, 2, 0.5),
    table=True,
    contract=CONTRACT,
    leaving=True,
    running=(DecisionId("one"),),
)


def test_a_query_and_a_push_with_everything_in_them_come_out_as_they_went_in():
    assert unpack_call(DECIDE.number, DECIDE.pack(([FULL_QUERY],))) == (DECIDE, ([FULL_QUERY],))
    assert unpack_call(PUSH.number, PUSH.pack((FULL_PUSH,))) == (PUSH, (FULL_PUSH,))


@pytest.mark.parametrize("method", CALLS)
def test_every_call_is_a_method_of_the_actor_under_its_own_number(method):
    assert callable(getattr(RouterActor, method))
    assert [call for call in CALLS.values() if call.number == CALLS[method].number] == [CALLS[method]]


def test_the_small_calls_come_out_as_they_went_in():
    for method, args in (
        ("cancel", ([DecisionId("one"), DecisionId("two")],)),
        ("renew", ([DecisionId("one")],)),
        ("rebook", (DecisionId("one"), WorkerId("replica", 3))),
    ):
        call = CALLS[method]
        assert unpack_call(call.number, call.pack(args)) == (call, args)
        assert call.unpack_result(call.pack_result(None)) is None


def test_each_kind_of_outcome_comes_out_as_that_kind():
    pool = PoolView(3, {A: CONTRACT, B: replace(CONTRACT, block_size=32)}, is_limited=True)
    assert len(pool.specs) == 2  # computed, and not sent
    outcomes: list[Outcome] = [
        StalePool(pool), Undecided(DegradeReason.NO_WORKER), Refusal("full", 429, 3)
    ]  # fmt: skip
    assert DECIDE.unpack_result(DECIDE.pack_result(outcomes)) == outcomes
    reply = PushReply(1 << 61, -1, "table")
    assert PUSH.unpack_result(PUSH.pack_result(reply)) == reply


async def test_a_decision_comes_out_with_its_candidates_and_their_costs():
    actor = RouterActor(RouterConfig())
    for worker, held in ((A, KEYS), (B, ())):
        await Channel(Here(actor), worker).join(held)
    [made] = await actor.decide_many([builder("one")(await actor.pool())])
    [got] = DECIDE.unpack_result(DECIDE.pack_result([made]))
    assert replace(got, candidates=tuple(got.candidates)) == replace(made, candidates=tuple(made.candidates))


class Here:
    """An actor in this process, called as Ray's are."""

    def __init__(self, actor: RouterActor) -> None:
        self.push = type("Method", (), {"remote": staticmethod(actor.push)})


def test_numbers_of_numpy_travel_as_numbers():
    odd = query(num_tokens=np.int64(100), tie_key=np.uint64(7))
    assert unpack_call(DECIDE.number, DECIDE.pack(([odd],)))[1] == ([query()],)


def test_what_no_call_carries_is_refused_where_it_is_packed():
    with pytest.raises(BadCall, match="decide_many: object is nothing"):
        DECIDE.pack(([query(tie_key=object())],))
    with pytest.raises(BadCall, match="decide_many"):
        DECIDE.pack(([query(tie_key=1 << 70)],))


def test_a_call_of_another_number_or_with_other_arguments_is_refused():
    with pytest.raises(BadCall, match="no call 99"):
        unpack_call(99, b"")
    with pytest.raises(BadCall, match="push"):
        unpack_call(PUSH.number, CALLS["cancel"].pack(([DecisionId("one")],)))


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 255), st.binary(max_size=60))
def test_garbage_is_never_a_call(number, body):
    with pytest.raises(BadCall):
        unpack_call(number, body)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_a_garbled_push_is_read_as_a_push_or_refused(data):
    body = bytearray(PUSH.pack((FULL_PUSH,)))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        [message] = unpack_call(PUSH.number, bytes(body))[1]
    except BadCall:
        return
    assert isinstance(message, WorkerPush)
    assert all(isinstance(delta.stored, bytes) for delta in message.deltas)
