"""What the ingress computes before it routes, against decoding and against vLLM's own renderer.

    python benchmarks/processors.py [--json FILE] [--quick]

Two workloads. Pictures: requests with 1, 4 and 16 JPEG files of 1280x720, 400 kB each, for a tiny Qwen3-VL
(real processor configuration, real layout): identity, size, layout, token ids and block keys of the whole
request. Conversation: ten turns, 8k tokens at the end, over Qwen2.5's real vocabulary.

Figures are CPU milliseconds of this process a request (all threads), the median of many: on a busy machine
they say what the work costs, not how long somebody waited. No engine runs.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "unit"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from PIL import Image

from app.tiny_models import tiny_model
from benchmarks.router_core import machine
from processors import Fetcher, MediaConfig, ModelFiles, PromptBuilder, decode_image
from processors.messages import Conversation, parse_messages
from processors.template import ChatTemplate
from router import block_keys
from sightline_types import KeyScheme, KeySpec

SIZE = (1280, 720)
FILE_BYTES = 400_000
COUNTS = (1, 4, 16)
SPEC = KeySpec(KeyScheme.VLLM, 16)
QUESTION = "Describe these pictures, compare them, and say what they have in common. " * 4

Run = Callable[[], Awaitable[object]]


def jpeg(seed: int) -> bytes:
    """A photograph's size in bytes: noise over a coarse picture, at the quality that comes nearest."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 255, (9, 16, 3), dtype=np.uint8)).resize(SIZE)
    noise = random.integers(-24, 24, (SIZE[1], SIZE[0], 3))
    picture = Image.fromarray(np.clip(np.asarray(coarse) + noise, 0, 255).astype(np.uint8))
    return min((_encoded(picture, q) for q in range(30, 96, 5)), key=lambda data: abs(len(data) - FILE_BYTES))


def _encoded(picture: Image.Image, quality: int) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def messages(urls: list[str]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}]


@contextmanager
def served(files: list[bytes]) -> Iterator[list[str]]:
    """The files by http, ranges included; their addresses."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = files[int(self.path[1:])]
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [f"http://127.0.0.1:{server.server_port}/{number}" for number in range(len(files))]
    server.shutdown()


async def cpu_ms(run: Run, budget_s: float) -> float:
    """CPU milliseconds of one call, median; the first calls are not counted."""
    for _ in range(3):
        await run()
    times: list[float] = []
    end = time.perf_counter() + budget_s
    while time.perf_counter() < end or len(times) < 3:
        began = time.process_time()
        await run()
        times.append((time.process_time() - began) * 1e3)
    return statistics.median(times)


class Table:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def note(self, what: str, value: float, unit: str = "ms") -> float:
        self.rows.append({"what": what, "value": round(value, 4), "unit": unit})
        print(f"{what:64} {value:10.3f} {unit}", flush=True)
        return value


class Requests:
    """Prompt builders of each identity mode over one model's files."""

    def __init__(self, folder: Path) -> None:
        self._files = ModelFiles.load(folder)
        self._made: list[PromptBuilder] = []
        self._template = ChatTemplate(self._files.tokenizer, self._files.media_token_ids)
        self._turns: list[dict[str, Any]] = []

    def prepare(self, identity: str, turns: list[dict[str, Any]]) -> Run:
        # No file is read here: a size that is not known yet is asked for, in the calls that are not counted.
        settings = {"identity": identity, "allow_private_addresses": True, "probe_budget_ms": 10_000}
        media = MediaConfig.model_validate(settings)
        prompts = PromptBuilder(self._files, media, enable_multimodal=True, fetcher=Fetcher(media))
        self._made.append(prompts)
        self._turns = turns

        async def run() -> object:
            prompt = await prompts.prepare(turns)
            assert prompt.is_exact, prompt.reasons
            return block_keys(prompt.view, SPEC)

        return run

    async def text(self) -> object:
        """What the last request's template and tokens cost, which vLLM's renderer is given here."""
        conversation = parse_messages(self._turns, enable_multimodal=True, max_items=max(COUNTS))
        return self._template.tokenize(conversation)

    async def aclose(self) -> None:
        for prompts in self._made:
            await prompts.aclose()


