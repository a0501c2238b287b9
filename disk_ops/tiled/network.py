"""The network in parts: which parts of which tensors a tile needs, and statistics of norms over the whole image.

An instance norm needs the whole image before anything after it can be computed. So the image is gone through once for
each layer, and what of the layers before can't be kept is computed again, tile by tile, each with as much around it as
the convolutions reach.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from disk_ops.model import ConvBlock, DownBlock, UNet, UpBlock
from disk_ops.ops import block_activation, block_convolution
from disk_ops.ops._dtypes import at_least_float32
from disk_ops.ops.blocks import Resample
from disk_ops.tiled.boxes import Box, strips, tiles
from disk_ops.tiled.moments import Moments

IMAGE = -1
"""Number of the image among the tensors of the network."""
_REACH = 2  # of a 5x5 convolution
_STRIP = 16  # rows that are up-sampled at a time
Read = Callable[[Box], Tensor]
Advance = Callable[[int], None]


class Node(NamedTuple):
    """A tensor of the network: the output of one block."""

    block: ConvBlock
    x: int  # the tensor that is resampled
    skip: int | None
    resample: Resample
    level: int  # its pixels have a side of 2^level


def nodes_of(unet: UNet) -> list[Node]:
    """All blocks in the order in which they are computed; the last one is that of descriptors and heatmap."""
    nodes: list[Node] = []
    for level, down in enumerate(unet.path_down):
        assert isinstance(down, DownBlock) and isinstance(down[1], ConvBlock)
        nodes.append(Node(down[1], level - 1, None, "pool" if level else "none", level))
    lowest = len(nodes) - 1
    for step, up in enumerate(unet.path_up, 1):
        assert isinstance(up, UpBlock)
        nodes.append(Node(up.conv, len(nodes) - 1, lowest - step, "up", lowest - step))
    return nodes


class TiledNetwork:
    """A network on one image that isn't held at once.

    Args:
        unet: the network.
        read: gives a part of the image, ``[1, C, h, w]``.
        size: height and width of the image, divisible by the network's stride.
        side: of a tile in pixels, divisible by the network's stride.
        room: bytes that may be taken by tensors that are kept as a whole.
    """

    def __init__(self, unet: UNet, read: Read, size: tuple[int, int], side: int, room: float) -> None:
        self.nodes, self._read, self._size, self._side = nodes_of(unet), read, size, side
        self._kept: dict[int, Tensor] = {}
        self._moments: dict[tuple[int, Resample], Moments] = {}
        self._keep = self._worth_keeping(room)

    # ------------------------------------------------------------------------------------------------ statistics

    @property
    def steps(self) -> int:
        """Number of tiles that :meth:`gather` goes through."""
        return (len(self.nodes) - 1) * len(list(tiles(self._size, self._side)))

    def gather(self, advance: Advance, every: int = 1) -> None:
        """Go through the image for the statistics of each norm; of every tile, or of a part of them."""
        for target in range(len(self.nodes) - 1):
            uses = {(target, node.resample) for node in self.nodes if node.x == target}
            uses |= {(target, "none") for node in self.nodes if node.skip == target}
            self._moments |= {use: Moments() for use in uses}
            size, side = self.size(target), self._side >> self.nodes[target].level
            kept = self._empty(target) if target in self._keep and every == 1 else None
            for number, tile in enumerate(tiles(size, side)):
                if number % every == 0:
                    self._look_at(target, tile, [resample for _, resample in uses], kept)
                advance(1)
            if kept is not None:
                self._kept[target] = kept

    def _empty(self, index: int) -> Tensor:  # [1, C, H, W]
        weight = self.nodes[index].block.convolution.weight
        return torch.empty(
            (1, len(weight), *self.size(index)), dtype=weight.dtype, device=weight.device,
            memory_format=torch.channels_last,
        )  # fmt: skip

    def _look_at(self, target: int, tile: Box, resamples: list[Resample], kept: Tensor | None) -> None:
        wide = tile.grown(1, self.size(target)) if "up" in resamples else tile
        values = self.compute(target, wide)
        if kept is not None:
            tile.crop(kept, Box(0, 0, *self.size(target))).copy_(tile.crop(values, wide))
        for resample in resamples:
            moments = self._moments[target, resample]
            if resample != "up":
                moments.add(tile.crop(values, wide), resample)
                continue
            for strip in strips(tile, _STRIP):  # four times the values, of which few are needed at a time
                read = strip.grown(1, self.size(target))  # interpolation looks at neighbours
                doubled = block_activation(read.crop(values, wide), resample="up")
                moments.add(strip.doubled().crop(doubled, read.doubled()))

    def norm(self, node: Node) -> Tensor | None:  # [2, 1, C]
        """Statistics of the norm of a block's input."""
        if not node.block.gated:
            return None
        parts = [self._moments[node.x, node.resample].norm()]
        parts += [] if node.skip is None else [self._moments[node.skip, "none"].norm()]
        return torch.cat(parts, dim=2).to(at_least_float32(node.block.convolution.weight.dtype))

    # --------------------------------------------------------------------------------------------------- tensors

    def size(self, index: int) -> tuple[int, int]:
        """Height and width of a tensor."""
        level = 0 if index == IMAGE else self.nodes[index].level
        return self._size[0] >> level, self._size[1] >> level

    def compute(self, target: int, box: Box) -> Tensor:  # [1, C, h, w]
        """A part of a tensor, from what is kept or from the image."""
        if target in self._kept:
            return box.crop(self._kept[target], Box(0, 0, *self.size(target)))
        needed = self._needed(target, box)
        last_use = {used: index for index in sorted(needed) if index not in self._kept for used in self._used_by(index)}
        values: dict[int, Tensor] = {}
        for index in sorted(needed):
            if index == IMAGE:
                values[index] = self._read(needed[index])
            elif index in self._kept:
                values[index] = needed[index].crop(self._kept[index], Box(0, 0, *self.size(index)))
            else:
                values[index] = self._block(index, needed, values)
                for used in self._used_by(index):
                    if last_use[used] == index:
                        del values[used]
        return values[target]

    def last_inputs(self, box: Box) -> tuple[Tensor, Tensor, Box]:
        """What the last block needs for a part of its output: x, skip, and the part that its convolution reads."""
        node, (of_x, read) = self.nodes[-1], self.inputs(len(self.nodes) - 1, box)
        assert node.skip is not None
        return self.compute(node.x, of_x), self.compute(node.skip, read), read

    def inputs(self, index: int, box: Box) -> tuple[Box, Box]:
        """The parts of the resampled tensor, and of the skip, that a part of a block's output needs.

        The latter is the part that the convolution reads.
        """
        node = self.nodes[index]
        fine = box.grown(_REACH, self.size(index))
        if node.resample == "none":
            return fine, fine
        if node.resample == "pool":
            return fine.doubled(), fine
        coarse = fine.halved().grown(1, self.size(node.x))  # interpolation looks at one more
        return coarse, coarse.doubled()

    def _needed(self, target: int, box: Box) -> dict[int, Box]:
        needed = {target: box}
        for index in range(target, IMAGE, -1):
            if index not in needed or index in self._kept:
                continue
            node, (of_x, of_skip) = self.nodes[index], self.inputs(index, needed[index])
            needed[node.x] = of_x.joined(needed.get(node.x))
            if node.skip is not None:
                needed[node.skip] = of_skip.joined(needed.get(node.skip))
        return needed

    def _used_by(self, index: int) -> tuple[int, ...]:
        """The tensors that a tensor is computed from."""
        if index == IMAGE:
            return ()
        node = self.nodes[index]
        return (node.x,) if node.skip is None else (node.x, node.skip)

    def _block(self, index: int, needed: dict[int, Box], values: dict[int, Tensor]) -> Tensor:
        node, convolution = self.nodes[index], self.nodes[index].block.convolution
        of_x, read = self.inputs(index, needed[index])
        x = of_x.crop(values[node.x], needed[node.x])
        skip = None if node.skip is None else read.crop(values[node.skip], needed[node.skip])
        assert convolution.bias is not None
        output = block_convolution(
            x, convolution.weight, convolution.bias, skip, self.norm(node), node.block.slope, node.resample
        )
        return needed[index].crop(output, read)

    def _worth_keeping(self, room: float) -> set[int]:
        """The tensors that fit into the room, those first that spare most work for their size."""
        chosen = set()
        for index in sorted(range(len(self.nodes) - 1), key=self._bytes):
            if self._bytes(index) > room:
                break
            room -= self._bytes(index)
            chosen.add(index)
        return chosen

    def _bytes(self, index: int) -> int:
        convolution = self.nodes[index].block.convolution
        height, width = self.size(index)
        return height * width * convolution.out_channels * convolution.weight.element_size()
