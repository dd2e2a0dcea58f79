"""The species of the built-in flowers: outline, petals, colours and centre of each. Another one is one more entry."""

from math import pi
from typing import NamedTuple


class Outline(NamedTuple):
    """The outline of a petal or a leaf, in units of its length."""

    width: float  # half of the greatest width
    taper: float = 0.0  # how much wider the tip is than the base
    bluntness: float = 2.0  # 1 is pointed like a lens, 2 an ellipse, more is blunter
    teeth: float = 0.0  # depth of the teeth at the tip
    lobes: float = 1.0  # how many teeth


class Centre(NamedTuple):
    """The dome in a flower's middle."""

    middle: str
    rim: str
    radius: float
    spirals: int  # of seeds


class Mark(NamedTuple):
    """The mark at the petals' base, about the centre."""

    colour: str
    reach: float
    strength: float


class Stamens(NamedTuple):
    """The ring of stamens."""

    number: int
    reach: float
    filament: str
    anther: str


class Species(NamedTuple):
    """The features of a species. Lengths are in units of a petal's length, colours are "rrggbb"."""

    petals: tuple[int, int]  # fewest and most in a layer
    layers: int
    outline: Outline
    paints: tuple[str, ...]
    centre: Centre
    mark: Mark
    stamens: Stamens | None = None
    veins: float = 0.1  # how strongly they show
    uneven: float = 0.0  # how much the lowest petal outgrows the others
    roll: float = pi  # greatest angle by which the flower is turned from upright


PAINTS = {  # a petal's colours at its base and its tip
    "white": ("dfe3bd", "fffdf8"),
    "pink": ("f9dbe0", "ee86b0"),
    "magenta": ("e268ad", "b81c72"),
    "red": ("8e0d18", "ea3a32"),
    "orange": ("e2530f", "ffac42"),
    "yellow": ("ee9f12", "ffe556"),
    "purple": ("51268f", "b288e0"),
    "blue": ("3644a6", "93aef2"),
}
GREENS = ("2f5a2c", "4d7a35", "6f9a45", "3c6b4c", "88a75a")
TONES = tuple(tone for paint in PAINTS.values() for tone in paint) + 3 * GREENS
# fmt: off
SKIES = (
    "1f4a35", "35663a", "6c9a50", "a9c983", "8cbfd0", "cfe3d6", "ecd3a4", "5a5685", "c39fc0", "243a52", "e8b8a8",
)
SPECIES = {
    "anemone": Species(
        petals=(6, 7), layers=2, outline=Outline(0.36, taper=0.25, bluntness=2.2),
        paints=("white", "pink", "red", "purple", "blue", "magenta"),
        centre=Centre("3a3550", "15121f", 0.17, 9), mark=Mark("f6f1ea", 0.36, 0.85),
        stamens=Stamens(24, 0.31, "2a2440", "14101f"),
    ),
    "buttercup": Species(
        petals=(5, 5), layers=1, outline=Outline(0.5, taper=0.38, bluntness=2.4),
        paints=("yellow", "white", "orange", "pink", "red"),
        centre=Centre("9cb43c", "6f8f2a", 0.16, 8), mark=Mark("b8b43a", 0.25, 0.5),
        stamens=Stamens(18, 0.31, "f3dc62", "e8b21c"),
    ),
    "cosmos": Species(
        petals=(8, 8), layers=1, outline=Outline(0.3, taper=0.5, bluntness=3.2, teeth=-0.16, lobes=3),
        paints=("pink", "white", "magenta", "orange", "yellow", "red"),
        centre=Centre("f6c62c", "c97a10", 0.16, 8), mark=Mark("7a1440", 0.2, 0.3), veins=0.2,
    ),
    "daisy": Species(
        petals=(11, 13), layers=2, outline=Outline(0.085, taper=0.25, bluntness=2.6),
        paints=("white", "pink", "purple", "yellow", "blue"),
        centre=Centre("fbd643", "d98e12", 0.27, 11), mark=Mark("d8d79a", 0.3, 0.3),
    ),
    "lily": Species(
        petals=(3, 3), layers=2, outline=Outline(0.29, bluntness=1.15),
        paints=("white", "orange", "pink", "yellow", "red", "magenta"),
        centre=Centre("c8d46a", "8ea63c", 0.07, 3), mark=Mark("d7dc84", 0.3, 0.6),
        stamens=Stamens(6, 0.46, "dfe6b0", "6b2a10"), veins=0.16,
    ),
    "poppy": Species(
        petals=(2, 2), layers=2, outline=Outline(0.66, taper=0.3, bluntness=2.6, teeth=0.06, lobes=5),
        paints=("red", "orange", "pink", "white", "yellow", "purple"),
        centre=Centre("a9bd6a", "5f7a3a", 0.15, 5), mark=Mark("1c1018", 0.34, 0.8),
        stamens=Stamens(26, 0.29, "2b2230", "191320"), veins=0.16,
    ),
    "sunflower": Species(
        petals=(11, 14), layers=2, outline=Outline(0.13, taper=-0.1, bluntness=1.2),
        paints=("yellow", "orange", "red", "white"),
        centre=Centre("7a4d24", "2e1a0e", 0.42, 13), mark=Mark("f08a14", 0.5, 0.3),
    ),
    "violet": Species(
        petals=(5, 5), layers=1, outline=Outline(0.4, taper=0.3, bluntness=2.3),
        paints=("purple", "blue", "yellow", "white", "pink"),
        centre=Centre("f7c92e", "e89a14", 0.085, 3), mark=Mark("2a1244", 0.36, 0.7),
        veins=0.16, uneven=0.24, roll=0.6,
    ),
}
# fmt: on