async def pictures(table: Table, folder: Path, budget_s: float) -> None:
    files = [jpeg(seed) for seed in range(max(COUNTS))]
    data = ["data:image/jpeg;base64," + base64.b64encode(file).decode() for file in files]
    requests, render = Requests(folder), renderer(folder)
    with served(files) as urls:
        for count in COUNTS:
            of = f"{count} x 720p"
            cost = {
                "url, http warm": requests.prepare("url", messages(urls[:count])),
                "bytes, data:": requests.prepare("bytes", messages(data[:count])),
                "content, data:": requests.prepare("content", messages(data[:count])),
            }
            ours = {mode: await cpu_ms(run, budget_s) for mode, run in cost.items()}
            text = table.note(f"{of}: template and tokens", await cpu_ms(requests.text, budget_s))
            for mode, value in ours.items():
                table.note(f"{of}: whole request ({mode})", value)
                table.note(f"{of}: without template and tokens ({mode})", value - text)
            decoding = table.note(f"{of}: Pillow decodes", await cpu_ms(decode_all(files[:count]), budget_s))
            rendering = table.note(f"{of}: vLLM renders", await cpu_ms(render(files[:count]), budget_s))
            for mode, value in ours.items():
                by = (decoding + rendering) / (value - text)
                table.note(f"{of}: cheaper than decoding and vLLM's rendering ({mode})", by, "x")
    await requests.aclose()


def decode_all(files: list[bytes]) -> Run:
    async def run() -> object:
        return [decode_image(file, max_pixels=1 << 30) for file in files]

    return run


def renderer(folder: Path) -> Callable[[list[bytes]], Run]:
    """vLLM's renderer as the `Renderer` deployment runs it."""
    from deployments.config import EngineConfig
    from deployments.engines.vllm_render import VllmRenderer
    from deployments.protocol import EngineMedia
    from deployments.rendered import Rendered, RenderRequest
    from sightline_types import MediaId, Modality

    # Without its cache: the same pictures again and again would cost no more than their hashes.
    config = EngineConfig(str(folder), enable_multimodal=True, engine_args={"mm_processor_cache_gb": 0})
    engine = VllmRenderer.start(config)
    placeholder = int(json.loads((folder / "config.json").read_text())["image_token_id"])

    def of(files: list[bytes]) -> Run:
        media = tuple(EngineMedia(Modality.IMAGE, MediaId(i), "file", 0, 0) for i in range(len(files)))
        images = [decode_image(file, max_pixels=1 << 30) for file in files]
        request = RenderRequest((placeholder,) * len(files), media)

        async def run() -> object:
            answer = await engine.render(request, images)
            assert isinstance(answer, Rendered), answer
            return answer

        return run

    return of


# The conversation


def conversation(turns: int = 10, words: int = 415) -> list[list[dict[str, Any]]]:
    """The request of each turn: all messages before it, and a new one."""
    lexicon = (
        Path(__file__).read_text().split() + (Path(__file__).parent.parent / "README.md").read_text().split()
    )
    random = np.random.default_rng(0)
    history: list[dict[str, Any]] = [{"role": "system", "content": "You are a helpful assistant."}]
    requests = []
    for _ in range(turns):
        say = [" ".join(random.choice(lexicon, words // 2)) for _ in range(2)]
        history.append({"role": "user", "content": say[0]})
        requests.append(list(history))
        history.append({"role": "assistant", "content": say[1]})
    return requests


async def tokenization(table: Table, repeats: int) -> None:
    from qwen_vocabulary import qwen_tokenizer

    turns = [Conversation(tuple(request)) for request in conversation()]
    tokenizer = qwen_tokenizer()
    template = ChatTemplate(tokenizer)

    def at_once(turn: Conversation) -> int:
        return len(tokenizer(template.render(turn), add_special_tokens=False)["input_ids"])

    tokens = [at_once(turn) for turn in turns]
    whole: list[list[float]] = [[] for _ in turns]
    cached: list[list[float]] = [[] for _ in turns]
    for _ in range(repeats):
        fresh = ChatTemplate(tokenizer)
        for number, turn in enumerate(turns):
            whole[number].append(_cpu_ms(at_once, turn))
        for number, turn in enumerate(turns):
            cached[number].append(_cpu_ms(fresh.tokenize, turn))
    for number, count in enumerate(tokens):
        full, grown = statistics.median(whole[number]), statistics.median(cached[number])
        table.note(f"turn {number + 1}, {count} tokens: whole", full)
        table.note(f"turn {number + 1}, {count} tokens: with the cache", grown)
    table.note("last turn: cheaper than whole by", full / grown, "x")


def _cpu_ms(function: Callable[[Any], object], argument: object) -> float:
    began = time.process_time()
    function(argument)
    return (time.process_time() - began) * 1e3


async def measure(budget_s: float) -> list[dict[str, Any]]:
    table = Table()
    with tempfile.TemporaryDirectory() as root:
        await tokenization(table, repeats=max(3, int(20 * budget_s)))
        await pictures(table, tiny_model("qwen3_vl", Path(root)), budget_s)
    return table.rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--quick", action="store_true", help="a quarter of the time, rougher figures")
    args = parser.parse_args()
    print(machine())
    rows = asyncio.run(measure(0.5 if args.quick else 2.0))
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
