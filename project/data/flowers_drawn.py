"""The built-in data: eight kinds of flowers drawn from random numbers, without a download.

The kinds share their colours: the count, outline and order of the petals and the centre tell them
apart. A canvas spans [-1, 1] both ways, y upwards. Planes are float32 (N, S, S), an image's numbers
(N, 1, 1), and colours (N, 3, 1, 1). An image does not depend on the batch that it is drawn in, to
the last bit: hence hashed random numbers, and no ``atan2`` or ``pow``, whose vectorised body and
scalar tail round differently.
"""

from math import pi
from typing import Any, NamedTuple

import torch
from jsonargparse.typing import NonNegativeInt, PositiveInt
from torch import Tensor

from project.data.augmentation import AugmentedDataModule
from project.engine import ArrayDataset, Preprocessing, UserError, uniform


class Species(NamedTuple):
    """A kind of flower; lengths are in units of a petal's length, colours are "rrggbb"."""

    petals: int  # in a layer
    back: float  # length of the petals of a second layer, behind gaps of the first; 0.1 hides them
    width: float  # half of a petal's greatest width
    taper: float  # how much wider its tip is than its base
    bluntness: float  # 1 is pointed like a lens, 2 an ellipse, more is blunter
    teeth: float  # depth of the teeth at its tip
    uneven: float  # how much the lowest petal outgrows the others
    centre: float  # radius of the dome in the middle
    reach: float  # how far the mark around the dome reaches
    middle: str  # colours of dome and mark
    paints: str  # names of four


PAINTS = {  # a petal's colours at its base and its tip
    "white": "dfe3bd fffdf8",
    "pink": "f9dbe0 ee86b0",
    "magenta": "e268ad b81c72",
    "red": "8e0d18 ea3a32",
    "orange": "e2530f ffac42",
    "yellow": "ee9f12 ffe556",
    "purple": "51268f b288e0",
    "blue": "3644a6 93aef2",
}
GREENS = "2f5a2c 4d7a35 6f9a45 3c6b4c 88a75a"
SKIES = "1f4a35 35663a 6c9a50 a9c983 8cbfd0 cfe3d6 ecd3a4 5a5685 c39fc0 243a52 e8b8a8"
# fmt: off
SPECIES = {
    "anemone": Species(6, 0.95, 0.36, 0.25, 2.2, 0, 0, 0.22, 0.42,
        "201c2b f6f1ea", "pink red purple blue"),
    "buttercup": Species(5, 0.1, 0.52, 0.38, 2.4, 0, 0, 0.2, 0.35,
        "8fae3a d9c33a", "yellow white orange pink"),
    "cosmos": Species(8, 0.1, 0.33, 0.5, 3.2, -0.2, 0, 0.18, 0.26,
        "f0b822 7a1440", "pink white magenta red"),
    "daisy": Species(12, 0.92, 0.085, 0.25, 2.6, 0, 0, 0.27, 0.3,
        "f2c02c d8d79a", "white pink purple blue"),
    "lily": Species(3, 1, 0.29, 0, 1.15, 0, 0, 0.08, 0.4,
        "c8d46a d7dc84", "white orange pink magenta"),
    "poppy": Species(2, 1, 0.66, 0.3, 2.6, 0.06, 0, 0.16, 0.36,
        "8faa50 1c1018", "red orange white purple"),
    "sunflower": Species(13, 0.97, 0.13, -0.1, 1.2, 0, 0, 0.44, 0.55,
        "4a2d16 f08a14", "yellow orange red white"),
    "violet": Species(5, 0.1, 0.4, 0.3, 2.3, 0, 0.26, 0.09, 0.4,
        "f7c92e 2a1244", "purple blue yellow white"),
}
# fmt: on
_POSE, _PAINT, _SKY, _DISCS, _LEAVES, _LIGHT = range(100, 106)  # purposes of random numbers
_CHUNK = 64  # images at a time: few enough for their planes to stay in the processor's cache


