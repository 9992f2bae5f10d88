"""Pictures for the engine tests, and a local server that hands them out and remembers who asked."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import psutil
from PIL import Image

#: With the tiny Qwen3-VL: 10 x 8 merged patches = 80 tokens, so it covers more than two blocks of 32.
SIZE = (352, 320)


def pixels(seed: int, size: tuple[int, int] = SIZE, mode: str = "RGB") -> Image.Image:
    channels = len(Image.new(mode, (1, 1)).getbands())
    data = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], channels), dtype=np.uint8)
    return Image.fromarray(data.squeeze() if channels == 1 else data, mode)


def encode(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def png(seed: int, size: tuple[int, int] = SIZE) -> bytes:
    return encode(pixels(seed, size))


def rotated_jpeg(seed: int, size: tuple[int, int] = SIZE) -> bytes:
    """EXIF orientation 6: shown with width and height swapped."""
    exif = Image.Exif()
    exif[274] = 6
    return encode(pixels(seed, size), "JPEG", exif=exif, quality=90)


def gif(seed: int, size: tuple[int, int] = SIZE) -> bytes:
    frames = [pixels(seed + n, size).quantize(64) for n in range(2)]
    return encode(frames[0], "GIF", save_all=True, append_images=frames[1:])


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@dataclass(slots=True)
class PictureServer:
    """Serves `files` by path; while `watches`, `seen` names the process behind each request."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    seen: list[tuple[str, str]] = field(default_factory=list)
    watches: bool = False

    def put(self, name: str, data: bytes) -> str:
        self.files["/" + name] = data
        return f"{self.url}/{name}"


@contextmanager
def picture_server() -> Iterator[PictureServer]:
    served = PictureServer("")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if served.watches:
                served.seen.append(
                    (self.path, owner_of_port(self.client_address[1], self.server.server_port))
                )
            data = served.files.get(self.path.partition("?")[0])
            wanted = self.headers.get("range", "")
            status, body = (404, b"") if data is None else (200, data)
            if data is not None and wanted.startswith("bytes=0-"):
                status, body = 206, data[: int(wanted[8:]) + 1]
            self.send_response(status)
            if status == 206:
                self.send_header("content-range", f"bytes 0-{len(body) - 1}/{len(data or b'')}")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 128  # of 5, a burst from two ingresses is more than a busy machine takes in time

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()


def owner_of_port(port: int, server_port: int) -> str:
    """Id, name and command line of the local process that connects from `port`.

    One port may be the end of several connections, each to another place.
    """
    for connection in psutil.net_connections("tcp"):
        ends = [end.port for end in (connection.laddr, connection.raddr) if end]
        if ends == [port, server_port] and connection.pid:
            process = psutil.Process(connection.pid)
            return f"{process.pid} {process.name()} {' '.join(process.cmdline())}"
    return "unknown"
