"""`sightline trace`: from a log of OpenAI chat requests to a trace without anything that anybody wrote."""

from __future__ import annotations

import argparse
import base64
import binascii
import io
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

from simulation.anonymizer import Anonymizer
from simulation.errors import TraceError

__all__ = ["run", "size_in_data_url"]


def run(args: argparse.Namespace) -> int:
    """Exit status 0, or 1 where a line cannot be read or there is none; then nothing is written."""
    width, _, height = args.size.partition("x")
    if not (width.isdigit() and height.isdigit() and int(width) and int(height)):
        print(f"sightline: --size {args.size!r}: WIDTHxHEIGHT, such as 1280x720", file=sys.stderr)
        return 1
    anonymizer = Anonymizer(
        secrets.token_bytes(32), size_of=size_in_data_url, other_size=(int(width), int(height))
    )
    try:
        lines = [
            request.model_dump_json(exclude_none=True) for request in anonymizer.convert(_lines(args.log))
        ]
        if not lines:
            raise TraceError("no requests in it")
    except (OSError, UnicodeDecodeError, TraceError) as error:
        print(f"sightline: {args.log}: {error}", file=sys.stderr)
        return 1
    try:
        args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        print(f"sightline: --out {args.out}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"{args.out}: {len(lines)} requests")
    return 0


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8-sig") as file:
        yield from file


def size_in_data_url(url: str) -> tuple[int, int] | None:
    """(width, height) from the header of a picture that is in its own address; None for any other."""
    if not url.startswith("data:"):
        return None
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as image:
            return image.size
    except (UnidentifiedImageError, OSError, ValueError, binascii.Error):
        return None
