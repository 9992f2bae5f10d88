"""Write a golden file: what vLLM's installed processor makes of many pictures and clips.

    python -m tools.make_golden MODEL_DIR --family NAME --out tests/data/golden/NAME.json

Needs the model's configuration, processor and tokenizer files; no weights, no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

from deployments.engines.vllm_probe import InstalledProcessor, ProcessorRefused, Rendered
from processors import Shape
from processors.model_files import read_preprocessors
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


#: Sections of config.json: of other towers, or of no layout.
_LEFT_OUT = frozenset(
    "text_config llm_config audio_config talker_config token2wav_config code2wav_config auto_map".split()
)
#: Around the pictures of a whole prompt.
TEXTS = (
    ("Look: ", " What?"),
    ("a\n", "b"),
    ("a\n\n", " b"),
    ("", "\n"),
    ("", "", ""),
    ("a\n", " and ", "\n\nb"),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL_DIR")
    parser.add_argument("--family", required=True, metavar="NAME")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--placeholder", metavar="TEXT", help="of a picture, a token or a text (default: config.json's id)"
    )
    parser.add_argument("--video-placeholder", metavar="TOKEN", help="of a clip (default: config.json's id)")
    parser.add_argument("--images-only", action="store_true", help="no clips")
    parser.add_argument("--max-model-len", type=int, default=32768, metavar="N")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run code that the model brings along"
    )
    parser.add_argument(
        "--token", action="append", default=[], metavar="TEXT", help="name its id in the file"
    )
    args = parser.parse_args(argv)
    processor, tokenizer, config = installed(args.model, args.max_model_len, args.trust_remote_code)
    image = ids_of(tokenizer, config, args.placeholder, ("image_token_id", "image_token_index"))
    video = ids_of(tokenizer, config, args.video_placeholder, ("video_token_id",))
    tokens = {token: tokenizer.get_vocab()[token] for token in args.token}
    described = {"processor_config": read_preprocessors(args.model)[0], "tokens": tokens}
    golden: dict[str, Any] = {"meta": meta(args.family, args.model) | described}
    if image and processor.takes(Modality.IMAGE):
        golden["image"] = [row(processor, image, ImageSize(*size)) for size in SIZES]
        golden["image_full_prompt"] = [full_prompt(processor, tokenizer, image, texts) for texts in TEXTS]
    if video and not args.images_only and processor.takes(Modality.VIDEO):
        golden["video"] = [row(processor, video, clip) for clip in CLIPS]
    args.out.write_text(compact(golden))
    return 0


def installed(
    model: str, max_model_len: int, trust_remote_code: bool = False
) -> tuple[InstalledProcessor, Any, Any]:
    """vLLM's processor, tokenizer and configuration of a model's folder."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.multimodal import MULTIMODAL_REGISTRY

    args = AsyncEngineArgs(model=model, max_model_len=max_model_len, trust_remote_code=trust_remote_code)
    config = args.create_engine_config().model_config
    processor = MULTIMODAL_REGISTRY.create_processor(config)
    return InstalledProcessor(processor, {}), processor.info.get_tokenizer(), config.hf_config


def ids_of(tokenizer: Any, config: Any, text: str | None, names: Sequence[str]) -> list[int]:
    """Of a placeholder; [] where the model has none."""
    if text is not None:
        return list(tokenizer.encode(text, add_special_tokens=False))
    found = (getattr(config, name, None) for name in names)
    return next(([int(value)] for value in found if value is not None), [])


def meta(family: str, model: str) -> dict[str, Any]:
    config = json.loads((Path(model) / "config.json").read_text())
    return {
        "family": family,
        **{name: import_module(name).__version__ for name in ("vllm", "transformers", "torch")},
        "processor": "vLLM's installed multimodal processor, prompt of the placeholder alone",
        "config": without_sections(config),
    }


def without_sections(config: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in config.items() if name not in _LEFT_OUT}
    return {n: without_sections(value) if isinstance(value, dict) else value for n, value in kept.items()}


def row(processor: InstalledProcessor, placeholder: Sequence[int], shape: Shape) -> dict[str, Any]:
    """One picture or clip: its ids in run lengths, its range, or the processor's error."""
    try:
        return described(shape) | measured(processor.render(placeholder, [shape]))
    except ProcessorRefused as error:
        return described(shape) | {"error": str(error).splitlines()[0]}


def full_prompt(
    processor: InstalledProcessor, tokenizer: Any, placeholder: Sequence[int], texts: Sequence[str]
) -> dict[str, Any]:
    """Texts, and between them a picture each: ids before and after in run lengths, and the ranges."""
    sizes = [ImageSize(*size) for size in SIZES[-len(texts) : -1]]
    ids = list(tokenizer.encode(texts[0], add_special_tokens=False))
    for text in texts[1:]:
        ids += [*placeholder, *tokenizer.encode(text, add_special_tokens=False)]
    asked = {"sizes": [[size.width, size.height] for size in sizes], "prompt_ids_unexpanded": ids}
    try:
        rendered = processor.render(ids, sizes)
    except ProcessorRefused as error:
        return asked | {"error": str(error).splitlines()[0]}
    ranges = [[placed.offset, placed.length] for placed in rendered.placed]
    return asked | {"expanded_rle": run_lengths(rendered.token_ids), "ranges": ranges}


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
    embeds = sum(run.length for run in placed.embeds) or placed.length
    return {
        "num_tokens": placed.length,
        "num_embed_tokens": embeds,
        "offset": placed.offset,
        "replacement_rle": run_lengths(rendered.token_ids),
    }


def run_lengths(ids: Sequence[int]) -> list[list[int]]:
    return [[token, len(list(run))] for token, run in groupby(ids)]


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
