"""The application's settings, typed once: config file, variables and documentation come from here."""

from __future__ import annotations

import math
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from app.logs import parse_levels
from processors import MediaConfig, VideoConfig
from router.config import RouterConfig
from simulation.config import SimulationConfig

__all__ = ["Settings"]

#: Of a GPU's memory, what all engines on it take together; the rest is for what they do not count.
_GPU_MEMORY_IN_ALL = 0.9
#: A decision is a matter of microseconds, but on a CPU the engines leave the router few of them.
_CPU_DECISION_BUDGET_MS = 2000.0
_BLOCK = 16
#: vLLM's CPU attention takes multiples of 32 only.
_VLLM_CPU_BLOCK = 32


class Settings(BaseModel):
    """What `serve_config.yaml` gives under `args:`. See `app.settings.load_settings` for variables."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model: str = Field(
        "Qwen/Qwen3-VL-2B-Instruct",
        min_length=1,
        description="Model that the engines serve: a Hugging Face name or a folder. `tiny:KIND` "
        "(`tiny:qwen3_vl`): a random one of 1 MB, made on the spot where the application is built.",
    )
    served_model_name: str | None = Field(
        None, min_length=1, description="What clients call the model. None: as `model` says."
    )
    engine: Literal["vllm", "sglang", "simulated"] = Field(
        "vllm",
        description="Engine that runs the model in each replica. `simulated` schedules, caches and publishes "
        "as vLLM does, without weights: see `simulation`.",
    )
    engine_runtime_env: dict[str, Any] = Field(
        default_factory=dict,
        description="Ray runtime environment of the engine replicas (`py_executable`, `env_vars`, ...), for "
        "an engine that is not installed beside the rest. Empty: that of the application.",
    )
    accelerator: Literal["auto", "gpu", "cpu"] = Field(
        "auto",
        description="Where the engines run. `auto` is gpu where the Ray cluster has one at start-up; a "
        "cluster that scales up from none must say gpu.",
    )
    enable_multimodal: bool = Field(
        False,
        description="Whether requests may carry images and videos. False: they get a 400, and neither "
        "`media` nor `video` may be set.",
    )
    num_workers: int = Field(
        2,
        ge=1,
        description="Engine replicas, at the least. Routing needs two; one is served without a choice.",
    )
    max_workers: int | None = Field(
        None,
        ge=1,
        description="Engine replicas, at the most. None, or below `num_workers`: no autoscaling.",
    )
    target_ongoing_requests: float = Field(
        32.0,
        gt=0,
        description="Requests at a time that autoscaling allows each engine replica before it adds one. "
        "Lower: more replicas, earlier.",
    )
    ingress_replicas: int = Field(
        1, ge=1, description="Ingress replicas, at the least. Each tokenizes and fetches on one core."
    )
    max_ingress_replicas: int | None = Field(
        None, ge=1, description="Ingress replicas, at the most. None: no autoscaling."
    )
    tensor_parallel_size: int = Field(
        1, ge=1, description="GPUs that one engine replica spreads the model over. Above 1 needs whole GPUs."
    )
    data_parallel_size: int = Field(
        1,
        ge=1,
        description="Ranks of one engine replica (vLLM): each has the whole model and a cache of its own, on "
        "`tensor_parallel_size` GPUs of the replica's node, and is a worker of its own to the router. Where "
        "the ranks need not run in step (dense models), `num_workers` does the same with less shared fate.",
    )
    gpus_per_replica: float | None = Field(
        None,
        gt=0,
        description="GPUs that one engine replica reserves. None: `tensor_parallel_size` times "
        "`data_parallel_size`. Below 1: replicas share a GPU, and memory with it.",
    )
    single_gpu: bool = Field(
        False,
        description="Put all engine replicas on one GPU, each with its share of it and of its memory: "
        "for trying routing out, not for speed.",
    )
    gpu_memory_utilization: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Share of a GPU's memory that one engine takes, 0 to 1. None: the engine's default, or "
        "an equal part of 0.9 where replicas share a GPU.",
    )
    gpus_per_node: int = Field(
        8,
        ge=1,
        description="GPUs of one node. `tensor_parallel_size` above it spans nodes by the engine's Ray "
        "executor.",
    )
    block_size: int | None = Field(
        None,
        ge=1,
        description="Tokens per KV cache block (vLLM) or page (SGLang). None: 16, but 32 for vLLM on a CPU "
        "(the least it takes there). The router uses what each worker reports.",
    )
    max_model_len: int | None = Field(
        None, ge=1, description="Longest prompt plus answer, in tokens. None: as the model allows."
    )
    engine_args: dict[str, Any] = Field(
        default_factory=dict,
        description="Further engine arguments under the engine's own names; they win over everything else.",
    )
    kv_events_port_base: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="First port for an engine's KV events, from which on each replica of a node takes its "
        "own. vLLM then listens on all interfaces. None: free ports on the loopback address.",
    )
    max_ongoing_requests: int = Field(
        1024,
        ge=1,
        description="Requests at a time that Serve lets into one replica. Keep it well above the engine's "
        "max_num_seqs: the engine queues better than Serve.",
    )
    max_stream_s: float = Field(
        3600.0,
        gt=0,
        description="Seconds that the longest answer may take. A replica that is replaced has so long, and a "
        "minute more, to end what it began.",
    )
    request_timeout_s: float = Field(
        3600.0, gt=0, description="Seconds within which an answer must begin; beyond it: 408."
    )
    body_limit_bytes: int = Field(
        64 << 20, ge=1, description="Bytes of the longest request body (data: URLs included); beyond it: 413."
    )
    token_cache_bytes: int = Field(
        64 << 20,
        ge=0,
        description="Bytes of texts and their token ids that an ingress replica keeps: a conversation is "
        "tokenized only where it is new. 0: none.",
    )
    layout: Literal["auto", "registry", "renderer", "off"] = Field(
        "auto",
        description="Who foresees the engine's prompt for a request with media. `registry`: the families "
        "that Sightline knows. `renderer`: the engine's own renderer, for every model. `auto`: the registry "
        "where it is exact, else the renderer where there is one. `off`: nobody: routing by the text before "
        "the media.",
    )
    renderer_replicas: int = Field(
        0, ge=0, description="Renderer replicas, at the least. Each needs a core and about 1 GB. 0: none."
    )
    max_renderer_replicas: int | None = Field(
        None, ge=1, description="Renderer replicas, at the most. None: no autoscaling."
    )
    renderer_timeout_ms: float = Field(
        2000.0,
        gt=0,
        description="Milliseconds that a request waits for the renderer. Afterwards it is routed by the text "
        "before its media.",
    )
    tenant_header: str | None = Field(
        None,
        min_length=1,
        description="Request header that names the tenant. Tenants never share cached blocks. None: one "
        "tenant.",
    )
    tenant_secret: str | None = Field(
        None,
        min_length=1,
        description="Secret that enters what keeps tenants apart, so that no client can name the cache of "
        "another.",
    )
    log: str = Field(
        "info",
        description="Log levels: one for all, and others by room, as in `info,sightline.router=debug`.",
    )
    media: MediaConfig = Field(
        default_factory=MediaConfig,
        description="How images are identified, fetched and limited. Only with `enable_multimodal`.",
    )
    video: VideoConfig = Field(
        default_factory=VideoConfig,
        description="Who decodes videos, and within which limits. Only with `enable_multimodal`.",
    )
    router: RouterConfig = Field(
        default_factory=RouterConfig, description="How the router decides and keeps up with the workers."
    )
    simulation: SimulationConfig = Field(
        default_factory=SimulationConfig,
        description="The simulated engine. Only with `engine: simulated`.",
    )

    @field_validator("log")
    @classmethod
    def _check_log(cls, spec: str) -> str:
        parse_levels(spec)
        return spec

    @model_validator(mode="after")
    def _check_media(self) -> Self:
        for section in ("media", "video"):
            if section in self.model_fields_set and not self.enable_multimodal:
                raise ValueError(
                    f"`{section}` has settings but enable_multimodal is false: set it to true or drop "
                    f"`{section}`"
                )
        return self

    @model_validator(mode="after")
    def _check_simulation(self) -> Self:
        if self.engine == "simulated":
            if self.engine_args:
                raise ValueError(
                    "engine_args are a real engine's; what the simulated one has stands under `simulation`"
                )
            self.simulation.resolved_profile  # noqa: B018  # an unknown name is said here
        elif "simulation" in self.model_fields_set:
            raise ValueError(
                f"`simulation` has settings but engine is {self.engine}: set it to simulated or drop "
                "`simulation`"
            )
        return self

    @model_validator(mode="after")
    def _check_renderer(self) -> Self:
        if self.layout == "renderer" and not self.renderer_replicas:
            raise ValueError("layout: renderer needs renderer_replicas of at least 1")
        if self.renderer_replicas and not self.enable_multimodal:
            raise ValueError("renderer_replicas is set but enable_multimodal is false: drop one of the two")
        if self.renderer_replicas and self.engine != "vllm":
            raise ValueError(f"renderer_replicas: the renderer is vLLM's, and engine is {self.engine}")
        return self

    @model_validator(mode="after")
    def _check_ranks(self) -> Self:
        if self.data_parallel_size > 1 and self.engine != "vllm":
            raise ValueError(
                f"data_parallel_size={self.data_parallel_size}: the ranks are vLLM's, and engine is "
                f"{self.engine}; raise num_workers instead"
            )
        return self

    @model_validator(mode="after")
    def _check_gpu_shares(self) -> Self:
        for name in ("tensor_parallel_size", "data_parallel_size"):
            size = getattr(self, name)
            if self.single_gpu and size > 1:
                raise ValueError(
                    f"single_gpu puts each replica on a part of one GPU, but {name} is {size}: drop one of "
                    "the two"
                )
        if self.single_gpu and self.gpus_per_replica is not None:
            raise ValueError("single_gpu decides gpus_per_replica: drop one of the two")
        return self

    def effective(self, accelerator: Literal["gpu", "cpu"]) -> Settings:
        """These settings with everything that depends on the accelerator filled in; what was given stays."""
        known: dict[str, Any] = {"accelerator": accelerator}
        if self.block_size is None:
            on_vllm_cpu = (self.engine, accelerator) == ("vllm", "cpu")
            known["block_size"] = _VLLM_CPU_BLOCK if on_vllm_cpu else _BLOCK
        if accelerator == "gpu":
            known |= self._gpu_shares()
        elif "decision_budget_ms" not in self.router.model_fields_set:
            known["router"] = self.router.model_copy(update={"decision_budget_ms": _CPU_DECISION_BUDGET_MS})
        return self.model_copy(update=known)

    def _gpu_shares(self) -> dict[str, Any]:
        share = self.gpus_per_replica
        if self.single_gpu:
            share = 1 / max(self.num_workers, self.max_workers or 0)
        if share is None or share >= 1:
            return {}
        # Rounded down, so that all shares together never exceed one: Ray counts 1/10000 of a GPU.
        shares: dict[str, Any] = {"gpus_per_replica": _floor(share, 4)}
        if self.gpu_memory_utilization is None:
            shares["gpu_memory_utilization"] = _floor(_GPU_MEMORY_IN_ALL * share, 3)
        return shares


def _floor(value: float, digits: int) -> float:
    # The small addition keeps 0.45, stored as 0.449999..., from becoming 0.44.
    unit = float(10**digits)
    return math.floor(value * unit + 1e-9) / unit
