"""The pages of texts and of images with texts: finetuned sentence encoders, masked words, pairs of images and texts.

``MAKERS`` maps each kind of row to the function that turns such rows into Markdown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from statistics import fmean
from typing import Any

from matryo.evaluation import Pairs, Similarity, ZeroShot
from matryo.results import Row
from pages.markdown import grid
from pages.modalities_rows import ByDim, behind, by_dim, columns_table, counted, points, spread, verdicts

ARMS = {
    "original": "original",
    "pca": "PCA",
    "pca-task": "PCA of the task",
    "plain": "fine-tuned, truncated",
    "matryoshka": "MatryoshkaLoss",
    "nested": "nested",
    "nested loss": "NestedRankingLoss",
}
TASKS = (
    ("SciFact, nDCG@10", "scifact", "ndcg@10"),
    ("SciFact, recall@100", "scifact", "recall@100"),
    ("CLINC150, 1-NN", "clinc150", "1-nn"),
    ("CLINC150, 10-NN", "clinc150", "10-nn"),
    ("STS-B, Spearman", "stsb", "spearman"),
)
NESTED = ("head.weights", "head.join")   # fields that say how the dims of a nested model are trained together
WITHIN = 0.005   # what the paper finds: a nested model is that near to fixed ones
NOTES = {
    "text": """A sentence encoder, fine-tuned on pairs from SciFact (titles with abstracts, training claims with
papers), CLINC150 (training sentences of one intent) and WordNet (words with glosses), then evaluated at every dim.
*Original* is the published encoder, truncated. *PCA* is fitted on its vectors of all training texts, *PCA of the task*
on those of the task only. *Fine-tuned, truncated* is trained at full dim only. *MatryoshkaLoss* is
sentence-transformers' own loss around MultipleNegativesRankingLoss, with its own model; *nested* is
`nested_contrastive` with matryo's model. All trained models see the same batches in the same order, with the same
optimiser, schedule and number of steps. In percent: mean ± standard deviation; (n) is the number of seeds. A star
marks a dim at which no model was trained.""",
    "noise": """*Within noise*: behind by less than two standard errors of the difference of the means over seeds.""",
    "steps": """Milliseconds per training step (model, loss and optimiser), measured in turns on the same batches: the
20th, 50th and 80th percentile. *NestedRankingLoss* is matryo's loss in sentence-transformers' model.""",
    "mlm": """Share of masked words of held-out texts that are predicted, in percent: one nested model against one
model per dim, trained for the same number of steps. All models share one tokenizer and predict the same words. Mean ±
standard deviation; (n) is the number of seeds.""",
    "vit": """Top-1 accuracy in percent: a vision transformer with one head per dim (separate, MRL), with one head for
all dims (tied, MRL-E), and one model per dim, all trained for the same number of epochs. Mean ± standard deviation;
(n) is the number of seeds.""",
    "shared": """Trainings that shared their device are excluded from the seconds.""",
    "pairs": """Retrieval of matching items from the other side, in percent. *Hit@k*: at least one match is among the
first k, which papers on images and texts call recall@k. *Fixed* is trained at full dim only and truncated. Mean ±
standard deviation; (n) is the number of seeds.""",
    "similarity": """Cosine similarities of matching pairs and of random pairs, and how often a matching pair scores
higher (AUC, in percent). The *span* is the difference of the means.""",
    "zero-shot": """Zero-shot classification in percent: each image gets the class whose mean text embedding is
