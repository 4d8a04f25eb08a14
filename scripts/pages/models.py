"""Tables of trained and evaluated models: accuracy per dim, few-shot, stream, cascades, and the cost of a step."""

from __future__ import annotations

import re
from collections.abc import Callable
from statistics import fmean, stdev

from matryo.classify import CascadeCurve
from matryo.evaluation import DimRow, Evaluation, FewShot, Stream
from matryo.results import Row
from pages.markdown import changes, grid, latest, origin, origins, spread

HEADS = {"separate": "MRL (separate)", "tied": "MRL-E (tied)", "fixed": "fixed", "slimmable": "slimmable"}
TRAINED = """Top-1 accuracy of the heads in percent: mean ± standard deviation; (n) is the number of seeds. A nested
model is one run. The `fixed` column is one run per dim, so its training time is the sum over dims. If a seed was run
twice, the later run counts. Seconds include compilation, which the first run of a series pays for all of them; runs
that shared their GPU with others are excluded from the seconds."""
STEPS = """Milliseconds per training step: the 20th, 50th and 80th percentile, and the median relative to the fixed
head. `loop` is one `nn.Linear` and one cross-entropy per dim, one after the other."""
EVALUATED = """In percent; mean ± standard deviation; (n) is the number of seeds. [Evaluation](../evaluation.md)
defines the metrics and [Protocols and baselines](../protocols.md) the baselines. The models are those of the training
tables above, with the changes listed there. A star marks a dim at which no model of the table was trained. The `fixed`
column is one model per dim; `truncated` and the columns after it use the fixed model of full dim without training
again."""
SPEED = """Seconds to find the 100 nearest neighbours of every query at many dims in one pass, compared with one search
at full dim, one search per dim, and faiss (`IndexFlatIP`, one search per dim): the 20th, 50th and 80th percentile over
rounds. Each ratio is the median of the ratios within a round."""
CORE = """Microseconds per query through `index.search`, and in parentheses the ratio to the first column: the median
over rounds in which all variants took turns. Each variant opens one index in fresh processes. *First* is the wall time
of the command `matryo search` with empty caches, including the start of the interpreter. *Batch* searches 1,000 queries
at once. *numpy* is the engine without the core; it has no guides, so that its plans scan all rows. *before* compiled
its kernels with numba on first use. Plans read 64 or 128 columns in int8 of the visited partitions, then all columns of
the best 100 in int8, and the vectors of the best 15. Partitions have changed since these rows were
measured (tiles of 4 bits, two copies of most rows, fewer lists); at the same probe, batches take longer now."""
FEW_SHOT = """Few-shot accuracy in percent: nearest class mean after n examples per class; the mean over random draws
with its 95 % confidence interval. Models with `novel40` in their name were trained without 40 of the 200 classes."""
STREAM = """Accuracy in percent over a long-tailed stream: each example is first predicted, then learned. Classes are
known (pretrain) or novel, frequent (head) or rare (tail); mean ± standard deviation over streams."""
CASCADE = """Adaptive classification: the smallest dim that is confident enough answers. Mean ± standard deviation over
random hold-outs. *Expected dim* is the mean dim that answers; *cumulative dim* adds up every head evaluated on the
way. For comparison, the paper's ResNet50 on ImageNet-1K reaches 76.3 % at an expected dim of 37 of 2048 (62
cumulative)."""
PROMISE = """The risk strategy promises a maximum loss of accuracy against the full dim, with 95 % confidence. How
often the promise was kept, over hold-outs drawn with replacement from rows whose labels are known:"""
METRICS: tuple[tuple[str, str, Callable[[DimRow], float | None]], ...] = (
    ("head top-1", "The trained classifier.", lambda row: row.head_top1),
    ("1-NN", "The class of the nearest vector.", lambda row: row.top1),
    ("mAP@10", "How well the ten nearest are ranked.", lambda row: row.map_at[10]),
)
FOLDER = re.compile(r"(?P<recipe>.+)-(?P<kind>separate|tied|fixed(?=-)|slimmable(?=-))(?:-\d+)?(?P<more> \+ .+)?$")
OWN_DIMS = ("fixed", "slimmable")
COLUMNS = ("MRL", "MRL-E", "fixed", "slimmable", "slimmable, truncated", "truncated", "PCA", "SVD",
           "SVD of the classifier", "random features", "random projection")  # fmt: skip


