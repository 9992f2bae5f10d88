"""The `sightline` command: each sub-command explains itself with --help.

What a sub-command needs is imported when it runs, so that help is immediate.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from app.settings import SettingOrigin

__all__ = ["main"]

_SERVE_CONFIG = "serve_config.yaml"
#: As a shell reports it of a program that SIGINT ended.
_INTERRUPTED = 130
#: The same of one that wrote to a pipe that nobody reads any more.
_READER_GONE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status (1: failed, 2: wrong usage, 130: Ctrl-C, 141: who read
    the output has gone; `layout` has its own)."""
    try:
        status = _main(argv)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # What is still buffered goes nowhere, or the interpreter would try once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _READER_GONE
    except KeyboardInterrupt:
        print("sightline: interrupted", file=sys.stderr)
        return _INTERRUPTED


def _main(argv: Sequence[str] | None) -> int:
    parser = _parser()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        args = parser.parse_args(words)
    except SystemExit as stop:
        if words[:1] == ["layout"] and stop.code:
            return 1  # 2 is its refusal
        raise
    if args.run is None:
        parser.print_help()
        return 0
    status: int = args.run(args)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sightline",
        description="Multimodal KV routing of vision-language models on Ray Serve. "
        "To serve on a cluster: serve run serve_config.yaml",
    )
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_config(commands)
    _add_demo(commands)
    _add_tiny_model(commands)
    _add_layout(commands)
    _add_bench(commands)
    _add_fit_profile(commands)
    _add_simulate(commands)
    _add_trace(commands)
    return parser


def _add_config(commands: Any) -> None:
    command = commands.add_parser(
        "config",
        help="print the effective settings and where each comes from",
        description="Reads a Serve config file and the SIGHTLINE_ variables, which win over it, and prints "
        "every setting, its value and its origin. Exit status 1 if they cannot be used.",
    )
    command.add_argument("--config", type=Path, metavar="FILE", help=f"Serve config file ({_SERVE_CONFIG})")
    command.add_argument(
        "--accelerator",
        choices=("gpu", "cpu"),
        help="show what holds there (default: as configured; for auto, what this machine has)",
    )
    command.add_argument(
        "--reference",
        action="store_true",
        help="print docs/configuration.md: every setting explained",
    )
    command.set_defaults(run=_run_config)


def _add_demo(commands: Any) -> None:
    command = commands.add_parser(
        "demo",
        help="serve on this machine and show that routing works",
        description="Starts the application on the loopback address, sends a few requests with a picture, "
        "prints who served them and what was cached, and serves until Ctrl-C.",
    )
    command.add_argument(
        "--config", metavar="FILE", help="Serve config file (default: a tiny random-weight model on the CPU)"
    )
    command.add_argument("--once", action="store_true", help="stop after the demonstration")
    command.add_argument("--port", type=int, help="port to serve on (default: the config file's, 8000)")
    command.set_defaults(run=_run_demo)


def _add_tiny_model(commands: Any) -> None:
    command = commands.add_parser(
        "tiny-model",
        help="make tiny random-weight models, offline",
        description="Makes models of about 1 MB that an engine loads like real ones: qwen3_vl, qwen2_5_vl, "
        "qwen2_vl. Prints a folder for each; one that is already there is kept.",
    )
    command.add_argument("kind", nargs="+", metavar="KIND", help="qwen3_vl, qwen2_5_vl or qwen2_vl")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the folders go")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of the weights (default: 0)")
    command.set_defaults(run=_run_tiny_model)


def _add_layout(commands: Any) -> None:
    command = commands.add_parser(
        "layout",
        help="show how a model lays pictures and clips out in its prompt",
        description="Prints the tokens, the layout and the spans that the registry of families foresees for "
        "one request with these items, in order, or why it does not. An item is a file, a URL, or a size: "
        "image:1920x1080, or video:640x360:32@30 (frames@source fps; with :indices=0,29,... the frames' "
        "numbers in the file, else its first ones). Exit status 0, 1 for a wrong call, 2 for a refusal.",
    )
    command.add_argument("item", nargs="+", metavar="ITEM", help="file, URL or size")
    command.add_argument("--model", type=Path, required=True, metavar="DIR", help="a model's folder")
    command.add_argument(
        "--engine", choices=("vllm", "sglang"), default="vllm", help="who serves it (default: vllm)"
    )
    command.add_argument("--max-model-len", type=int, metavar="N", help="tokens; some families size by it")
    command.add_argument("--video-pruning-rate", type=float, default=0.0, metavar="Q", help="(default: 0)")
    command.add_argument(
        "--processor-kwargs", default="{}", metavar="JSON", help="mm_processor_kwargs of engine or request"
    )
    command.add_argument(
        "--allow-private-addresses", action="store_true", help="fetch from addresses that are not public, too"
    )
    command.add_argument(
        "--trust-remote-code", action="store_true", help="run the tokenizer that the model brings along"
    )
    command.add_argument("--each", action="store_true", help="every item is a request of its own")
    command.add_argument("--json", action="store_true", help="one line of JSON a request")
    command.set_defaults(run=_run_layout)


