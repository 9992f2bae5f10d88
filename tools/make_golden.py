"""Write a golden file: what vLLM's installed processor makes of many pictures and clips.

    python -m tools.make_golden MODEL_DIR --family NAME --out tests/data/golden/NAME.json

Needs the model's configuration, processor and tokenizer files; no weights, no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

from deployments.engines.vllm_probe import InstalledProcessor, ProcessorRefused, Rendered
from processors import Shape
from sightline_types import ImageSize, Modality, VideoShape

SIZES = (
    (1, 1), (1, 2), (3, 5), (7, 7), (13, 9), (14, 14), (16, 16), (27, 28), (28, 28), (29, 31), (33, 33),
    (42, 42), (56, 56), (70, 42), (80, 48), (98, 70), (1, 100), (100, 1), (1, 200), (200, 1), (1, 201),
    (201, 1), (10, 2000), (2000, 10), (30, 6000), (6000, 30), (224, 224), (250, 333), (336, 336),
    (337, 336), (335, 337), (400, 400), (448, 448), (500, 333), (512, 512), (640, 480), (480, 640),
    (641, 481), (672, 336), (673, 336), (720, 1280), (1280, 720), (799, 601), (1000, 50), (50, 1000),
    (1008, 336), (1024, 768), (1024, 1024), (1081, 1923), (1920, 1080), (1366, 768), (1536, 1536),
    (2048, 1024), (2560, 1440), (3840, 2160), (4000, 3000), (5000, 300), (8000, 41),
)  # fmt: skip

CLIPS = (
    VideoShape(ImageSize(64, 48), 2, 24.0, (0, 47), 48),
    VideoShape(ImageSize(64, 48), 3, 25.0, (0, 37, 74), 75),
    VideoShape(ImageSize(640, 360), 4, 30.0, (0, 20, 39, 59), 60),
    VideoShape(ImageSize(333, 777), 7, 29.97, (0, 50, 100, 150, 200, 250, 299), 300),
    VideoShape(ImageSize(16, 48), 2, 50.0, (3828, 3877), 3878),
    VideoShape(ImageSize(320, 240), 1, 30.0, (0,), 1),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL_DIR")
    parser.add_argument("--family", required=True, metavar="NAME")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--placeholder", metavar="TOKEN", help="of a picture (default: config.json's id)")
    parser.add_argument("--video-placeholder", metavar="TOKEN", help="of a clip (default: config.json's id)")
    parser.add_argument("--images-only", action="store_true", help="no clips")
    parser.add_argument("--max-model-len", type=int, default=32768, metavar="N")
    args = parser.parse_args(argv)
    processor, tokenizer, config = installed(args.model, args.max_model_len)
    image = token_of(tokenizer, config, args.placeholder, ("image_token_id", "image_token_index"))
    video = token_of(tokenizer, config, args.video_placeholder, ("video_token_id",))
    settings = processor.settings
    golden: dict[str, Any] = {"meta": meta(args.family, config) | {"processor_config": settings}}
    if image is not None and processor.takes(Modality.IMAGE):
        golden["image"] = [row(processor, image, ImageSize(*size)) for size in SIZES]
    if video is not None and not args.images_only and processor.takes(Modality.VIDEO):
        golden["video"] = [row(processor, video, clip) for clip in CLIPS]
    args.out.write_text(compact(golden))
    return 0


def installed(model: str, max_model_len: int) -> tuple[InstalledProcessor, Any, Any]:
    """vLLM's processor, tokenizer and configuration of a model's folder."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.multimodal import MULTIMODAL_REGISTRY

    config = AsyncEngineArgs(model=model, max_model_len=max_model_len).create_engine_config().model_config
    processor = MULTIMODAL_REGISTRY.create_processor(config)
    return InstalledProcessor(processor, {}), processor.info.get_tokenizer(), config.hf_config


def token_of(tokenizer: Any, config: Any, token: str | None, names: Sequence[str]) -> int | None:
    if token is not None:
        return int(tokenizer.get_vocab()[token])
    found = (getattr(config, name, None) for name in names)
    return next((int(value) for value in found if value is not None), None)


def meta(family: str, config: Any) -> dict[str, Any]:
    return {
        "family": family,
        **{name: import_module(name).__version__ for name in ("vllm", "transformers", "torch")},
        "processor": "vLLM's installed multimodal processor, prompt of the placeholder alone",
        "config": {name: value for name, value in config.to_dict().items() if name.endswith("_token_id")},
    }


def row(processor: InstalledProcessor, placeholder: int, shape: Shape) -> dict[str, Any]:
    """One picture or clip: its ids in run lengths, its range, or the processor's error."""
    try:
        return described(shape) | measured(processor.render([placeholder], [shape]))
    except ProcessorRefused as error:
        return described(shape) | {"error": str(error).splitlines()[0]}


def described(shape: Shape) -> dict[str, Any]:
    if isinstance(shape, ImageSize):
        return {"width": shape.width, "height": shape.height}
    return {
        **described(shape.size),
        "num_frames": shape.num_frames,
        "fps": shape.source_fps,
        "total_num_frames": shape.total_frames,
        "frames_indices": list(shape.frame_indices),
    }


def measured(rendered: Rendered) -> dict[str, Any]:
    (placed,) = rendered.placed
    runs = [[token, len(list(run))] for token, run in groupby(rendered.token_ids)]
    embeds = sum(run.length for run in placed.embeds) or placed.length
    return {
        "num_tokens": placed.length,
        "num_embed_tokens": embeds,
        "offset": placed.offset,
        "replacement_rle": runs,
    }


def compact(golden: dict[str, Any]) -> str:
    """JSON with one row a line."""
    sections = []
    for name, value in golden.items():
        rows = [" " + json.dumps(one) for one in value] if isinstance(value, list) else []
        text = "[\n" + ",\n".join(rows) + "\n]" if rows else json.dumps(value)
        sections.append(f"{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(sections) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