class _Canvas:
    """A few images in the making, ``indices`` of a data set, and their random numbers."""

    def __init__(self, seed: int, indices: Tensor, size: int) -> None:
        self.seed, self.indices = seed, indices
        self.pixel = 2 / size
        steps = (torch.arange(size) + 0.5) * self.pixel - 1
        self.x, self.y = steps.view(1, 1, size), -steps.view(1, size, 1)
        self.image = torch.zeros(len(indices), 3, size, size)

    def draw(self, purpose: int, *ranges: tuple[float, float]) -> list[Tensor]:
        """Draws a number for each range, uniform in it."""
        numbers = uniform(self.seed, 0, self.indices, purpose, len(ranges))[..., None, None]
        return [
            low + (high - low) * number
            for (low, high), number in zip(ranges, numbers.unbind(1), strict=True)
        ]

    def paint(self, colour: Tensor, distance: Tensor, blur: float | Tensor = 0.0) -> None:
        """Paints where the distance to an outline, positive inside, says so, and blurs the edge."""
        alpha = (distance / (self.pixel + blur) + 0.5).clamp_(0, 1)
        self.image.lerp_(colour.expand_as(self.image), alpha[:, None])


def _arrange(
    radius: Tensor, angle: Tensor, length: Tensor, kind: dict[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Arranges petals around a point, from which pixels have polar coordinates.

    Returns the distance to the outline of the nearest petal, positive inside, and the place along
    it, from 0 to 1, and across it, from -1 to 1, each (N, S, S).
    """
    sector = 2 * pi / kind["petals"]
    number = (angle / sector).round()
    off = angle - number * sector
    length = length * (1 + kind["uneven"] * (number * sector).cos())
    along = radius * off.cos() / length
    ends = 2 * along - 1  # -1 at the base, 1 at the tip
    width = length * kind["width"] * (1 + kind["taper"] * ends.clamp(-1, 1))
    across = radius * off.sin() / width
    # The outline is where 1 - |across|^bluntness - ends^2 is 0; by its slope, that is a distance.
    power = (across.abs().clamp_min(1e-3).log() * (kind["bluntness"] - 1)).exp()
    slope = (power * kind["bluntness"] / width).square() + (4 * ends / length).square()
    tip = ends.square() * (1 + kind["teeth"] * (3 * pi * across).cos())
    level = 1 - power * across.abs() - tip
    return level / (slope.sqrt() + 1e-3), along, across


def draw_flowers(labels: Tensor, indices: Tensor, *, seed: int, size: int = 32) -> Tensor:
    """Draws a flower for each label, uint8 (N, 3, size, size).

    It is a function of (seed, index, label, size) alone.
    """
    parts = (torch.split(numbers, _CHUNK) for numbers in (labels, indices))
    chunks = zip(*parts, strict=True)
    return torch.cat([_draw(kinds, _Canvas(seed, part, size)) for kinds, part in chunks])


def _draw(labels: Tensor, canvas: _Canvas) -> Tensor:
    ranges = (-0.26, 0.26), (-0.2, 0.26), (0.55, 0.85), (0, 0.8), (0, 2 * pi), (0, 2 * pi)
    x, y, length, tilt, towards, spin = canvas.draw(_POSE, *ranges)
    right, up = canvas.x - x, canvas.y - y
    _paint_garden(canvas)
    _paint_leaves(canvas, right, up, length)
    along = (right * towards.cos() + up * towards.sin()) / tilt.cos()  # tilted away from us
    across = up * towards.cos() - right * towards.sin()
    radius = (along.square() + across.square()).sqrt()
    angle = 2 * (across / (radius + along + 1e-6)).atan()
    _paint_flower(canvas, labels, radius, angle + spin, length)
    return _develop(canvas)


def _paint_garden(canvas: _Canvas) -> None:
    """Paints a gradient and blurred discs of light and colour."""
    first, second, angle, blur = canvas.draw(_SKY, (0, 1), (0, 1), (0, 2 * pi), (0.05, 0.3))
    canvas.image += _pick(first, SKIES)
    ramp = canvas.x * angle.cos() + canvas.y * angle.sin()
    canvas.paint(_pick(second, SKIES), ramp, 1.5)
    part = (-1.1, 1.1), (-1.1, 1.1), (0.08, 0.4), (0, 1)
    discs = canvas.draw(_DISCS, *(8 * part))
    tones = " ".join([*PAINTS.values(), GREENS, GREENS, GREENS])
    for at in range(0, len(discs), len(part)):
        x, y, size, tone = discs[at : at + len(part)]
        far = (size.square() - (canvas.x - x).square() - (canvas.y - y).square()) / (2 * size)
        canvas.paint(_pick(tone, tones), far.clamp_max(0.2 * blur), blur)


def _paint_leaves(canvas: _Canvas, right: Tensor, up: Tensor, length: Tensor) -> None:
    """Paints a stem, a whorl of leaves, and the flower's shadow on them."""
    ranges = (-0.5, 0.5), (2, 6), (0.12, 0.24), (0, 2 * pi), (0, 1), (0.9, 1.5)
    bend, count, width, turn, green, reach = canvas.draw(_LEAVES, *ranges)
    stem = (0.05 - (right - bend * up.square()).abs()).minimum(-up)
    canvas.paint(_pick(green, GREENS) * 0.8, stem)
    radius = (right.square() + up.square()).sqrt()
    angle = 2 * (up / (radius + right + 1e-6)).atan() + turn
    kind = dict.fromkeys(Species._fields, torch.zeros(1)) | {"bluntness": torch.tensor(1.2)}
    kind |= {"petals": count.floor(), "width": width}
    distance, along, across = _arrange(radius, angle, length * reach, kind)
    veins = 0.1 * (22 * (along - 0.4 * across.abs())).cos()
    light = 0.75 + 0.3 * along.clamp(0, 1) + 0.12 * across.clamp(-1, 1) + veins
    canvas.paint(_pick(green, GREENS) * light[:, None], distance)
    canvas.image *= 1 - 0.5 * (-1.5 * (radius / length).square()).exp()[:, None]


def _paint_flower(
    canvas: _Canvas, labels: Tensor, radius: Tensor, angle: Tensor, length: Tensor
) -> None:
    """Paints two layers of petals from back to front, and the dome with its spirals of seeds."""
    numbers = torch.tensor([species[:9] for species in SPECIES.values()])[labels]
    kind = dict(zip(Species._fields, numbers[..., None, None].unbind(1), strict=False))
    middles = _rgb(" ".join(species.middle for species in SPECIES.values())).view(-1, 2, 3, 1, 1)
    dome, mark = middles[labels].unbind(1)
    choice, *tint = canvas.draw(_PAINT, (0, 4), (0.92, 1.06), (0.92, 1.06), (0.92, 1.06))
    names = " ".join(species.paints for species in SPECIES.values()).split()
    paints = _rgb(" ".join(PAINTS[name] for name in names)).view(-1, 2, 3, 1, 1)
    base, tip = paints[labels * 4 + choice.flatten().long()].unbind(1)
    for layer, size in ((1, kind["back"]), (0, torch.ones(1))):
        turned = angle + layer * pi / kind["petals"]
        distance, along, across = _arrange(radius, turned, length * size, kind)
        colour = base + (tip - base) * (1.25 * along - 0.15).clamp(0, 1)[:, None]
        marked = ((kind["reach"] - along) / 0.16 + 0.5).clamp(0, 1)
        colour = colour.lerp(mark.expand_as(colour), 0.8 * marked[:, None])
        rise = along.clamp(0, 1)
        veins = 0.1 * (13 * across).cos() * rise - 0.12 * across.clamp(-1, 1)
        shade = (0.8 + 0.28 * rise + 0.08 * turned.cos() + veins) * (1 - 0.18 * layer)
        canvas.image *= 1 - 0.3 * (30 * distance.clamp_max(0) / length).exp()[:, None]
        canvas.paint(colour * torch.stack(tint, 1) * shade[:, None], distance)
    near = radius / (length * kind["centre"])
    seeds = (9 * angle + 7 * near).cos() * (9 * angle - 7 * near).cos()
    light = 1.05 - 0.4 * near.square() + near * 0.35 * seeds
    canvas.image *= 1 - 0.4 * (-2 * (near - 1).clamp_min(0)).exp()[:, None]
    canvas.paint((dome * light[:, None]).clamp(0, 1), (1 - near) * length * kind["centre"])


def _develop(canvas: _Canvas) -> Tensor:
    """Lights the scene and turns it into uint8 (N, 3, S, S)."""
    ranges = (0.85, 1.3), (-0.08, 0.08), (0.1, 0.3), (0, 2 * pi), (0.9, 1.15)
    gain, warmth, vignette, sun, contrast = canvas.draw(_LIGHT, *ranges)
    slant = 1 + 0.15 * (canvas.x * sun.cos() + canvas.y * sun.sin())
    light = gain * slant * (1 - vignette * (canvas.x.square() + canvas.y.square()))
    tint = torch.stack([1 + warmth, torch.ones_like(warmth), 1 - warmth], 1)
    image = (canvas.image * light[:, None] * tint - 0.5) * contrast[:, None] + 0.5
    return (255 * image).round().clamp(0, 255).to(torch.uint8)


def _pick(number: Tensor, colours: str) -> Tensor:
    """Picks colours (N, 3, 1, 1) by numbers (N, 1, 1) in [0, 1)."""
    table = _rgb(colours)
    return table[(number.flatten() * len(table)).long()]


def _rgb(colours: str) -> Tensor:
    """Turns "rrggbb rrggbb" into float32 (K, 3, 1, 1)."""
    return (
        torch.tensor([[*bytes.fromhex(colour)] for colour in colours.split()])[..., None, None]
        / 255
    )


class SyntheticFlowersDataModule(AugmentedDataModule):
    """Images of flowers that are drawn in memory when a run starts.

    Args:
        train_size: The number of images to train on.
        val_size: The number to validate on.
        test_size: The number to test on.
        image_size: The size of an image in pixels, by default 32, or what pretrained weights ask
            for.
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
        image_size: int | None = None,
        batch_size: PositiveInt = 32,
        crop_padding: NonNegativeInt = 2,
        **kwargs: Any,
    ) -> None:
        super().__init__(batch_size=batch_size, crop_padding=crop_padding, **kwargs)
        self.sizes = {"train": train_size, "val": val_size, "test": test_size}
        self.image_size = 32 if image_size is None else image_size
        if self.image_size < 8:
            raise UserError(f"--data.image_size must be at least 8, got {image_size}")

    @property
    def preprocessing(self) -> Preprocessing:
        """The images as they are, centred roughly unless other statistics are given."""
        mean, std = self.mean or [0.5, 0.5, 0.5], self.std or [0.25, 0.25, 0.25]
        return {"resize": self.image_size, "crop": self.image_size, "mean": mean, "std": std}

    def split_sizes(self) -> dict[str, int]:
        """The sizes that were asked for."""
        return super().split_sizes() or self.sizes

    def load(self) -> dict[str, ArrayDataset]:
        """Draws all images; the classes take turns, so every split is balanced."""
        datasets: dict[str, ArrayDataset] = {}
        first = 0
        for split, size in self.sizes.items():
            indices = torch.arange(first, first + size)
            labels = indices % len(SPECIES)
            images = draw_flowers(labels, indices, seed=self.split_seed, size=self.image_size)
            # other images have other names
            name = f"drawing for {split} (seed {self.split_seed}, after {first}), number"
            datasets[split] = ArrayDataset(images, labels, name)
            first += size
        return datasets
