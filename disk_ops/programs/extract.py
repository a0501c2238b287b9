"""``disk-ops extract``: features of many images into one HDF5 file."""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from disk_ops import DISKDetector
from disk_ops.io import images as image_io
from disk_ops.io.hdf5 import feature_writer, source_of_record, stored_sources
from disk_ops.io.images import ImageError, Size
from disk_ops.io.inputs import ImageFile, ImageList, list_images
from disk_ops.io.output import Contents, ResumableOutput, Stamps, check_writable, part_of
from disk_ops.io.sharded_output import open_output
from disk_ops.io.shards import shards_folder
from disk_ops.io.sources import Source, state_of
from disk_ops.multiscale import MultiscaleDetector, at_scales
from disk_ops.programs.common import (
    DTYPES,
    OK,
    Failures,
    Summary,
    UserError,
    counted,
    is_out_of_memory,
    load_detector,
    note,
    number_of_keypoints,
    pick_device,
    quiet_opencv,
    resume_hint,
    tell_losses,
)
from disk_ops.workers import Worker, stopped_by_launcher, this_worker


@dataclass(frozen=True)
class Prepared:
    """An image as it goes into the network."""

    name: str
    image: npt.NDArray[np.float32]  # [3, H, W] in [0, 1]
    mask: npt.NDArray[np.bool_] | None  # [H, W]
    original: Size
    source: Source

    @property
    def size(self) -> Size:
        """(width, height) in the network."""
        return self.image.shape[2], self.image.shape[1]


def prepare(file: ImageFile, max_size: int | None, mask_dir: Path | None) -> Prepared:
    """Read an image and its mask, and scale both down if need be.

    Raises:
        ImageError: when either can't be used.
    """
    try:
        file.name.encode()
    except UnicodeEncodeError:
        raise ImageError("the file name is not UTF-8, so it can't be a name in HDF5; rename the file") from None
    mask_path = _mask_of(mask_dir, file.name)
    # Before they are read: what changes in between counts as changed then.
    state, mask_state = state_of(file.path), None if mask_path is None else state_of(mask_path)
    pixels = image_io.read_image(file.path)
    original = image_io.size_of(pixels)
    size = image_io.limited_size(original, max_size)
    mask = None
    if mask_path is not None:
        try:
            mask = image_io.downscale_mask(image_io.read_mask(mask_path, original), size)
        except ImageError as error:
            raise ImageError(f"its mask {mask_path}: {error}") from error
    image = image_io.to_rgb_float(image_io.downscale(pixels, size))
    if state is None or (mask_path is not None and mask_state is None):
        raise ImageError("it, or its mask, was written while it was read")
    return Prepared(file.name, image, mask, original, Source(state, mask_state))


def _mask_of(mask_dir: Path | None, name: str) -> Path | None:
    return None if mask_dir is None else image_io.find_mask(mask_dir, name)


@dataclass(frozen=True)
class Extractor:
    """The detector with its settings: prepared images in, arrays to store out."""

    detector: DISKDetector | MultiscaleDetector
    device: torch.device
    dtype: torch.dtype
    n: int | None
    window_size: int
    score_threshold: float
    max_memory: float | None = None
    quiet: bool = True

    @torch.inference_mode()
    def __call__(self, batch: list[Prepared]) -> list[dict[str, npt.NDArray[Any]]]:
        """Detect and describe in images of one size; what doesn't fit into memory is done in tiles, with a bar."""
        pixels = torch.from_numpy(np.stack([item.image for item in batch]))  # [B, 3, H, W]
        mask = None
        if any(item.mask is not None for item in batch):
            whole = np.ones(batch[0].image.shape[1:], dtype=np.bool_)
            masks = np.stack([whole if item.mask is None else item.mask for item in batch])
            mask = torch.from_numpy(masks)[:, None].to(self.device)  # [B, 1, H, W]
        with _TileBar(self.quiet) as bar:
            features = self.detector(
                pixels.to(self.device, self.dtype),
                n=self.n,
                window_size=self.window_size,
                score_threshold=self.score_threshold,
                mask=mask,
                max_memory=self.max_memory,
                progress=bar,
            )
        results = []
        for item, found in zip(batch, features, strict=True):
            keypoints = found.keypoints.float().cpu().numpy()
            scale = (item.original[0] / item.size[0] + item.original[1] / item.size[1]) / 2
            results.append(
                {
                    "keypoints": image_io.to_original(keypoints, item.size, item.original),
                    "descriptors": found.descriptors.float().cpu().numpy(),
                    "scores": found.detection_scores.float().cpu().numpy(),
                    "image_size": np.array(item.original, dtype=np.int64),
                    "uncertainty": np.float64(scale),
                    "source_bytes": np.int64(item.source.image.size),
                    "source": np.asarray(item.source.to_text().encode()),
                }
            )
        return results


