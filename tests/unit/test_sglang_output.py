"""SGLang's cumulative outputs, read as deltas."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.engines.sglang_output import StreamReader, held_back
from deployments.protocol import Delta, Failed, Finished, Sampling


def output(text: str, ids: list[int], reason: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    return {
        "text": text,
        "output_ids": ids,
        "meta_info": {
            "finish_reason": reason,
            "prompt_tokens": 9,
            "completion_tokens": len(ids),
            "cached_tokens": 4,
            **meta,
        },
    }


def read(reader: StreamReader, *outputs: dict[str, Any]) -> list[Any]:
    return [message for one in outputs for message in reader.read(one)]


def test_a_stream_becomes_deltas_and_an_end() -> None:
    done = output("abc", [1, 2, 3], {"type": "length", "length": 3}) | {"prompt_token_ids": [7, 8]}
    messages = read(StreamReader(Sampling()), output("a", [1]), done)
    assert messages == [
        Delta("a", (1,)),
        Delta("bc", (2, 3)),
        Finished("length", 9, 3, 4, None, (7, 8)),
    ]


def test_a_stop_string_is_named_and_no_part_of_it_is_given_out() -> None:
    reader = StreamReader(Sampling(stop=("STOP", "ST!")))
    messages = read(
        reader,
        output("hello S", [1, 2]),
        output("hello ST", [1, 2, 3]),
        output("hello ", [1, 2, 3, 4], {"type": "stop", "matched": "STOP"}),
    )
    assert messages == [
        Delta("hello ", (1, 2)),
        Delta("", (3,)),
        Delta("", (4,)),
        Finished("stop", 9, 4, 4, "STOP"),
    ]


def test_what_only_began_like_a_stop_string_is_given_out_after_all() -> None:
    reader = StreamReader(Sampling(stop=("STOP",)))
    first, second = read(reader, output("a STO", [1]), output("a STORE", [1, 2]))
    assert (first.text, second.text) == ("a ", "STORE")
    ends = read(
        StreamReader(Sampling(stop=("STOP",))),
        output("a S", [1]),
        output("a ST", [1, 2], {"type": "length", "length": 2}),
    )
    assert "".join(message.text for message in ends[:2]) == "a ST"


def test_a_stop_string_that_shall_stay_is_given_out_as_it_comes() -> None:
    reader = StreamReader(Sampling(stop=("STOP",), include_stop_str_in_output=True))
    first, second, _ = read(
        reader, output("a ST", [1]), output("a STOP", [1, 2], {"type": "stop", "matched": "STOP"})
    )
    assert (first.text, second.text) == ("a ST", "OP")


def test_an_end_of_the_models_own_has_no_stop_reason_and_an_asked_one_has() -> None:
    end = output("a", [1], {"type": "stop", "matched": 2})
    assert read(StreamReader(Sampling()), end)[-1].stop_reason is None
    assert read(StreamReader(Sampling(stop_token_ids=(2,))), end)[-1].stop_reason == 2


@given(st.text("ab", max_size=8), st.lists(st.text("ab", min_size=1, max_size=5), max_size=3))
@settings(deadline=None, max_examples=200)
def test_just_what_a_stop_string_may_begin_with_is_held_back(text: str, stops: list[str]) -> None:
    sizes = [size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
    assert held_back(text, stops) == max(sizes, default=0)


def test_an_abort_for_a_bad_request_is_the_users() -> None:
    reason = {"type": "abort", "message": "too long", "status_code": 400}
    (failed,) = read(StreamReader(Sampling()), output("", [], reason))
    assert isinstance(failed, Failed)
    assert (failed.status, "too long" in failed.message) == (400, True)


def test_any_other_abort_is_the_engines() -> None:
    (failed,) = read(
        StreamReader(Sampling()), output("", [], {"type": "abort", "message": "x", "status_code": None})
    )
    assert isinstance(failed, Failed) and failed.status == 500


def test_log_probabilities_come_with_their_tokens() -> None:
    meta = {
        "output_token_logprobs": [(-0.5, 1, "a"), (-1.5, 2, "b")],
        "output_top_logprobs": [[(-0.5, 1, "a"), (-2.0, 5, None)], None],
    }
    reader = StreamReader(Sampling(logprobs=2))
    first, second = read(reader, output("a", [1], **meta), output("ab", [1, 2], **meta))
    (entry,) = first.logprobs
    assert (entry.token, entry.token_id, entry.logprob) == ("a", 1, -0.5)
    assert entry.top == (("a", 1, -0.5), ("", 5, -2.0))
    assert second.logprobs[0].top == ()


@given(st.lists(st.text(max_size=3), min_size=1, max_size=12), st.data())
@settings(deadline=None, max_examples=60)
def test_however_outputs_are_merged_nothing_is_lost(pieces, data) -> None:
    cuts = data.draw(st.sets(st.integers(1, len(pieces)))) | {len(pieces)}
    reader = StreamReader(Sampling())
    outputs = [output("".join(pieces[:n]), list(range(n))) for n in sorted(cuts)]
    deltas = read(reader, *outputs)
    assert "".join(delta.text for delta in deltas) == "".join(pieces)
    assert [token for delta in deltas for token in delta.token_ids] == list(range(len(pieces)))
