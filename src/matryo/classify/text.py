"""A cascade's answers as text: lines for files and tables for the terminal."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

from matryo.files import parse_json, replacing

if TYPE_CHECKING:
    from pathlib import Path

    from matryo.classify.cascade import Cascade
    from matryo.classify.outcomes import CascadeResult
    from matryo.classify.walk import Answers
    from matryo.embeddings import EmbeddingSet

_COLUMNS = ("id", "class", "confidence", "dim")


def is_answers(path: Path) -> bool:
    """Whether :func:`write_answers` wrote the file ``path``."""
    try:
        with path.open(encoding="utf-8") as file:
            line = file.readline().strip()
        return line == ",".join(_COLUMNS) or tuple(parse_json(line)) == _COLUMNS
    except (OSError, ValueError, TypeError):
        return False


def answer_rows(rows: EmbeddingSet, answers: Answers) -> list[tuple[object, str, float, int]]:
    """Return (id, class, confidence, dim) of each row."""
    names = rows.classes or tuple(map(str, range(int(answers.columns.max(initial=0)) + 1)))
    columns = (rows.ids.tolist(), [names[column] for column in answers.columns], answers.confidence, answers.dims)
    return [(key, name, round(float(sure), 6), int(dim)) for key, name, sure, dim in zip(*columns, strict=True)]


def write_answers(out: Path, rows: EmbeddingSet, answers: Answers) -> None:
    """Write one answer per row as CSV or JSON lines: id, class, confidence and dim."""
    lines = answer_rows(rows, answers)
    text = io.StringIO(newline="")
    if out.suffix == ".csv":
        csv.writer(text, lineterminator="\n").writerows([_COLUMNS, *lines])
    else:
        text.writelines(json.dumps(dict(zip(_COLUMNS, line, strict=True)), ensure_ascii=False) + "\n" for line in lines)
    with replacing(out) as file:
        file.write(text.getvalue().encode())


def cascade_table(cascade: Cascade, answers: Answers, result: CascadeResult | None, covered: bool) -> str:
    """Return accuracy and cost, threshold and share of each dim, and the certificate if it ``covered`` the rows."""
    lines = []
    if result is not None:
        last = result.dims[-1]
        lines += [f"{'':12}{'accuracy':>10}{'expected dim':>14}{'cumulative dim':>16}"]
        for name, accuracy, *dims in (
            ("cascade", result.accuracy, result.expected_dim, result.cumulative_dim),
            (f"dim {last}", result.full_accuracy, last, last),
        ):
            lines += [f"{name:12}{100 * accuracy:10.1f}{dims[0]:14.1f}{dims[1]:16.1f}"]
        lines += [""]
    lines += [f"{'dim':>6}{'threshold':>12}{'answered':>10}"]
    for dim, threshold in zip(cascade.dims_, [*cascade.thresholds_, None], strict=True):
        share = float((answers.dims == dim).mean()) if len(answers.dims) else 0.0
        lines += [f"{dim:6}{_threshold(threshold):>12}{100 * share:9.1f}%"]
    lost = 0.0 if result is None else result.full_accuracy - result.accuracy
    if lost > 0.01 and not hasattr(cascade, "certified_"):
        lines += [f"loses {100 * lost:.1f} points against dim {cascade.dims_[-1]}; --max-loss 0.01 limits this to 1"]
    if hasattr(cascade, "certified_"):
        points, sure = f"{100 * cascade.max_loss:g} points", f"{100 * cascade.confidence:g} % confidence"
        if not cascade.certified_:
            lines += [f"no cascade could be certified to lose at most {points}, so dim {cascade.dims_[-1]} answers all"]
        elif covered:
            lines += [f"certified: at most {points} lost against dim {cascade.dims_[-1]}, with {sure}"]
        else:
            lines += ["certified for the split it was fitted on, not for these rows"]
    return "\n".join(lines)


def _threshold(value: float | None) -> str:
    if value is None:
        return "the rest"
    return "none" if value > 1 else f"{value:.2g}" if 0 < value < 0.001 else f"{value:.4f}"