class _TileBar:
    """A progress bar that is there only while an image is done in tiles."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: tqdm[Any] | None = None

    def __enter__(self) -> _TileBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            disable = True if self._quiet else None
            self._bar = tqdm(total=total, unit="tile", leave=False, position=1, disable=disable)
        if total != self._bar.total or done < self._bar.n:  # another scale
            self._bar.reset(total)
        self._bar.update(done - self._bar.n)


def run(arguments: argparse.Namespace) -> int:
    """Run the program; see ``disk-ops extract --help``."""
    quiet_opencv()
    worker = this_worker()
    check_writable(arguments.output)
    found = chosen_images(arguments)
    if worker.is_main:
        for message in found.notes:
            note(message)
    if not worker.share(found.images):
        note(f"{worker} has nothing to do: there are fewer images than processes")
        return OK
    with stopped_by_launcher(worker):
        return _run(arguments, found.images, worker)


def chosen_images(arguments: argparse.Namespace) -> ImageList:
    """The images to extract from; raises where there are none or the arguments don't fit together."""
    output: Path = arguments.output
    if arguments.mask_dir is not None and not arguments.mask_dir.is_dir():
        raise UserError(f"--mask-dir {arguments.mask_dir} is not a folder")
    if arguments.mask_dir is not None and arguments.mask_dir.resolve() in [path.resolve() for path in arguments.images]:
        raise UserError(f"--mask-dir {arguments.mask_dir} is the folder of the images: masks need one of their own")
    others = getattr(arguments, "exclude", ())
    exclude = [output, part_of(output), shards_folder(output), *filter(None, [arguments.mask_dir]), *others]
    found = list_images(arguments.images, exclude)
    if any(image.path == output.absolute() for image in found.images):
        raise UserError(f"{output} is one of the images and the output as well")
    return found


def _run(arguments: argparse.Namespace, images: list[ImageFile], worker: Worker) -> int:
    start = time.perf_counter()
    device = pick_device(arguments.device, worker)
    detector, weights_hash = load_detector(arguments.weights, device, arguments.dtype, arguments.subpixel)
    settings = {
        "program": "disk-ops extract",
        "weights": weights_hash,
        "n": arguments.n,
        "max_size": arguments.max_size,
        "window_size": arguments.window_size,
        "score_threshold": arguments.score_threshold,
        "subpixel": arguments.subpixel,
        "scales": list(arguments.scales),
        "masks": arguments.mask_dir is not None,
        "dtype": arguments.dtype,
        "layout": arguments.layout,
    }
    extractor = Extractor(
        at_scales(detector, arguments.scales),
        device,
        DTYPES[arguments.dtype],
        number_of_keypoints(arguments),
        arguments.window_size,
        arguments.score_threshold,
        arguments.max_memory,
        arguments.quiet or not worker.is_main,
    )
    failures = Failures()
    contents = _contents(images, arguments.mask_dir, arguments.layout)
    resume = arguments.resume or worker.restarted
    with (
        open_output(
            arguments.output, settings, contents, worker, resume=resume, overwrite=arguments.overwrite
        ) as result,
        resume_hint(result, "images"),
    ):
        todo, done = _remaining(worker.share(images), result, contents)
        features = _extract_all(extractor, todo, result, failures, arguments)
        whole = result.conclude(
            contents, failures.names, lambda stored: [image.name for image in images if image.name not in stored]
        )
    made = len(todo) - len(failures)
    seconds = time.perf_counter() - start
    summary = Summary(arguments.output, "image", "feature", made, features, done, failures, seconds)
    return summary.conclude(worker, whole)


