"""Request bodies of a workload: made before the run, as pieces of bytes of which large ones are shared."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from app.load.texts import Texts, TokenRate
from app.load.workload import Kind, Workload

__all__ = ["Addresses", "Ask", "Bodies", "Conversations", "Prepared", "Source", "make_source", "message"]

#: A picture's number -> its address in pieces.
Addresses = Callable[[int], tuple[bytes, ...]]


@dataclass(eq=False, slots=True)
class Ask:
    """One request to send. turn: from 0, of its conversation."""

    parts: tuple[bytes, ...]
    pictures: int = 0
    conversation: list[bytes] | None = None
    turn: int = 0


class Bodies:
    """Wraps messages in a request body, the same for all but the messages.

    extra: further fields of the body; they win over ours.
    """

    def __init__(
        self, model: str, max_tokens: int, *, stream: bool, usage: bool, extra: Mapping[str, Any]
    ) -> None:
        fields: dict[str, Any] = {
            "model": model,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": stream,
        }
        if stream and usage:
            fields["stream_options"] = {"include_usage": True}
        self.is_streamed = stream
        self._head = msgspec.json.encode(fields | dict(extra))[:-1] + b',"messages":['

    def body(self, *messages: bytes) -> tuple[bytes, ...]:
        return (self._head, *messages, b"]}")


class Source(ABC):
    """Where requests come from.

    keeps_text: whether `answered` needs the text. unprepared: bodies made during the run that could have
    been made before.
    """

    keeps_text = False
    unprepared = 0

    @abstractmethod
    def take(self) -> Ask:
        """The next request; never waits."""

    @abstractmethod
    def answered(self, ask: Ask, text: str, is_good: bool) -> None:
        """What came of a request; text: "" unless `keeps_text`."""

    @abstractmethod
    def prepare(self, count: int) -> None:
        """Make so many requests in advance, where that is possible."""


class Prepared(Source):
    """Requests that do not depend on answers."""

    def __init__(self, asks: Iterator[Ask]) -> None:
        self._asks = asks
        self._ready: deque[Ask] = deque()

    def prepare(self, count: int) -> None:
        self._ready.extend(itertools.islice(self._asks, max(0, count - len(self._ready))))

    def take(self) -> Ask:
        if self._ready:
            return self._ready.popleft()
        self.unprepared += 1
        return next(self._asks)

    def answered(self, ask: Ask, text: str, is_good: bool) -> None:
        pass  # the next request is what it is


class Conversations(Source):
    """Conversations that grow with their answers. One waits while a request of it is under way.

    held: conversations that are kept going in turn; a new one begins when one has had its turns, when one
    failed, and when all are under way.
    """

    keeps_text = True

    def __init__(self, bodies: Bodies, question: Callable[[], bytes], *, turns: int, held: int) -> None:
        self._bodies, self._question = bodies, question
        self._turns, self._held = turns, held
        self._waiting: deque[Ask] = deque()
        self._begun = 0

    def prepare(self, count: int) -> None:
        pass  # they need their answers

    def take(self) -> Ask:
        if self._waiting and self._begun >= self._held:
            ask = self._waiting.popleft()
        else:
            self._begun += 1
            ask = Ask((), conversation=[], turn=0)
        assert ask.conversation is not None
        ask.conversation.append((b"," if ask.turn else b"") + message(b"user", self._question()))
        ask.parts = self._bodies.body(*ask.conversation)
        return ask

    def answered(self, ask: Ask, text: str, is_good: bool) -> None:
        if not is_good or ask.turn + 1 >= self._turns or ask.conversation is None:
            self._begun -= 1
            return
        answer = b',{"role":"assistant","content":%b}' % msgspec.json.encode(text)
        self._waiting.append(Ask((), 0, [*ask.conversation, answer], ask.turn + 1))


def make_source(
    workload: Workload,
    bodies: Bodies,
    texts: Texts,
    rate: TokenRate,
    *,
    shared: Texts,
    pictures: Addresses,
    held: int,
    step: tuple[int, int] = (0, 1),
) -> Source:
    """Args:
    texts: for what is new; shared: for what several senders have in common.
    pictures: not called where there are none.
    held: conversations kept going, where the workload does not say.
    step: first and distance of the numbers of new pictures, so that no two senders share one.
    """
    words = rate.words(workload.prompt_tokens, is_whole=workload.kind is Kind.TEXT)
    match workload.kind:
        case Kind.MULTI_TURN:
            held = workload.conversations or held
            return Conversations(bodies, lambda: texts.words(words), turns=workload.turns, held=max(1, held))
        case Kind.TEXT:
            return Prepared(_text(bodies, texts, words))
        case Kind.SHARED_PREFIX:
            return Prepared(_shared(workload, bodies, shared, texts, rate))
        case _:
            numbers = _numbers(workload.repeat, texts, step)
            return Prepared(_pictured(workload.pictures, bodies, texts, words, pictures, numbers))


def _text(bodies: Bodies, texts: Texts, words: int) -> Iterator[Ask]:
    while True:
        yield Ask(bodies.body(message(b"user", texts.words(words))))


def _shared(
    workload: Workload, bodies: Bodies, shared: Texts, texts: Texts, rate: TokenRate
) -> Iterator[Ask]:
    words = rate.words(workload.shared_tokens, is_whole=False)
    prefixes = [message(b"system", shared.words(words)) for _ in range(workload.shared_count)]
    new = rate.words(workload.new_tokens)
    for number in itertools.count():
        # Each once, for the warm-up's sake; then at random.
        which = number if number < len(prefixes) else texts.below(len(prefixes))
        yield Ask(bodies.body(prefixes[which], b",", message(b"user", texts.words(new))))


def _pictured(
    count: int, bodies: Bodies, texts: Texts, words: int, pictures: Addresses, numbers: Iterator[int]
) -> Iterator[Ask]:
    while True:
        parts: list[bytes] = [b'{"role":"user","content":[']
        for _ in range(count):
            parts += [b'{"type":"image_url","image_url":{"url":"', *pictures(next(numbers)), b'"}},']
        parts.append(b'{"type":"text","text":"%b"}]}' % texts.words(words))
        yield Ask(bodies.body(*parts), pictures=count)


def _numbers(repeat: int | None, texts: Texts, step: tuple[int, int]) -> Iterator[int]:
    """Of pictures: every one new, or each once and then at random."""
    if repeat is None:
        yield from itertools.count(*step)
        return
    yield from range(repeat)
    while True:
        yield texts.below(repeat)


def message(role: bytes, text: bytes) -> bytes:
    return b'{"role":"%b","content":"%b"}' % (role, text)
