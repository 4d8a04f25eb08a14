"""Pages of nested losses: targets, every measured shape, and the losses for sentence-transformers.

``MAKERS`` maps each kind of row to the function that turns such rows into Markdown. The figure
is an SVG file beside the page: see ``losses_figures.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from matryo.results import Row
from pages.losses_rows import DISTILLED, FUSED, SINGLE, VARIANTS, Shape, shapes
from pages.markdown import grid

FIGURE = "fused-losses.svg"
BERT = "cross-entropy 8192 × 30522 × 768, 7 dims"
LARGE = "cross-entropy 8192 × 131072 × 2048, 9 dims"
PAIRS = "contrastive 32768 × 32768 × 1024, 9 dims"
NOTES = {
    "fused": """Forward and backward pass of head and loss in bfloat16. Times are milliseconds: the 20th, 50th and 80th
percentile of means over three consecutive steps. Memory is what is allocated beyond inputs and gradients. *Single* is
the loss at full dim only; *nested* is the usual loop over dims; both run eagerly and under `torch.compile`. *Fused* is
`nested_cross_entropy` or `nested_contrastive` with `engine="triton"`. [Nested losses](../losses.md) explains how it
works.

Multiples (×) and shares (%) are relative to the single eager loss of the same run.""",
    "distilled": """*Fused, self-distilled* has `self_distil=0.5` with `engine="chunked"`, which computes it.""",
    "limit": """*Of the limit* compares the fused loss with four matrix products of full width (the forward pass, its
recomputation in the backward pass, and two gradients) at the measured rate of one such product.""",
    "odd": "For a number of columns that is no multiple of 128, the next lower one ({}) is measured and scaled.",
    "asked": "Targets that were set before the fused losses were written, and what was measured:",
    "main": "Cross-entropy of a tied head at the shapes of BERT and of a large classifier.",
    "separate": """Cross-entropy with one head per dim, all in one matrix; *single* is the head of the full dim. Heads
that do not start at a multiple of 16 bytes (as with dims 12, 24, …) slow down every product, so the fused loss works
on an aligned copy.""",
    "contrastive": "InfoNCE of unit vectors, one direction.",
    "classes": "The number of classes grows; rows and dims are fixed.",
    "batch": "The batch grows; classes and dims are fixed.",
    "dims": "The full dim is fixed and cut into more and more blocks of equal width.",
    "doublings": "The full dim is fixed, with one, two or four dims per doubling: 16, 32 …; 12, 16, 24 …; 10, 12 ….",
    "sentence": """One step of a sentence-transformers loss on given embeddings: the loss and its gradient. *Single* is
