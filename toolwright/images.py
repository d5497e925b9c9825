"""Images as data: read from any form in a row, checked, limited, and kept as data URLs.

A data URL is text, so that a task stays JSON. It is known by its name, the hash of the encoded bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolwright.failures import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_BYTES = 1 << 24  # of an encoded image
MOST_PIXELS = 1 << 26
MOST_IMAGES = 64  # of one row, or of one answer
NAME_DIGITS = 16  # hexadecimal ones of a hash
NAMED = "sha256:"
# How the files of each kind begin. Others are no images here: SVG is a program.
KINDS = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/bmp": (b"BM",),
    "image/webp": (b"RIFF",),
}
FORMATS = [kind.removeprefix("image/").upper() for kind in KINDS]  # as Pillow names them
PART = "image"  # the type of a message's part that is an image


def kind_of(content: bytes) -> str | None:
    """The media type by the first bytes; None: no image that is read here."""
    for kind, beginnings in KINDS.items():
        if content.startswith(beginnings) and (kind != "image/webp" or content[8:12] == b"WEBP"):
            return kind
    return None


def data_url(content: bytes) -> str:
    """The bytes as text. What is no image has no kind, and fails `checked`."""
    return f"data:{kind_of(content) or ''};base64,{base64.b64encode(content).decode()}"


def content_of(url: str) -> bytes:
    """The encoded image of a data URL."""
    return base64.b64decode(url.partition(",")[2])


def is_picture(value: Any) -> bool:
    """True for an array of [rows, columns, 3] bytes. Games keep boards in other shapes."""
    shape: tuple[int, ...] = getattr(value, "shape", ())
    return len(shape) == 3 and shape[2] == 3 and str(value.dtype) == "uint8"


def encoded(pixels: Any) -> bytes:
    """An array of [rows, columns, 3] bytes as a PNG."""
    file = io.BytesIO()
    _pillow().fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@lru_cache(maxsize=1024)
def name_of(url: str) -> str:
    return NAMED + hashlib.sha256(content_of(url)).hexdigest()[:NAME_DIGITS]


def opened(url: str) -> Image:
    """The picture in RGB, turned as its camera was held. Raises UserError where it cannot be decoded."""
    from PIL import ImageOps

    picture = _pillow().open(io.BytesIO(content_of(url)), formats=FORMATS)
    try:
        return ImageOps.exif_transpose(picture).convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"image {name_of(url)} cannot be decoded: {error}") from None


@lru_cache(maxsize=1024)
def size_of(url: str) -> tuple[int, int]:
    """Width and height in pixels, as `opened` has them."""
    from PIL import ImageOps

    picture = _pillow().open(io.BytesIO(content_of(url)), formats=FORMATS)
    turned = ImageOps.exif_transpose(picture) if picture.getexif() else picture
    return turned.size[0], turned.size[1]


def label(url: Any) -> str:
    """The text to show in place of the picture."""
    if not isinstance(url, str) or not url.startswith("data:"):
        return f"[image {url:.100}]" if isinstance(url, str) else "[image]"
    kind, size = url.partition(";")[0].removeprefix("data:image/"), len(url) * 3 // 4
    return f"[{kind} image, {size:,} bytes, {name_of(url)}]"


def read_image(value: Any, where: str, *, folder: Path | None = None, files: bool = True) -> str:
    """An image as a checked data URL: of bytes, base64, a data URL, a path (relative ones beside the file
    that names them, or here), or an object with `bytes` or `path`. Else a UserError that names `where`.
    `files`: paths are read as well."""
    if isinstance(value, Mapping):
        found = [value[key] for key in ("bytes", "image", "data", "path", "url") if value.get(key)]
        if not found:
            raise UserError(f"{where}: an image is an object with bytes or path, found {', '.join(value)}")
        return read_image(found[0], where, folder=folder, files=files)
    if isinstance(value, bytes):
        return checked(data_url(value), where)
    if not isinstance(value, str) or not value:
        raise UserError(f"{where}: an image is a path, base64 or a data URL, found {type(value).__name__}")
    if value.startswith("data:"):
        return checked(value, where)
    if value.startswith(("http://", "https://")):
        raise UserError(
            f"{where}: images are not downloaded from {value[:200]}; save the image, and name its file"
        )
    path = _file(value, folder) if files else None
    if path is not None:
        if path.stat().st_size > MOST_BYTES:
            raise UserError(
                f"{where}: {path} has more than {MOST_BYTES:,} bytes, which is the limit for an image"
            )
        return checked(data_url(path.read_bytes()), f"{where}: {path}")
    if _is_base64(value):
        return checked(data_url(base64.b64decode(value)), where)
    raise UserError(f"{where}: there is no image file {value[:200]!r}")


def checked(url: str, where: str) -> str:
    """The data URL, with the kind that its bytes have. Its head is read, its pixels are not."""
    head, _, encoded = url.partition(",")
    try:
        if not head.endswith(";base64"):
            raise ValueError("it is not base64")
        if len(encoded) > 2 * MOST_BYTES:
            raise UserError(f"{where}: the image has more than {MOST_BYTES:,} bytes")
        content = base64.b64decode(encoded, validate=True)
    except (ValueError, binascii.Error) as error:
        raise UserError(f"{where}: a data URL that cannot be read: {error}") from None
    if len(content) > MOST_BYTES:
        raise UserError(f"{where}: the image has {len(content):,} bytes, and may have {MOST_BYTES:,}")
    if kind_of(content) is None:
        kinds = ", ".join(kind.removeprefix("image/") for kind in KINDS)
        raise UserError(f"{where}: this is not an image; images are {kinds}")
    url = data_url(content)
    try:
        with _pillow().open(io.BytesIO(content), formats=FORMATS) as picture:
            width, height = picture.size
            picture.verify()
    except UserError:
        raise
    except Exception as error:  # a decoder of a stranger's bytes may fail in any way
        raise UserError(f"{where}: an image that cannot be read: {str(error)[:200]}") from None
    if width * height > MOST_PIXELS or not width * height:
        raise UserError(f"{where}: an image of {width} × {height}; it may have {MOST_PIXELS:,} pixels")
    return url


def is_safe(url: Any) -> bool:
    """True for a data URL that says the kind which its bytes have: a browser may show it."""
    if not isinstance(url, str) or not re.fullmatch(r"data:image/[a-z]+;base64,[A-Za-z0-9+/=]+", url):
        return False
    head, _, encoded = url.partition(",")
    return head == f"data:{kind_of(base64.b64decode(encoded[:32]))};base64"


def parts_of(
    content: Any, where: str, *, folder: Path | None = None, files: bool = True
) -> list[dict[str, Any]]:
    """The parts of a message's content, images read and everything else text."""
    parts = []
    for number, part in enumerate(content, 1):
        which = f"{where}, part {number}"
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        if not isinstance(part, Mapping):
            raise UserError(f"{which} must be an object with a type, found {type(part).__name__}")
        part = {key: value for key, value in part.items() if value is not None}
        kind = part.get("type")
        if kind == "text" and isinstance(part.get("text"), str):
            parts.append({"type": "text", "text": part["text"]})
        elif kind in (PART, "image_url"):
            parts.append(part_of(read_image(_value(part), which, folder=folder, files=files)))
        else:
            raise UserError(f"{which} is a {kind!r}; messages have text and image parts")
    return _few(parts, where)


