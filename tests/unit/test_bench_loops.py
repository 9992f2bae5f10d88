"""Closed and open loop, and what is done with what came back."""

from __future__ import annotations

import asyncio
import itertools
from array import array
from typing import Any

import pytest
from chat_server import ChatEndpoint, chat_endpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from app.load.client import Client
from app.load.requests import Ask, Source
from app.load.run import Limit, OpenLoop, Runner
from app.load.samples import Sample
from app.load.stream import Whole, Words, error_kind
from app.load.summary import Overlap, Spread, summarize
from app.load.target import Target
from app.load.texts import Texts

BODY = (b'{"model":"tiny","max_tokens":2,"stream":true,"messages":[{"role":"user","content":"hello"}]}',)


class Endless(Source):
    """The same request for ever; remembers what was said."""

    keeps_text = True

    def __init__(self) -> None:
        self.said: list[tuple[str, bool]] = []

    def take(self) -> Ask:
        return Ask(BODY)

    def answered(self, ask: Ask, text: str, is_good: bool) -> None:
        self.said.append((text, is_good))

    def prepare(self, count: int) -> None:
        pass


def runner(endpoint: ChatEndpoint, timeout_s: float = 30.0) -> Runner:
    return Runner(Client(Target.parse(endpoint.url), timeout_s=timeout_s), Endless())


def sample(**changes: Any) -> Sample:
    """Due at 1.0, sent at 1.5, words at 2.0 and 2.2, ended at 2.5."""
    values: dict[str, Any] = {"intended": 1.0, "sent": 1.5, "ended": 2.5, "tokens": array("d", (2.0, 2.2))}
    return Sample(**values | {"status": 200, "error": "", "outstanding": 1} | changes)


async def test_an_open_loop_sends_at_its_rate_whatever_comes_back():
    with chat_endpoint(first_s=0.4) as endpoint:
        run = runner(endpoint)
        await run.open(OpenLoop(100, is_poisson=False), Limit(requests=20), "seed")
        run.client.close()
    assert endpoint.most > 4  # one after the other they would take 8 s
    gaps = [
        b.intended - a.intended for a, b in itertools.pairwise(sorted(run.samples, key=lambda s: s.intended))
    ]
    assert gaps == pytest.approx([0.01] * 19)


async def test_a_request_that_had_to_wait_is_charged_from_when_it_was_due():
    with chat_endpoint(first_s=0.1) as endpoint:
        run = runner(endpoint)
        await run.open(OpenLoop(50, is_poisson=False, max_outstanding=1), Limit(requests=5), "seed")
        run.client.close()
    assert endpoint.most == 1
    last = max(run.samples, key=lambda s: s.intended)
    assert last.sent - last.intended >= 4 * 0.1 - 4 * 0.02 - 0.005


async def test_what_was_due_and_never_sent_is_told():
    with chat_endpoint(first_s=0.5) as endpoint:
        run = runner(endpoint)
        await run.open(OpenLoop(100, is_poisson=False, max_outstanding=1), Limit(duration_s=0.3), "seed")
        run.client.close()
    assert run.unsent > 0
    assert len(run.samples) + run.unsent in (29, 30, 31)


def test_poisson_gaps_have_the_rate_and_repeat_with_the_seed():
    gaps = list(itertools.islice(OpenLoop(50.0).gaps("a"), 4000))
    assert sum(gaps) / len(gaps) == pytest.approx(1 / 50, rel=0.1)
    assert max(gaps) > 5 / 50
    assert gaps == list(itertools.islice(OpenLoop(50.0).gaps("a"), 4000))


async def test_a_closed_loop_ends_with_its_duration():
    with chat_endpoint(first_s=0.02) as endpoint:
        run = runner(endpoint)
        await asyncio.wait_for(run.closed(3, Limit(duration_s=1.0)), 60)
        run.client.close()
    assert len(run.samples) == len(endpoint.bodies) >= 3 and run.outstanding == 0
    assert {text for text, is_good in run.source.said if is_good} == {"word0 word1 "}


async def test_stopping_gives_up_what_is_under_way(monkeypatch):
    monkeypatch.setattr("app.load.run.GRACE_S", 0.05)
    with chat_endpoint(first_s=60) as endpoint:
        run = runner(endpoint)
        running = asyncio.create_task(run.closed(2, Limit()))
        while endpoint.under_way < 2:
            await asyncio.sleep(0.01)
        run.stop()
        await asyncio.wait_for(running, 30)
        run.client.close()
    assert run.samples == [] and run.outstanding == 0