nearest.""",
}


# ── sentence encoders ─────────────────────────────────────────────────────────────────────────────────────────


def text_tables(rows: list[Row]) -> list[str]:
    """The targets, then one table per task."""
    settings = ("steps", "batch", "lr", "length", "trained")
    kept = counted(rows, lambda row: row.figures["arm"], settings, series=lambda row: "steps" in row.figures)
    arms = {arm: [row for row in kept if row.figures["arm"] == arm] for arm in ARMS}
    arms = {arm: some for arm, some in arms.items() if some}
    if not arms:
        return [NOTES["text"]]
    trained = next(iter(arms.values()))[0].figures["trained"]
    parts = [NOTES["text"], *_text_settings(arms), *verdicts(_text_verdicts(arms, trained)), NOTES["noise"]]
    for title, task, metric in TASKS:
        columns = {ARMS[arm]: of_task(some, task, metric) for arm, some in arms.items()}
        parts += [f"## {title}", columns_table(columns, trained)]
    return parts


def of_task(rows: Iterable[Row], task: str, metric: str) -> ByDim:
    """A figure of a task, by dim."""
    return by_dim(rows, lambda row: zip(row.figures["dims"], row.figures[task][metric], strict=True))


def _text_settings(arms: dict[str, list[Row]]) -> list[str]:
    row = next((some[0] for arm, some in arms.items() if "steps" in some[0].figures), None)
    if row is None:
        return []
    told, counts = row.figures, row.figures["pairs"]
    sources = ", ".join(f"{count:,} pairs of {name}" for name, count in counts.items())
    return [
        f"{told['model']} on {row.hardware}: {told['steps']:,} steps of {told['batch']} pairs, texts of up to "
        f"{told['length']} tokens, learning rate {told['lr']:g}; {sources}. A batch is of one source and holds each "
        "paper, intent or gloss once, so one of CLINC150 has at most 150."
    ]


def _text_verdicts(arms: dict[str, list[Row]], trained: Sequence[int]) -> Iterator[tuple[str, str, str, bool]]:
    for title, task, metric in (TASKS[0], TASKS[2]):
        for other in ("matryoshka", "original", "pca"):
            if "nested" in arms and other in arms:
                mine, theirs = (of_task(arms[arm], task, metric) for arm in ("nested", other))
                short = {dim: behind(mine[dim], theirs[dim]) for dim in trained}
                worst = max(short, key=lambda dim: short[dim][0])
                met = all(less <= noise for less, noise in short.values())
                least = f"{points(-short[worst][0], 1)} points at {worst}, the worst dim"
                yield f"{title}: nested beside {ARMS[other]}", "≥ at every dim, within noise", least, met


def steps_tables(rows: list[Row]) -> list[str]:
    """Milliseconds a step, and how much faster than sentence-transformers' own."""
    parts = ["## A training step", NOTES["steps"]]
    for row in counted(rows, lambda row: (row.subject, row.hardware)):
        steps = row.figures["steps"]
        theirs = steps.get("matryoshka")
        lines = [
            [ARMS[name], *(f"{one[p]:.2f}" for p in ("p20", "p50", "p80")),
             f"{theirs['p50'] / one['p50']:.2f}" if theirs else "–"]
            for name, one in steps.items()
        ]  # fmt: skip
        heads = ["", "p20", "p50, ms", "p80", "× faster than MatryoshkaLoss"]
        version = row.figures.get("sentence_transformers", "")
        parts += [f"On {row.hardware}; sentence-transformers {version}." if version else f"On {row.hardware}."]
        parts += [grid(heads, lines)]
    return parts


# ── nested beside fixed ───────────────────────────────────────────────────────────────────────────────────────


def mlm_tables(rows: list[Row]) -> list[str]:
    """Words predicted by a nested model, and by one for each dim."""
    return [NOTES["mlm"], *series_tables(rows, "masked_top1", WITHIN)]


def vit_tables(rows: list[Row]) -> list[str]:
    """Accuracy of nested vision transformers, and of one for each dim."""
    return [NOTES["vit"], *series_tables(rows, "top1", None)]


def series_tables(rows: list[Row], figure: str, within: float | None) -> list[str]:
    """For each setting and split: one line per dim, one column per kind of model, and its distance from fixed.

    With ``within``, whether each is no further behind. Nested models that differ in ``NESTED`` have their own table.
    """
    parts = []
    kept = counted(rows, lambda row: (_setting(row), row.figures["model"], _variant(row)), series=_setting)
    for setting in dict.fromkeys(map(_setting, kept)):
        here, (recipe, changed) = [row for row in kept if _setting(row) == setting], setting
        parts += [f"## {recipe}{f', {changed}' if changed else ''}", f"On {here[-1].hardware}."]
        for split in dict.fromkeys(split for row in here for split in row.figures[figure]):
            found: dict[tuple[str, str], list[Row]] = {}
            for row in here:
                found.setdefault((_kind(row), _variant(row)), []).append(row)
            every = {name: _of_split(some, figure, split) for name, some in found.items()}
            columns = {kind: values for (kind, variant), values in every.items() if not variant}
            fixed = columns.pop("fixed", {})
            parts += verdicts(_near(columns, fixed, within)) if within is not None else []
            lines = [
                [f"{dim}", *(spread(values.get(dim), digits=2) for values in (*columns.values(), fixed)),
                 *(_ahead(values.get(dim), fixed.get(dim)) for values in columns.values())]
                for dim in sorted({dim for values in (*columns.values(), fixed) for dim in values})
            ]  # fmt: skip
            heads = ["dim", *columns, "fixed", *(f"{kind} − fixed" for kind in columns)]
            parts += [f"Split `{split}`:", grid(heads, lines, left=0), *_variants(every, fixed)]
            parts += [_seconds(here), *_noted(here)]
    return parts


