"""Tiny random-weight vision-language models, made offline and reproducible byte for byte.

A tiny model has everything that an engine and `transformers` load (config, weights, tokenizer, chat
template, processor configs), about 1 MB in all, so that real schedulers, caches and events run on
any machine. What it says means nothing, but it is text: see `app.tiny_tokenizer`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from app.tiny_kinds import TINY_KINDS, TinyKind
from app.tiny_tokenizer import spoken_ids, token_id, write_tokenizer

__all__ = ["KINDS", "default_root", "tiny_model"]

#: What `tiny_model` can make.
KINDS: tuple[str, ...] = tuple(TINY_KINDS)

# Part of the folder's name: raise it when the files change, so that old folders are not taken for new ones.
_VERSION = 4


def default_root() -> Path:
    """Where `make run` and `model: tiny:KIND` keep theirs: in SIGHTLINE_CACHE or ~/.cache/sightline."""
    return Path(os.environ.get("SIGHTLINE_CACHE") or Path.home() / ".cache" / "sightline") / "models"


def tiny_model(kind: str, root: Path, seed: int = 0, *, with_weights: bool = True) -> Path:
    """The folder `root/<kind>-<seed>-v<version>`, made if it is not there (with its parents).

    Without weights, which is all that a simulated engine reads, neither torch nor much time is needed; the
    folder's name says so.

    Equal arguments give equal files; another seed gives other weights. Safe when several processes
    ask at once: each builds in a folder of its own and the first one's is kept.

    Raises:
        ValueError: unknown kind.
    """
    if kind not in TINY_KINDS:
        raise ValueError(f"unknown kind of tiny model {kind!r}: choose one of {', '.join(KINDS)}")
    target = root / f"{kind}-{seed}-v{_VERSION}{'' if with_weights else '-weightless'}"
    if not target.is_dir():
        _make_atomically(kind, target, seed, with_weights)
    return target


def _make_atomically(kind: str, target: Path, seed: int, with_weights: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        _write(kind, building, seed, with_weights)
        building.chmod(0o755)
        os.rename(building, target)
    except OSError:
        if not target.is_dir():  # else another process was first, with the same files
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _write(name: str, folder: Path, seed: int, with_weights: bool) -> None:
    kind = TINY_KINDS[name]
    write_tokenizer(folder)
    if with_weights:
        _write_weights(kind, folder, seed)
    else:
        config = {"architectures": [kind.model_class], "model_type": name, **kind.config()}
        _dump(folder / "config.json", config)
    _dump(folder / "preprocessor_config.json", kind.image_processor_config())
    _dump(folder / "video_preprocessor_config.json", kind.video_processor_config())


def _write_weights(kind: TinyKind, folder: Path, seed: int) -> None:
    # Imported here: they take seconds, and most callers find the folder ready.
    import torch
    import transformers

    model_class = getattr(transformers, kind.model_class)
    model = model_class(model_class.config_class(**kind.config()))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = _initial_values(name, tuple(parameter.shape), seed)
            parameter.copy_(torch.from_numpy(values))
    model.generation_config = transformers.GenerationConfig(
        eos_token_id=token_id("<|im_end|>"), pad_token_id=token_id("<|endoftext|>"), do_sample=False
    )
    bars = transformers.utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    model.to(torch.bfloat16).save_pretrained(folder)
    if shown:
        bars.enable_progress_bar()


def _initial_values(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Depends on the parameter's name, not on the order in which a library lists them.

    Scales keep activations near 1 and next-token scores far enough apart that every batch size
    and cache path gives one and the same greedy answer.
    """
    if len(shape) == 1:
        return np.full(shape, 0.0 if name.endswith("bias") else 1.0, dtype=np.float32)
    random = np.random.default_rng([seed, zlib.crc32(name.encode())])
    values = random.standard_normal(shape, dtype=np.float32)
    if "embed_tokens" in name:
        return values
    if "lm_head" in name:
        return _only_spoken(values)
    return values / np.float32(np.sqrt(np.prod(shape[1:])))


def _only_spoken(head: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Score 0 for whatever is not a word: far below the best word, so never said."""
    spoken = np.zeros_like(head)
    spoken[spoken_ids()] = head[spoken_ids()]
    return spoken


def _dump(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