`MultipleNegativesRankingLoss` at full dim, *matryoshka* wraps it in `MatryoshkaLoss`, and *nested* is
`NestedRankingLoss`. *Cached* variants use mini-batches (GradCache). Times are milliseconds: the 20th, 50th and 80th
percentile. Memory is the peak of a step above what was allocated before. At small batches *nested* keeps all scores at
every dim, hence its memory there.""",
}
SWEPT = {"classes": "columns", "batch": "batch"}


def fused_tables(rows: list[Row]) -> list[str]:
    """The targets, then every shape by group."""
    parts = [NOTES["fused"], f"![Time of nested losses compared with single ones]({FIGURE})"]
    parts += [NOTES["distilled"]] if any(DISTILLED in row.figures for row in rows) else []
    for hardware in dict.fromkeys(row.hardware for row in rows):
        here = [shape for shape in shapes(rows) if shape.hardware == hardware]
        parts += [*reached(here), f"## Shapes, on {hardware}", " ".join([NOTES["limit"], *odd_columns(here)])]
        for group, (title, table) in TABLES.items():
            inside = [shape for shape in here if shape.about("group") == group]
            if inside:
                parts += [f"### {title}", NOTES[group], *table(inside)]
    return parts


# ── what was asked ────────────────────────────────────────────────────────────────────────────────────────────


def reached(here: list[Shape]) -> list[str]:
    """One line per target, and the reasons for those that are missed."""
    lines = [[what, asked, got, "yes" if met else "**no**"] for what, asked, got, met in verdicts(here)]
    if not lines:
        return []
    return ["## Targets", NOTES["asked"], grid(["", "target", "measured", "reached"], lines), *reasons(here)]


def verdicts(here: list[Shape]) -> Iterator[tuple[str, str, str, bool]]:
    """(quantity, target, measured value, whether it is met) of each target."""
    fused = {shape.name: shape for shape in here if FUSED in shape.found}
    asked = [(fused[name], most) for name, most in ((BERT, 1.0), (LARGE, 1.2), (PAIRS, 1.2)) if name in fused]
    for shape, most in asked:
        yield f"{spelt(shape)}: × single eager", f"≤ {most}", f"{shape.ratio():.3f}", shape.ratio() <= most
    for variant, least in (("nested eager", 4.5), ("nested compiled", 2.0)):
        if LARGE in fused and variant in fused[LARGE].found:
            faster = fused[LARGE].faster(variant)
            yield f"{spelt(fused[LARGE])}: × faster than {variant}", f"≥ {least}", f"{faster:.1f}", faster >= least
    for shape, _ in asked:
        share = shape.share()
        yield f"{spelt(shape)}: extra memory, of single eager's", "≤ 10 %", percent(share), share <= 0.1
    if PAIRS in fused:
        part = fused[PAIRS].of(FUSED)["extra_bytes"] / (2 * fused[PAIRS].about("batch") ** 2)
        yield f"{spelt(fused[PAIRS])}: extra memory, of one batch × batch", "< 100 %", percent(part), part < 1
    for group, told in (("dims", "blocks of one width"), ("doublings", "dims by doublings")):
        for (fewer, more), most in {(8, 16): 0.2, (16, 32): 0.35}.items():
            if (growth := grown(here, group).get((fewer, more))) is not None:
                what = f"{spelt(by_count(here, group)[more])}, {told}: time of {more} dims over {fewer}"
                yield what, f"≤ +{percent(most)}", f"+{percent(growth)}", growth <= most


def reasons(here: list[Shape]) -> list[str]:
    """Why what was asked is not reached, as far as the rows tell."""
    found = []
    batches = {shape.about("batch"): shape for shape in here if FUSED in shape.found and same_head(shape, here)}
    low, at = batches.get(4096), batches.get(8192)
    if low and at and low.ms() > 0.9 * at.ms():
        found.append(
            "At BERT's shape a step waits for the CPU, which launches the kernels one by one: half the batch needs as "
            f"many launches, and takes no less ({low.ms():.1f} beside {at.ms():.1f} ms). Small shapes wait longer "
            "still beside what they compute."
        )
    if any(growth > 0.2 for growth in grown(here, "dims").values()):
        found.append(
            "With the dims grows what the backward pass writes and reads: two bytes for each score and dim, written "
            "once and read twice, while the products stay as many operations. The sums over later dims "
            "are formed in registers, four dims at a time. More repeat a part of the product, at most the whole of it "
            "once."
        )
    return [" ".join(found)] if found else []


def same_head(shape: Shape, here: list[Shape]) -> bool:
    """Whether a shape is BERT's, whatever its batch."""
    bert = next((one for one in here if one.name == BERT), None)
    return bert is not None and all(shape.about(key) == bert.about(key) for key in ("kind", "columns", "dims"))


def by_count(here: list[Shape], group: str) -> dict[int, Shape]:
    """The shapes of a group that differ in the number of their dims."""
    return {len(shape.about("dims")): shape for shape in here
            if shape.about("group") == group and FUSED in shape.found}  # fmt: skip


