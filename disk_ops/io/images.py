"""Image and mask files: decoding, downscaling, and the mapping between resized and original pixels.

Conventions:

- pixels are taken as they are stored in the file: an EXIF orientation is ignored, as COLMAP and hloc do;
- the centre of the first pixel is (0, 0), so a resize by the factor s maps x to ``(x + 0.5) * s - 0.5``;
- colours are RGB in [0, 1]. Integer images are divided by the largest value of their type (255, 65535);
  floating-point images must be in [0, 1] already. An alpha channel is dropped.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

IMAGE_EXTENSIONS = frozenset(
    f".{ending}"
    for ending in (
        *("avif", "bmp", "exr", "gif", "hdr", "jp2", "jpe", "jpeg", "jpg", "pbm"),
        *("pgm", "png", "pnm", "ppm", "ras", "sr", "tif", "tiff", "webp"),
    )
)
"""File name endings (in lower case) that are taken from a folder."""

Size = tuple[int, int]
"""(width, height) in pixels."""

Pixels = npt.NDArray[Any]
"""A decoded image [H, W] or [H, W, 3] of dtype uint8, uint16 or float32 (or a mask [H, W])."""

_JPEG_START = b"\xff\xd8"
_PNG_START = b"\x89PNG\r\n\x1a\n"
# In entropy-coded JPEG data ff00 is a stuffed byte, ffd0-ffd7 are restart markers, and ffff is fill.
_JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")


class ImageError(Exception):
    """An image or mask that can't be used. The message says why, without the file's name."""


def read_image(path: Path) -> Pixels:
    """Decode an image file.

    Returns:
        Array [H, W] (grey) or [H, W, 3] (RGB) of dtype uint8, uint16 or float32, as stored.

    Raises:
        ImageError: when the file is missing, unreadable, truncated, not an image, or of an unsupported type.
    """
    pixels = _decode(_read_bytes(path))
    if pixels.ndim == 3 and pixels.shape[2] in (1, 2):
        pixels = pixels[:, :, 0]
    elif pixels.ndim == 3 and pixels.shape[2] in (3, 4):
        pixels = pixels[:, :, 2::-1]  # BGR or BGRA to RGB
    elif pixels.ndim != 2:
        raise ImageError(f"has {pixels.shape[-1]} channels; only grey and colour images are supported")
    if pixels.dtype == np.float64:
        pixels = pixels.astype(np.float32)
    if pixels.dtype not in (np.uint8, np.uint16, np.float32):
        raise ImageError(f"has pixels of type {pixels.dtype}; only 8-bit, 16-bit and float images are supported")
    if pixels.dtype == np.float32:
        low, high = float(pixels.min()), float(pixels.max())
        if not (low >= 0.0 and high <= 1.0):  # also catches NaN
            raise ImageError(f"is a float image with values from {low:g} to {high:g}; they must be in [0, 1]")
    return np.ascontiguousarray(pixels)


def to_rgb_float(pixels: Pixels) -> npt.NDArray[np.float32]:
    """Turn decoded pixels [H, W] or [H, W, 3] into a float32 image [3, H, W] in [0, 1]."""
    if pixels.ndim == 2:
        pixels = np.broadcast_to(pixels[:, :, None], (*pixels.shape, 3))
    image = np.ascontiguousarray(pixels.transpose(2, 0, 1), dtype=np.float32)
    if np.issubdtype(pixels.dtype, np.integer):
        image /= np.float32(np.iinfo(pixels.dtype).max)
    return image


def to_rgb8(pixels: Pixels) -> np.ndarray:
    """Turn decoded pixels ``[h, w]`` or ``[h, w, 3]`` into ``[h, w, 3]`` uint8."""
    if pixels.dtype != np.uint8:
        largest = 1.0 if pixels.dtype.kind == "f" else float(np.iinfo(pixels.dtype).max)
        pixels = np.rint(pixels * (255.0 / largest)).astype(np.uint8)
    return np.repeat(pixels[:, :, None], 3, axis=2) if pixels.ndim == 2 else pixels


def size_of(pixels: Pixels) -> Size:
    """(width, height) of an array [H, W, ...]."""
    return int(pixels.shape[1]), int(pixels.shape[0])


def limited_size(size: Size, max_size: int | None) -> Size:
    """The size whose longest edge is at most ``max_size``, aspect kept; never larger than ``size``."""
    longest = max(size)
    if max_size is None or longest <= max_size:
        return size
    # Integer rounding of n * max_size / longest, so that the result doesn't depend on floating point.
    width, height = (max(1, (2 * edge * max_size + longest) // (2 * longest)) for edge in size)
    return width, height


def downscale(pixels: Pixels, size: Size) -> Pixels:
    """Average the pixels under each new pixel (antialiased), rounding to the type of ``pixels``."""
    if size_of(pixels) == size:
        return pixels
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA))


def resize_pixels(pixels: np.ndarray, size: Size) -> np.ndarray:
    """Resize ``[h, w, ...]``, averaging what lies under a pixel where the image shrinks."""
    old = size_of(pixels)
    if old == size:
        return pixels
    smaller = size[0] <= old[0] and size[1] <= old[1]
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA if smaller else cv2.INTER_LINEAR))


def to_original(
    keypoints: npt.NDArray[np.float32],  # [N, 2] xy in the resized image
    resized: Size,
    original: Size,
) -> npt.NDArray[np.float32]:
    """Map keypoints of a resized image to pixels of the original one."""
    scale = np.array([original[0] / resized[0], original[1] / resized[1]])
    return np.asarray((keypoints.astype(np.float64) + 0.5) * scale - 0.5, dtype=np.float32)


def find_mask(mask_dir: Path, name: str) -> Path | None:
    """The mask of the image ``name``: COLMAP's ``<name>.png``, else the same name ending in .png, else None."""
    for candidate in (mask_dir / f"{name}.png", (mask_dir / name).with_suffix(".png")):
        if candidate.exists():
            return candidate
    return None


