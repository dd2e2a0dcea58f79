"""The built-in dataset's images: flowers of eight species, drawn from a seed like botanical illustrations.

The species share their colours, so that the count, the outline and the order of the petals tell them apart,
under any pose, size, light and clutter. A canvas spans [-1, 1] both ways with y upwards, however many pixels.
Planes are float32 (N, S, S), numbers of an image (N, 1, 1), and colours (N, 3, 1, 1) in [0, 1].

An image must not depend on the batch that it is drawn in, to the last bit. Hence the hashed random numbers,
and no torch function whose vectorised body and scalar tail round differently, such as ``atan2`` or ``pow``.
"""

from functools import cache
from math import pi
from typing import NamedTuple

import torch
from torch import Tensor

from project.data.drawn.species import (
    GREENS,
    PAINTS,
    SKIES,
    SPECIES,
    TONES,
    Centre,
    Outline,
    Species,
    Stamens,
)
from project.engine.randomness import uniform

CLASS_NAMES: tuple[str, ...] = tuple(SPECIES)

_CHUNK = 32  # images at a time: few enough for a plane to stay in the processor's cache


# the purposes of random numbers, next to those of project.engine.randomness.Purpose
_POSE, _PAINT, _LIGHT, _SKY, _DISCS, _BLADES, _STEM, _LEAVES, _FRONT, _PETALS = range(
    100, 110
)  # petals: one per layer


