"""From SGLang's stream to ours: its outputs repeat everything said so far, our deltas say what is new."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deployments.protocol import Delta, Failed, Finished, TokenLogprob

__all__ = ["StreamReader"]


class StreamReader:
    """One request's outputs, in order (`incremental_streaming_output` off, as by default).

    num_top: alternatives asked for per token; None without log probabilities.
    """

    def __init__(self, num_top: int | None) -> None:
        self._num_top = num_top
        self._text = ""
        self._num_tokens = 0

    def read(self, output: Mapping[str, Any]) -> Iterator[Delta | Finished | Failed]:
        """What one output adds."""
        meta = output["meta_info"]
        reason = meta.get("finish_reason")
        if reason is not None and reason["type"] == "abort":
            yield _aborted(reason)
            return
        delta = self._delta(output, meta)
        if delta.text or delta.token_ids:
            yield delta
        if reason is not None:
            yield _finished(output, meta, reason)

    def _delta(self, output: Mapping[str, Any], meta: Mapping[str, Any]) -> Delta:
        text, ids = output["text"], output["output_ids"]
        # At the end a stop string is cut off again, which may have been streamed in part.
        new_text = text[len(self._text) :] if text.startswith(self._text) else ""
        first, self._text, self._num_tokens = self._num_tokens, text, len(ids)
        logprobs = () if self._num_top is None else _logprobs(meta, first, len(ids))
        return Delta(new_text, tuple(ids[first:]), logprobs)


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


def _finished(output: Mapping[str, Any], meta: Mapping[str, Any], reason: Mapping[str, Any]) -> Finished:
    return Finished(
        finish_reason=reason["type"],
        prompt_tokens=int(meta["prompt_tokens"]),
        completion_tokens=int(meta["completion_tokens"]),
        cached_tokens=int(meta["cached_tokens"]),
        stop_reason=reason.get("matched"),
        prompt_token_ids=tuple(output.get("prompt_token_ids") or ()),
    )


def _aborted(reason: Mapping[str, Any]) -> Failed:
    """SGLang gives a status where the request is to blame (a prompt that fits in no cache, for example)."""
    message = reason.get("message") or "aborted"
    status = int(reason.get("status_code") or 500)
    if 400 <= status < 500:
        return Failed(f"the model cannot take this input: {message}", status)
    return Failed(f"the engine ended this request: {message}", status, code="engine_error")