def _add_bench(commands: Any) -> None:
    from app.load.arguments import add_arguments

    command = commands.add_parser(
        "bench",
        help="put load on an OpenAI-compatible endpoint and measure it",
        description="Sends text, pictures or conversations in a closed loop (--concurrency) or an open one "
        "(--rate); prints rates, latencies, errors and processor time. Exit status 0, 1 when the endpoint "
        "cannot be reached or nothing succeeded, 2 for a wrong call, 130 after Ctrl-C.",
    )
    add_arguments(command)
    command.set_defaults(run=_run_bench)


def _add_fit_profile(commands: Any) -> None:
    from app.fit_command import add_arguments

    command = commands.add_parser(
        "fit-profile",
        help="fit a profile of the simulated engine to a measured endpoint",
        description="Reads what `bench --rows` wrote about a real endpoint and prints the profile that comes "
        "closest, as YAML for `simulation.profile`. docs/simulation_profiles.md says what to measure. Exit "
        "status 1 when the rows do not settle it.",
    )
    add_arguments(command)
    command.set_defaults(run=_run_fit_profile)


def _add_simulate(commands: Any) -> None:
    from app.simulate_options import add_simulate_options

    command = commands.add_parser(
        "simulate", help="compare routing policies on a simulated fleet, without GPUs"
    )
    add_simulate_options(command)
    command.set_defaults(run=_run_simulate)


def _add_trace(commands: Any) -> None:
    from app.simulate_options import add_trace_options

    command = commands.add_parser(
        "trace", help="make a trace to simulate from a log of requests, without texts"
    )
    add_trace_options(command)
    command.set_defaults(run=_run_trace)


def _run_config(args: argparse.Namespace) -> int:
    from app.reference import reference
    from app.serve_file import read_serve_file
    from app.settings import SettingsError, explain, load_settings

    if args.reference:
        print(reference(), end="")
        return 0
    path = args.config or Path(_SERVE_CONFIG)
    try:
        given = read_serve_file(path).args
        accelerator = args.accelerator or _accelerator_here(load_settings(given, os.environ).accelerator)
        origins = explain(given, os.environ, accelerator)
    except SettingsError as error:
        return _fail(f"{path}: {error}")
    print(f"{path} on {accelerator}\n")
    print("\n".join(_table(origins)))
    return 0


def _run_demo(args: argparse.Namespace) -> int:
    from app.demo import main as demo
    from app.settings import SettingsError

    try:
        return demo(args.config, once=args.once, port=args.port)
    except SettingsError as error:
        return _fail(f"{args.config or _SERVE_CONFIG}: {error}")


def _run_tiny_model(args: argparse.Namespace) -> int:
    from app.tiny_models import KINDS, tiny_model

    unknown = [kind for kind in args.kind if kind not in KINDS]
    if unknown:
        return _fail(f"unknown kind {unknown[0]!r}: choose from {', '.join(KINDS)}")
    for kind in args.kind:
        print(tiny_model(kind, args.out, args.seed))
    return 0


def _run_layout(args: argparse.Namespace) -> int:
    from app.layout_command import run

    return run(args)


def _run_bench(args: argparse.Namespace) -> int:
    from app.load.command import run

    return run(args)


def _run_fit_profile(args: argparse.Namespace) -> int:
    from app.fit_command import run

    return run(args)


def _run_simulate(args: argparse.Namespace) -> int:
    from app.simulate import run

    return run(args)


def _run_trace(args: argparse.Namespace) -> int:
    from app.trace_command import run

    return run(args)


def _fail(message: str) -> int:
    print(f"sightline: {message}", file=sys.stderr)
    return 1


def _accelerator_here(wanted: str) -> Literal["gpu", "cpu"]:
    """`auto` without a cluster to ask: what this machine has."""
    if wanted == "auto":
        return "gpu" if Path("/dev/nvidiactl").exists() else "cpu"
    return "gpu" if wanted == "gpu" else "cpu"


def _table(origins: Sequence[SettingOrigin]) -> list[str]:
    rows = [("setting", "value", "from"), *((o.name, _text(o.value), o.origin) for o in origins)]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return [f"{name:{widths[0]}}  {value:{widths[1]}}  {origin}".rstrip() for name, value, origin in rows]


def _text(value: Any) -> str:
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
