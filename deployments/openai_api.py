"""OpenAI's chat completion API: the request as it may be, the response as it must be. Pure.

What Sightline does not do is refused by name rather than ignored, unless ignoring it cannot change the
answer (`IGNORED`).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Any

import pydantic
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt

from deployments.protocol import Delta, Finished, Sampling, TokenLogprob
from processors import RequestError

__all__ = ["ChatRequest", "ChatResponse", "parse_chat_request"]

#: Accepted and without effect: bookkeeping of the client's.
IGNORED = frozenset(
    {
        "user",
        "store",
        "metadata",
        "service_tier",
        "parallel_tool_calls",
        "safety_identifier",
        "prompt_cache_key",
    }
)
#: Known to clients, not served here.
UNSERVED = frozenset(
    {"tool_choice", "functions", "function_call", "response_format", "audio", "modalities", "prediction",
     "reasoning_effort", "verbosity", "web_search_options", "best_of", "echo", "prompt_logprobs",
     "structured_outputs", "guided_json", "guided_regex", "guided_choice", "media_io_kwargs"}
)  # fmt: skip
MAX_LOGPROBS = 20
MAX_STOPS = 16
#: The largest count that travels: engines keep them in 32 bits.
MAX_COUNT = 2**31 - 1
MAX_BIAS = 100
#: A longer name is nobody's typing error, and too costly to look for.
MAX_NAME = 40


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StreamOptions(_Strict):
    include_usage: StrictBool = False
    continuous_usage_stats: StrictBool = False


class ChatRequest(_Strict):
    """Body of `POST /v1/chat/completions`. Messages are checked by `processors`."""

    model: str
    messages: list[Any] = Field(min_length=1)
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    max_tokens: StrictInt | None = Field(None, ge=1, le=MAX_COUNT)
    max_completion_tokens: StrictInt | None = Field(None, ge=1, le=MAX_COUNT)
    min_tokens: StrictInt = Field(0, ge=0, le=MAX_COUNT)
    temperature: StrictFloat | None = Field(None, ge=0, le=2)
    top_p: StrictFloat | None = Field(None, gt=0, le=1)
    top_k: StrictInt | None = Field(None, ge=-1, le=MAX_COUNT)
    min_p: StrictFloat | None = Field(None, ge=0, le=1)
    presence_penalty: StrictFloat | None = Field(None, ge=-2, le=2)
    frequency_penalty: StrictFloat | None = Field(None, ge=-2, le=2)
    repetition_penalty: StrictFloat | None = Field(None, gt=0)
    seed: StrictInt | None = Field(None, ge=-(2**63), lt=2**63)
    stop: str | list[str] | None = None
    stop_token_ids: list[StrictInt] = Field(default_factory=list)
    include_stop_str_in_output: StrictBool = False
    ignore_eos: StrictBool = False
    skip_special_tokens: StrictBool = True
    logit_bias: dict[str, StrictFloat] | None = None
    n: StrictInt | None = 1
    logprobs: StrictBool | None = None
    top_logprobs: StrictInt | None = Field(None, ge=0, le=MAX_LOGPROBS)
    cache_salt: str | None = Field(None, min_length=1)
    mm_processor_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: StrictBool = True
    return_token_ids: StrictBool = False

    @property
    def output_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self) -> Sampling:
        """The sampling parameters; RequestError for stop and bias lists that cannot be."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if len(stop) > MAX_STOPS or any(not text for text in stop):
            raise RequestError(f"stop takes up to {MAX_STOPS} non-empty strings", param="stop")
        return Sampling(
            max_tokens=self.output_limit,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
            stop=stop,
            stop_token_ids=tuple(self.stop_token_ids),
            include_stop_str_in_output=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
            skip_special_tokens=self.skip_special_tokens,
            logit_bias=_logit_bias(self.logit_bias),
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )


def _logit_bias(bias: dict[str, float] | None) -> tuple[tuple[int, float], ...]:
    pairs = tuple((bias or {}).items())
    if all(token.isdecimal() and len(token) <= 10 and abs(value) <= MAX_BIAS for token, value in pairs):
        return tuple((int(token), value) for token, value in pairs)
    message = f"logit_bias maps token ids (digits) to numbers from -{MAX_BIAS} to {MAX_BIAS}"
    raise RequestError(message, param="logit_bias")


def parse_chat_request(body: object) -> ChatRequest:
    """Check a request body.

    Raises:
        RequestError: 400, naming the parameter, what was given and what is allowed.
    """
    if not isinstance(body, dict):
        raise RequestError(f"the request body must be a JSON object, not {_kind(body)}")
    _check_names(body)
    try:
        request = ChatRequest.model_validate({k: v for k, v in body.items() if _is_given(k, v)})
    except pydantic.ValidationError as error:
        raise _validation_error(error) from None
    _check_combinations(request)
    return request