def _contents(images: list[ImageFile], mask_dir: Path | None, layout: str) -> Contents:
    """Features of these images: good as long as the image file and its mask hold the same."""
    paths = {image.name: image.path for image in images}

    def is_current(name: str, stamp: str | None) -> bool:
        if name not in paths:
            return True
        source = None if stamp is None else Source.of_text(stamp)
        return source is not None and source.is_current(paths[name], _mask_of(mask_dir, name))

    return Contents(feature_writer(layout), stored_sources, source_of_record, is_current)


def _remaining(images: list[ImageFile], result: ResumableOutput, contents: Contents) -> tuple[list[ImageFile], int]:
    """The images that are not done yet, and how many are. With another image file or mask it counts as not done."""
    tell_losses(result)
    stored: Stamps = result.stored(contents)
    todo, changed = [], 0
    for image in images:
        if image.name in stored:
            if contents.is_current(image.name, stored[image.name]):
                continue
            changed += 1
        todo.append(image)
    if changed:
        note(f"{counted(changed, 'image')} changed since, or the mask did; extracted again")
    return todo, len(images) - len(todo)


def _extract_all(
    extractor: Extractor,
    todo: list[ImageFile],
    result: ResumableOutput,
    failures: Failures,
    arguments: argparse.Namespace,
) -> int:
    """Work through the images; returns the number of features found."""
    features = 0
    progress = tqdm(total=len(todo), unit="image", disable=True if extractor.quiet else None)
    with progress, ThreadPoolExecutor(arguments.num_workers) as pool:
        prepared = _prepare_ahead(pool, todo, arguments, failures, progress)
        for batch in _batches(prepared, arguments.batch_size):
            for item, arrays in _extract_batch(extractor, batch, failures):
                if arrays is not None:
                    result.journal.append(item.name, arrays)
                    features += len(arrays["scores"])
                progress.update()
    return features


def _prepare_ahead(
    pool: ThreadPoolExecutor,
    todo: list[ImageFile],
    arguments: argparse.Namespace,
    failures: Failures,
    progress: tqdm[Any],
) -> Iterator[Prepared]:
    """Decode images in threads, a few ahead of their use, and yield them in order."""
    pending: deque[tuple[ImageFile, Future[Prepared]]] = deque()
    waiting = iter(todo)
    try:
        while True:
            while len(pending) <= arguments.num_workers and (file := next(waiting, None)) is not None:
                pending.append((file, pool.submit(prepare, file, arguments.max_size, arguments.mask_dir)))
            if not pending:
                return
            file, future = pending.popleft()
            try:
                item = future.result()
            except (ImageError, MemoryError) as error:
                failures.add(file.name, "not enough memory to read it" if isinstance(error, MemoryError) else error)
                progress.update()
                continue
            yield item
    finally:
        for _, future in pending:
            future.cancel()


def _batches(items: Iterable[Prepared], batch_size: int) -> Iterator[list[Prepared]]:
    """Group images of equal size. At most four batches' worth of images wait for others of their size."""
    waiting: dict[Size, list[Prepared]] = {}
    for item in items:
        group = waiting.setdefault(item.size, [])
        group.append(item)
        if len(group) == batch_size:
            yield waiting.pop(item.size)
        elif sum(map(len, waiting.values())) >= 4 * batch_size:
            yield waiting.pop(max(waiting, key=lambda size: len(waiting[size])))
    yield from waiting.values()


def _extract_batch(
    extractor: Extractor, batch: list[Prepared], failures: Failures
) -> Iterator[tuple[Prepared, dict[str, npt.NDArray[Any]] | None]]:
    """Extract a batch; where memory is short, one image at a time; None for an image that fails alone, too."""
    results, reason = None, ""
    try:
        results = extractor(batch)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = f" ({error})" if isinstance(error, MemoryError) and str(error) else ""
    if results is not None:
        yield from zip(batch, results, strict=True)
    elif len(batch) > 1:
        for item in batch:
            yield from _extract_batch(extractor, [item], failures)
    else:
        width, height = batch[0].size
        failures.add(
            batch[0].name,
            f"not enough memory on {extractor.device} for {width}x{height} pixels{reason}; "
            f"try a smaller --max-size, for example {max(width, height) // 2}",
        )
        yield batch[0], None
