"""From `EngineConfig` to vLLM's own arguments. Pure; vLLM is not imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.config import EngineConfig

__all__ = ["CPU_BLOCK_SIZE", "GPU_BLOCK_SIZE", "engine_args", "engine_environment", "publishes_events"]

#: vLLM 0.32's CPU attention takes multiples of 32 only.
CPU_BLOCK_SIZE = 32
GPU_BLOCK_SIZE = 16
CPU_KV_CACHE_BYTES = 1 << 30
MAX_ITEMS_PER_PROMPT = 32


def engine_environment(config: EngineConfig) -> dict[str, str]:
    """Variables that vLLM reads at import; a value that is already set wins."""
    env = {
        "VLLM_NO_USAGE_STATS": "1",
        # "tcp://*:0" binds this address: the publishers serve this replica only.
        "VLLM_HOST_IP": "127.0.0.1",
    }
    if config.executor == "ray":
        del env["VLLM_HOST_IP"]  # workers on other nodes need the real one
    if config.accelerator == "cpu":
        # Otherwise the single CPU worker is a third process that imports everything once more.
        env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return env


def engine_args(config: EngineConfig, ports: tuple[int, int] | None = None) -> dict[str, Any]:
    """Keyword arguments of `AsyncEngineArgs`; `config.engine_args` wins, name by name.

    ports: where the event and replay publishers listen; None lets them find free ones.

    Raises:
        ValueError: vLLM's own arguments for data parallelism, beside the setting.
    """
    refuse_own_ranks(config.engine_args)
    args: dict[str, Any] = {
        "model": config.model,
        "tensor_parallel_size": config.tensor_parallel_size,
        "data_parallel_size": config.data_parallel_size,
        "enable_prefix_caching": True,
        "disable_log_stats": False,
        "kv_events_config": _events(ports),
    }
    args |= _cpu_args(config) if config.accelerator == "cpu" else _gpu_args(config)
    if config.max_model_len is not None:
        args["max_model_len"] = config.max_model_len
    if config.executor is not None:
        args["distributed_executor_backend"] = config.executor
    if config.enable_multimodal:
        args["limit_mm_per_prompt"] = {"image": min(config.media.max_items, MAX_ITEMS_PER_PROMPT)}
        if config.video.decode == "off":
            args["limit_mm_per_prompt"]["video"] = 0
    return args | config.engine_args


def refuse_own_ranks(engine_args: Mapping[str, Any]) -> None:
    """
    Raises:
        ValueError: arguments that place data-parallel ranks; says which setting does that here.
    """
    for name in engine_args:
        if name.startswith("data_parallel_"):
            raise ValueError(
                f"engine_args.{name} is not served: a replica's ranks are all its own and run beside it; "
                "set data_parallel_size among the settings, or raise num_workers"
            )


def _cpu_args(config: EngineConfig) -> dict[str, Any]:
    return {
        "block_size": config.block_size or CPU_BLOCK_SIZE,
        "enforce_eager": True,
        "distributed_executor_backend": "uni",
        "kv_cache_memory_bytes": CPU_KV_CACHE_BYTES,
    }


def _gpu_args(config: EngineConfig) -> dict[str, Any]:
    args: dict[str, Any] = {"block_size": config.block_size or GPU_BLOCK_SIZE}
    if config.gpu_memory_utilization is not None:
        args["gpu_memory_utilization"] = config.gpu_memory_utilization
    return args


def _events(ports: tuple[int, int] | None) -> dict[str, Any]:
    events, replay = (f"tcp://*:{port}" for port in ports or (0, 0))
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": events,
        "replay_endpoint": replay,
        "topic": "kv-events",
    }


def publishes_events(args: dict[str, Any]) -> bool:
    """Whether an engine with these arguments tells what it caches."""
    events = args.get("kv_events_config")
    if not args.get("enable_prefix_caching") or not events:
        return False
    enabled = events.get("enable_kv_cache_events") and events.get("publisher") == "zmq"
    return bool(enabled)
