"""`sightline demo` (and `make run`): serve on this machine, show that routing works, keep serving.

Without a configuration of one's own it serves a tiny random-weight model on two real engine replicas
that run on the CPU.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.serve_file import read_serve_file
from app.settings import Settings, load_settings
from app.showcase import run_showcase
from app.tiny_models import default_root, tiny_model

__all__ = ["DemoConfig", "demo_config", "main"]

ROOT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
#: What the workers of this demo's own cluster are told, unless the caller said otherwise.
WORKER_ENV = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_DEDUP_LOGS": "0",
}
#: Two small engines on two cores.
TINY_ENGINE_ARGS = {
    "kv_cache_memory_bytes": 64 << 20,
    "max_model_len": 8192,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 2048,
}


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """What to serve and where."""

    settings: Settings
    app_name: str
    route_prefix: str
    port: int
    is_tiny: bool


def demo_config(path: Path | None, port: int | None, environ: Mapping[str, str]) -> DemoConfig:
    """Read a Serve config file; without one, the shipped file with a tiny model in place of the real one."""
    file = read_serve_file(path or ROOT / "serve_config.yaml")
    args = dict(file.args)
    is_tiny = path is None and "SIGHTLINE_MODEL" not in environ
    if is_tiny:
        args |= _tiny_args(args)
    return DemoConfig(
        settings=load_settings(args, environ),
        app_name=file.app_name,
        route_prefix=file.route_prefix,
        port=port or file.port,
        is_tiny=is_tiny,
    )


def _tiny_args(args: dict[str, Any]) -> dict[str, Any]:
    model = tiny_model("qwen3_vl", default_root())
    media = dict(args.get("media") or {})
    # The demo's pictures come from this very machine, and one of them by two addresses.
    media |= {"allow_private_addresses": True, "identity": "content"}
    return {
        "model": str(model),
        "served_model_name": "tiny-qwen3-vl",
        "accelerator": "cpu",
        "max_workers": None,
        "engine_args": TINY_ENGINE_ARGS | (args.get("engine_args") or {}),
        "media": media,
    }


def main(config_path: str | None, *, once: bool = False, port: int | None = None) -> int:
    """Serve, show, and stop at Ctrl-C (or after the showcase with `once`). Returns the exit status."""
    environ = {"SIGHTLINE_LOG": "info,sightline=debug"} | dict(os.environ)
    config = demo_config(Path(config_path) if config_path else None, port, environ)
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell's background jobs ignore the second otherwise
        signal.signal(number, _interrupt)
    began = time.monotonic()
    say(f"starting Ray and {config.settings.num_workers} engine replicas of {config.settings.model}")
    say("an engine takes 30 to 90 seconds to start on two cores; what it says appears below")
    try:
        _serve(config)
        say(f"serving at http://{HOST}:{config.port} after {time.monotonic() - began:.0f} s")
        name = config.settings.served_model_name or config.settings.model
        good = run_showcase(f"http://{HOST}:{config.port}{config.route_prefix.rstrip('/')}", name)
        if not once:
            say(f"still serving at http://{HOST}:{config.port}/v1 - Ctrl-C stops everything")
            threading.Event().wait()
    except KeyboardInterrupt:
        good = True
    finally:
        say("stopping")
        _shut_down()
    return 0 if good else 1


def say(line: str) -> None:
    print(f"[sightline] {line}", flush=True)


def _interrupt(number: int, frame: object) -> None:
    """SIGTERM stops like Ctrl-C does: what was started must be stopped by us."""
    raise KeyboardInterrupt


def _serve(config: DemoConfig) -> None:
    env = WORKER_ENV | {k: v for k, v in os.environ.items() if k in WORKER_ENV}
    os.environ.update(env)  # Ray's processes read some of them at their start
    import ray
    from ray import serve

    from app.build import build_app, detect_accelerator

    ray.init(
        address="local",
        num_cpus=max(4, os.cpu_count() or 1),
        include_dashboard=False,
        logging_level=logging.WARNING,
        runtime_env={"env_vars": env | {"PYTHONPATH": _python_path()}},
    )
    serve.start(http_options={"host": HOST, "port": config.port})
    accelerator = detect_accelerator(config.settings.accelerator)
    serve.run(
        build_app(config.settings, accelerator),
        name=config.app_name,
        route_prefix=config.route_prefix,
        logging_config={"enable_access_log": False, "log_level": "WARNING"},
    )


def _python_path() -> str:
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))


def _shut_down() -> None:
    if "ray" not in sys.modules:
        return
    import ray
    from ray import serve

    if ray.is_initialized():
        serve.shutdown()
        ray.shutdown()