def train_tables(rows: list[Row]) -> list[str]:
    """For each recipe, test split and machine: dims down, kinds of head across, mean ± sd over seeds."""
    parts = [TRAINED]
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        recipe = row.subject.rsplit(" ", 1)[0]
        hidden = f"without {row.figures['novel']} classes" if row.figures.get("novel") else ""
        held = row.figures.get("validate")
        hidden = f"on {100 * held:g} % of the training images, held out" if held else hidden
        changed = f"with {changes(row.command)}" if "changed" not in row.figures and changes(row.command) else ""
        found.setdefault((recipe, " ".join(filter(None, (changed, hidden))), row.hardware), []).append(row)
    for (recipe, apart, hardware), group in found.items():
        parts += [" ".join(filter(None, (f"## {recipe}", apart))), f"On {hardware}."]
        group = [row for row in group if tuned(row) == tuned(last_of_column(group, row))]
        runs = latest(group, one_run)
        splits = dict.fromkeys(split for row in runs for split in row.figures["top1"])
        alone = latest([row for row in group if row.figures.get("alone", True)], one_run)
        parts += [part for split in splits for part in (f"Split `{split}`:", train_table(runs, alone, split))]
        parts += [f"Fixed at {', '.join(dims_of(row))}: {tuned(row)}." for row in tuned_fixed(runs)]
    return parts


def kind_of(row: Row) -> str:
    """The kind of head that a training row is about."""
    return row.subject.rsplit(" ", 1)[1]


def dims_of(row: Row) -> tuple[str, ...]:
    """The dims that a training row has figures for."""
    return tuple(dict.fromkeys(dim for top1 in row.figures["top1"].values() for dim in top1))


def one_run(row: Row) -> tuple[object, ...]:
    """The key under which two rows are the same run, repeated."""
    return row.subject, column_title(row), dims_of(row), row.seed


def train_table(runs: list[Row], alone: list[Row], split: str) -> str:
    """One table of :func:`train_tables`; the seconds are those of runs that had their device ``alone``."""
    order = list(HEADS)
    titles = list(dict.fromkeys(column_title(row) for row in sorted(runs, key=lambda row: order.index(kind_of(row)))))
    columns = {title: [row for row in runs if column_title(row) == title] for title in titles}
    dims = sorted({int(dim) for row in runs for dim in row.figures["top1"].get(split, ())})
    lines = []
    for dim in dims:
        at = {
            title: [100 * top1[f"{dim}"] for row in rows if f"{dim}" in (top1 := row.figures["top1"].get(split, {}))]
            for title, rows in columns.items()
        }
        lines.append([f"{dim}", *(spread(at[title], 2) for title in titles), gain(at)])
    columns = {title: [row for row in alone if column_title(row) == title] for title in titles}
    seconds = {title: [row.figures["seconds"] for row in columns[title]] for title in titles}
    lines.append(["seconds per run", *(spread(seconds[title], 1) for title in titles), "–"])
    totals = [f"{whole(rows):.0f}" if rows else "–" for rows in columns.values()]
    lines.append(["seconds for the column", *totals, "–"])
    return grid(["dim", *titles, "MRL − fixed"], lines)


def column_title(row: Row) -> str:
    """A kind of head; a nested one trained with other fields than the recipe's says so, fixed ones share a column."""
    kind = kind_of(row)
    return ", ".join(filter(None, (HEADS[kind], tuned(row) if kind != "fixed" else "")))


def last_of_column(rows: list[Row], like: Row) -> Row:
    """The newest run in the column and at the dims of another: seeds are averaged over one setting, the latest."""
    return [row for row in rows if (column_title(row), dims_of(row)) == (column_title(like), dims_of(like))][-1]


def tuned(row: Row) -> str:
    """The recipe fields that were changed for this run alone."""
    return ", ".join(f"{field} = {value}" for field, value in row.figures.get("changed", {}).items())


def tuned_fixed(runs: list[Row]) -> list[Row]:
    """One run for each fixed model that was trained with fields of its own."""
    changed = [row for row in runs if kind_of(row) == "fixed" and tuned(row)]
    return latest(changed, lambda row: (dims_of(row), tuned(row)))


