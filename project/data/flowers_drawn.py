"""The built-in data: eight kinds of flowers drawn from random numbers, without a download.

The kinds share their colours: the number and outline of the petals and the centre tell them apart.
A canvas spans [-1, 1] both ways, y upwards; a flower's own lengths are in units of a petal. Planes
are float32 (N, S, S), an image's numbers (N, 1, 1), and colours (N, 3, 1, 1). An image does not
depend on the batch that it is drawn in, to the last bit: hence hashed random numbers, and no
``atan2`` or ``pow``, whose vectorised body and scalar tail round differently.
"""

from collections.abc import Callable
from functools import partial
from math import pi
from typing import Any

import torch
from jsonargparse.typing import NonNegativeInt, PositiveInt
from lightkeeper.exact import uniform
from lightkeeper.images import ArrayDataset, Preprocessing
from torch import Tensor

from project.data.augmentation import AugmentedDataModule

Numbers = Callable[..., list[Tensor]]
"""Draws numbers for a purpose, uniform in each of several ranges."""

PETAL_COLOURS = [  # a petal's colours at its base and its tip
    "dfe3bd fffdf8",
    "f9dbe0 ee86b0",
    "e268ad b81c72",
    "8e0d18 ea3a32",
    "e2530f ffac42",
    "ee9f12 ffe556",
    "51268f b288e0",
    "3644a6 93aef2",
]
GREENS = "2f5a2c 4d7a35 6f9a45 3c6b4c 88a75a"
SKIES = "1f4a35 35663a 6c9a50 a9c983 8cbfd0 cfe3d6 ecd3a4 5a5685 c39fc0 243a52 e8b8a8"
# For each species:
#   petals in a layer,
#   length of the petals of a second layer behind the gaps (0.1 hides it),
#   half of a petal's width,
#   taper: how much wider a petal is at its tip than at its base,
#   bluntness of a petal (1 is pointed like a lens, 2 is an ellipse),
#   radius of the dome in the middle,
#   radius of the mark around it,
#   colours of dome and mark.
SPECIES = {
    "anemone": (6, 0.95, 0.36, 0.25, 2.2, 0.22, 0.42, "201c2b f6f1ea"),
    "buttercup": (5, 0.1, 0.52, 0.38, 2.4, 0.2, 0.35, "8fae3a d9c33a"),
    "cosmos": (8, 0.1, 0.33, 0.5, 3.2, 0.18, 0.26, "f0b822 7a1440"),
    "daisy": (12, 0.92, 0.085, 0.25, 2.6, 0.27, 0.3, "f2c02c d8d79a"),
    "lily": (3, 1.0, 0.34, 0.0, 1.15, 0.13, 0.5, "a33c14 5fae2e"),
    "poppy": (2, 1.0, 0.66, 0.3, 2.6, 0.16, 0.36, "8faa50 1c1018"),
    "sunflower": (13, 0.97, 0.13, -0.1, 1.2, 0.44, 0.55, "4a2d16 f08a14"),
    "violet": (4, 0.1, 0.42, 0.3, 2.3, 0.09, 0.4, "f7c92e 2a1244"),
}
_POSE, _PAINT, _SKY, _DISCS, _LEAVES, _LIGHT = range(100, 106)  # purposes of random numbers
_CHUNK = 64  # images at a time: few enough for their planes to stay in the processor's cache


def draw_flowers(labels: Tensor, indices: Tensor, *, seed: int, size: int = 32) -> Tensor:
    """Draws a flower for each label, uint8 (N, 3, size, size).

    It is a function of (seed, index, label, size) alone.
    """
    chunks = zip(*(torch.split(part, _CHUNK) for part in (labels, indices)), strict=True)
    return torch.cat([_draw(kinds, partial(_numbers, seed, part), size) for kinds, part in chunks])


def _numbers(
    seed: int, indices: Tensor, purpose: int, *ranges: tuple[float, float]
) -> list[Tensor]:
    drawn = uniform(seed, 0, indices, purpose, len(ranges))[..., None, None].unbind(1)
    return [low + (high - low) * number for (low, high), number in zip(ranges, drawn, strict=True)]