def read_mask(path: Path, size: Size) -> npt.NDArray[np.bool_]:
    """Read a mask for an image of ``size``: True [H, W] where the image counts, False where the mask is zero.

    A mask of another size is enlarged or reduced (nearest) when its aspect is that of the image up to rounding.
    """
    pixels = read_image(path)
    mask: npt.NDArray[np.bool_] = np.asarray(np.atleast_3d(pixels).any(axis=2))
    if size_of(mask) == size:
        return mask
    (mask_width, mask_height), (width, height) = size_of(mask), size
    if abs(mask_width * height - mask_height * width) > max(width, height, mask_width, mask_height):
        raise ImageError(f"mask is {mask_width}x{mask_height}, but the image is {width}x{height}")
    resized = cv2.resize(mask.astype(np.uint8), size, interpolation=cv2.INTER_NEAREST_EXACT)
    return np.asarray(resized) != 0


def downscale_mask(mask: npt.NDArray[np.bool_], size: Size) -> npt.NDArray[np.bool_]:
    """A resized pixel counts only if all the pixels under it do, so that no keypoint comes from a masked one."""
    if size_of(mask) == size:
        return mask
    share = cv2.resize(mask.astype(np.float32), size, interpolation=cv2.INTER_AREA)
    return np.asarray(share > 1.0 - 1e-4)


def _read_bytes(path: Path) -> bytes:
    try:
        if not path.exists():
            raise ImageError("no such file" + (" (broken link)" if path.is_symlink() else ""))
        if not path.is_file():  # a device or a pipe would block for ever
            raise ImageError("is not a regular file")
        data = path.read_bytes()
    except OSError as error:
        raise ImageError(f"can't be read: {error.strerror or error}") from error
    if not data:
        raise ImageError("is empty")
    return data


def _decode(data: bytes) -> Pixels:
    if _is_truncated(data):
        raise ImageError("is truncated")
    try:
        # UNCHANGED also means: ignore the EXIF orientation, keep 16 bits and alpha.
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        reason = (getattr(error, "err", None) or str(error)).strip()
        raise ImageError(f"can't be decoded: {reason}") from error
    if pixels is None or pixels.size == 0:
        raise ImageError("is not an image that OpenCV can decode, or is damaged")
    return np.asarray(pixels)


def _is_truncated(data: bytes) -> bool:
    """Whether a JPEG or PNG ends too early.

    Some decoders only warn and return an image whose lower part is grey. The file's structure is followed to its
    end mark: just looking for the mark could find that of an embedded thumbnail.
    """
    if data.startswith(_PNG_START):
        return _png_is_truncated(data)
    if data.startswith(_JPEG_START):
        return _jpeg_is_truncated(data)
    return False


def _png_is_truncated(data: bytes) -> bool:
    position = len(_PNG_START)
    while position + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        position += 12 + length
        if kind == b"IEND":
            return position > len(data)
    return True


def _jpeg_is_truncated(data: bytes) -> bool:
    position = len(_JPEG_START)
    while True:
        marker = _JPEG_MARKER.search(data, position)
        if marker is None:
            return True
        kind = data[marker.start() + 1]
        position = marker.end()
        if kind == 0xD9:  # end of image
            return False
        if kind == 0x01:  # a marker without a segment
            continue
        if position + 2 > len(data):
            return True
        position += int.from_bytes(data[position : position + 2], "big")
