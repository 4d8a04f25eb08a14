"""The page of layers × dims: 1-NN accuracy of each arm after each number of layers and at each dim."""

from __future__ import annotations

from statistics import fmean

from matryo.results import Row
from pages.markdown import grid, latest

ARMS = {
    "original": "the published encoder, not trained",
    "nested": "every dim after the last layer, cut afterwards",
    "alone:2": "the first 2 layers of the published encoder, fine-tuned by themselves",
    "alone:4": "the first 4 layers, fine-tuned by themselves",
    "diagonal": "also one dim after each layer (`head.layer_dims`)",
    "diagonal, distilled": "the same with `head.self_distil = 0.5`",
    "grid": "also every dim after each layer (`encoder.layers`)",
    "grid, distilled": "the same with `head.self_distil = 0.5`",
    "grid, distilled, weight .2": "the same with `head.layer_weight = 0.2`",
    "nested, distilled": "`nested` with `head.self_distil = 0.5`",
}
ABOUT = """all-MiniLM-L6-v2 (6 layers, 384 dims) is fine-tuned on pairs of training sentences of one intent
(CLINC150), then its embeddings are compared after each number of layers and at each dim: 1-NN accuracy in percent on
test sentences, the mean over seeds; (n) is the number of seeds. All arms take the same number of steps with the same
settings, which were not tuned. The trainings are short, for a CPU: longer ones may order the arms differently."""

FIGURE = "layers.svg"
Values = dict[tuple[int, int], list[float]]   # percent of each seed by (layers, dim)


def layers_tables(rows: list[Row]) -> list[str]:
    """A table per arm: layers down, dims across."""
    found, seeds = by_arm(rows), counts(rows)
    first = rows[-1].figures
    about = (
        f"{first['steps']} steps of {first['batch']} pairs, learning rate {first['lr']:g}; {first['per_class']} "
        f"sentences of each of 150 intents are searched, and {first['queries']} of each are queries."
    )
    parts = [ABOUT, about, f"![1-NN accuracy after each number of layers and at each dim]({FIGURE})"]
    for arm, values in found.items():
        dims = sorted({dim for _, dim in values})
        lines = [
            [f"{layers}", *(f"{fmean(values[layers, dim]):.1f}" for dim in dims)]
            for layers in sorted({layers for layers, _ in values})
        ]
        parts += [f"**{arm}** ({seeds[arm]}): {ARMS[arm]}.", grid(["layers", *map(str, dims)], lines)]
    return parts


def time_tables(rows: list[Row]) -> list[str]:
    """The time of encoding after each number of layers."""
    figures = rows[-1].figures
    times = figures["milliseconds"]
    most = max(times, key=int)
    lines = [[layers, f"{time:.2f}", f"{time / times[most]:.2f}"] for layers, time in times.items()]
    title = f"Milliseconds to encode {figures['texts']} texts of {figures['tokens']} tokens:"
    return [title, grid(["layers", "ms", "of all"], lines)]


def by_arm(rows: list[Row]) -> dict[str, Values]:
    """The figures of each arm, in the order of ``ARMS``."""
    found: dict[str, Values] = {}
    for row in latest(rows, lambda row: (row.subject, row.seed, row.figures["steps"])):
        for layers, accuracy in row.figures["after"].items():
            for dim, value in zip(row.figures["dims"], accuracy, strict=True):
                found.setdefault(row.subject, {}).setdefault((int(layers), dim), []).append(100 * value)
    return {arm: found[arm] for arm in ARMS if arm in found}


def counts(rows: list[Row]) -> dict[str, int]:
    """The number of seeds of each arm."""
    return {arm: len({row.seed for row in rows if row.subject == arm}) for arm in ARMS}


def finding(rows: list[Row]) -> str:
    """What training after fewer layers gains after 2 of them, and loses after all; and a model of 2 layers alone."""
    arms = by_arm([row for row in rows if row.kind == "layers"])
    nested, every, alone = arms["nested"], arms["grid, distilled"], arms["alone:2"]
    full = max(layers for layers, _ in nested)
    cut, own, small = (f"{fmean(values[2, 96]):.1f}" for values in (nested, every, alone))
    whole, before = (f"{fmean(values[full, 96]):.1f}" for values in (every, nested))
    return (
        f"After 2 of {full} layers, at 96 of 384 dims, all-MiniLM-L6-v2 has a 1-NN accuracy of {own} % if it was "
        f"fine-tuned after every layer, and {cut} % if only after the last; the first 2 layers fine-tuned by "
        f"themselves reach {small} %. "
        f"After all layers, the shallow losses change {before} to {whole} %. The trainings are short."
    )


MAKERS = {"layers": layers_tables, "layer-times": time_tables}
