"""From `EngineConfig` to SGLang's own arguments, and from `Sampling` to its parameters. Pure; SGLang is not
imported."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from deployments.config import EngineConfig
from deployments.protocol import Sampling
from router.relay import EventSource

__all__ = [
    "PAGE_SIZE",
    "Unsupported",
    "engine_args",
    "engine_environment",
    "event_source",
    "known_args",
    "publishes_events",
    "sampling_params",
]

PAGE_SIZE = 16
CPU_KV_CACHE_TOKENS = 65_536
TOPIC = "kv-events"
#: Left out where the release does not know them. With its preprocessing cache on, SGLang's Qwen processors
#: take token ids as they are; off, they decode them to text and tokenize that again.
OPTIONAL_ARGS = {"mm_preprocess_cache_size_mb": 256}


#: Engine arguments that would break what is promised here: their harmless value, and the way out.
_NOT_SERVED = {
    "dp_size": (1, "raise num_workers instead"),
    "nnodes": (1, "keep an engine within a node, and raise num_workers"),
    "disaggregation_mode": ("null", "an engine prefills and decodes; leave it out"),
    "encoder_only": (False, "an engine encodes and decodes; leave it out"),
    "language_only": (False, "an engine encodes and decodes; leave it out"),
    "skip_tokenizer_init": (False, "answers are made of SGLang's own text; leave it out"),
    "incremental_streaming_output": (False, "outputs are read as SGLang gives them by default; leave it out"),
}


class Unsupported(ValueError):
    """A setting or a request asks for what this SGLang cannot do."""


#: What SGLang needs to run its native PyTorch code.
_CPU_ARGS = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "mm_attention_backend": "sdpa",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "disable_cuda_graph": True,
    "disable_overlap_schedule": True,
    "max_total_tokens": CPU_KV_CACHE_TOKENS,
    "mem_fraction_static": 0.2,
    "max_running_requests": 16,
    "sleep_on_idle": True,  # an idle scheduler takes a whole core otherwise
}


def engine_environment(config: EngineConfig) -> dict[str, str]:
    """Variables that SGLang and its children read at import; a value that is already set wins."""
    if config.accelerator != "cpu":
        return {}
    # Without the second one the first picture compiles rotary embeddings, for half a minute.
    return {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}


def engine_args(config: EngineConfig, source: EventSource) -> dict[str, Any]:
    """Keyword arguments of `sglang.Engine`; `config.engine_args` wins, name by name, and so do the fields of
    its `kv_events_config`.

    source: where the event and replay publishers listen.

    Raises:
        Unsupported: what is not served with SGLang, or not at all; says what to do instead.
    """
    _refuse(config)
    args: dict[str, Any] = {
        "model_path": config.model,
        "tp_size": config.tensor_parallel_size,
        "page_size": config.block_size or PAGE_SIZE,
        "enable_multimodal": config.enable_multimodal,
        "log_level": "warning",
    }
    if config.enable_multimodal:
        args |= OPTIONAL_ARGS
    if config.accelerator == "cpu":
        args |= _CPU_ARGS
    elif config.gpu_memory_utilization is not None:
        args["mem_fraction_static"] = config.gpu_memory_utilization
    if config.max_model_len is not None:
        args["context_length"] = config.max_model_len
    return args | config.engine_args | {"kv_events_config": _events(source, config.engine_args)}


def _refuse(config: EngineConfig) -> None:
    """
    Raises:
        Unsupported: data parallelism inside one engine, which has no worker of its own per rank here;
            tensor parallelism across nodes; engine arguments that break what is promised here.
    """
    if config.data_parallel_size != 1:
        size = config.data_parallel_size
        raise Unsupported(f"data_parallel_size={size} is not served with SGLang: raise num_workers instead")
    if config.executor == "ray":
        raise Unsupported(
            f"tensor_parallel_size={config.tensor_parallel_size} spans nodes, which is not served with "
            "SGLang: keep it within gpus_per_node"
        )
    for name, (harmless, way_out) in _NOT_SERVED.items():
        value = config.engine_args.get(name, harmless)
        if value != harmless:
            raise Unsupported(f"engine_args.{name}={value!r} is not served: {way_out}")


def known_args(args: dict[str, Any], given: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Without those of `OPTIONAL_ARGS` that the release does not know and nobody gave."""
    left_out = OPTIONAL_ARGS.keys() - set(known) - given.keys()
    return {name: value for name, value in args.items() if name not in left_out}