STREAM = (
    b': a comment\n\ndata: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"one "}}]}\r\n\r\n'
    b'data:{"choices":[{"delta":{"reasoning_content":"two "}}]}\n\ndata:\n\n'
    b'data: {"choices":[{"delta":{"content":"th\xc3\xa9"},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\ndata: [DONE]\n\n'
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
@settings(deadline=None, max_examples=60)
def test_a_stream_reads_the_same_however_it_is_cut(cuts):
    edges = [0, *sorted(cuts), len(STREAM)]
    words = Words(keeps_text=True)
    for now, (start, end) in enumerate(itertools.pairwise(edges)):
        words.feed(STREAM[start:end], float(now))
    words.close()
    assert (words.text, words.failed, words.is_complete) == ("one two thé", "", True)
    assert len(words.times) == 3 and list(words.times) == sorted(words.times)
    assert words.usage is not None and words.usage.cached_tokens == 4


def test_the_empty_piece_that_opens_a_stream_is_not_the_first_token():
    words = Words()
    first, _, rest = STREAM.partition(b"\n\ndata: ")
    words.feed(first, 1.0)
    words.feed(b"\n\ndata: " + rest, 2.0)
    assert words.times[0] == 2.0


@pytest.mark.parametrize(
    "chunk",
    [
        '{"choices":[{"delta":{"content":"one"}}],"error":null,"usage":null}',
        '{"choices":[{"delta":{"content":null,"reasoning":"one"}}]}',
        '{"choices":null}\n\ndata: {"choices":[{"delta":{"content":"one"}}]}',
        '{"choices":[{"delta":null},{"delta":{"content":"one"}}]}',
    ],
)
@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n", ""])
def test_endpoints_differ_in_what_they_leave_empty(chunk, end):
    words = Words(keeps_text=True)
    words.feed(f"data: {chunk}\n\ndata: [DONE]{end}".encode(), 0.0)
    words.close()
    assert (words.text, words.failed, len(words.times)) == ("one", "", 1)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"data: {\n\n", "not a completion chunk"),
        (b'data: {"error":{"message":"x"}}\n\ndata: [DONE]\n\n', "error in the stream"),
        (b'data: {"choices":[]}\n\n', "ended without [DONE]"),
    ],
)
def test_a_broken_stream_says_how(data, said):
    words = Words()
    words.feed(data, 0.0)
    words.close()
    assert words.failed == said


@pytest.mark.parametrize("body", [b"<html>", b'{"choices":[]}', b"[]"])
def test_a_whole_answer_without_a_choice_has_failed(body):
    whole = Whole()
    whole.feed(body, 0.0)
    whole.close()
    assert whole.failed


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"error":{"message":"m","code":"overloaded","type":"t"}}', "429 overloaded"),
        (b'{"error":{"message":"m","type":"rate_limit_error"}}', "429 rate_limit_error"),
        (b'{"error":{"code":429}}', "429"),
        (b'{"error":"no"}', "429"),
        (b"<html>", "429"),
        (b"", "429"),
    ],
)
def test_an_error_is_named_by_code_or_type(body, kind):
    assert error_kind(429, body) == kind


def test_latency_counts_from_due_and_from_sent():
    latency = summarize([sample()], 0.0, 10.0).latency_ms
    found = {name: spread.p50 for name, spread in latency.items() if spread is not None}
    expected = {
        "ttft": 1000,
        "ttft_from_sent": 500,
        "e2e": 1500,
        "e2e_from_sent": 1000,
        "gap": 200,
        "itl": 200,
    }
    assert found == pytest.approx(expected)


def test_itl_is_by_tokens_where_pieces_are_coalesced():
    assert sample(output_tokens=5).itl_ms == pytest.approx(200 / 4)
    assert sample(tokens=array("d", (2.0,)), output_tokens=1).itl_ms is None


def test_rates_count_what_ended_in_the_window_latencies_what_was_good():
    late, failed = sample(ended=99.0, output_tokens=7), sample(error="closed", ended=2.0)
    found = summarize([sample(output_tokens=3), late, failed], 0.0, 10.0)
    assert (found.requests, found.good, found.ended_in_window) == (3, 2, 1)
    assert (found.rate, found.output_tokens_rate) == (0.1, 0.3)
    assert found.latency_ms["e2e"] is not None and found.latency_ms["e2e"].count == 2


def test_nothing_measured_is_nothing_told():
    found = summarize([], 0.0, 0.0)
    assert found.rate == 0 and set(found.latency_ms.values()) == {None} and found.cached_share is None


def test_percentiles_are_numpys():
    spread = Spread.of(range(101))
    assert spread is not None
    assert (spread.p50, spread.p90, spread.p99, spread.max, spread.mean) == (50, 90, 99, 100, 50)


def test_receipts_that_are_none_do_not_count():
    assert Overlap.of(["3/4", "", "x/y", "1/4"]) == Overlap(4, 8)


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://a/v1/", "http://a:80/v1"),
        ("https://a/deep/v1/chat/completions", "https://a:443/deep/v1"),
        ("http://[::1]:9", "http://[::1]:9/v1"),
    ],
)
def test_the_root_of_the_api_is_found(url, root):
    assert Target.parse(url).url == root


def test_the_words_that_are_counted_stand_for_a_long_text() -> None:
    length = {word: len(word) for word in Texts("any").every_word().split()}
    long = Texts("long").words(40_000).split()
    mean = sum(map(length.__getitem__, long)) / len(long)
    assert sum(length.values()) / len(length) == pytest.approx(mean, rel=0.01)
