"""Resizing inside an exported file, from operators that every runtime computes alike."""

from collections.abc import Sequence
from typing import cast

import torch
from lightkeeper.images import Preprocessing
from torch import Tensor, nn

from project.model.normalize import image_shape


class Resizing(nn.Module):
    """Fits photos of any size to a network's input, within 1 of 255 of what evaluation does.

    The operators that resize with antialiasing differ from torch by up to 18 of 255 in ONNX
    Runtime. Products of matrices do not: one along rows, one along columns, with the weights of
    ``torch.nn.functional.interpolate``, and rounded where that rounds bytes.

    Args:
        preprocessing: The steps of evaluation.
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        _, *self._crop = image_shape(preprocessing)
        resize = preprocessing["resize"]
        self._resize = [resize, resize] if isinstance(resize, int) else resize
        self._fit = preprocessing.get("fit", "crop")
        self._is_cubic = preprocessing.get("interpolation") == "bicubic"
        self._white = 2 ** preprocessing.get("bits", 8) - 1
        colour = (self._white * torch.tensor(preprocessing["mean"])).round()
        self.colour = nn.Buffer(colour.view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Fits images, uint8 or uint16 (N, channels, height, width).

        Returns:
            Whole numbers, float32 (N, channels, *crop), on the scale of the images.
        """
        sides = images.shape[2:]
        rows, columns = self._weights(sides, 0), self._weights(sides, 1)
        scaled = images.float() @ columns.mT
        if self._white == 255:  # 16 bits are scaled as float
            scaled = self._rounded(scaled)
        scaled = self._rounded(rows @ scaled)
        if self._fit != "pad":
            return scaled
        is_inside = rows.any(1)[:, None] & columns.any(1)
        return torch.where(is_inside, scaled, self.colour)

    def _rounded(self, pixels: Tensor) -> Tensor:
        return (pixels + 0.5).floor().clamp(0, self._white)

    def _scaled_length(self, sides: Sequence[int], axis: int) -> tuple[int, int]:
        """Returns the length that a side is scaled to, and where the crop begins; below 0 pads."""
        length, other = sides[axis], sides[1 - axis]
        crop = self._crop[axis]
        if self._fit == "squash":
            return crop, 0
        if self._fit == "pad":
            scaled = self._crop[1 - axis] * length // other
            size = cast(int, torch.sym_max(1, torch.sym_min(crop, scaled)))  # a SymInt in tracing
            return size, -((crop - size) // 2)
        scaled = self._resize[1 - axis] * length // other
        size = cast(int, torch.sym_max(self._resize[axis], scaled))
        margin = size - crop
        return size, (margin + margin % 4 // 3) // 2  # round(margin / 2), of a SymInt, too

    def _weights(self, sides: Sequence[int], axis: int) -> Tensor:
        """Returns the matrix, float32 (crop, length), that resizes and crops one axis.

        A row has the weights of the input's pixels for a pixel of the output: a triangle's or Keys'
        cubic (1981, a = -0.5) over their distance, whose unit is a pixel of the coarser grid.
        """
        size, offset = self._scaled_length(sides, axis)
        length, crop = sides[axis], self._crop[axis]
        rows = torch.arange(crop) + offset
        # and the first, which nearly always has the largest weight: all rows of a long photo would
        # fill the memory
        outputs = torch.cat([torch.zeros(1, dtype=torch.long), rows.clamp(0, size - 1)])[:, None]
        # whole numbers and float64, as half of a bit decides which byte a tie becomes
        distance = (2 * torch.arange(length) + 1) * size - (2 * outputs + 1) * length
        x = distance.abs().double() / (2 * cast(int, torch.sym_max(size, length)))
        if self._is_cubic:
            near, far = (1.5 * x - 2.5) * x * x + 1, ((2.5 - 0.5 * x) * x - 4) * x + 2
            weights = torch.where(x < 1, near, torch.where(x < 2, far, 0.0))
        else:
            weights = (1 - x).relu()
        weights = weights / weights.sum(1, keepdim=True)
        if self._white == 255:  # torch scales bytes by weights of 16 bits, of all outputs alike
            unit = ((2**15 - 0.5) / weights.max()).log2().floor().clamp(max=22).exp2()
            weights = weights.sign() * (weights.abs() * unit + 0.5).floor() / unit
        is_inside = (rows >= 0) & (rows < size)
        return torch.where(is_inside[:, None], weights[1:], 0.0).float()