def _is_given(name: str, value: object) -> bool:
    """OpenAI's schema lets null stand for a parameter's default, and some clients send them all."""
    return name not in IGNORED and (value is not None or name in ("model", "messages"))


def _check_names(body: dict[str, Any]) -> None:
    for name, value in body.items():
        if name in ChatRequest.model_fields or name in IGNORED or value is None:
            continue
        if len(name) > MAX_NAME:
            short = name[:MAX_NAME] + "..."
            raise RequestError(f"unknown parameter {short!r}", param=short, code="unknown_parameter")
        if name in UNSERVED:
            raise RequestError(
                f"{name!r} is not served here; leave it out", param=name, code="unsupported_parameter"
            )
        near = difflib.get_close_matches(name, ChatRequest.model_fields, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise RequestError(f"unknown parameter {name!r}{hint}", param=name, code="unknown_parameter")


def _check_combinations(request: ChatRequest) -> None:
    if request.n not in (None, 1):
        raise RequestError(f"n={request.n} is not served; n=1 is", param="n")
    if request.top_logprobs is not None and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options needs stream: true", param="stream_options")
    limit = request.output_limit
    if limit is not None and request.min_tokens > limit:
        message = f"min_tokens={request.min_tokens} is above max_tokens={limit}"
        raise RequestError(message, param="min_tokens")


def _validation_error(error: pydantic.ValidationError) -> RequestError:
    first = error.errors(include_url=False)[0]
    param = ".".join(str(part)[:MAX_NAME] for part in first["loc"])
    if first["type"] == "missing":
        return RequestError(f"{param!r} is required", param=param, code="missing_required_parameter")
    return RequestError(
        f"{param}: {first['msg']} (got {quoted(first['input'])})", param=param, code="invalid_value"
    )


def quoted(value: object) -> str:
    """A value as an error may repeat it, however long it is."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _kind(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


@dataclass(slots=True)
class ChatResponse:
    """One response under way: makes OpenAI's objects out of the engine's messages.

    is_finished: the engine's last message has become chunks.
    """

    response_id: str
    model: str
    created: int
    with_token_ids: bool = False
    with_logprobs: bool = False
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    is_finished: bool = False

    def add(self, delta: Delta) -> None:
        self.text.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += map(_logprob, delta.logprobs)

    def completion(self, finished: Finished) -> dict[str, Any]:
        """The whole `chat.completion` object."""
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": "".join(self.text), "refusal": None},
            "finish_reason": finished.finish_reason,
            "stop_reason": finished.stop_reason,
            "logprobs": {"content": self.logprobs} if self.with_logprobs else None,
        }
        body = self._envelope("chat.completion", [choice])
        body["usage"] = usage(finished)
        if self.with_token_ids:
            choice["token_ids"] = self.token_ids
            body["prompt_token_ids"] = list(finished.prompt_token_ids)
        return body

    def chunks(self, message: Delta | Finished, *, includes_usage: bool) -> list[dict[str, Any]]:
        """The `chat.completion.chunk` objects of one message."""
        if isinstance(message, Delta):
            return [self.delta_chunk(message)]
        self.is_finished = True
        usages = [self.usage_chunk(message)] if includes_usage else []
        return [self.final_chunk(message), *usages]

    def role_chunk(self) -> dict[str, Any]:
        return self._chunk({"role": "assistant", "content": ""})

    def delta_chunk(self, delta: Delta) -> dict[str, Any]:
        chunk = self._chunk({"content": delta.text})
        if self.with_logprobs:
            chunk["choices"][0]["logprobs"] = {"content": [_logprob(entry) for entry in delta.logprobs]}
        if self.with_token_ids:
            chunk["choices"][0]["token_ids"] = list(delta.token_ids)
        return chunk

    def final_chunk(self, finished: Finished) -> dict[str, Any]:
        chunk = self._chunk({}, finished.finish_reason)
        chunk["choices"][0]["stop_reason"] = finished.stop_reason
        if self.with_token_ids:
            chunk["prompt_token_ids"] = list(finished.prompt_token_ids)
        return chunk

    def usage_chunk(self, finished: Finished) -> dict[str, Any]:
        return self._envelope("chat.completion.chunk", []) | {"usage": usage(finished)}

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return self._envelope("chat.completion.chunk", [choice])

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def usage(finished: Finished) -> dict[str, Any]:
    return {
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "total_tokens": finished.prompt_tokens + finished.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": finished.cached_tokens},
    }


def _logprob(entry: TokenLogprob) -> dict[str, Any]:
    return _token_logprob(entry.token, entry.logprob) | {
        "top_logprobs": [_token_logprob(token, logprob) for token, _, logprob in entry.top]
    }


def _token_logprob(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": max(logprob, -9999.0), "bytes": list(token.encode())}