def content_with(text: str, urls: Sequence[str]) -> str | list[dict[str, Any]]:
    """A message's content: a text, and images after it."""
    return [{"type": "text", "text": text}, *map(part_of, urls)] if urls else text


def part_of(url: str) -> dict[str, Any]:
    return {"type": PART, PART: url}


def with_images(
    messages: Sequence[Mapping[str, Any]], urls: Sequence[str], *, mark: str, where: str
) -> list[dict[str, Any]]:
    """Messages in whose text `mark` stands for one image each, with the images in these places."""
    left, found = list(urls), []
    marks = sum(text.count(mark) for message in messages for text in texts_of(message.get("content")))
    if marks != len(urls):
        raise UserError(f"{where}: it has {len(urls)} images, and {marks} times {mark} in its prompt")
    for message in messages:
        if not any(mark in text for text in texts_of(message.get("content"))):
            found.append(dict(message))
            continue
        parts: list[dict[str, Any]] = []
        content = message["content"]
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            pieces = part["text"].split(mark) if part["type"] == "text" else []
            parts += [] if pieces else [part]
            for number, piece in enumerate(pieces):
                parts += [part_of(left.pop(0))] if number else []
                parts += [{"type": "text", "text": piece}] if piece else []
        found.append({**message, "content": _few(parts, where)})
    return found


def texts_of(content: Any) -> list[str]:
    """The texts of a message's content, images left out."""
    if isinstance(content, str) or not content:
        return [content or ""]
    return [str(part.get("text", "")) for part in content if isinstance(part, Mapping)]


def text_of(content: Any) -> str:
    """A message's content as one text, an image as what it is."""
    if not isinstance(content, list):
        return str(content or "")
    return "".join(
        label(part.get(PART)) if part.get("type") == PART else str(part.get("text", ""))
        for part in content
        if isinstance(part, Mapping)
    )


def images_in(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The data URLs of all image parts, in order."""
    return [
        part[PART]
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
        if isinstance(part, Mapping) and part.get("type") == PART and PART in part
    ]


def apart(messages: Sequence[Mapping[str, Any]]) -> tuple[Sequence[Mapping[str, Any]], list[str]]:
    """Messages without the images' data, as a chat template is shown them, and the data."""
    urls = images_in(messages)
    if not urls:
        return messages, []
    return [
        {**message, "content": [_shown(part) for part in message["content"]]}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ], urls


def _shown(part: Any) -> Any:
    return {"type": PART} if isinstance(part, Mapping) and part.get("type") == PART else part


def _value(part: Mapping[str, Any]) -> Any:
    """OpenAI's parts have the URL in an object of its own."""
    value = part.get("image_url", part) if part["type"] == "image_url" else part.get(PART, part)
    return {key: value[key] for key in value if key != "type"} if isinstance(value, Mapping) else value


def _few(parts: list[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    images = sum(part["type"] == PART for part in parts)
    if images > MOST_IMAGES:
        raise UserError(f"{where} has {images} images; it may have {MOST_IMAGES}")
    return parts


def _file(value: str, folder: Path | None) -> Path | None:
    path = Path(value.removeprefix("file://")).expanduser()
    places = [path] if path.is_absolute() or folder is None else [folder / path, path]
    try:
        return next((place for place in places if place.is_file()), None)
    except (OSError, ValueError):  # too long for a name, or with a null in it: base64 perhaps
        return None


def _is_base64(value: str) -> bool:
    try:
        return kind_of(base64.b64decode(value, validate=True)) is not None
    except (ValueError, binascii.Error):
        return False


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise UserError("images need Pillow: pip install 'toolwright[vision]'") from None
    return Image
