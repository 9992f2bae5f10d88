"""The Serve import path: `app.build:build` makes the application from the `args:` of a config file."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

from app.logs import configure
from app.settings import Settings, load_settings
from app.tiny_models import default_root, tiny_model
from deployments.config import Accelerator, EngineConfig, IngressConfig
from deployments.engine import Engine
from deployments.ingress import Ingress, ingress_api
from deployments.renderer import Renderer
from deployments.router import Router
from processors import LayoutOptions

__all__ = [
    "EngineResources",
    "build",
    "build_app",
    "detect_accelerator",
    "engine_resources",
    "with_model",
]

#: A replica of the control plane asks for little, so that a laptop's two cores hold the application.
CONTROL_CPUS = 0.1
ENGINE_CPUS = 0.5
#: Of a simulated engine a laptop's two cores hold a fleet.
SIMULATED_CPUS = 0.05
#: A renderer runs the model's processor on two threads or so.
RENDERER_CPUS = 0.5
RENDERER_REQUESTS = 16
#: Beyond the longest stream, so that a replica that is being replaced ends all it has begun.
SHUTDOWN_MARGIN_S = 60.0


def build(args: dict[str, Any]) -> Any:
    """Entry point of `serve run serve_config.yaml`; SIGHTLINE_ variables win over `args`."""
    settings = load_settings(args, os.environ)
    return build_app(settings, detect_accelerator(settings.accelerator))


def with_model(settings: Settings) -> Settings:
    """`tiny:KIND` made on the spot, on the node where the application is built; other models as they are.

    Raises:
        ValueError: no such kind.
    """
    prefix, _, kind = settings.model.partition(":")
    if prefix != "tiny":
        return settings
    folder = tiny_model(kind, default_root(), with_weights=settings.engine != "simulated")
    name = settings.served_model_name or settings.model
    return settings.model_copy(update={"model": str(folder), "served_model_name": name})


def detect_accelerator(wanted: str) -> Accelerator:
    """`auto` is gpu where the Ray cluster has one now. A cluster that scales up from none must say gpu."""
    if wanted == "cpu":
        return "cpu"
    if wanted == "gpu":
        return "gpu"
    return "gpu" if ray.is_initialized() and ray.cluster_resources().get("GPU", 0) > 0 else "cpu"


def build_app(settings: Settings, accelerator: Accelerator) -> Any:
    """The application: Ingress -> (Engine, Router, Renderer where there is one), Engine -> Router."""
    settings = with_model(settings).effective(accelerator)
    set_up_logs = functools.partial(configure, settings.log)
    router: Any = _router_deployment().bind(settings.router, "engine", set_up_logs)
    engine: Any = _engine_deployment(settings, accelerator).bind(
        engine_config(settings, accelerator), router, set_up_logs
    )
    renderer: Any = None
    if settings.renderer_replicas:
        renderer = _renderer_deployment(settings).bind(engine_config(settings, accelerator), set_up_logs)
    return _ingress_deployment(settings).bind(ingress_config(settings), engine, router, set_up_logs, renderer)


def _renderer_deployment(settings: Settings) -> Any:
    options: dict[str, Any] = {
        "ray_actor_options": {"num_cpus": RENDERER_CPUS},
        "max_ongoing_requests": RENDERER_REQUESTS,
        "health_check_period_s": 5,
    }
    options |= _scale(settings.renderer_replicas, settings.max_renderer_replicas, RENDERER_REQUESTS / 4)
    return serve.deployment(Renderer, name="Renderer").options(**options)


def _router_deployment() -> Any:
    return serve.deployment(Router, name="Router").options(
        num_replicas=1,
        ray_actor_options={"num_cpus": CONTROL_CPUS},
        max_ongoing_requests=1000,
        health_check_period_s=5,
        graceful_shutdown_timeout_s=10,
        # Every replica asks it for the actor every few seconds.
        logging_config={"enable_access_log": False},
    )


def _ingress_deployment(settings: Settings) -> Any:
    options: dict[str, Any] = {
        "ray_actor_options": {"num_cpus": CONTROL_CPUS},
        "max_ongoing_requests": settings.max_ongoing_requests,
        "graceful_shutdown_timeout_s": settings.max_stream_s + SHUTDOWN_MARGIN_S,
    }
    options |= _scale(
        settings.ingress_replicas, settings.max_ingress_replicas, settings.max_ongoing_requests / 4
    )
    return serve.deployment(serve.ingress(ingress_api)(Ingress), name="Ingress").options(**options)


def _engine_deployment(settings: Settings, accelerator: Accelerator) -> Any:
    resources = engine_resources(settings, accelerator)
    options: dict[str, Any] = {
        **resources.options,
        "max_ongoing_requests": settings.max_ongoing_requests,
        "graceful_shutdown_timeout_s": settings.max_stream_s + SHUTDOWN_MARGIN_S,
        "health_check_period_s": 5,
        "health_check_timeout_s": 60,
        "request_router_config": RequestRouterConfig(request_router_class="router.pinned.PinnedRouter"),
        # The ingress logs each request once.
        "logging_config": {"enable_access_log": False},
    }
    if settings.engine_runtime_env:
        asked = options["ray_actor_options"]
        options["ray_actor_options"] = {**asked, "runtime_env": settings.engine_runtime_env}
    options |= _scale(settings.num_workers, settings.max_workers, settings.target_ongoing_requests)
    return serve.deployment(Engine, name="Engine").options(**options)


def _scale(least: int, most: int | None, target: float) -> dict[str, Any]:
    """Fixed where there is no room to scale, else Serve's autoscaling on requests per replica."""
    if most is None or most <= least:
        return {"num_replicas": least}
    return {
        "autoscaling_config": {
            "min_replicas": least,
            "max_replicas": most,
            "initial_replicas": least,
            "target_ongoing_requests": target,
        }
    }