def gain(at: dict[str, list[float]]) -> str:
    """How many points the nested model is ahead of the one trained for this dim alone."""
    mine, others = at.get(HEADS["separate"]), at.get(HEADS["fixed"])
    return f"{fmean(mine) - fmean(others):+.2f}" if mine and others else "–"


def whole(runs: list[Row]) -> float:
    """Seconds to train everything in a column once: the mean run of each model in it, added up."""
    times: dict[tuple[str, ...], list[float]] = {}
    for row in runs:
        times.setdefault(dims_of(row), []).append(row.figures["seconds"])
    return sum(map(fmean, times.values()))


def step_tables(rows: list[Row]) -> list[str]:
    """Milliseconds per training step with each kind of head, compared with one fixed head."""
    parts = [STEPS]
    for row in latest(rows, lambda row: (row.subject, row.hardware)):
        lines = [
            [head, *(f"{figure[p]:.2f}" for p in ("p20", "p50", "p80")), f"{figure['ratio']:.3f}"]
            for head, figure in row.figures.items()
        ]
        parts += [f"**{row.subject}**, on {row.hardware}:", grid(["head", "p20", "p50", "p80", "× fixed"], lines)]
    return parts


def cascade_tables(rows: list[Row]) -> list[str]:
    """Accuracy against expected dim: a table for each model and way to choose thresholds."""
    parts = [CASCADE]
    for row in latest(rows, lambda row: (row.subject, row.figures["strategy"])):
        found = CascadeCurve.from_figures(row.figures)
        about = f"{found.holdouts} hold-outs of {found.fitted_on:,} rows, tested on {found.tested_on:,} others"
        parts += [f"**{row.subject}, {found.strategy}** ({found.head} head, {about}; all {found.dims[-1]} dims: "
                  f"{100 * found.single[-1]:.2f} %)."]  # fmt: skip
        heads = [{"greedy": "last dim", "budget": "budget", "risk": "loss allowed"}[found.strategy], "accuracy, %"]
        lines = [
            [f"{found.stop[i]:g}", *(f"{scale * getattr(found, name)[i]:.{digits}f} ± "
             f"{scale * getattr(found, f'{name}_sd')[i]:.{digits}f}"
             for name, scale, digits in (("accuracy", 100, 2), ("expected_dim", 1, 1), ("cumulative_dim", 1, 1)))]
            for i in range(len(found.stop))
        ]  # fmt: skip
        parts += [grid([*heads, "expected dim", "cumulative dim"], lines)]
    return parts


def promise_tables(rows: list[Row]) -> list[str]:
    """How often a promised loss was kept."""
    lines = []
    for row in latest(rows, lambda row: (row.subject, row.figures["max_loss"])):
        told = row.figures
        dims = f"{told['expected_dim']:.1f} ± {told['expected_dim_sd']:.1f} of {told['full_dim']}"
        kept = f"{told['kept']} of {told['resamples']}"
        lines.append([row.subject, f"{100 * told['max_loss']:g}", kept, f"{100 * told['loss']:.2f}", dims])
    return [PROMISE, grid(["model", "points promised", "kept", "points lost", "expected dim"], lines)]


def speed_tables(rows: list[Row]) -> list[str]:
    """Seconds of one pass at many dims, beside one dim and beside others; and the ratios."""
    parts = [SPEED]
    for row in latest(rows, lambda row: (row.subject, row.hardware)):
        seconds = row.figures["seconds"].items()
        lines = [[name, *(f"{figure[p]:.2f}" for p in ("p20", "p50", "p80"))] for name, figure in seconds]
        every, nested = (", ".join(map(str, row.figures[name])) for name in ("dims", "nested"))
        dims = f"All dims are {every}; nested are {nested}."
        parts += [f"**{row.subject}**, on {row.hardware}. {dims}", grid(["search", "p20", "p50", "p80"], lines)]
        parts += [grid(["ratio", "value"], [[name, f"{value:.3f}"] for name, value in row.figures["ratios"].items()])]
    return parts