def _draw(labels: Tensor, numbers: Numbers, size: int) -> Tensor:
    steps = (torch.arange(size) + 0.5) * 2 / size - 1
    x, y = steps.view(1, 1, size), -steps.view(1, size, 1)
    image = _paint_garden(x, y, numbers)
    pose = (-0.26, 0.26), (-0.2, 0.26), (0.55, 0.85), (0, 0.8), (0, 2 * pi), (0, 2 * pi)
    right, up, length, tilt, towards, spin = numbers(_POSE, *pose)
    x, y = (x - right) / length, (y - up) / length
    image = _paint_leaves(image, x, y, numbers)
    along = (x * towards.cos() + y * towards.sin()) / tilt.cos()  # tilted away from us
    across = y * towards.cos() - x * towards.sin()
    image = _paint_flower(image, along, across, spin, labels, numbers)
    (gain,) = numbers(_LIGHT, (0.8, 1.15))
    return (255 * gain[:, None] * image).round().clamp(0, 255).to(torch.uint8)


def _paint_garden(x: Tensor, y: Tensor, numbers: Numbers) -> Tensor:
    """Paints a gradient and blurred discs of light and colour."""
    first, second, angle, blur = numbers(_SKY, (0, 1), (0, 1), (0, 2 * pi), (0.05, 0.3))
    ramp = (x * angle.cos() + y * angle.sin()) / 1.5
    image = _blend(_pick(first, SKIES), _pick(second, SKIES), ramp)
    part = (-1.1, 1.1), (-1.1, 1.1), (0.08, 0.4), (0, 1)
    discs = numbers(_DISCS, *(8 * part))
    tones = " ".join([*PETAL_COLOURS, GREENS, GREENS, GREENS])
    for at in range(0, len(discs), len(part)):
        right, up, radius, tone = discs[at : at + len(part)]
        inside = radius - ((x - right).square() + (y - up).square()).sqrt()
        image = _blend(image, _pick(tone, tones), (inside / blur).clamp_max(0.2))
    return image


def _paint_leaves(image: Tensor, x: Tensor, y: Tensor, numbers: Numbers) -> Tensor:
    """Paints a stem and a whorl of leaves."""
    count, turn, tone = numbers(_LEAVES, (2, 6), (0, 2 * pi), (0, 1))
    green = _pick(tone, GREENS)
    stem = (0.07 - (x - 0.3 * y.square()).abs()).minimum(-y)
    image = _blend(image, 0.8 * green, stem * image.shape[-1] / 3)
    leaf = count.floor(), *torch.tensor([0.2, 0.0, 1.2])
    return _paint_petals(image, x / 1.2, y / 1.2, turn, leaf, (0.7 * green, 1.1 * green))


def _paint_flower(
    image: Tensor, along: Tensor, across: Tensor, spin: Tensor, labels: Tensor, numbers: Numbers
) -> Tensor:
    """Paints two layers of petals from back to front, the mark and the dome."""
    table = torch.tensor([species[:7] for species in SPECIES.values()])[labels]
    petals, back, *shape, centre, reach = table[..., None, None].unbind(1)
    dome, mark = _pairs([species[7] for species in SPECIES.values()], labels)
    (choice,) = numbers(_PAINT, (0, len(PETAL_COLOURS)))
    base, tip = _pairs(PETAL_COLOURS, choice.flatten().long())
    kind = petals, *shape
    behind = along / back, across / back, spin + pi / petals
    image = _paint_petals(image, *behind, kind, (0.8 * base, 0.8 * tip))
    image = _paint_petals(image, along, across, spin, kind, (base, tip))
    radius = (along.square() + across.square()).sqrt()
    image = _blend(image, mark, ((reach - radius) / 0.2).clamp_max(0.35))
    light = (1.1 - 0.4 * (radius / centre).square()).clamp_min(0.5)
    return _blend(image, dome * light[:, None], (centre - radius) * image.shape[-1] / 3)


