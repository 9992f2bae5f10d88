"""What vLLM takes of a request's sampling, and what its outputs say, in our words."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from deployments.protocol import Failed, Finished, Sampling, TokenLogprob

__all__ = ["failure", "finished", "logprobs", "sampling_params"]

log = logging.getLogger("sightline.deployments")


def sampling_params(sampling: Sampling) -> Any:
    """vLLM's `SamplingParams`.

    Raises:
        ValueError: a value that vLLM does not take, or a seed that would end this engine.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, SamplingType

    optional = {
        name: value
        for name in (
            "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
            "repetition_penalty", "seed", "logprobs",
        )
        if (value := getattr(sampling, name)) is not None
    }  # fmt: skip
    params = SamplingParams(
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        stop=list(sampling.stop) or None,
        stop_token_ids=list(sampling.stop_token_ids) or None,
        include_stop_str_in_output=sampling.include_stop_str_in_output,
        ignore_eos=sampling.ignore_eos,
        skip_special_tokens=sampling.skip_special_tokens,
        logit_bias=dict(sampling.logit_bias) or None,
        output_kind=RequestOutputKind.DELTA,
        **optional,
    )
    if params.sampling_type is SamplingType.RANDOM_SEED and not _can_rewind_generators():
        raise ValueError(
            f"seed={sampling.seed}: vLLM on a CPU ends where a seeded request's prompt is cut into chunks; "
            "leave seed out, or ask for temperature 0"
        )
    return params


@cache
def _can_rewind_generators() -> bool:
    """After each chunk of a prompt but the last, vLLM (0.32) steps a seeded request's generator back by
    its offset; torch's generator of a CPU has none."""
    import torch
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return True
    try:
        torch.Generator("cpu").get_offset()
    except RuntimeError:
        return False
    return True


def finished(output: Any, choice: Any, completion_tokens: int, *, wants_prompt_ids: bool) -> Finished:
    return Finished(
        finish_reason=choice.finish_reason or "stop",
        prompt_tokens=len(output.prompt_token_ids),
        completion_tokens=completion_tokens,
        cached_tokens=int(output.num_cached_tokens or 0),
        stop_reason=choice.stop_reason,
        prompt_token_ids=tuple(output.prompt_token_ids) if wants_prompt_ids else (),
    )


def logprobs(choice: Any, num_top: int) -> tuple[TokenLogprob, ...]:
    """vLLM's tables hold the sampled token beside the best `num_top`."""
    if not choice.logprobs:
        return ()
    result = []
    for token_id, table in zip(choice.token_ids, choice.logprobs, strict=False):
        ranked = sorted(table.items(), key=lambda item: item[1].rank or 0)
        top = tuple((entry.decoded_token or "", tid, entry.logprob) for tid, entry in ranked[:num_top])
        own = table[token_id]
        result.append(TokenLogprob(own.decoded_token or "", token_id, own.logprob, top))
    return tuple(result)


def failure(cause: BaseException, options: Mapping[str, Any] = MappingProxyType({})) -> Failed:
    """What failed: a refused input is vLLM's client error or a ValueError, all else is the engine's fault.

    options: the request's own `mm_processor_kwargs`. The model's processor asserts, divides and indexes by
        them, so that whatever it raises then is their fault.
    """
    from vllm.exceptions import VLLMClientError

    if isinstance(cause, (VLLMClientError, ValueError, TypeError)):
        # vLLM's own sentence repeats the whole input; what was wrong with it stands in the first cause.
        root: BaseException = cause
        while root.__cause__ is not None:
            root = root.__cause__
        return Failed(f"the model cannot take this input: {root}", 400)
    if options:
        what = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
        message = f"the model cannot take this input under the request's mm_processor_kwargs ({what})"
        return Failed(f"{message}; change {', '.join(options)} or leave them out", 400, "mm_processor_kwargs")
    log.error("the engine failed a request: %s: %s", type(cause).__name__, cause)
    return Failed(
        f"the engine failed this request: {type(cause).__name__}: {cause}", 500, code="engine_error"
    )