def core_tables(rows: list[Row]) -> list[str]:
    """Microseconds per query by instruction set, and how many times as long as the first."""
    parts = [CORE]
    for row in latest(rows, lambda row: (row.subject, row.hardware)):
        times, ratios = row.figures["microseconds"], row.figures["ratios"]
        lines = [
            [search, *(f"{times[name][search]:,.0f} ({ratios[name][search]:.2f})" for name in times)]
            for search in next(iter(times.values()))
        ]
        parts += [f"**{row.subject}**, on {row.hardware}, {row.figures['rounds']} rounds."]
        parts += [grid(["search", *times], lines)]
        if recalls := row.figures.get("recall"):
            named = [[plan, *(f"{recalls[name][plan]:.4f}" for name in times)] for plan in next(iter(recalls.values()))]
            parts += ["Recall@10 of these plans:", grid(["plan", *times], named)]
    return parts


def evaluate_tables(rows: list[Row]) -> list[str]:
    """For every split and metric a table: dims down, models across, mean ± sd over seeds; then who is ahead where."""
    kept = latest(rows, lambda row: (row.subject, row.seed))
    parts = [EVALUATED]
    groups = dict.fromkeys((series_of(row.figures["model"]), row.figures["split"]) for row in kept)
    for series, split in groups:
        chosen = [row for row in kept if (series_of(row.figures["model"]), row.figures["split"]) == (series, split)]
        for title, about, metric in METRICS:
            found = seeds_by_column(chosen, metric)
            if found:
                parts += [f"**{f'{series}, ' if series else ''}split `{split}`, {title}.** {about}"]
                parts += [columns_table(found, trained_dims(chosen)), *ahead(found)]
    return parts


def few_shot_tables(rows: list[Row]) -> list[str]:
    """For each model and choice of classes a table: dims down, shots across, with the interval of the mean."""
    parts = [FEW_SHOT]
    for row in latest(rows, lambda row: (row.subject, row.figures["classes"], row.seed)):
        one = FewShot.from_figures(row.figures)
        parts += [f"**{one.model}, split `{one.split}`, {one.ways} classes: {one.classes}.** {one.draws} draws."]
        told = [
            [f"{100 * value:.1f} ± {100 * margin:.1f}" for value, margin in zip(values, margins, strict=True)]
            for values, margins in zip(one.accuracy, one.margin, strict=True)
        ]
        lines = [[f"{dim}", *cells] for dim, *cells in zip(one.dims, *told, strict=True)]
        parts += [grid(["dim", *(f"{n} shot{'s' * (n > 1)}" for n in one.shots)], lines)]
    return parts


def stream_tables(rows: list[Row]) -> list[str]:
    """For each model a table: dims down, groups of classes across."""
    parts = [STREAM]
    for row in latest(rows, lambda row: (row.subject, row.seed)):
        one = Stream.from_figures(row.figures)
        about = f"{one.draws} streams of {one.length:,} examples; fewer than {one.tail_below} of a class are its tail."
        parts += [f"**{one.model}, split `{one.split}`.** {about}"]
        lines = [
            [f"{dim}", *("–" if (value := by_dim[d]) is None else f"{100 * value:.1f} ± {100 * (sd[d] or 0):.1f}"
                         for by_dim, sd in zip(one.accuracy, one.sd, strict=True))]
            for d, dim in enumerate(one.dims)
        ]  # fmt: skip
        parts += [grid(["dim", *one.groups], lines)]
    return parts


def demo_table(rows: list[Row]) -> str:
    """The table of README: 1-NN of the nested model beside the fixed one, truncated and by PCA, at each trained dim."""
    kept = latest([row for row in rows if row.kind == "evaluate"], lambda row: (row.subject, row.seed))
    models = {"demo-nested": "nested", "demo-fixed": "fixed, truncated", "demo-fixed + PCA": "fixed, PCA"}
    trained = trained_dims(kept)
    columns: ByColumn = {}
    for split in ("flat", "twemoji"):
        of_split = [row for row in kept if row.figures["split"] == split]
        found = seeds_by_column(of_split, lambda row: row.top1)
        columns |= {f"{split}: {models[name]}": by_dim for name, by_dim in found.items() if name in models}
    about = (
        "1-NN accuracy in percent on two splits of drawings in styles that training did not see, mean ± "
        "standard deviation; (n) is the number of seeds:"
    )
    if not columns:
        raise SystemExit("docs/results/demo.jsonl must hold evaluations of demo-nested and demo-fixed")
    shown = {title: {dim: v for dim, v in by_dim.items() if dim in trained} for title, by_dim in columns.items()}
    return "\n\n".join([about, columns_table(shown, trained), "\n".join(origin(group) for group in origins(kept))])