def grown(here: list[Shape], group: str) -> dict[tuple[int, int], float]:
    """How much more time twice as many dims take."""
    found = by_count(here, group)
    return {(n // 2, n): found[n].ms() / found[n // 2].ms() - 1 for n in sorted(found) if n // 2 in found}


def odd_columns(here: list[Shape]) -> list[str]:
    """Where the limit was measured at fewer columns."""
    odd = sorted({shape.about("columns") for shape in here if shape.about("columns") % 128})
    told = ", ".join(f"{columns // 128 * 128:,} of {columns:,}" for columns in odd)
    return [NOTES["odd"].format(told)] if odd else []


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────────


def long_tables(here: list[Shape]) -> list[str]:
    """A table a shape, a line a variant."""
    parts = []
    heads = ["loss", "p20", "p50, ms", "p80", "× single eager", "extra, GiB", "% of single's", "% of the limit"]
    for shape in here:
        lines = []
        for name in shape.variants:
            of = shape.of(name)
            limit = percent(of["of_limit"]) if "of_limit" in of else "–"
            lines.append([name, *(f"{of[p]:.2f}" for p in ("p20", "p50", "p80")), f"{shape.ratio(name):.2f}",
                          f"{shape.gib(name):.2f}", percent(shape.share(name)), limit])  # fmt: skip
        parts += [f"**{spelt(shape)}, {len(shape.about('dims'))} dims**", grid(heads, lines)]
    return parts


def swept_tables(here: list[Shape]) -> list[str]:
    """One table, a line a shape."""
    key = SWEPT[here[0].about("group")]
    lines = [[f"{shape.about(key):,}", *cells(shape, here)] for shape in sorted(here, key=lambda one: one.about(key))]
    return [f"{fixed_part(here[0], key)}:", grid([{"columns": "classes"}.get(key, key), *heads(here)], lines, left=0)]


def dims_tables(here: list[Shape]) -> list[str]:
    """Time by the number of dims, with the extra cost of twice as many."""
    lines, growths = [], grown(here, here[0].about("group"))
    for shape in sorted(here, key=lambda one: len(one.about("dims"))):
        count = len(shape.about("dims"))
        growth = growths.get((count // 2, count))
        more = "–" if growth is None else f"{100 * growth:+.0f} %"
        lines.append([f"{count}", f"{shape.about('dims')[0]}", *cells(shape, here), more])
    title = f"{spelt(here[0])}:"
    return [title, grid(["dims", "the first", *heads(here), "time over half as many"], lines, left=0)]


TABLES: dict[str, tuple[str, Callable[[list[Shape]], list[str]]]] = {
    "main": ("Cross-entropy", long_tables),
    "separate": ("Separate heads", long_tables),
    "contrastive": ("Contrastive", long_tables),
    "classes": ("By classes", swept_tables),
    "batch": ("By batch", swept_tables),
    "dims": ("By number of dims, of blocks of one width", dims_tables),
    "doublings": ("By number of dims, by doublings", dims_tables),
}
"""The title and the tables of each group of shapes."""


def heads(here: list[Shape]) -> list[str]:
    """The columns of a line a shape."""
    return [*(f"{name}, ms" for name in measured(here)), "fused, p20–p80", "fused × single", "extra, GiB",
            "% of single's", "% of the limit"]  # fmt: skip


def cells(shape: Shape, here: list[Shape]) -> list[str]:
    """Their content."""
    of = shape.of(FUSED)
    times = [f"{shape.ms(name):.2f}" if name in shape.found else "–" for name in measured(here)]
    return [*times, f"{of['p20']:.2f}–{of['p80']:.2f}", f"{shape.ratio():.2f}", f"{shape.gib():.2f}",
            percent(shape.share()), percent(of["of_limit"])]  # fmt: skip


def measured(here: list[Shape]) -> list[str]:
    """The variants that some of the shapes have."""
    return [name for name in VARIANTS if any(name in shape.found for shape in here)]


def fixed_part(shape: Shape, key: str) -> str:
    """The part of a shape that a sweep keeps fixed."""
    about = {"batch": "batch {batch:,}", "columns": "{columns:,} classes"}
    kept = [text.format(**shape.found[SINGLE].figures) for name, text in about.items() if name != key]
    return ", ".join([*kept, f"d = {shape.about('dims')[-1]}", f"{len(shape.about('dims'))} dims"]).capitalize()


def spelt(shape: Shape) -> str:
    """A shape as the page calls it."""
    kind, batch, columns, dims = (shape.about(key) for key in ("kind", "batch", "columns", "dims"))
    size = f"{batch:,} × {columns:,} × {dims[-1]:,}"
    return size if kind == "cross-entropy" else f"{kind} {size}"


def percent(part: float) -> str:
    """A part of one.

    >>> percent(0.069)
    '7 %'
    """
    return f"{100 * part:.0f} %"


# ── sentence-transformers ─────────────────────────────────────────────────────────────────────────────────────


def sentence_tables(rows: list[Row]) -> list[str]:
    """One table per width and dtype, with one line per batch and variant."""
    parts = [NOTES["sentence"]]
    last = {(row.subject, row.hardware): row for row in rows}.values()
    tables: dict[str, list[list[str]]] = {}
    for row in last:
        batch, _, rest = row.subject.removeprefix("batch ").partition(" d ")
        dim, _, more = rest.partition(" ")
        dims, version = len(row.figures["dims"]), row.figures["sentence_transformers"]
        title = f"d = {dim}, {dims} dims, {more}, on {row.hardware}; sentence-transformers {version}"
        tables.setdefault(title, []).extend(sentence_lines(f"{int(batch):,}", row.figures))
    names = ["batch", "loss", "p20", "p50, ms", "p80", "× single", "× faster than matryoshka", "peak, MiB", "value"]
    for title, lines in tables.items():
        parts += [f"**{title}**", grid(names, lines, left=2)]
    return parts


def sentence_lines(batch: str, figures: dict[str, Any]) -> list[list[str]]:
    """The variants at one batch; a nested one also beside the one that it replaces."""
    lines, variants = [], figures["variants"]
    for name, one in variants.items():
        theirs = variants.get(name.replace("nested", "matryoshka")) if name.startswith("nested") else None
        lines.append([
            batch, name, *(f"{one[p]:.2f}" for p in ("p20", "p50", "p80")),
            f"{one['p50'] / variants['single']['p50']:.2f}" if "single" in variants else "–",
            f"{theirs['p50'] / one['p50']:.1f}" if theirs else "–",
            f"{one['peak_mib']:,.0f}" if "peak_mib" in one else "–", f"{one['loss']:.3f}",
        ])  # fmt: skip
    return lines + [[batch, name, *["–"] * 5, "out of memory", "–"] for name in figures["out_of_memory"]]


MAKERS: dict[str, Callable[[list[Row]], list[str]]] = {"fused-losses": fused_tables, "sentence-loss": sentence_tables}
"""The functions that turn rows of a kind into parts of a page."""