def _variants(every: dict[tuple[str, str], ByDim], fixed: ByDim) -> Iterator[str]:
    """Nested models by how their dims were trained together: one line per model, one column per dim."""
    nested = {name: values for name, values in every.items() if name[0] != "fixed"}
    if any(variant for _, variant in nested):
        dims = sorted({dim for values in nested.values() for dim in values})
        lines = [
            [variant or f"{kind}, as in the recipe", *(_beside(values.get(dim), fixed.get(dim)) for dim in dims)]
            for (kind, variant), values in nested.items()
        ]
        yield "Nested models with other weights or with dims that join later: means (difference from fixed):"
        yield grid(["", *map(str, dims)], lines, left=1)


def _beside(mine: Sequence[float] | None, fixed: Sequence[float] | None) -> str:
    if not mine:
        return "–"
    return f"{100 * fmean(mine):.2f}" + (f" ({_ahead(mine, fixed)})" if fixed else "")


def _setting(row: Row) -> tuple[str, str]:
    """A recipe, and what was changed in it for nested and fixed models alike."""
    return row.figures["recipe"], _spelt(row, lambda field: field not in NESTED)


def _variant(row: Row) -> str:
    """The fields that were changed for a nested model only."""
    return "" if _kind(row) == "fixed" else _spelt(row, lambda field: field in NESTED)


def _spelt(row: Row, chosen: Callable[[str], bool]) -> str:
    changed = sorted(row.figures["changed"].items())
    return ", ".join(f"{field} = {value}" for field, value in changed if chosen(field))


def _noted(rows: list[Row]) -> Iterator[str]:
    """Remarks that some rows need."""
    for note in dict.fromkeys(row.figures["note"] for row in rows if "note" in row.figures):
        those = (f"{row.figures['model']} seed {row.seed}" for row in rows if row.figures.get("note") == note)
        yield f"{', '.join(those)}: {note}."


def _kind(row: Row) -> str:
    return str(row.figures["model"]).partition(":")[0]


def _of_split(rows: list[Row], figure: str, split: str) -> ByDim:
    return by_dim(rows, lambda row: ((int(dim), value) for dim, value in row.figures[figure].get(split, {}).items()))


def _ahead(mine: Sequence[float] | None, fixed: Sequence[float] | None) -> str:
    return points(fmean(mine) - fmean(fixed)) if mine and fixed else "–"


def _near(columns: dict[str, ByDim], fixed: ByDim, within: float) -> Iterator[tuple[str, str, str, bool]]:
    for kind, values in columns.items():
        for dim in sorted({*values} & {*fixed}):
            ahead = fmean(values[dim]) - fmean(fixed[dim])
            asked = f"at most {100 * within:g} points behind fixed"
            yield f"{kind}, {dim} dims", asked, points(ahead), ahead >= -within


def _seconds(rows: list[Row]) -> str:
    """How long the trainings that had their device alone took, those of a kind together."""
    alone = [row for row in rows if row.figures.get("alone", True)]
    if not alone:
        longest = max(row.figures["seconds"] for row in rows)
        return f"Several trainings shared the device and took up to {longest:.0f} seconds; alone they take less."
    times = {kind: [row.figures["seconds"] for row in alone if _kind(row) == kind] for kind in map(_kind, alone)}
    each = (f"{kind} {spread(seconds, 1, 0)}" for kind, seconds in times.items())
    return f"Seconds a training: {', '.join(each)}."


# ── images and texts ──────────────────────────────────────────────────────────────────────────────────────────


