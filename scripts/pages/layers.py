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
test sentences, the mean over the seeds that all arms of a table have, else of one seed; (n) is the number of seeds. All
arms take the same number of steps with the same settings, which were not tuned. The trainings are short, for a CPU: what
differs between the arms may differ otherwise after longer ones."""

Values = dict[tuple[int, int], list[float]]   # percent of each seed by (layers, dim)


def layers_tables(rows: list[Row]) -> list[str]:
    """A table per arm: layers down, dims across."""
    found, seeds = by_arm(rows), counts(rows)
    first = rows[-1].figures
    about = (
        f"{first['steps']} steps of {first['batch']} pairs, learning rate {first['lr']:g}; {first['per_class']} sentences "
        f"of each of 150 intents are searched, and {first['queries']} of each are queries."
    )
    parts = [ABOUT, about]
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
    title = f"Milliseconds to encode {figures['texts']} texts of {figures['tokens']} tokens after each number of layers:"
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
    """What training after fewer layers gains after 2 and 4 of them, and loses after all."""
    arms = by_arm([row for row in rows if row.kind == "layers"])
    nested, grid_ = arms["nested"], arms["grid, distilled"]
    full = max(layers for layers, _ in nested)

    def at(values: Values, layers: int, dim: int) -> str:
        return f"{fmean(values[layers, dim]):.1f}"

    gains = " and ".join(
        f"{at(grid_, layers, 96)} % after {layers} of {full} layers (cut without such training: {at(nested, layers, 96)} %)"
        for layers in (2, 4)
    )
    return (
        f"Trained for every number of layers and every dim, all-MiniLM-L6-v2 at 96 of 384 dims reaches {gains}. After "
        f"all layers it reaches {at(grid_, full, 96)} % instead of {at(nested, full, 96)} %."
    )


MAKERS = {"layers": layers_tables, "layer-times": time_tables}
