"""Pixels from an encoded file: the same as the engine's own loader would make of it.

The rules are those of vLLM 0.32's image loader, so that an identity and a size computed here hold for
what the engine sees.
"""

from __future__ import annotations

from io import BytesIO

from PIL import Image, UnidentifiedImageError

from processors.errors import RequestError, UnsupportedMedia
from processors.exif import ORIENTATION
from processors.formats import named_format
from processors.probe import ProbeError, TooManyPieces, probe_image

__all__ = ["decode_image"]

# Formats that are decoded in this process. Left out are those that start an interpreter or need an
# external handler (EPS, WMF, BUFR, GRIB, HDF5) and MPEG, which is no picture.
_FORMAT_NAMES = """
AVIF BLP BMP CUR DCX DDS DIB FITS FLI FTEX GBR GIF ICNS ICO IM IMT IPTC JPEG JPEG2000 MCIDAS MSP PCD
PCX PIXAR PNG PPM PSD QOI SGI SPIDER SUN TGA TIFF WEBP XBM XPM XVTHUMB
"""
_FORMATS = tuple(_FORMAT_NAMES.split())
_TURNS: dict[object, Image.Transpose] = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ALPHA_MODES = ("RGBA", "LA", "PA")
_WHITE = (255, 255, 255)
_SEND = "send PNG, JPEG, WebP, GIF, BMP, TIFF, AVIF or ICO"
_HEAD_BYTES = 4096


def decode_image(data: bytes, *, max_pixels: int) -> Image.Image:
    """The first frame, upright, RGB, transparency on white.

    Raises:
        UnsupportedMedia: 415 for a format that is not read here, 400 for a broken file or one of
            more than `max_pixels` (told from its header, before any pixel is decoded).
    """
    _check_header(data, max_pixels)
    try:
        image: Image.Image = Image.open(BytesIO(data), formats=_FORMATS)
        check_pixels(image.width, image.height, max_pixels)
        image.load()
        picture = _to_rgb(_upright(image))
        picture.info = {}  # whoever reads it next would turn it once more
        return picture
    except RequestError:
        raise
    except UnidentifiedImageError:
        raise UnsupportedMedia(f"the image is of no format that can be read here; {_SEND}") from None
    except Exception as error:
        # Pillow's readers raise whatever the file leads them to, from struct.error to KeyError.
        raise UnsupportedMedia(f"the image cannot be decoded: {error}", status=400) from error


def _check_header(data: bytes, max_pixels: int) -> None:
    """What the first bytes tell, before Pillow opens the file: some of its readers decode at once."""
    if (name := named_format(data[:_HEAD_BYTES])) is not None:
        raise UnsupportedMedia(f"the file is {name}, which cannot be read here; {_SEND}")
    try:
        size = probe_image(data)
    except TooManyPieces as error:
        # Pillow reads such a file piece by piece, too.
        raise UnsupportedMedia(f"the image is {error}; save it anew", status=400) from None
    except ProbeError:
        return
    check_pixels(size.width, size.height, max_pixels)


def check_pixels(width: int, height: int, max_pixels: int) -> None:
    """
    Raises:
        UnsupportedMedia: 400 above the limit.
    """
    if width * height > max_pixels:
        message = f"the image has {width}x{height} = {width * height} pixels; the limit is {max_pixels}"
        raise UnsupportedMedia(f"{message} (media.max_pixels). Send a smaller one.", status=400)


def _upright(image: Image.Image) -> Image.Image:
    """A new picture, turned as EXIF says. Pillow's own `exif_transpose` also writes the metadata anew, fails
    where some other entry is odd, and then leaves the picture on its side."""
    try:
        turn = _TURNS.get(image.getexif().get(ORIENTATION))
    except Exception:
        turn = None  # a picture whose EXIF cannot be read stays as it is
    return image.copy() if turn is None else image.transpose(turn)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image  # even with a transparent colour named in its header: the engine ignores it too
    if image.mode not in _ALPHA_MODES and "transparency" not in image.info:
        return image.convert("RGB")
    layer = image if image.mode == "RGBA" else image.convert("RGBA")
    flat = Image.new("RGB", layer.size, _WHITE)
    flat.paste(layer, mask=layer.getchannel("A"))
    return flat