def trained_tables(rows: list[Row]) -> list[str]:
    """How long each model of images and texts took, if it had its device alone."""
    kept = counted(rows, _of_series, ("changed",), series=lambda row: row.figures["recipe"])
    lines = []
    for recipe, model in dict.fromkeys(map(_of_series, kept)):
        some = [row for row in kept if _of_series(row) == (recipe, model)]
        times = [row.figures["seconds"] for row in some if row.figures.get("alone", True)]
        lines.append([recipe, model, spread(times, 1, 0), some[-1].hardware])
    shared = any(not row.figures.get("alone", True) for row in kept)
    return [grid(["recipe", "model", "seconds", "on"], lines, left=2), *([NOTES["shared"]] if shared else [])]


def _of_series(row: Row) -> tuple[str, str]:
    return row.figures["recipe"], row.figures["model"]


def pairs_tables(rows: list[Row]) -> list[str]:
    """For each split and direction a table: dims down, models across for each metric."""
    parts = ["## Finding what belongs", NOTES["pairs"]]
    for place, columns in _places(rows, Pairs.from_figures):
        one = next(iter(columns.values()))[0]
        for direction, way in enumerate(one.directions):
            found = {
                f"{metric}@{k}: {name}": by_results(some, partial(Pairs.at, metric=metric, k=k, direction=direction))
                for metric, k in (("hit", 1), ("hit", 5), ("hit", 10), ("nDCG", 10))
                for name, some in columns.items()
            }
            size = f"{one.asked[direction]:,} ask, {one.counts[1 - direction]:,} are searched"
            parts += [f"**{place}, {way}** ({size})", columns_table(found)]
    return parts


def similarity_tables(rows: list[Row]) -> list[str]:
    """For each split and model a table: the means of both kinds of pairs, their span, the AUC."""
    parts = ["## Cosine span", NOTES["similarity"]]
    for place, columns in _places(rows, Similarity.from_figures):
        for name, some in columns.items():
            positive, random, auc = (
                by_results(some, attrgetter(key))
                for key in ("positive_mean", "random_mean", "auc")
            )
            lines = [
                [f"{dim}", spread(positive[dim], 1, 3), spread(random[dim], 1, 3),
                 f"{fmean(positive[dim]) - fmean(random[dim]):.3f}", spread(auc[dim])]
                for dim in sorted(auc)
            ]  # fmt: skip
            parts += [f"**{place}, {name}**", grid(["dim", "positive", "random", "span", "AUC"], lines, left=0)]
    return parts


def zero_shot_tables(rows: list[Row]) -> list[str]:
    """For each split a table: dims down, models across."""
    parts = ["## Zero-shot", NOTES["zero-shot"]]
    for place, columns in _places(rows, ZeroShot.from_figures):
        found = {name: by_results(some, lambda one: one.top1) for name, some in columns.items()}
        parts += [f"**{place}**", columns_table(found)]
    return parts


def by_results(results: Iterable[Pairs | Similarity | ZeroShot], figure: Callable[..., Iterable[float]]) -> ByDim:
    """A figure of several results, by dim."""
    found: ByDim = {}
    for one in results:
        for dim, value in zip(one.dims, figure(one), strict=True):
            found.setdefault(dim, []).append(value)
    return found


def _places(rows: list[Row], read: Callable[..., Any]) -> Iterator[tuple[str, dict[str, list[Any]]]]:
    """For each dataset and split the results of each model, one a seed."""
    kept = counted(rows, lambda row: (row.subject, row.hardware))
    for place in dict.fromkeys((row.figures["dataset"], row.figures["split"]) for row in kept):
        columns: dict[str, list[Any]] = {}
        for row in kept:
            if (row.figures["dataset"], row.figures["split"]) == place:
                columns.setdefault(row.figures["model"].rpartition(" ")[2], []).append(read(row.figures))
        yield ", ".join(filter(None, place)), columns


MAKERS: dict[str, Callable[[list[Row]], list[str]]] = {
    "text-finetune": text_tables,
    "text-steps": steps_tables,
    "mlm": mlm_tables,
    "vit": vit_tables,
    "image-text": trained_tables,
    "pairs": pairs_tables,
    "similarity": similarity_tables,
    "zero-shot": zero_shot_tables,
}
"""The functions that turn rows of a kind into parts of a page."""
