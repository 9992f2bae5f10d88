"""What each deployment is told. `app.build` makes these from the settings; they travel to the replicas."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from processors import LayoutOptions, MediaConfig, VideoConfig
from router.config import RouterConfig
from simulation.config import SimulationConfig

__all__ = ["Accelerator", "EngineConfig", "IngressConfig", "LayoutMode"]

Accelerator = Literal["cpu", "gpu"]
LayoutMode = Literal["auto", "registry", "renderer", "off"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine replica.

    executor: vLLM's distributed executor ("uni", "mp", "ray"), or None for the engine's own choice.
    data_parallel_size: ranks of the engine; each is a worker of its own.
    block_size, gpu_memory_utilization, max_model_len: None leaves it to the engine.
    engine_args: under the engine's own names; they win over everything else here.
    coalesce_ms: how long deltas after the first token are gathered before they are sent.
    start_hold_ms: how long the word that a replica has a request waits for its first token, to go with it.
    has_renderer: prompts may be foreseen by a `Renderer` of the same engine and arguments.
    simulation: of the simulated engine only.
    """

    model: str
    engine: str = "vllm"
    accelerator: Accelerator = "cpu"
    enable_multimodal: bool = False
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    executor: str | None = None
    block_size: int | None = None
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    engine_args: dict[str, Any] = field(default_factory=dict)
    kv_events_port_base: int | None = None
    coalesce_ms: float = 5.0
    start_hold_ms: float = 10.0
    has_renderer: bool = False
    media: MediaConfig = field(default_factory=MediaConfig)
    video: VideoConfig = field(default_factory=VideoConfig)
    router: RouterConfig = field(default_factory=RouterConfig)
    simulation: SimulationConfig = field(default_factory=SimulationConfig)


@dataclass(frozen=True, slots=True)
class IngressConfig:
    """One ingress replica.

    served_model_name: what clients call the model.
    body_limit_bytes: a longer request body is refused (413).
    layout: the engines' arguments that change how media are laid out in the prompt.
    tenant_header: header whose value names the tenant; it enters the cache salt. None: no tenants.
    revision, trust_remote_code: the engines' arguments of that name, for the model's own files.
    """

    model: str
    served_model_name: str
    engine_deployment: str = "Engine"
    enable_multimodal: bool = False
    body_limit_bytes: int = 64 << 20
    request_timeout_s: float = 3600.0
    token_cache_bytes: int = 64 << 20
    layout: LayoutOptions = field(default_factory=LayoutOptions)
    layout_mode: LayoutMode = "auto"
    renderer_timeout_ms: float = 2000.0
    tenant_header: str | None = None
    tenant_secret: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    media: MediaConfig = field(default_factory=MediaConfig)
    video: VideoConfig = field(default_factory=VideoConfig)
    router: RouterConfig = field(default_factory=RouterConfig)
