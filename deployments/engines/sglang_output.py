"""From SGLang's stream to ours: its outputs repeat everything said so far, our deltas say what is new."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deployments.protocol import Delta, Failed, Finished, Sampling, TokenLogprob

__all__ = ["StreamReader"]


class StreamReader:
    """One request's outputs, in order (`incremental_streaming_output` off, as by default)."""

    def __init__(self, sampling: Sampling) -> None:
        self._num_top = sampling.logprobs
        self._stop_token_ids = sampling.stop_token_ids
        self._stops = () if sampling.include_stop_str_in_output else sampling.stop
        self._text = ""
        self._num_tokens = 0

    def read(self, output: Mapping[str, Any]) -> Iterator[Delta | Finished | Failed]:
        """What one output adds."""
        meta = output["meta_info"]
        reason = meta.get("finish_reason")
        if reason is not None and reason["type"] == "abort":
            yield _aborted(reason)
            return
        delta = self._delta(output, meta, is_last=reason is not None)
        if delta.text or delta.token_ids:
            yield delta
        if reason is not None:
            yield self._finished(output, meta, reason)

    def _delta(self, output: Mapping[str, Any], meta: Mapping[str, Any], *, is_last: bool) -> Delta:
        text, ids = output["text"], output["output_ids"]
        if not is_last:
            # What may become a stop string is cut off again when it has; it cannot be taken back then.
            text = text[: len(text) - held_back(text, self._stops)]
        new_text = text[len(self._text) :] if text.startswith(self._text) else ""
        first, self._num_tokens = self._num_tokens, len(ids)
        self._text += new_text
        logprobs = () if self._num_top is None else _logprobs(meta, first, len(ids))
        return Delta(new_text, tuple(ids[first:]), logprobs)

    def _finished(
        self, output: Mapping[str, Any], meta: Mapping[str, Any], reason: Mapping[str, Any]
    ) -> Finished:
        matched = reason.get("matched")
        if isinstance(matched, int) and matched not in self._stop_token_ids:
            matched = None  # the model's own end; vLLM names none
        return Finished(
            finish_reason=reason["type"],
            prompt_tokens=int(meta["prompt_tokens"]),
            completion_tokens=int(meta["completion_tokens"]),
            cached_tokens=int(meta["cached_tokens"]),
            stop_reason=matched,
            prompt_token_ids=tuple(output.get("prompt_token_ids") or ()),
        )


def held_back(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the beginning of a stop string."""
    return max((_begun(text, stop) for stop in stops), default=0)


def _begun(text: str, stop: str) -> int:
    tail = text[-(len(stop) - 1) :] if len(stop) > 1 else ""
    start = tail.find(stop[0])
    while start >= 0 and not stop.startswith(tail[start:]):
        start = tail.find(stop[0], start + 1)
    return len(tail) - start if start >= 0 else 0


def _logprobs(meta: Mapping[str, Any], first: int, end: int) -> tuple[TokenLogprob, ...]:
    """SGLang's entries are (log probability, token id, text); its best come first."""
    own = meta.get("output_token_logprobs") or ()
    top = meta.get("output_top_logprobs") or ()
    return tuple(
        TokenLogprob(
            own[index][2] or "",
            own[index][1],
            own[index][0],
            tuple((text or "", token, logprob) for logprob, token, text in _at(top, index)),
        )
        for index in range(first, min(end, len(own)))
    )


def _at(rows: Any, index: int) -> Any:
    return (rows[index] or ()) if index < len(rows) else ()


def _aborted(reason: Mapping[str, Any]) -> Failed:
    """SGLang gives a status where the request is to blame (a prompt that fits in no cache, for example)."""
    message = reason.get("message") or "aborted"
    status = int(reason.get("status_code") or 500)
    if 400 <= status < 500:
        return Failed(f"the model cannot take this input: {message}", status)
    return Failed(f"the engine ended this request: {message}", status, code="engine_error")
