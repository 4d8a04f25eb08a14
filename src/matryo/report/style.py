"""How the report looks: colours that follow light and dark mode, and the page's style sheet.

Figures are drawn in the light colours. In the page each of these is replaced by its CSS variable, so one drawing
serves both modes. Every colour stands out from its background, and no two series are told apart by hue alone: the
lines differ in lightness, dash and marker as well.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["COLOURS", "CSS", "RAMP", "SERIES", "Look", "categories", "ramp"]

COLOURS = {
    "paper": ("#ffffff", "#15171b"),
    "ink": ("#1c1d20", "#e8e8ea"),
    "soft": ("#5d6067", "#a7abb3"),
    "rule": ("#d8dade", "#3a3e46"),
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
"""Each colour on white and on black. "s…" tell series apart, "r…" grow with what they stand for."""
SERIES = tuple(name for name in COLOURS if name[0] == "s" and name[1:].isdigit())
RAMP = tuple(name for name in COLOURS if name[0] == "r" and name[1:].isdigit())

_MARKERS = "osD^vPX*"
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))


@dataclass(frozen=True)
class Look:
    """How one series is drawn."""

    colour: str
    marker: str = "o"
    dash: tuple[float, ...] = ()
    width: float = 1.6


def light(name: str) -> str:
    """The colour ``name`` as figures are drawn."""
    return COLOURS[name][0]


def categories(count: int) -> list[Look]:
    """Looks for series without an order."""
    looks = []
    for place in range(count):
        dash = _DASHES[(place // len(SERIES)) % len(_DASHES)]
        looks.append(Look(light(SERIES[place % len(SERIES)]), _MARKERS[place % len(_MARKERS)], dash))
    return looks


def ramp(count: int) -> list[Look]:
    """Looks for series that grow: the last stands out most.

    >>> [look.colour for look in ramp(2)] == [light("r1"), light("r9")]
    True
    """
    steps = [round(place * (len(RAMP) - 1) / max(1, count - 1)) for place in range(count)]
    return [Look(light(RAMP[step]), _MARKERS[place % len(_MARKERS)]) for place, step in enumerate(steps)]


def _variables(mode: int) -> str:
    return " ".join(f"--{name}: {colours[mode]};" for name, colours in COLOURS.items())


CSS = f"""
:root {{ color-scheme: light; {_variables(0)} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ color-scheme: dark; {_variables(1)} }} }}
""" + """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 1.0625rem/1.55 system-ui, sans-serif; }
header, main, footer { max-width: 68rem; margin: 0 auto; padding: 0 1rem; }
header { padding-top: 2rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .75rem; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: .25rem 0 .5rem; max-width: 42rem; }
p, ul, li { max-width: 42rem; }
p { margin: .5rem 0; }
a { color: var(--s1); }
h1, h2, p, li, figcaption, dd { overflow-wrap: anywhere; }
nav ol { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: 0; margin: 1rem 0; }
nav a { display: inline-block; padding: .25rem 0; }
section { border-top: 1px solid var(--rule); margin-top: 2.5rem; padding-top: 1.5rem; }
.kicker { color: var(--soft); font-size: .9375rem; margin: 0; }
.summary li { margin: .35rem 0; }
.plates { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); gap: 1.5rem; }
figure { margin: 1rem 0 0; min-width: 0; max-width: 36rem; }
figure > svg { display: block; width: 100%; height: auto; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
figcaption, .note { color: var(--soft); font-size: .9375rem; }
details { margin: .75rem 0; }
summary { cursor: pointer; padding: .25rem 0; color: var(--soft); }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: .9375rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem .25rem 0; text-align: right; white-space: nowrap; }
tr { border-bottom: 1px solid var(--rule); }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--paper); }
td.text { white-space: normal; min-width: 8rem; max-width: 24rem; overflow-wrap: anywhere; }
caption { text-align: left; color: var(--soft); padding: .5rem 0 .25rem; }
thead th { vertical-align: bottom; white-space: normal; max-width: 9rem; }
code { font: .875rem/1.4 ui-monospace, monospace; overflow-wrap: anywhere; }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: 1.25rem 1rem; }
.card { margin: 0; max-width: none; }
.card img { width: 6rem; height: 6rem; object-fit: contain; display: block; }
.card dl { display: grid; grid-template-columns: auto 1fr; gap: 0 .5rem; margin: .25rem 0 0; font-size: .9375rem; }
.card dt { color: var(--soft); }
.card dd { margin: 0; }
.right { color: var(--s3); }
.wrong { color: var(--s2); }
.strip td, .strip th { text-align: left; vertical-align: top; white-space: normal; padding-right: .75rem; }
.strip td { min-width: 7.25rem; max-width: 7.25rem; overflow-wrap: anywhere; }
.strip img { width: 6.5rem; height: 6.5rem; object-fit: contain; display: block; }
footer { border-top: 1px solid var(--rule); margin-top: 3rem; padding: 1rem 1rem 3rem; }
@media (min-width: 60rem) {
  .beside { display: grid; grid-template-columns: minmax(0, 5fr) minmax(0, 6fr); grid-template-rows: auto 1fr; }
  .beside { column-gap: 3rem; }
  .beside .plates { grid-column: 2; grid-row: 1 / 3; }
  .beside figure { margin-top: 0; }
}
@media print {
  body { font-size: 10pt; }
  nav, summary { display: none; }
  figure, tr { break-inside: avoid; }
  .plates { grid-template-columns: 1fr 1fr; }
}
"""
