"""One chat request from prompt to stream: the real router core and client; replicas on a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import BackPressureError

from deployments.batches import pack_messages
from deployments.chat import ChatService, PoolFull
from deployments.config import IngressConfig
from deployments.engine_call import EngineFailed
from deployments.openai_api import ChatRequest
from deployments.protocol import Delta, EngineRequest, Failed, Finished, NotHeld, Refused, Started
from deployments.queries import cache_salt
from processors import MediaConfig, MediaUnreachable, RequestError
from router.actor import RouterActor
from router.client import RouterClient
from router.config import RouterConfig
from router.link import RouterUnreachable
from router.live import LiveReplicas
from router.pinned import Pin
from sightline_types import (
    DecisionReason,
    LifecycleEvent,
    LifecycleKind,
    MediaId,
    MediaItem,
    MediaSource,
    Modality,
    PreparedPrompt,
    RouteHints,
    TokenView,
    WorkerContract,
    WorkerId,
    WorkerPush,
)
from tests.integration.worker import CONTRACT, A, B, C

HELLO, END = Delta("hello", (1,)), Finished("stop", 100, 1, 0)
#: A step of a script: something that the replica sends, or that comes instead.
DIED = ActorDiedError()
#: The replica that the decision ranked last takes the request.
LAST_TAKES = object()
PICTURE = MediaItem(Modality.IMAGE, MediaId(5), MediaSource(url="http://pictures/one.png"))
OTHER_PICTURE = MediaItem(Modality.IMAGE, MediaId(6), MediaSource(url="http://pictures/two.png"))
#: Known to the ingress; an engine may hold it. And one that only an engine can have.
HELD_PICTURE = MediaItem(
    Modality.IMAGE, MediaId(7), MediaSource(url="http://pictures/held.png"), is_held=True
)
NAMED_PICTURE = MediaItem(Modality.IMAGE, MediaId(8), MediaSource(), identity_mode="uuid", is_held=True)


class InProcess:
    """A link to a router actor that lives in this process."""

    def __init__(self, **config: Any) -> None:
        self.actor = RouterActor(RouterConfig(**config))
        self.is_up = True

    async def call(self, method: str, *args: Any) -> Any:
        if not self.is_up:
            raise RouterUnreachable("no router actor")
        return await getattr(self.actor, method)(*args)


async def some_turns() -> None:
    """Enough for everything that waits for nothing outside."""
    for _ in range(20):
        await asyncio.sleep(0)


class Stream:
    """What Serve returns of a streaming call."""

    def __init__(self, script: list[Any]) -> None:
        self._script = list(script)
        self.is_cancelled = False

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Any:
        await asyncio.sleep(0)
        if not self._script:
            raise StopAsyncIteration
        step = self._script.pop(0)
        if step is Ellipsis:
            await asyncio.Event().wait()
        if isinstance(step, asyncio.Event):
            await step.wait()
            await some_turns()
            return await anext(self)
        if isinstance(step, Exception):
            raise step
        return pack_messages([step])

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class Call:
    request: EngineRequest
    payload: Any
    pin: Pin
    stream: Stream


@dataclass
class Replicas:
    """The engine deployment's handle. Each call follows the next script; `Started` is sent by
    whoever the pin names first, unless the script says who."""

    scripts: list[list[Any]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def options(self, **options: Any) -> Replicas:
        return self

    @property
    def generate(self) -> Replicas:
        return self

    def remote(self, request: EngineRequest, payload: Any, *, pin: Pin) -> Stream:
        script = self.scripts[len(self.calls)]
        home = next((name for name in pin.ranked if name not in pin.exclude), "a")
        who = {Started: home, LAST_TAKES: pin.ranked[-1] if pin.ranked else "a"}
        steps = [Started(WorkerId(who[step])) if _names_somebody(step) else step for step in script]
        stream = Stream(steps)
        self.calls.append(Call(request, payload, pin, stream))
        return stream


def _names_somebody(step: Any) -> bool:
    return step is Started or step is LAST_TAKES


class Prompts:
    """Prepares the same 100 tokens every time."""

    def __init__(self) -> None:
        self.media: tuple[MediaItem, ...] = ()
        self.size_waits: list[float | None] = []

    async def prepare(
        self, messages: list[Any], *, size_wait_ms: float | None = None, **options: Any
    ) -> PreparedPrompt:
        self.size_waits.append(size_wait_ms)
        ids = np.arange(100, dtype=np.int64)
        return PreparedPrompt(tuple(range(100)), self.media, TokenView(ids, (), 100))

    def settled(self, prompt: PreparedPrompt, items: list[MediaItem]) -> PreparedPrompt:
        return prompt

    async def as_fetched(self, item: MediaItem, data: bytes, kwargs: Any = None) -> MediaItem:
        return item


class Files:
    """url -> its bytes, an error, or Ellipsis: never comes."""

    def __init__(self) -> None:
        self.content: dict[str, Any] = {}
        self.cancelled: list[str] = []

    async def fetch(self, url: str) -> bytes:
        content = self.content[url]
        if isinstance(content, Exception):
            raise content
        if content is Ellipsis:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(url)
                raise
        return bytes(content)


class House:
    """A chat service with three workers in its pool."""

    def __init__(self) -> None:
        self.link, self.engine, self.prompts, self.files = InProcess(), Replicas(), Prompts(), Files()
        self.live = LiveReplicas()
        self.limit_request_bytes(1 << 20)

    def limit_request_bytes(self, limit: int) -> None:
        self.serve(MediaConfig(max_request_bytes=limit))

    def serve(self, media: MediaConfig) -> None:
        config = IngressConfig(model="m", served_model_name="m", media=media)
        self.client = client = RouterClient(self.link, budget_s=30)
        self.service = ChatService(config, self.prompts, self.files, client, self.engine, self.live)

    async def join(self, *workers: WorkerId, contract: WorkerContract = CONTRACT) -> None:
        for worker in workers:
            table = WorkerPush(worker, 1, 0, (), table=True, contract=contract)
            await self.link.actor.push(table)

    def plays(self, *scripts: list[Any]) -> None:
        self.engine.scripts = list(scripts)

    async def start(self, hints: RouteHints = RouteHints(), **options: Any) -> Any:  # noqa: B008
        request = {"model": "m", "messages": [{"role": "user", "content": "hello"}]} | options
        return await self.service.start(ChatRequest.model_validate(request), hints=hints)

    async def alone(self) -> None:
        """Worker a is all there is, to Serve and to the router."""
        await self.join(A)
        self.live.ids = frozenset({"a"})
        await self.client.pool(5.0)

    async def booked(self) -> dict[str, int]:
        """Open requests by worker, after everything in the background has been done."""
        await some_turns()
        rows = await self.link.actor.workers()
        return {row.worker.replica: row.load.active_requests for row in rows if row.load.active_requests}

    async def decisions(self) -> int:
        return sum((await self.link.actor.stats()).decisions.values())

    async def receipt(self, call: int = 0) -> Any:
        return await self.link.actor.receipt(self.engine.calls[call].request.decision_id)


@pytest_asyncio.fixture
async def house() -> House:
    house = House()
    await house.join(A, B, C)
    return house


async def collect(messages: AsyncIterator[Any]) -> list[Any]:
    return [message async for message in messages]


async def test_a_request_goes_where_it_was_decided_and_comes_back_as_it_was_sent(house):
    house.plays([Started, HELLO, HELLO, END])
    reply = await house.start()
    [call] = house.engine.calls
    decision = (await house.receipt()).decision
    assert reply.receipt.worker == call.request.decided == decision.worker
    assert call.pin.ranked == tuple(worker.replica for worker in decision.ranked_workers)
    assert reply.receipt.headers["x-sightline-overlap"] == "0/6"
    assert await collect(reply.messages) == [HELLO, HELLO, END]
    assert await house.booked() == {decision.worker.replica: 1}  # until the replica reports the end


@pytest.mark.parametrize(
    "failure",
    [[Refused("full")], [Started, Refused("engine_dead")], [Started, DIED], [DIED], [], [Started]],
    ids=["refused", "refused later", "died", "died before it started", "silent", "silent later"],
)
async def test_what_failed_before_its_first_token_is_tried_once_on_another_replica(house, failure):
    house.plays(failure, [Started, HELLO, END])
    reply = await house.start()
    first, second = house.engine.calls
    failed = first.request.decided
    assert second.request.decision_id != first.request.decision_id
    assert second.request.decided not in (None, failed)
    assert second.pin.exclude == (failed.replica,)
    assert reply.receipt.worker == second.request.decided
    assert first.stream.is_cancelled
    assert await collect(reply.messages) == [HELLO, END]


async def test_two_failures_are_the_engines_fault(house):
    house.plays([Started, DIED], [Refused("full")])
    with pytest.raises(EngineFailed) as caught:
        await house.start()
    assert (caught.value.status, caught.value.type) == (503, "server_error")
    assert len(house.engine.calls) == 2
    assert await house.booked() == {}


async def test_a_booking_that_no_replica_took_up_is_taken_back(house):
    house.plays([Refused("full")], [Started, HELLO, END])
    reply = await house.start()
    assert await house.booked() == {reply.receipt.worker.replica: 1}
    assert (await house.receipt(0)).outcome.kind is LifecycleKind.ABORT
    assert (await house.receipt(1)).outcome is None


async def test_a_dead_replica_is_forgotten_by_the_router(house):
    house.plays([Started, DIED], [Started, HELLO, END])
    await house.start()
    await house.booked()
    dead = house.engine.calls[0].request.decided
    assert dead not in await house.link.actor.roster()


async def test_a_dead_replica_loses_all_its_ranks():
    house = House()
    await house.join(WorkerId("a", 0), WorkerId("a", 1), B)
    house.live.ids = frozenset({"a"})  # so that the first try goes there
    house.plays([Started(WorkerId("a", 1)), DIED], [Started(B), HELLO, END])
    await house.start()
    await house.booked()
    assert await house.link.actor.roster() == [B]


async def test_a_replica_that_refused_is_not_asked_again_for_another_of_its_ranks():
    house = House()
    ranks = [WorkerId("a", rank) for rank in range(3)]
    await house.join(*ranks)
    house.plays([Refused("engine_dead", ranks[0])], [Started(B), HELLO, END])
    await house.start()
    first, second = house.engine.calls
    assert first.request.decided in ranks
    assert (second.request.decided, second.pin.exclude) == (None, ("a",))


async def test_a_request_is_sent_to_its_rank_and_the_header_names_it():
    house = House()
    await house.join(WorkerId("a", 0), WorkerId("a", 1))
    house.plays([Started(WorkerId("a", 1)), HELLO, END])
    reply = await house.start()
    [call] = house.engine.calls
    assert call.pin.ranked == ("a",)
    assert call.pin.rank_at("a") == call.request.decided.dp_rank
    assert reply.receipt.headers["x-sightline-worker"] == "a/1"
    assert [row.worker for row in await house.link.actor.workers() if row.load.active_requests] == [
        WorkerId("a", 1)
    ]


async def test_what_the_engine_calls_wrong_is_the_users_error(house):
    house.plays([Started, Failed("too long", 400, param="messages", code="context_length_exceeded")])
    with pytest.raises(RequestError) as caught:
        await house.start()
    error = caught.value
    assert not isinstance(error, EngineFailed)
    assert (error.status, error.param, error.code) == (400, "messages", "context_length_exceeded")
    assert len(house.engine.calls) == 1
    assert house.engine.calls[0].stream.is_cancelled


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Failed("out of memory", 500), 500),
        (RayTaskError("generate", "Traceback", ValueError("no")).as_instanceof_cause(), 500),
    ],
    ids=["said", "raised"],
)
async def test_what_the_engine_breaks_is_not_tried_again(house, error, status):
    house.plays([Started, error])
    with pytest.raises(EngineFailed) as caught:
        await house.start()
    assert caught.value.status == status
    assert len(house.engine.calls) == 1


async def test_a_full_queue_is_429(house):
    house.plays([BackPressureError(10, 10)])
    with pytest.raises(RequestError) as caught:
        await house.start()
    assert (caught.value.status, caught.value.code) == (429, "overloaded")
    assert await house.booked() == {}


@pytest.mark.parametrize(
    "end",
    [DIED, Failed("gone", 503, code="engine_dead"), RayTaskError("generate", "", ValueError("no"))],
    ids=["died", "failed", "raised"],
)
async def test_a_death_in_the_middle_of_an_answer_is_told_and_not_repeated(house, end):
    house.plays([Started, HELLO, end])
    reply = await house.start()
    assert await anext(reply.messages) == HELLO
    with pytest.raises(EngineFailed):
        await anext(reply.messages)
    assert len(house.engine.calls) == 1


async def test_a_closed_reply_stops_the_engine(house):
    house.plays([Started, HELLO, ...])
    reply = await house.start()
    await anext(reply.messages)
    assert not house.engine.calls[0].stream.is_cancelled
    await reply.close()
    assert house.engine.calls[0].stream.is_cancelled
    # The replica has the request: it reports the abort itself, in order with what it did before.
    assert await house.booked() == {reply.receipt.worker.replica: 1}


@pytest.mark.parametrize("script", [[...], [Started, ...]], ids=["before", "after"])
async def test_a_client_that_leaves_before_the_first_token_stops_the_engine(house, script):
    house.plays(script)
    task = asyncio.create_task(house.start())
    await house.booked()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert house.engine.calls[0].stream.is_cancelled
    decided = house.engine.calls[0].request.decided
    assert await house.booked() == ({} if script == [...] else {decided.replica: 1})


async def test_a_request_whose_picture_cannot_be_fetched_is_never_decided(house):
    house.prompts.media = (PICTURE,)
    house.files.content = {PICTURE.source.url: MediaUnreachable("no such picture")}
    with pytest.raises(MediaUnreachable):
        await house.start()
    assert house.engine.calls == []
    assert await house.decisions() == 0


async def test_a_failed_fetch_ends_the_others(house):
    house.prompts.media = (PICTURE, OTHER_PICTURE)
    house.files.content = {
        PICTURE.source.url: MediaUnreachable("no such picture"),
        OTHER_PICTURE.source.url: ...,
    }
    with pytest.raises(MediaUnreachable):
        await house.start()
    assert house.files.cancelled == [OTHER_PICTURE.source.url]


async def test_a_hanging_picture_holds_no_booking_and_ends_with_its_client(house):
    house.prompts.media = (PICTURE,)
    house.files.content = {PICTURE.source.url: ...}
    task = asyncio.create_task(house.start())
    assert await house.booked() == {}
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert house.files.cancelled == [PICTURE.source.url]
    assert await house.decisions() == 0


async def test_pictures_are_fetched_once_for_both_tries(house):
    house.prompts.media = (PICTURE,)
    house.files.content = {PICTURE.source.url: b"png"}
    house.plays([Refused("full")], [Started, HELLO, END])
    await house.start()
    assert [call.payload for call in house.engine.calls] == [b"png", b"png"]
    assert house.engine.calls[1].request.media[0].media_id == PICTURE.media_id


async def test_a_picture_that_an_engine_holds_travels_by_its_identity_alone(house):
    house.prompts.media = (HELD_PICTURE,)
    house.plays([Started, HELLO, END])
    await house.start()
    [call] = house.engine.calls
    assert (call.payload, call.request.media[0].form) == (None, "held")


async def test_a_picture_that_was_not_held_after_all_is_fetched_and_sent(house):
    house.prompts.media = (HELD_PICTURE, PICTURE)
    house.files.content = {PICTURE.source.url: b"png", HELD_PICTURE.source.url: b"held"}
    house.plays([Started, NotHeld()], [Started, HELLO, END])
    await house.start()
    assert [call.payload for call in house.engine.calls] == [b"png", b"heldpng"]
    assert [one.form for one in house.engine.calls[1].request.media] == ["file", "file"]


KEEPER = WorkerId("keeper")


async def a_house_with_a_keeper(*, repeat_files: bool = False) -> House:
    """One worker, whose engine keeps what it was given."""
    house = House()
    house.serve(MediaConfig(repeat_files=repeat_files))
    await house.join(KEEPER, contract=replace(CONTRACT, keeps_media=True))
    house.prompts.media = (PICTURE,)
    house.files.content = {PICTURE.source.url: b"png"}
    house.plays(*[[Started, HELLO, END]] * 3)
    return house


async def test_a_picture_that_comes_again_travels_once():
    house = await a_house_with_a_keeper()
    for _ in range(3):
        await house.start()
    assert [call.payload for call in house.engine.calls] == [b"png", None, None]
    assert [call.request.media[0].form for call in house.engine.calls] == ["file", "held", "held"]
    assert {call.request.media[0].media_id for call in house.engine.calls} == {PICTURE.media_id}


async def test_a_picture_that_the_engine_has_dropped_travels_again():
    house = await a_house_with_a_keeper()
    house.plays([Started, HELLO, END], [Started, NotHeld()], [Started, HELLO, END], [Started, HELLO, END])
    for _ in range(3):
        await house.start()
    assert [call.payload for call in house.engine.calls] == [b"png", None, b"png", None]


async def test_what_is_wrong_without_a_file_is_told_only_if_it_is_wrong_with_it():
    house = await a_house_with_a_keeper()
    wrong = [Started, Failed("no", 400)]
    house.plays([Started, HELLO, END], wrong, [Started, HELLO, END], wrong, wrong)
    for _ in range(2):
        await house.start()
    with pytest.raises(RequestError, match="no"):
        await house.start()
    assert [call.payload for call in house.engine.calls] == [b"png", None, b"png", None, b"png"]


async def test_a_picture_travels_every_time_where_that_is_wanted():
    house = await a_house_with_a_keeper(repeat_files=True)
    for _ in range(2):
        await house.start()
    assert [call.payload for call in house.engine.calls] == [b"png", b"png"]


async def test_a_picture_beside_a_new_one_travels_with_it():
    house = await a_house_with_a_keeper()
    await house.start()
    house.prompts.media = (PICTURE, OTHER_PICTURE)
    house.files.content[OTHER_PICTURE.source.url] = b"jpg"
    await house.start()
    assert [call.payload for call in house.engine.calls] == [b"png", b"pngjpg"]


async def test_a_picture_travels_every_time_to_an_engine_that_keeps_none(house):
    house.prompts.media = (PICTURE,)
    house.files.content = {PICTURE.source.url: b"png"}
    house.plays(*[[Started, HELLO, END]] * 2)
    for _ in range(2):
        await house.start()
    assert [call.payload for call in house.engine.calls] == [b"png", b"png"]


async def test_a_uuid_alone_is_looked_for_on_every_worker(house):
    house.prompts.media = (NAMED_PICTURE,)
    house.plays([Started, NotHeld()], [Started, NotHeld()], [Started, HELLO, END])
    reply = await house.start()
    workers = [call.request.decided for call in house.engine.calls]
    assert set(workers) == {A, B, C}
    assert reply.receipt.worker == workers[-1]


async def test_a_uuid_that_no_worker_holds_is_a_404_on_the_path_of_its_part(house):
    house.prompts.media = (NAMED_PICTURE,)
    house.plays(*[[Started, NotHeld()]] * 3)
    image = {"type": "image_url", "image_url": None, "uuid": "mine"}
    with pytest.raises(RequestError) as caught:
        await house.start(messages=[{"role": "user", "content": [image]}])
    assert (caught.value.status, caught.value.code) == (404, "uuid_not_held")
    assert caught.value.param == "messages[0].content[0].image_url"


async def test_a_uuid_alone_for_engines_that_keep_nothing_is_a_400_that_names_their_setting(house):
    house.prompts.media = (NAMED_PICTURE,)
    house.plays([Started, NotHeld(keeps_media=False)])
    with pytest.raises(RequestError, match="mm_processor_cache_gb") as caught:
        await house.start()
    assert caught.value.status == 400


async def test_media_beyond_the_limit_of_a_request_are_a_413(house):
    house.prompts.media = (PICTURE, OTHER_PICTURE)
    house.files.content = {PICTURE.source.url: bytes(60), OTHER_PICTURE.source.url: bytes(41)}
    house.limit_request_bytes(100)
    with pytest.raises(
        RequestError, match=r"101 bytes; the limit is 100 \(media\.max_request_bytes\)"
    ) as caught:
        await house.start()
    assert caught.value.status == 413
    assert house.engine.calls == []


async def test_a_request_that_another_replica_took_is_booked_there(house):
    house.plays([LAST_TAKES, HELLO, END])
    reply = await house.start()
    [call] = house.engine.calls
    taker = WorkerId(call.pin.ranked[-1])
    assert call.request.decided != taker
    assert (reply.receipt.worker, reply.receipt.reason) == (taker, "fell_open")
    assert reply.receipt.headers["x-sightline-worker"] == str(taker)
    assert reply.receipt.headers["x-sightline-reason"] == "fell_open"
    assert await house.booked() == {taker.replica: 1}
    assert (await house.receipt()).decision.reason is DecisionReason.FELL_OPEN


async def test_without_a_router_the_request_is_served_all_the_same(house):
    house.link.is_up = False
    house.plays([Started(B), HELLO, END])
    reply = await house.start()
    [call] = house.engine.calls
    assert (call.pin.ranked, call.request.decided) == ((), None)
    assert reply.receipt.headers["x-sightline-reason"] == "router_unreachable"
    assert reply.receipt.headers["x-sightline-worker"] == "b/0"
    assert "x-sightline-overlap" not in reply.receipt.headers
    assert await collect(reply.messages) == [HELLO, END]


async def test_equal_requests_have_equal_tie_keys(house):
    house.plays(*[[Started, HELLO, END]] * 3)
    await house.start()
    await house.start()
    house.prompts.media = (PICTURE,)
    house.files.content = {PICTURE.source.url: b"png"}
    await house.start()
    one, two, picture = (call.pin.tie_key for call in house.engine.calls)
    assert one == two
    assert picture == PICTURE.media_id.value


async def test_a_draining_worker_is_not_decided(house):
    house.live.ids = frozenset({"b"})
    house.plays(*[[Started, HELLO, END]] * 4)
    assert {(await house.start()).receipt.worker for _ in range(4)} == {B}


async def test_a_list_of_live_replicas_that_names_nobody_known_is_not_believed(house):
    house.live.ids = frozenset({"x", "y"})
    house.plays([Started, HELLO, END])
    assert (await house.start()).receipt.worker in (A, B, C)


@pytest.mark.parametrize(("room", "fits"), [(101, True), (100, False)])
async def test_a_prompt_that_cannot_fit_is_refused_before_anything_is_booked(room, fits):
    house = House()
    await house.join(A, contract=replace(CONTRACT, max_model_len=room + 50))
    await house.join(B, contract=replace(CONTRACT, max_model_len=room))
    await house.client.pool(5.0)
    house.plays([Started, HELLO, END])
    if fits:
        await house.start()
        return
    with pytest.raises(RequestError, match=r"100 tokens.*takes 100 tokens in all") as caught:
        await house.start()
    assert caught.value.code == "context_length_exceeded"
    assert await house.booked() == {}


async def test_the_limit_is_that_of_the_workers_that_are_here_now():
    house = House()
    await house.join(A, contract=replace(CONTRACT, max_model_len=50))
    await house.client.pool(5.0)
    await house.link.actor.forget(A)
    await house.join(B)
    await house.client.pool(5.0)
    house.plays([Started, HELLO, END])
    assert (await house.start()).receipt.worker == B


async def test_the_salt_reaches_the_engine_and_the_keys(house):
    house.plays(*[[Started, HELLO, END]] * 2)
    asked: list[Any] = []
    decide = house.link.actor.decide_many

    async def overheard(queries: Any) -> Any:
        asked.extend(queries)
        return await decide(queries)

    house.link.actor.decide_many = overheard
    await house.start(cache_salt="mine")
    await house.start()
    salted, plain = (call.request.cache_salt for call in house.engine.calls)
    assert (salted, plain) == (cache_salt("mine", None, None), None)
    assert asked[0].views[CONTRACT.spec].keys != asked[1].views[CONTRACT.spec].keys


SALTS: dict[str, Callable[[], str | None]] = {
    "salt": lambda: cache_salt("one", None, None),
    "other salt": lambda: cache_salt("two", None, None),
    "tenant": lambda: cache_salt(None, "one", None),
    "other tenant": lambda: cache_salt(None, "two", None),
    "secret": lambda: cache_salt(None, None, "one"),
    "tenant and secret": lambda: cache_salt(None, "one", "one"),
    "tenant and salt": lambda: cache_salt("one", "one", None),
    "all": lambda: cache_salt("one", "one", "one"),
    "parts of other lengths": lambda: cache_salt("e", "onon", None),
    "joined alike": lambda: cache_salt("one", "on", None),
}


async def test_salts_differ_by_tenant_secret_and_salt():
    salts = [make() for make in SALTS.values()]
    assert None not in salts
    assert len(set(salts)) == len(SALTS)


async def test_a_salt_is_stable():
    assert cache_salt("salt", "tenant", "secret") == "43d029dd4f8502c1f5c5d5f8ea7d2477"


async def test_nothing_to_separate_is_no_salt():
    assert cache_salt(None, None, None) is None
    assert cache_salt(None, None, "") is None


# One worker: nothing waits for a decision


async def test_with_one_worker_a_request_is_answered_though_the_router_never_decides(house_of_one):
    house, gate = house_of_one
    house.plays([Started, HELLO, END])
    reply = await house.start()
    [call] = house.engine.calls
    assert (call.request.decided, call.pin.ranked) == (A, ("a",))
    assert house.prompts.size_waits == [0]
    assert reply.receipt.headers["x-sightline-reason"] == "only_worker"
    assert "x-sightline-overlap" not in reply.receipt.headers
    gate.set()
    assert await house.booked() == {"a": 1}
    assert (await house.receipt()).decision.worker == A


async def test_with_one_worker_a_decision_that_is_there_in_time_is_in_the_headers(monkeypatch):
    house, decided = House(), asyncio.Event()
    await house.alone()
    decide = house.link.actor.decide_many

    async def noted(queries):
        decisions = await decide(queries)
        decided.set()
        return decisions

    monkeypatch.setattr(house.link.actor, "decide_many", noted)
    house.plays([decided, Started, HELLO, END])
    reply = await house.start()
    assert reply.receipt.headers["x-sightline-overlap"] == "0/6"


async def test_a_request_that_ended_before_its_decision_leaves_a_receipt_and_no_booking(house_of_one):
    house, gate = house_of_one
    house.plays([Started, HELLO, END])
    await house.start()
    decision_id = house.engine.calls[0].request.decision_id
    end = LifecycleEvent(LifecycleKind.END, decision_id, cached_tokens=96, prompt_tokens=100)
    await house.link.actor.push(WorkerPush(A, 1, 1, lifecycle=(end,)))
    gate.set()
    assert await house.booked() == {}
    outcome = (await house.receipt()).outcome
    assert (outcome.kind, outcome.cached_tokens, outcome.agreed) == (LifecycleKind.END, 96, None)


async def test_a_late_decision_of_a_call_that_failed_is_taken_back(house_of_one):
    house, gate = house_of_one
    house.plays([Refused("full")], [Refused("full")])
    starting = asyncio.create_task(house.start())
    await asyncio.sleep(0.01)
    gate.set()
    with pytest.raises(EngineFailed):
        await starting
    assert await house.booked() == {}


async def test_a_second_worker_brings_the_choice_back(house):
    house.live.ids = frozenset({"a"})
    await house.client.pool(5.0)
    house.plays([Started, HELLO, END])
    await house.start()
    assert house.prompts.size_waits == [None]


@pytest_asyncio.fixture
async def house_of_one(monkeypatch):
    """A house with worker a alone, and the gate that its router decides behind."""
    house, gate = House(), asyncio.Event()
    await house.alone()
    decide = house.link.actor.decide_many

    async def behind_the_gate(queries):
        await gate.wait()
        return await decide(queries)

    monkeypatch.setattr(house.link.actor, "decide_many", behind_the_gate)
    return house, gate


# What the router refuses


async def test_a_full_pool_is_429_with_a_time_to_try_again(house):
    limits = {"max_waiting_requests_per_worker": 1}
    await house.link.actor.configure(RouterConfig(admission=limits, prefill_ms_per_token=50.0))
    house.plays(*[[Started, HELLO, END]] * 4)
    for _ in range(3):
        await house.start()
    with pytest.raises(PoolFull, match="all 3 workers are full") as caught:
        await house.start()
    assert (caught.value.status, caught.value.retry_after_s) == (429, 5)
    assert len(house.engine.calls) == 3
    await house.start(RouteHints(priority=1))


async def test_an_only_worker_is_asked_for_where_it_may_be_full():
    house = House()
    await house.link.actor.configure(RouterConfig(admission={"max_waiting_requests_per_worker": 1}))
    await house.alone()
    house.plays([Started, HELLO, END])
    await house.start()
    with pytest.raises(PoolFull):
        await house.start()


async def test_a_pinned_request_goes_to_its_worker(house):
    house.plays(*[[Started, HELLO, END]] * 3)
    for worker in (A, B, C):
        reply = await house.start(RouteHints(worker=worker.replica))
        assert reply.receipt.worker == worker
        assert reply.receipt.headers["x-sightline-reason"] == "pinned"


async def test_a_pin_to_an_unknown_worker_is_404_and_names_it(house):
    with pytest.raises(RequestError, match="no worker 'nobody'") as caught:
        await house.start(RouteHints(worker="nobody"))
    assert (caught.value.status, caught.value.param) == (404, "x-sightline-worker")


async def test_a_booking_is_renewed_by_its_ingress_until_a_replica_has_the_request(house):
    house.plays([..., HELLO])
    starting = asyncio.create_task(house.start())
    while not house.engine.calls:
        await asyncio.sleep(0)
    decision_id = house.engine.calls[0].request.decision_id
    assert house.client._held == {decision_id}
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert house.client._held == set()