ByColumn = dict[str, dict[int, list[float]]]   # the values of each seed, by column and dim


def seeds_by_column(rows: list[Row], metric: Callable[[DimRow], float | None]) -> ByColumn:
    """The figures of ``metric`` in percent, by column and dim.

    Where several models share a column, a dim is read from the narrowest that has it if each has its own dims (fixed
    ones, the widths of a slimmable one), else from the widest: what is reduced is the model of full dim.
    """
    kept: dict[tuple[str, int, int | None], tuple[int, float]] = {}
    for row in rows:
        one = Evaluation.from_figures(row.figures)
        for line in one.rows:
            value = metric(line)
            for column in columns_of(one, line) if value is not None else ():
                key, width = (column, line.dim, row.seed), one.dims[-1] * (1 if column in OWN_DIMS else -1)
                if key not in kept or width < kept[key][0]:
                    kept[key] = width, 100 * float(value or 0)
    found: ByColumn = {}
    for (column, dim, _), (_, value) in sorted(kept.items(), key=lambda item: order_of(item[0][0])):
        found.setdefault(column, {}).setdefault(dim, []).append(value)
    return found


def order_of(column: str) -> int:
    """Where a column stands; names that no benchmark gave come first, in the order of the rows."""
    return COLUMNS.index(column) if column in COLUMNS else -1


def series_of(model: str) -> str:
    """The recipe that a benchmark's folder name begins with; nothing for other names."""
    named = FOLDER.match(model)
    return named["recipe"] if named else ""


def columns_of(one: Evaluation, line: DimRow) -> list[str]:
    """The titles of the columns that a model's figures at one dim belong in."""
    named = FOLDER.match(one.model)
    if not named:
        return [one.model]
    if named["more"]:
        return [named["more"].removeprefix(" + ")]
    if named["kind"] == "fixed":
        return ["fixed"] * line.trained + ["truncated"] * (len(one.rows) > 1)
    if named["kind"] == "slimmable":
        return ["slimmable"] * line.trained + ["slimmable, truncated"]
    return [{"separate": "MRL", "tied": "MRL-E"}.get(named["kind"], named["kind"])]


def trained_dims(rows: list[Row]) -> set[int]:
    """The dims that some model of the rows was trained at."""
    return {line.dim for row in rows for line in Evaluation.from_figures(row.figures).rows if line.trained}


def columns_table(found: ByColumn, trained: set[int]) -> str:
    """One line per dim, one column per model: mean ± deviation over seeds; a star marks untrained dims."""
    dims = sorted({dim for by_dim in found.values() for dim in by_dim})
    lines = [
        [f"{dim}" if dim in trained else f"{dim}\\*", *(spread(by_dim.get(dim, []), 1) for by_dim in found.values())]
        for dim in dims
    ]
    return grid(["dim", *found], lines)


def ahead(found: ByColumn) -> list[str]:
    """Where MRL wins, ties and loses against the best other column: by more than both deviations, or not."""
    if "MRL" not in found:
        return []
    outcome: dict[str, list[str]] = {"wins": [], "ties": [], "loses": []}
    for dim, values in sorted(found["MRL"].items()):
        others = {name: by_dim[dim] for name, by_dim in found.items() if name != "MRL" and by_dim.get(dim)}
        if "fixed" not in others or min(map(len, (values, *others.values()))) < 2:
            continue   # no verdict without the model trained for this dim, nor on a single seed
        best = max(others, key=lambda name: fmean(others[name]))
        gap = fmean(values) - fmean(others[best])
        noise = max(stdev(v) if len(v) > 1 else 0.0 for v in (values, others[best]))
        verdict = "ties" if abs(gap) <= noise else "wins" if gap > 0 else "loses"
        outcome[verdict].append(f"{dim} ({gap:+.1f} against {best})")
    told = [f"{verdict} at {', '.join(places)}" for verdict, places in outcome.items() if places]
    return [f"MRL {'; '.join(told)}."] if told else []


MAKERS = {
    "train": train_tables,
    "step-cost": step_tables,
    "evaluate": evaluate_tables,
    "search-core": core_tables,
    "search-speed": speed_tables,
    "cascade": cascade_tables,
    "cascade-promise": promise_tables,
    "few-shot": few_shot_tables,
    "stream": stream_tables,
}
