"""Where the channel to the actor stands: what waits, when a table is due, how long to hold back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.channel import BACKOFF_S, Channel, LifecycleQueue
from sightline_types import (
    DecisionId,
    LifecycleEvent,
    LifecycleKind,
    PushReply,
    RelayStatus,
    WorkerId,
    WorkerPush,
)

IDLE = RelayStatus(engine_seq=4, idle=True)


def event(number: int, kind: LifecycleKind = LifecycleKind.STARTED) -> LifecycleEvent:
    return LifecycleEvent(kind, DecisionId(f"r{number}"))


def message(channel: Channel, *, table: bool = False) -> WorkerPush:
    return WorkerPush(WorkerId("a"), channel.epoch, channel.take_seq(), table=table, relay=IDLE)


def registered() -> Channel:
    channel = Channel(epoch=7)
    first = message(channel, table=True)
    channel.settle(first, PushReply(1, first.seq))
    return channel


def test_a_channel_begins_with_a_table() -> None:
    channel = Channel(epoch=7)
    assert channel.needs_table and channel.sent == RelayStatus()
    assert channel.settle(message(channel, table=True), PushReply(1, 0))
    assert not channel.needs_table and channel.sent == IDLE


def test_a_taken_change_needs_no_table() -> None:
    channel = registered()
    assert channel.settle(message(channel), PushReply(1, 1))
    assert not channel.needs_table and channel.num_failures == 0


def test_a_message_without_an_answer_is_a_failure_and_was_not_sent() -> None:
    channel = Channel(epoch=7)
    assert not channel.settle(message(channel, table=True), None)
    assert channel.needs_table and channel.num_failures == 1 and channel.sent == RelayStatus()


def test_an_actor_that_lacks_something_gets_a_table_and_the_message_again() -> None:
    channel = registered()
    assert not channel.settle(message(channel), PushReply(1, 0, "table"))
    assert channel.needs_table and channel.num_failures == 0


def test_an_actor_may_take_a_message_and_still_want_a_table() -> None:
    channel = registered()
    assert channel.settle(message(channel), PushReply(1, 1, "table"))
    assert channel.needs_table


def test_a_new_actor_needs_a_table_even_when_it_asks_for_none() -> None:
    channel = registered()
    channel.settle(message(channel), PushReply(2, 1))
    assert channel.needs_table


def test_a_table_that_a_new_actor_took_is_enough() -> None:
    channel = registered()
    channel.settle(message(channel, table=True), PushReply(2, 1))
    assert not channel.needs_table


def test_a_table_that_is_not_enough_is_held_back_like_a_failure() -> None:
    channel = registered()
    for failures in (1, 2):
        channel.settle(message(channel, table=True), PushReply(1, -1, "table"))
        assert channel.needs_table and channel.num_failures == failures


def test_a_new_epoch_counts_from_zero_and_needs_a_table_of_its_own() -> None:
    channel = registered()
    on_its_way = message(channel, table=True)
    channel.begin_epoch()
    channel.settle(on_its_way, PushReply(1, on_its_way.seq))
    assert channel.epoch == 8 and channel.needs_table and channel.take_seq() == 0


def test_waits_grow_to_a_bound_and_end_with_success() -> None:
    channel = registered()
    waits = []
    for _ in range(2000):  # a day's outage must not overflow
        channel.settle(message(channel), None)
        waits.append(channel.backoff_s)
    assert waits[0] == BACKOFF_S[0] and waits[-1] == BACKOFF_S[1] and waits == sorted(waits)
    table = message(channel, table=True)
    channel.settle(table, PushReply(1, table.seq))
    assert channel.num_failures == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=20))
@settings(deadline=None, max_examples=100)
def test_each_report_is_taken_once_and_in_order(rounds: list[tuple[int, bool]]) -> None:
    queue, received, number = LifecycleQueue(), [], 0
    for reports, is_taken in [*rounds, (0, True)]:
        before = [event(number + place) for place in range(reports)]
        number += reports
        for report in before:
            queue.add(report)
        sent = queue.take()
        during = event(number)  # reported while the message is on its way
        number += 1
        queue.add(during)
        if is_taken:
            received += sent
        else:
            queue.put_back(sent)
    assert [*received, *queue.take()] == [event(place) for place in range(number)]
    assert queue.num_dropped == 0


def test_a_request_runs_from_its_start_to_its_end_or_abort() -> None:
    queue = LifecycleQueue()
    for number in (1, 2):
        queue.add(event(number))
        queue.add(event(number, LifecycleKind.FIRST_TOKEN))
    assert queue.running == {"r1", "r2"}
    queue.add(event(1, LifecycleKind.END))
    queue.add(event(2, LifecycleKind.ABORT))
    assert not queue.running


def test_an_end_without_a_start_is_passed_on() -> None:
    queue = LifecycleQueue()
    queue.add(event(1, LifecycleKind.ABORT))
    assert queue.take() == (event(1, LifecycleKind.ABORT),) and not queue.running


def test_too_many_reports_drop_the_oldest_and_count_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.channel.MAX_PENDING", 3)
    queue = LifecycleQueue()
    for number in range(3):
        queue.add(event(number))
    sent = queue.take()
    queue.add(event(3))
    queue.put_back(sent)
    assert queue.take() == (event(1), event(2), event(3)) and queue.num_dropped == 1
    assert queue.running == {"r0", "r1", "r2", "r3"}
