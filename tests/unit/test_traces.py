"""Traces are read strictly, and a log becomes a trace that keeps its structure and none of its words."""

from __future__ import annotations

import base64
import io
import json
import math
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from app.trace_command import size_in_data_url
from sightline_types import KeyScheme, KeySpec
from simulation.anonymizer import PIECE_CHARACTERS, Anonymizer
from simulation.errors import TraceError
from simulation.keying import key_turn
from simulation.prompts import Picture, Text
from simulation.traces import read_trace

SPEC = KeySpec(KeyScheme.VLLM, 16)
SECRET = bytes(range(32))


def tokens(width: int, height: int) -> int:
    return width * height // 1024


def write(tmp_path, *lines):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def mooncake(timestamp, *ids, length=None, output=5):
    length = 512 * len(ids) if length is None else length
    return {"timestamp": timestamp, "input_length": length, "output_length": output, "hash_ids": list(ids)}


# Mooncake's format


def test_equal_hash_ids_are_equal_blocks_and_the_last_one_may_be_short(tmp_path):
    path = write(tmp_path, mooncake(0, 1, 2, 3), mooncake(1000, 1, 2, 4, length=1100))
    trace = read_trace(path, tokens)
    assert trace.format == "mooncake"
    first, second = (session.turns[0] for session in trace.sessions)
    assert (first.prompt_tokens, second.prompt_tokens, second.output_tokens) == (1536, 1100, 5)
    one, other = key_turn(first, SPEC).keys, key_turn(second, SPEC).keys
    assert one[:64].tolist() == other[:64].tolist()
    assert one[64] != other[64]
    assert [session.start_ms for session in trace.replayed(speed=10.0)] == [0.0, 100.0]


def test_a_share_of_the_blocks_is_pictures_and_always_the_same_ones(tmp_path):
    path = write(tmp_path, mooncake(0, *range(400)), mooncake(1, *range(400)))
    first, again = (session.turns[0] for session in read_trace(path, tokens, picture_share=0.3).sessions)
    assert first.parts == again.parts
    assert 0.2 < len(first.pictures) / 400 < 0.4
    assert first.prompt_tokens == 512 * 400


def test_an_answer_of_no_tokens_has_one(tmp_path):
    path = write(tmp_path, mooncake(0, 1, output=0))
    assert read_trace(path, tokens).sessions[0].turns[0].output_tokens == 1


# Our own format


def test_parts_are_text_and_pictures_by_name(tmp_path):
    parts = [{"text": "a", "tokens": 10}, {"picture": "p", "size": "64x32"}, {"picture": "q", "tokens": 7}]
    path = write(tmp_path, {"at_ms": 5, "parts": parts, "output_tokens": 3, "output": "answer"})
    turn = read_trace(path, tokens).sessions[0].turns[0]
    assert [type(part) for part in turn.parts] == [Text, Picture, Picture]
    assert [part.tokens for part in turn.parts] == [10, 2, 7]


def test_a_line_with_a_pause_follows_its_session_and_one_without_stands_alone(tmp_path):
    def line(at_ms, **more):
        return {"at_ms": at_ms, "parts": [{"text": "a", "tokens": 1}], "output_tokens": 1, **more}

    path = write(
        tmp_path,
        line(0, session="s"), line(10, session="s", think_ms=500), line(20, session="t"), line(30),
        line(40, session="s"),
    )  # fmt: skip
    sessions = sorted(read_trace(path, tokens).sessions, key=lambda session: session.start_ms)
    assert [(s.start_ms, len(s.turns)) for s in sessions] == [(0, 2), (20, 1), (30, 1), (40, 1)]
    assert sessions[0].turns[1].think_ms == 500


