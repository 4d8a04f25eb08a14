"""Colours that follow light and dark mode, and the look of each series.

Figures are drawn in the light colours. In the page each colour is replaced by its CSS variable, so one drawing serves
both modes. Every colour contrasts with its background, and series differ in lightness, dash and marker as well as hue.
"""

from __future__ import annotations

from dataclasses import dataclass

COLOURS = {
    "paper": ("#ffffff", "#15171b"),
    "ink": ("#1c1d20", "#e8e8ea"),
    "soft": ("#5d6067", "#a7abb3"),
    "rule": ("#d8dade", "#3a3e46"),
    "wash": ("#f6f7f9", "#1c1f25"),
    "good": ("#00784a", "#3dbe7f"),
    "bad": ("#b54f00", "#ff8a51"),
    "s1": ("#0072b2", "#56b4e9"),
    "s2": ("#d55e00", "#ff8a50"),
    "s3": ("#009d60", "#3dbe7e"),
    "s4": ("#552f4a", "#fec5da"),
    "s5": ("#734200", "#b67e11"),
    "s6": ("#5a90aa", "#618ead"),
    "s7": ("#432f71", "#dfccfc"),
    "s8": ("#6b6b6b", "#a3a3a3"),
    "r1": ("#e76e5b", "#b32c8e"),
    "r2": ("#d7566c", "#c03a83"),
    "r3": ("#c43e7f", "#d24f71"),
    "r4": ("#ae2892", "#e16462"),
    "r5": ("#9511a1", "#ee7b51"),
    "r6": ("#7801a8", "#f89441"),
    "r7": ("#5901a5", "#fdaf31"),
    "r8": ("#38049a", "#fccd25"),
    "r9": ("#0d0887", "#f4ed27"),
}
"""Each colour in light and dark mode. "s…" are for unordered series, "r…" for ordered ones."""
SERIES = tuple(name for name in COLOURS if name[0] == "s" and name[1:].isdigit())
RAMP = tuple(name for name in COLOURS if name[0] == "r" and name[1:].isdigit())

VARIABLES = {colours[0]: f"var(--{name})" for name, colours in COLOURS.items()}
"""CSS variable of each light colour."""

_MARKERS = "osD^vPX*"
_GLYPHS = "●■◆▲▼✚✖★"
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))


@dataclass(frozen=True)
class Look:
    """How one series is drawn."""

    colour: str
    marker: str = "o"
    dash: tuple[float, ...] = ()
    width: float = 1.6

    @property
    def variable(self) -> str:
        """The colour as a CSS variable of the page."""
        return VARIABLES[self.colour]

    @property
    def glyph(self) -> str:
        """The marker as a character, for a legend in HTML."""
        return _GLYPHS[_MARKERS.index(self.marker)] if self.marker else ""


def light(name: str) -> str:
    """The colour ``name`` in light mode, in which figures are drawn."""
    return COLOURS[name][0]


def categories(count: int) -> list[Look]:
    """Looks for unordered series."""
    looks = []
    for index in range(count):
        dash = _DASHES[(index // len(SERIES)) % len(_DASHES)]
        looks.append(Look(light(SERIES[index % len(SERIES)]), _MARKERS[index % len(_MARKERS)], dash))
    return looks


def ramp(count: int) -> list[Look]:
    """Looks for ordered series; the last has the most contrast.

    >>> [look.colour for look in ramp(2)] == [light("r1"), light("r9")]
    True
    """
    steps = [round(index * (len(RAMP) - 1) / max(1, count - 1)) for index in range(count)]
    return [Look(light(RAMP[step]), _MARKERS[index % len(_MARKERS)]) for index, step in enumerate(steps)]


def variables(mode: int) -> str:
    """The colours as CSS variables, for light (0) or dark (1) mode."""
    return " ".join(f"--{name}: {colours[mode]};" for name, colours in COLOURS.items())