def _events(source: EventSource, engine_args: Mapping[str, Any]) -> str | None:
    """SGLang's `kv_events_config`, as JSON; None: no events."""
    given = engine_args.get("kv_events_config", {})
    if given is None:
        return None
    ours = {
        "publisher": "zmq",
        "endpoint": source.endpoint,
        "replay_endpoint": source.replay_endpoint,
        "topic": source.topic,
    }
    return json.dumps(ours | _fields(given))


def _fields(given: object) -> dict[str, Any]:
    """
    Raises:
        Unsupported: neither an object nor one in JSON.
    """
    fields = given
    if isinstance(given, str):
        try:
            fields = json.loads(given)
        except ValueError:
            fields = None
    if isinstance(fields, dict):
        return fields
    raise Unsupported(
        f"engine_args.kv_events_config={str(given)[:80]!r} is no JSON object: give the fields that shall be "
        'otherwise, as in {"format": "dynamo"}'
    )


def publishes_events(args: dict[str, Any]) -> bool:
    """Whether an engine with these arguments tells, block by block, what it caches.

    With EAGLE it keys pairs of tokens, which no request's keys can be compared with.
    """
    if args.get("disable_radix_cache") or args.get("speculative_algorithm"):
        return False
    events = args.get("kv_events_config")
    return bool(events and json.loads(events).get("publisher") == "zmq")


def event_source(args: dict[str, Any]) -> EventSource:
    """Where to connect to the publishers of an engine with these arguments."""
    events = json.loads(args["kv_events_config"])
    endpoint, replay = (
        None if address is None else address.replace("*", "127.0.0.1")
        for address in (events["endpoint"], events.get("replay_endpoint"))
    )
    return EventSource(str(endpoint), replay, events.get("topic", ""))


#: Ours (and OpenAI's) to SGLang's.
_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
}


def sampling_params(sampling: Sampling, *, is_deterministic: bool) -> dict[str, Any]:
    """SGLang's `sampling_params`; what it does not check by itself is checked here.

    is_deterministic: whether the engine runs with `enable_deterministic_inference`; without it SGLang
        takes a seed and ignores it.

    Raises:
        Unsupported: a parameter that would be ignored.
    """
    is_sampled = sampling.temperature != 0 and sampling.top_k != 1
    if sampling.seed is not None and is_sampled and not is_deterministic:
        raise Unsupported(
            f"seed={sampling.seed}: this engine (SGLang) honours a seed only with "
            "enable_deterministic_inference among its engine_args; leave seed out"
        )
    if sampling.ignore_eos and sampling.stop_token_ids:
        raise Unsupported("stop_token_ids: this engine (SGLang) passes over them with ignore_eos; drop one")
    if sampling.min_tokens and sampling.stop:
        raise Unsupported("min_tokens: this engine (SGLang) ends at a stop string before them; drop one")
    optional = {theirs: getattr(sampling, ours) for ours, theirs in _NAMES.items()}
    params = {name: value for name, value in optional.items() if value is not None}
    if sampling.top_k is not None:
        params["top_k"] = sampling.top_k or -1  # 0 is all tokens to vLLM and an error to SGLang
    return params | {
        "max_new_tokens": sampling.max_tokens,
        "min_new_tokens": sampling.min_tokens,
        "stop": list(sampling.stop) or None,
        "stop_token_ids": list(sampling.stop_token_ids) or None,
        "no_stop_trim": sampling.include_stop_str_in_output,
        "ignore_eos": sampling.ignore_eos,
        "skip_special_tokens": sampling.skip_special_tokens,
        "sampling_seed": sampling.seed,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias} or None,
    }