def test_an_answer_can_be_quoted_by_its_name(tmp_path):
    first = {"at_ms": 0, "parts": [{"text": "q", "tokens": 32}], "output_tokens": 32, "output": "said"}
    quoted = [{"text": "q", "tokens": 32}, {"text": "said", "tokens": 32}, {"text": "more", "tokens": 5}]
    path = write(tmp_path, first, {"at_ms": 1, "parts": quoted, "output_tokens": 1})
    one, other = (key_turn(session.turns[0], SPEC).keys for session in read_trace(path, tokens).sessions)
    assert one.tolist() == other[:4].tolist()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{"], "line 1: not JSON"),
        (["[1]"], "an object a line is expected"),
        ([mooncake(0, 1), {"hash_ids": [1]}], "line 2: timestamp: Field required"),
        ([mooncake(0, 1, length=513)], "1 hash_ids cannot hold 513 tokens"),
        ([{"at_ms": 0, "parts": [], "output_tokens": 1}], "parts"),
        ([{"at_ms": 0, "parts": [{"text": "a"}], "output_tokens": 1}], "`tokens` is missing"),
        ([{"at_ms": 0, "parts": [{"tokens": 3}], "output_tokens": 1}], "either `text` or `picture`"),
        ([{"at_ms": -1, "parts": [{"text": "a", "tokens": 1}], "output_tokens": 1}], "at_ms"),
        ([{"at_ms": 0, "parts": [{"picture": "a", "size": "9"}], "output_tokens": 1}], "size"),
        ([{"at_ms": math.inf, "parts": [{"text": "a", "tokens": 1}], "output_tokens": 1}], "at_ms"),
        ([{"at_ms": 0, "parts": [{"text": "a", "tokens": 1 << 32}], "output_tokens": 1}], "tokens: Input"),
        ([{"at_ms": 0, "parts": [{"text": "a", "tokens": 1}], "output_tokens": 1 << 32}], "output_tokens"),
        ([""], "no requests"),
        (["[" * 100_000], "line 1: nested too deeply"),
    ],
)
def test_what_cannot_be_read_names_its_line(tmp_path, lines, message):
    with pytest.raises(TraceError, match=message):
        read_trace(write(tmp_path, *lines), tokens)


def test_a_byte_order_mark_and_line_ends_of_windows_or_in_a_name_change_nothing(tmp_path):
    line = '{"at_ms": 0, "parts": [{"text": "one\u2028two", "tokens": 9}], "output_tokens": 3}'
    plain, marked = tmp_path / "plain.jsonl", tmp_path / "marked.jsonl"
    plain.write_bytes(f"{line}\n{line}\n".encode())
    marked.write_bytes(f"\ufeff{line}\r\n{line}\r\n".encode())
    assert read_trace(plain, tokens) == read_trace(marked, tokens)
    assert len(read_trace(plain, tokens).replayed()) == 2


def test_a_name_may_be_half_a_pair_of_surrogates_as_json_allows(tmp_path):
    line = r'{"at_ms": 0, "parts": [{"text": "\ud83d", "tokens": 9}], "output_tokens": 3}'
    assert read_trace(write(tmp_path, line), tokens).num_requests == 1


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TraceError, match=r"none\.jsonl"):
        read_trace(tmp_path / "none.jsonl", tokens)


# From a log


def chat(*messages, **more) -> dict:
    return {
        "model": "m",
        "messages": [{"role": role, "content": content} for role, content in messages],
        **more,
    }


def convert(*entries, **settings_) -> list:
    return list(Anonymizer(SECRET, **settings_).convert(json.dumps(entry) for entry in entries))


def test_equal_texts_and_pictures_stay_equal_and_others_apart():
    def about(url, question):
        return chat(
            ("user", [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}])
        )

    one, same, other = convert(
        about("http://a/1", "what?"), about("http://a/1", "why?"), about("http://a/2", "what?")
    )
    pictures = [next(part for part in request.parts if part.picture) for request in (one, same, other)]
    assert pictures[0] == pictures[1] != pictures[2]
    assert one.parts[-1] == other.parts[-1] != same.parts[-1]