@dataclass(frozen=True, slots=True)
class EngineResources:
    """What one engine replica asks Ray for.

    options: Serve deployment options (`ray_actor_options`, and bundles across nodes).
    executor: vLLM's distributed executor; None for one process.
    """

    options: dict[str, Any] = field(default_factory=dict)
    executor: str | None = None


def engine_resources(settings: Settings, accelerator: Accelerator) -> EngineResources:
    """GPUs, processes and bundles of one replica.

    A simulated engine needs none. One GPU or a share of it: the replica holds it. Tensor parallel within
    a node: the replica holds all of them and vLLM starts processes. Across nodes: the replica is one
    bundle and each tensor parallel worker another, and vLLM's Ray executor puts its workers there.
    Data-parallel ranks are within a node.

    Raises:
        ValueError: a share of a GPU together with several GPUs; ranks that do not fit in a node.
    """
    if settings.engine == "simulated":
        return EngineResources({"ray_actor_options": {"num_cpus": SIMULATED_CPUS}})
    if accelerator == "cpu":
        return EngineResources({"ray_actor_options": {"num_cpus": ENGINE_CPUS}})
    size = settings.tensor_parallel_size * settings.data_parallel_size
    share = settings.gpus_per_replica
    if share is not None and share != size and size > 1:
        raise ValueError(
            f"gpus_per_replica={share} does not go with tensor_parallel_size="
            f"{settings.tensor_parallel_size}, data_parallel_size={settings.data_parallel_size}: leave it out"
        )
    if size == 1:
        return EngineResources(
            {"ray_actor_options": {"num_cpus": 1, "num_gpus": share if share is not None else 1}}
        )
    if size <= settings.gpus_per_node:
        return EngineResources({"ray_actor_options": {"num_cpus": 1, "num_gpus": size}}, "mp")
    if settings.data_parallel_size > 1:
        raise ValueError(
            f"tensor_parallel_size={settings.tensor_parallel_size} x data_parallel_size="
            f"{settings.data_parallel_size} needs {size} GPUs in one node, and gpus_per_node is "
            f"{settings.gpus_per_node}: lower data_parallel_size and raise num_workers"
        )
    bundles = [{"CPU": 1.0}, *({"GPU": 1.0, "CPU": 1.0} for _ in range(size))]
    options = {
        "ray_actor_options": {"num_cpus": 1},
        "placement_group_bundles": bundles,
        "placement_group_strategy": "PACK",
    }
    return EngineResources(options, "ray")


def engine_config(settings: Settings, accelerator: Accelerator) -> EngineConfig:
    return EngineConfig(
        model=settings.model,
        engine=settings.engine,
        accelerator=accelerator,
        enable_multimodal=settings.enable_multimodal,
        tensor_parallel_size=settings.tensor_parallel_size,
        data_parallel_size=settings.data_parallel_size,
        executor=engine_resources(settings, accelerator).executor,
        block_size=settings.block_size,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        max_model_len=settings.max_model_len,
        engine_args=settings.engine_args,
        kv_events_port_base=settings.kv_events_port_base,
        has_renderer=settings.renderer_replicas > 0,
        media=settings.media,
        video=settings.video,
        router=settings.router,
        simulation=settings.simulation,
    )


def layout_options(settings: Settings) -> LayoutOptions:
    """What the engines' arguments change in a layout; each worker tells its own, and they are compared."""
    arguments = settings.engine_args
    return LayoutOptions(
        engine=settings.engine,
        max_model_len=arguments.get("max_model_len", settings.max_model_len),
        video_pruning_rate=float(arguments.get("video_pruning_rate") or 0.0),
        processor_kwargs=arguments.get("mm_processor_kwargs") or {},
    )


def ingress_config(settings: Settings) -> IngressConfig:
    return IngressConfig(
        model=settings.model,
        served_model_name=settings.served_model_name or settings.model,
        enable_multimodal=settings.enable_multimodal,
        body_limit_bytes=settings.body_limit_bytes,
        request_timeout_s=settings.request_timeout_s,
        token_cache_bytes=settings.token_cache_bytes,
        layout=layout_options(settings),
        layout_mode=settings.layout,
        renderer_timeout_ms=settings.renderer_timeout_ms,
        tenant_header=settings.tenant_header,
        tenant_secret=settings.tenant_secret,
        revision=settings.engine_args.get("revision"),
        trust_remote_code=bool(settings.engine_args.get("trust_remote_code")),
        media=settings.media,
        video=settings.video,
        router=settings.router,
    )