class _Canvas:
    """A few images in the making, ``indices`` of a dataset, and their random numbers."""

    def __init__(self, seed: int, indices: Tensor, size: int) -> None:
        self.seed, self.indices, self.pixel = seed, indices, 2 / size
        steps = (torch.arange(size) + 0.5) * self.pixel - 1
        self.x, self.y = steps.view(1, 1, size), -steps.view(1, size, 1)
        self.image = torch.zeros(len(indices), 3, size, size)

    def between(self, purpose: int, *ranges: tuple[float, float]) -> list[Tensor]:
        """Draws one random number (N, 1, 1) per range, uniform in that range."""
        draws = uniform(self.seed, 0, self.indices, purpose, len(ranges))
        return [
            low + (high - low) * draws[:, i, None, None] for i, (low, high) in enumerate(ranges)
        ]

    def repeat(self, times: int, purpose: int, *ranges: tuple[float, float]) -> list[list[Tensor]]:
        """Draws one random number per range, ``times`` over."""
        draws, each = self.between(purpose, *(ranges * times)), len(ranges)
        return [draws[i * each : (i + 1) * each] for i in range(times)]

    def paint(self, colour: Tensor, alpha: Tensor) -> None:
        """Lays a colour (N, 3, 1, 1) or (N, 3, S, S) over the images, as opaque as ``alpha`` (N, S, S)."""
        self.image.lerp_(colour.expand_as(self.image), alpha[:, None])

    def cover(self, distance: Tensor, blur: float | Tensor = 0.0) -> Tensor:
        """Turns signed distances to an outline, positive inside, into how opaque a pixel is, in [0, 1]."""
        return (distance / (self.pixel + blur)).add_(0.5).clamp_(0, 1)

    def locate(self, x: Tensor, y: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
        """Gives the pixels' coordinates along and across a direction, from a point, each (N, S, S)."""
        right, up = self.x - x, self.y - y
        return right * angle.cos() + up * angle.sin(), up * angle.cos() - right * angle.sin()


class _Bloom(NamedTuple):
    """The place of a flower, and its pixels in polar coordinates of its own plane."""

    x: Tensor
    y: Tensor
    length: Tensor  # of a petal
    spin: Tensor  # the angle at which the first petal points
    light: Tensor  # the angle that light comes from
    radius: Tensor
    angle: Tensor


def draw_flowers(labels: Tensor, indices: Tensor, *, seed: int, size: int = 64) -> Tensor:
    """Draws one flower per label, uint8 (N, 3, size, size), each a function of (seed, index, label, size) alone."""
    images = torch.empty(len(labels), 3, size, size, dtype=torch.uint8)
    for label, species in enumerate(SPECIES.values()):
        for rows in torch.split((labels == label).nonzero()[:, 0], _CHUNK):
            images[rows] = _draw(species, _Canvas(seed, indices[rows], size))
    return images


def _draw(species: Species, canvas: _Canvas) -> Tensor:
    bloom = _pose(species, canvas)
    _paint_garden(canvas)
    _paint_leaves(canvas, bloom)
    _paint_petals(species, canvas, bloom)
    if species.stamens:
        _paint_stamens(species.stamens, canvas, bloom)
    _paint_centre(species.centre, canvas, bloom)
    _paint_front(canvas)
    return _develop(canvas, bloom)


def _pose(species: Species, canvas: _Canvas) -> _Bloom:
    """Places the flower, tilts it away from the viewer and turns it about its own axis."""
    x, y, length, tilt, towards, roll, light = canvas.between(
        _POSE, (-0.26, 0.26), (-0.16, 0.28), (0.5, 0.88), (0, 0.9), (0, 2 * pi), (-1, 1), (0.3, 2.8)
    )
    spin = species.roll * roll - pi / 2
    along, across = canvas.locate(x, y, towards)
    # The petals rise from the centre like a shallow cup: the far side shows more of itself than the near one.
    along = (along - 0.22 * tilt.sin() * (along * along + across * across).sqrt()) / tilt.cos()
    turn = towards - spin
    u, v = along * turn.cos() - across * turn.sin(), along * turn.sin() + across * turn.cos()
    radius = (u * u + v * v).sqrt()
    angle = 2 * (v / (radius + u + 1e-6)).atan()
    return _Bloom(x, y, length, spin, light, radius, angle)


def _paint_garden(canvas: _Canvas) -> None:
    """Paints the background: a gradient, blurred discs of light and colour, and grass."""
    first, second, angle, blur = canvas.between(_SKY, (0, 1), (0, 1), (0, 2 * pi), (0.02, 0.25))
    ramp = (0.5 + 0.5 * (canvas.x * angle.cos() + canvas.y * angle.sin())).clamp_(0, 1)
    canvas.image += _pick(first, SKIES)
    canvas.paint(_pick(second, SKIES), ramp)
    wide, part = (-1.1, 1.1), (0, 1)
    for x, y, size, colour, alpha in canvas.repeat(
        8, _DISCS, wide, wide, (0.08, 0.42), part, (0.1, 0.6)
    ):
        distance = ((size * size - (canvas.y - y).square()) - (canvas.x - x).square()) * (
            0.5 / size
        )
        canvas.paint(_pick(colour, TONES), canvas.cover(distance, blur).mul_(alpha))
    for foot, x, y, width, colour in canvas.repeat(
        4, _BLADES, wide, wide, (-0.5, 0.9), (0.02, 0.06), part
    ):
        _paint_blade(canvas, (foot, x, y), width, _pick(colour, GREENS), blur)


def _paint_blade(
    canvas: _Canvas,
    ends: tuple[Tensor, Tensor, Tensor],
    width: Tensor,
    colour: Tensor,
    blur: Tensor | float,
) -> None:
    """Paints a bent blade of grass, or a stem, from the lower edge at x = ``ends[0]`` to ``ends[1:]``."""
    foot, x, y = ends
    rise = (canvas.y + 1) / (y + 1)
    slope = 2 * rise * (x - foot) / (y + 1)
    off = foot + (x - foot) * rise * rise - canvas.x
    left = (
        1.2 - rise
    )  # of the blade above a pixel: it thins to nothing, and fades lest its blur outlast it
    distance = (width * left - off.abs()) / (1 + slope * slope).sqrt()
    alpha = canvas.cover(distance, blur) * (3 * left).clamp_(0, 1)
    canvas.paint(colour * (0.9 + 0.25 * (off / width).clamp_(-1, 1))[:, None], alpha)


def _paint_leaves(canvas: _Canvas, bloom: _Bloom) -> None:
    """Paints the stem, three leaves about it, and the shadow of the flower on all that is behind."""
    foot, width, colour = canvas.between(_STEM, (-0.5, 0.5), (0.035, 0.055), (0, 1))
    _paint_blade(canvas, (bloom.x + foot, bloom.x, bloom.y), width, _pick(colour, GREENS), 0.01)
    ranges = (-0.35, 0.35), (-0.9, -0.1), (-0.5, 3.6), (0.5, 0.95), (0, 1)
    for x, y, angle, length, colour in canvas.repeat(3, _LEAVES, *ranges):
        along, across = canvas.locate(bloom.x + x, bloom.y + y, angle)
        distance, along, across = _measure(Outline(0.2, -0.25, 1.15), along, across, length)
        off = across.abs()
        veins = 0.08 * (22 * (along - 0.45 * off)).cos() + 0.3 * (1 - 9 * off).clamp_(0, 1)
        light = 0.8 + 0.25 * along.clamp(0, 1) + 0.14 * across.clamp(-1, 1) + veins
        canvas.paint(_pick(colour, GREENS) * light[:, None], canvas.cover(distance, 0.01))
    right, up = (
        canvas.x - bloom.x + 0.15 * bloom.light.cos(),
        canvas.y - bloom.y + 0.15 * bloom.light.sin(),
    )
    near = (-1.4 * (right * right + up * up) / bloom.length.square()).exp()
    canvas.image *= (1 - 0.45 * near)[:, None]


def _measure(
    outline: Outline, along: Tensor, across: Tensor, length: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Measures pixels (N, S, S) against a petal that starts at the origin.

    Returns the signed distance to its outline, to first order and positive inside, and the place along the petal, from 0
    to 1, and across it, from -1 to 1.
    """
    # The outline is where 1 - |across|^bluntness - x^2 is 0. Divided by its slope, that is a distance.
    along = along / length
    x = (2 * along).sub_(1)
    width = x.clamp(-1, 1).mul_(outline.taper).add_(1).mul_(length * outline.width)
    across = across / width
    off = across.abs().clamp_min_(1e-3)
    power = off.log().mul_(outline.bluntness - 1).exp_()
    steep = (width.reciprocal_().mul_(power).mul_(outline.bluntness)).square_()
    steep += (x * (4 / length)).square_()
    bulge = x.square_()
    if outline.teeth:
        bulge *= (across * (outline.lobes * pi)).cos_().mul_(outline.teeth).add_(1)
    level = power.mul_(off).add_(bulge).neg_().add_(1)
    return level.div_(steep.sqrt_().add_(1e-3)), along, across


def _paint_petals(species: Species, canvas: _Canvas, bloom: _Bloom) -> None:
    """Paints the layers of petals from back to front, each one's petals between those of the one before."""
    fewest, most = species.petals
    count, paint, *tint = canvas.between(
        _PAINT, (fewest, most + 1), (0, 1), (0.95, 1.05), (0.95, 1.05), (0.95, 1.05)
    )
    base, tip = (
        _pick(paint, tuple(PAINTS[name][end] for name in species.paints)) for end in (0, 1)
    )
    mark = species.mark
    for layer in reversed(range(species.layers)):
        alpha, along, shade = _arrange(species, canvas, bloom, count.floor(), layer)
        colour = base + (tip - base) * (1.25 * along - 0.15).clamp_(0, 1)[:, None]
        marked = mark.strength * ((mark.reach - along) / 0.16 + 0.5).clamp_(0, 1)
        colour.lerp_(_rgb(mark.colour).expand_as(colour), marked[:, None])
        colour *= torch.stack(tint, 1)
        colour *= ((1 - 0.16 * layer) * shade)[:, None]
        canvas.paint(colour, alpha)


def _arrange(
    species: Species, canvas: _Canvas, bloom: _Bloom, count: Tensor, layer: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Lays out one layer of petals, each overlapping the next all the way around.

    Returns the layer's opacity, the place of each pixel along its petal, and its brightness, each (N, S, S).
    """
    tables = _vary(species, canvas, bloom, count, layer)
    turn = bloom.angle * count / (2 * pi) + 0.5 * layer
    lower = turn.floor()
    alpha, along, shade = (torch.zeros_like(turn) for _ in range(3))
    for petal in (
        lower + 1,
        lower,
    ):  # the two petals nearest to a pixel: the second overlaps the first
        which = petal.remainder(count).long().flatten(1)
        length, tone, side = (table.gather(1, which).view_as(turn) for table in tables)
        off = (turn - petal) * (2 * pi / count)
        u, v = bloom.radius * off.cos(), bloom.radius * off.sin()
        distance, s, y = _measure(species.outline, u, v, bloom.length * length)
        cover = canvas.cover(distance)
        alpha = cover + alpha * (1 - cover)
        weight = cover / (alpha + 1e-6)
        shade *= (
            1 - 0.4 * (20 * distance.clamp_max(0)).exp_()
        )  # the petal's shadow on the one below
        inner = s.clamp(0, 1)
        crease = species.veins * (13 * y).cos() * inner - 0.1 * (1 - 5 * y.abs()).clamp_(0, 1)
        shade.lerp_((tone - side * y + crease) * (0.75 + 0.3 * inner), weight)
        along.lerp_(s, weight)
    return alpha, along, shade


def _vary(
    species: Species, canvas: _Canvas, bloom: _Bloom, count: Tensor, layer: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gives each petal of a layer its length, brightness and contrast of its sides, each (N, most petals)."""
    most = species.petals[1]
    lengths, tones = uniform(canvas.seed, 0, canvas.indices, _PETALS + layer, 2 * most).chunk(
        2, dim=1
    )
    axis = 2 * pi * (torch.arange(most) - 0.5 * layer) / count[:, 0]
    lit = axis + (bloom.spin - bloom.light)[:, 0]
    below = species.uneven * axis.cos()
    return (
        (1 - 0.14 * lengths) * (1 + below),
        0.88 + 0.16 * tones + 0.1 * lit.cos() + 0.7 * below,
        0.13 * lit.sin(),
    )


def _paint_stamens(stamens: Stamens, canvas: _Canvas, bloom: _Bloom) -> None:
    """Paints filaments from the centre outwards, and an anther at each one's end."""
    r = bloom.radius / bloom.length
    turn = bloom.angle * (stamens.number / (2 * pi))
    number = turn.round()
    aside = r * ((turn - number) * (2 * pi / stamens.number)).sin_().abs_()
    beyond = r - stamens.reach * (
        1 + 0.12 * (2.4 * number).cos_()
    )  # no two neighbours are of one length
    thread = (0.018 - aside).minimum(-beyond)
    canvas.paint(_rgb(stamens.filament), 0.8 * canvas.cover(thread * bloom.length))
    knob = 0.05 - (aside.square() + (0.6 * beyond).square()).sqrt()
    canvas.paint(_rgb(stamens.anther), canvas.cover(knob * bloom.length))


def _paint_centre(centre: Centre, canvas: _Canvas, bloom: _Bloom) -> None:
    """Paints the domed centre with its crossing spirals of seeds, and its shadow on the petals."""
    r = bloom.radius / (bloom.length * centre.radius)
    spiral = centre.spirals * bloom.angle
    seeds = (spiral + 7 * r).cos_() * (spiral - 7 * r).cos_()
    dome = (
        1.1
        - 0.35 * r * r
        + r * (0.25 * (bloom.angle + bloom.spin - bloom.light).cos_() + 0.35 * seeds)
    )
    middle, rim = _rgb(centre.middle), _rgb(centre.rim)
    colour = (middle + (rim - middle) * r.clamp(0, 1)[:, None]) * dome[:, None]
    canvas.image *= (1 - 0.4 * (-2 * (r - 1).clamp_min_(0)).exp_())[:, None]
    canvas.paint(colour.clamp_(0, 1), canvas.cover((1 - r) * (bloom.length * centre.radius)))


def _paint_front(canvas: _Canvas) -> None:
    """Paints, before some flowers, a petal close to the lens that reaches in from the edge, out of focus."""
    present, around, angle, length, colour, blur, alpha = canvas.between(
        _FRONT, (0, 1), (0, 2 * pi), (-0.5, 0.5), (0.75, 1.1), (0, 1), (0.12, 0.3), (0.7, 0.95)
    )
    along, across = canvas.locate(1.25 * around.cos(), 1.25 * around.sin(), around + pi + angle)
    distance, along, _ = _measure(Outline(0.32, 0.1, 1.6), along, across, length)
    tone = _pick(colour, TONES) * (0.75 + 0.3 * along.clamp(0, 1))[:, None]
    canvas.paint(tone, alpha * (present < 0.4) * canvas.cover(distance, blur))


def _develop(canvas: _Canvas, bloom: _Bloom) -> Tensor:
    """Lights the scene and turns it into uint8 (N, 3, S, S)."""
    gain, warmth, vignette, slant, contrast = canvas.between(
        _LIGHT, (0.85, 1.3), (-0.08, 0.08), (0.1, 0.3), (0.0, 0.22), (0.9, 1.15)
    )
    across = canvas.x * bloom.light.cos() + canvas.y * bloom.light.sin()
    light = gain * (1 + slant * across) * (1 - vignette * (canvas.x.square() + canvas.y.square()))
    image = canvas.image.mul_(light[:, None]).mul_(
        torch.stack([1 + warmth, torch.ones_like(warmth), 1 - warmth], 1)
    )
    image = image.sub_(0.5).mul_(contrast[:, None]).add_(0.5)
    return image.mul_(255).round_().clamp_(0, 255).to(torch.uint8)


def _pick(draw: Tensor, colours: tuple[str, ...]) -> Tensor:
    """Picks colours (N, 3, 1, 1) by numbers (N, 1, 1) in [0, 1)."""
    return _rgb(*colours)[(draw.flatten() * len(colours)).long()]


@cache
def _rgb(*colours: str) -> Tensor:
    """Turns K times "rrggbb" into float32 (K, 3, 1, 1)."""
    return torch.tensor([list(bytes.fromhex(colour)) for colour in colours])[..., None, None] / 255