def test_a_shared_beginning_stays_shared():
    common = "Be brief. " * 100
    one, other = convert(chat(("system", common + "A")), chat(("system", common + "B")))
    same = [a == b for a, b in zip(one.parts, other.parts, strict=True)]
    assert same == [True] * (1 + len(common) // PIECE_CHARACTERS) + [False]


def test_times_lengths_and_users_are_kept():
    first, second = convert(
        {"timestamp": 100.0, "request": chat(("user", "a"), user="u", max_tokens=9)},
        {
            "timestamp": 101.5,
            "request": chat(("user", "b"), user="u"),
            "response": {"usage": {"completion_tokens": 33}},
        },
    )
    assert (first.at_ms, second.at_ms) == (0.0, 1500.0)
    assert (first.output_tokens, second.output_tokens) == (9, 33)
    assert first.session == second.session is not None


def test_another_secret_names_everything_otherwise():
    entry = json.dumps(chat(("user", "hello")))
    one, other = (next(Anonymizer(secret).convert([entry])) for secret in (SECRET, bytes(32)))
    assert one.parts[-1].text != other.parts[-1].text
    assert one.parts[-1].tokens == other.parts[-1].tokens


def test_a_log_in_any_order_begins_with_its_earliest_request():
    sent = [
        request.at_ms
        for request in convert(*({"timestamp": at, "request": chat(("user", "a"))} for at in (9.5, 7.0, 8.0)))
    ]
    assert sent == [2500.0, 0.0, 1000.0]


def test_a_log_without_times_has_its_requests_a_second_apart():
    assert [request.at_ms for request in convert(*[chat(("user", "a"))] * 3)] == [0.0, 1000.0, 2000.0]


@pytest.mark.parametrize(
    "at", ["2026-01-01T00:00:00Z", float("nan"), float("inf"), 1e400, True, 1.7e12, -1e12, [1]]
)
def test_a_time_that_is_none_is_named(at):
    entry = {"timestamp": at, "request": chat(("user", "a"))}
    with pytest.raises(TraceError, match="line 1: `timestamp` is a number"):
        convert(entry)


def test_a_line_without_a_time_among_others_that_have_one_is_named():
    with pytest.raises(TraceError, match="line 2: no `timestamp`"):
        convert({"timestamp": 1.0, "request": chat(("user", "a"))}, chat(("user", "b")))


def test_what_no_trace_can_hold_is_named_and_not_quoted():
    with pytest.raises(TraceError, match="line 1: output_tokens") as caught:
        convert(chat(("user", "a"), max_tokens=987_654_321_987))
    assert "987654" not in str(caught.value)


WORDS = st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=17, max_size=40)


@settings(deadline=None, max_examples=40)
@given(WORDS, WORDS, WORDS)
def test_nothing_that_anybody_wrote_is_in_the_trace(text, url, user):
    picture = {"type": "image_url", "image_url": {"url": f"https://{url}.example/p.png"}}
    entry = chat(("user", [{"type": "text", "text": text}, picture]), user=user)
    written = convert(entry)[0].model_dump_json()
    assert not any(secret in written for secret in (text, url, user))


@pytest.mark.parametrize(
    "line",
    [
        "{secret", '["secret"]', '{"secret": 1}', '{"messages": []}', '{"messages": ["secret"]}',
        '{"messages": [{"role": "user", "content": [{"type": "secret"}]}]}',
        '{"messages": [{"role": "user", "content": 5}]}', "[" * 100_000 + "secret",
        '{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"secret": 1}}]}]}',
    ],
)  # fmt: skip
def test_a_line_that_is_no_request_is_named_and_not_quoted(line):
    with pytest.raises(TraceError, match="line 1") as caught:
        list(Anonymizer(SECRET).convert([line]))
    assert "secret" not in str(caught.value)


def test_a_picture_in_its_own_address_tells_its_size_and_others_do_not():
    data = io.BytesIO()
    Image.new("RGB", (30, 20)).save(data, "PNG")
    url = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
    assert size_in_data_url(url) == (30, 20)
    assert size_in_data_url("https://example.org/a.png") is None
    assert size_in_data_url("data:image/png;base64,AAAA") is None
    assert size_in_data_url("data:") is None


def test_a_header_that_tells_of_more_pixels_than_anybody_decodes_is_only_read():
    header = struct.pack(">IIBBBBB", 60_000, 50_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    data = b"\x89PNG\r\n\x1a\n\0\0\0\r" + chunk + struct.pack(">I", zlib.crc32(chunk)) + b"\0\0\0\0IDAT"
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    assert size_in_data_url(url) == (60_000, 50_000)


def test_a_converted_log_can_be_simulated(tmp_path):
    requests = convert(chat(("user", "a" * 600)), chat(("user", "a" * 600)))
    path = write(tmp_path, *(request.model_dump_json(exclude_none=True) for request in requests))
    trace = read_trace(path, tokens)
    assert (trace.format, trace.num_requests) == ("sightline", 2)