def _paint_petals(
    image: Tensor,
    x: Tensor,
    y: Tensor,
    spin: Tensor,
    kind: tuple[Tensor, ...],
    colours: tuple[Tensor, Tensor],
) -> Tensor:
    """Paints a layer of petals of length 1 around the origin, and their shadow."""
    petals, width, taper, bluntness = kind
    radius = (x.square() + y.square()).sqrt()
    angle = 2 * (y / (radius + x + 1e-6)).atan() + spin
    sector = 2 * pi / petals
    angle = angle - (angle / sector).round() * sector  # from the middle of the nearest petal
    along = radius * angle.cos()  # 0 at its base, 1 at its tip
    ends = 2 * along - 1
    width = width * (1 + taper * ends.clamp(-1, 1))
    across = radius * angle.sin() / width  # -1 and 1 at its sides
    # The outline is where 1 - |across|^bluntness - ends^2 is 0; by its slope, that is a distance.
    power = (across.abs().clamp_min(1e-3).log() * (bluntness - 1)).exp()
    slope = (power * bluntness / width).square() + (4 * ends).square()
    inside = (1 - power * across.abs() - ends.square()) / (slope.sqrt() + 1e-3)
    image = image * (1 - 0.3 * (30 * inside.clamp_max(0)).exp())[:, None]
    colour = _blend(*colours, 1.25 * along - 0.65)
    veins = 0.1 * along * (13 * across).cos() - 0.12 * across.clamp(-1, 1)
    light = 0.85 + 0.2 * along.clamp(0, 1) + veins
    return _blend(image, colour * light[:, None], inside * image.shape[-1] / 3)


def _blend(image: Tensor, colour: Tensor, level: Tensor) -> Tensor:
    """Blends a colour in, from none of it where the level is below -0.5 to all of it at 0.5."""
    return image.lerp(colour, (level + 0.5).clamp(0, 1)[:, None])


def _pick(number: Tensor, colours: str) -> Tensor:
    """Picks a colour from a list such as "2f5a2c 4d7a35" for each number in [0, 1)."""
    table = _rgb(colours)
    return table[(number.flatten() * len(table)).long()]


def _pairs(pairs: list[str], indices: Tensor) -> tuple[Tensor, ...]:
    """Returns the two colours of the pair at each index."""
    return _rgb(" ".join(pairs)).view(-1, 2, 3, 1, 1)[indices].unbind(1)


def _rgb(colours: str) -> Tensor:
    """Parses hexadecimal colours, float32 (K, 3, 1, 1)."""
    numbers = torch.tensor([[*bytes.fromhex(colour)] for colour in colours.split()])
    return numbers[..., None, None] / 255


class SyntheticFlowersDataModule(AugmentedDataModule):
    """Images of flowers that are drawn in memory when a run starts.

    Args:
        train_size: The number of images to train on.
        val_size: The number to validate on.
        test_size: The number to test on.
        image_size: The size of an image in pixels, by default 32, or that of pretrained weights.
        batch_size: Images in a batch of all devices together; ``--trainer.accumulate_grad_batches``
            makes a step of several.
        crop_padding: The most pixels that a training image is shifted by; its mirrored edge fills
            the gap.
        kwargs: See ``AugmentedDataModule``.
    """

    class_names = list(SPECIES)

    def __init__(
        self,
        train_size: PositiveInt = 800,
        val_size: PositiveInt = 400,
        test_size: PositiveInt = 800,
        image_size: PositiveInt | None = None,
        batch_size: PositiveInt = 32,
        crop_padding: NonNegativeInt = 2,
        **kwargs: Any,
    ) -> None:
        super().__init__(batch_size=batch_size, crop_padding=crop_padding, **kwargs)
        self.sizes = {"train": train_size, "val": val_size, "test": test_size}
        self.image_size = int(image_size or 32)

    @property
    def preprocessing(self) -> Preprocessing:
        """Images keep their size, and are normalised by 0.5 and 0.25 by default."""
        return {
            "resize": self.image_size,
            "crop": self.image_size,
            "mean": self.mean or [0.5] * 3,
            "std": self.std or [0.25] * 3,
        }

    def split_sizes(self) -> dict[str, int]:
        """The sizes before the images are drawn."""
        return super().split_sizes() or self.sizes

    def load(self) -> dict[str, ArrayDataset]:
        """Draws all images; the classes take turns, so every split is balanced."""
        datasets: dict[str, ArrayDataset] = {}
        first = 0
        for split, size in self.sizes.items():
            indices = torch.arange(first, first + size)
            labels = indices % len(SPECIES)
            images = draw_flowers(labels, indices, seed=self.split_seed, size=self.image_size)
            # a name identifies the image, whatever the sizes
            name = f"drawing for {split} (seed {self.split_seed}, after {first}), number"
            datasets[split] = ArrayDataset(images, labels, name)
            first += size
        return datasets
