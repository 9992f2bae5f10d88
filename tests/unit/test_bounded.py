"""Maps that forget, and limits that hold."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processors.bounded import BoundedMap
from processors.limits import KeyedLimit
from processors.single_flight import SingleFlight

STEPS = st.lists(
    st.tuples(st.sampled_from("pgda"), st.integers(0, 5), st.integers(0, 7), st.floats(0, 5)), max_size=60
)


@settings(deadline=None, max_examples=100)
@given(STEPS)
def test_a_bounded_map_holds_what_was_put_last_within_its_budget(
    steps: list[tuple[str, int, int, float]],
) -> None:
    now = [0.0]
    kept: BoundedMap[int, int] = BoundedMap(12, lambda: now[0])
    truth: dict[int, tuple[int, float]] = {}
    for count, (what, key, weight, seconds) in enumerate(steps):
        if what == "p":
            kept.put(key, count, ttl_s=seconds, weight=weight)
            truth[key] = (count, now[0] + seconds)
        elif what == "d":
            kept.drop(key)
            truth.pop(key, None)
        elif what == "a":
            now[0] += seconds
        elif (found := kept.get(key)) is not None:
            assert (found, True) == (truth[key][0], truth[key][1] > now[0])
        kept.check_integrity()


def test_what_is_used_stays() -> None:
    kept: BoundedMap[str, int] = BoundedMap(2, lambda: 0.0)
    kept.put("a", 1, ttl_s=1)
    kept.put("b", 2, ttl_s=1)
    kept.get("a")
    kept.put("c", 3, ttl_s=1)
    assert [kept.get(key) for key in "abc"] == [1, None, 3]


async def test_a_limit_per_key_holds_back_that_key_only() -> None:
    limit = KeyedLimit(total=3, per_key=2)
    running: list[str] = []
    most: dict[str, int] = {}
    go_on = asyncio.Event()

    async def work(key: str) -> None:
        async with limit.hold(key):
            running.append(key)
            most[key] = max(most.get(key, 0), running.count(key))
            await go_on.wait()
            running.remove(key)

    tasks = [asyncio.create_task(work(key)) for key in "aaaab"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sorted(running) == ["a", "a", "b"]
    go_on.set()
    await asyncio.gather(*tasks)
    assert most == {"a": 2, "b": 1}
    assert len(limit) == 0


async def test_one_who_gives_up_waiting_for_a_place_leaves_it_to_others() -> None:
    limit = KeyedLimit(total=1, per_key=1)
    async with limit.hold("a"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), limit.hold("b"):
                raise AssertionError("there was no place")
    async with limit.hold("b"):
        assert len(limit) == 1


async def test_work_that_goes_on_is_shared_with_who_comes_later() -> None:
    flights: SingleFlight[str, int] = SingleFlight(goes_on=True)
    started, go_on = 0, asyncio.Event()

    async def work() -> int:
        nonlocal started
        started += 1
        await go_on.wait()
        return 7

    with pytest.raises(TimeoutError):
        await flights.run("a", work, timeout_s=0.001)
    assert "a" in flights
    go_on.set()
    assert await flights.run("a", work) == 7
    assert (started, len(flights)) == (1, 0)


async def test_a_failure_reaches_all_and_is_not_kept() -> None:
    flights: SingleFlight[str, int] = SingleFlight()

    async def work() -> int:
        await asyncio.sleep(0)
        raise ValueError("no")

    results = await asyncio.gather(*(flights.run("a", work) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [ValueError] * 3
    assert len(flights) == 0


async def test_who_comes_while_the_last_one_leaves_starts_anew() -> None:
    flights: SingleFlight[str, int] = SingleFlight()

    async def work() -> int:
        await asyncio.sleep(0.01)
        return 1

    first = asyncio.create_task(flights.run("a", work))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    assert await flights.run("a", work) == 1


async def test_closing_ends_what_runs() -> None:
    flights: SingleFlight[str, int] = SingleFlight(goes_on=True)
    waiting = asyncio.create_task(flights.run("a", asyncio.Event().wait))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await flights.aclose()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(flights) == 0
