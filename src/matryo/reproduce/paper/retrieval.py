"""Image retrieval: single-shot, adaptive, funnel, on known and unseen classes (section 4.3, appendix E, F, J)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.reproduce.paper.derived import ALONE, dims_between, shortlists, stages, unseen
from matryo.reproduce.paper.numbers import numbers
from matryo.reproduce.table import Claim, Table

if TYPE_CHECKING:
    from matryo.reproduce.table import Label

_UNSEEN = "400 classes of the emoji that were hidden from training stand in for ImageNet-4K"
_SHORT = "drawings of known classes; the database is 200 times smaller than the paper's"
_TIMES = "wall-clock times need a large database: see the results of `benchmarks/search_core.py` and `retrieval.py`"


def _adaptive(name: str, label: str, title: str, note: str, claims: tuple[Claim, ...], **extra: object) -> Table:
    alone = {ALONE + metric: by for metric, by in _single(name).items()}
    return Table(name, label, title, "stages", "mAP@10, %", {**numbers(name), **alone}, claims, note={"small": note},
                 digits=2, derive=stages, **extra)  # type: ignore[arg-type]  # fmt: skip


def _single(name: str) -> dict[str, dict[Label, float]]:
    """The paper's figures of MRL with one search at each dim."""
    source = numbers("retrieval-unseen" if name.endswith("unseen") else "retrieval")
    return {metric: source[f"MRL {metric}"] for metric in ("Top-1", "mAP@10")}


TABLES = (
    Table(
        "retrieval", "tab:retrieval_IN1k", "Retrieval among known classes", "dim", "mAP@10, %", numbers("retrieval"),
        (
            Claim("MRL retrieves better than the fixed models at every dim (mAP@10)", "MRL mAP@10", "FF mAP@10",
                  strict=True),
            Claim("MRL is up to 3 points better than the fixed models", "MRL mAP@10", "FF mAP@10", 2.5, some=True),
            Claim("MRL-E retrieves better than the fixed models from 1/32 of the full dim on", "MRL-E mAP@10",
                  "FF mAP@10", 0.0, (1 / 32, 1.0)),
            Claim("At dims between two trained ones, mAP@10 lies above that of the smaller one", "_MRL mAP@10 between",
                  "_MRL mAP@10 below"),
        ),
        derive=dims_between("FF mAP@10", "MRL mAP@10"), figures=("r50-check",),
        drawn=("MRL mAP@10", "MRL-E mAP@10", "FF mAP@10", "SVD mAP@10"),
    ),
    Table(
        "retrieval-shifted", "tab:retrieval_INV2", "Retrieval with shifted queries", "dim", "mAP@10, %",
        numbers("retrieval-shifted"),
        (
            Claim("With shifted queries, MRL retrieves better than the fixed models at every dim", "MRL mAP@10",
                  "FF mAP@10", strict=True),
            Claim("With shifted queries, MRL is up to 3 points better", "MRL mAP@10", "FF mAP@10", 2.5, some=True),
        ),
        note={"small": "drawings by another vendor (twemoji) stand in for ImageNet-V2"},
        drawn=("MRL mAP@10", "MRL-E mAP@10", "FF mAP@10"),
    ),
    Table(
        "retrieval-unseen", "tab:retrieval_IN4k", "Retrieval among unseen classes", "dim", "mAP@10, %",
        numbers("retrieval-unseen"),
        (
            Claim("Among unseen classes, more dims always help", "MRL mAP@10", "_below", 0.0, strict=True),
            Claim("Unseen classes need more dims: at 1/32 to 1/16 of the dims, a tenth of mAP@10 is lost",
                  "_lost share", "", 10.0, (1 / 32, 1 / 16), strict=True),
        ),
        note={"small": _UNSEEN}, derive=unseen, drawn=("MRL mAP@10",),
    ),
    _adaptive(
        "re-rank", "tab:rerank-in1k", "Adaptive retrieval", _SHORT,
        (
            Claim("A shortlist at 16 dims, re-ranked at full dim, is as good as a search at full dim (within 0.1 "
                  "points)", "_from 16 mAP@10", "_full dim mAP@10", -0.1),
            Claim("Re-ranking always pays: every pair is at least as good as a search at its first dim", "mAP@10",
                  "_first dim mAP@10"),
        ),
        figures=("r50-retrieval",),
    ),
    _adaptive(
        "re-rank-unseen", "tab:rerank-in4k", "Adaptive retrieval among unseen classes", _UNSEEN,
        (
            Claim("Among unseen classes a shortlist at 64 dims, re-ranked at full dim, is as good as a search at full "
                  "dim (within 0.1 points)", "_from 64 mAP@10", "_full dim mAP@10", -0.1),
        ),
    ),
    _adaptive(
        "funnel", "tab:rerankcascade_in1k", "Funnel retrieval", _SHORT,
        (
            Claim("A funnel from 16 dims is within 0.1 points of a search at full dim (top-1)", "Top-1",
                  "_full dim Top-1", -0.1, only=("16, 200 → …", "16, 400 → …", "16, 800 → …")),
        ),
    ),
    _adaptive(
        "funnel-unseen", "tab:rerankcascade_in4k", "Funnel retrieval among unseen classes", _UNSEEN,
        (
            Claim("Among unseen classes a funnel from 32 dims is within 0.25 points of a search at full dim (top-1)",
                  "Top-1", "_full dim Top-1", -0.25, only=("32, 200 → …", "32, 400 → …", "32, 800 → …")),
        ),
    ),
    Table("search-time", "tab:ret_searchtime", "Time of a search", "dim", "seconds for all queries",
          numbers("search-time"), missing={"small": _TIMES, "paper": _TIMES}, digits=2),
    Table("index-size", "tab:ret_buildtime_indexsize", "Size and build time of an index", "dim", "MB and seconds",
          numbers("index-size"), missing={"small": _TIMES, "paper": _TIMES}, digits=2),
    Table("shortlist-time", "tab:retrieval_searchtime_shortlist", "Time by shortlist length", "shortlist",
          "seconds for all queries", numbers("shortlist-time"), missing={"small": _TIMES, "paper": _TIMES}, digits=2),
    Table(
        "shortlist", "tab:rerank_ablation_shortlist_in1k", "Length of the shortlist", "shortlist",
        "mAP@10, %", numbers("shortlist"),
        (Claim("A shortlist of 200 is as good as a longer one (within 0.1 points)", "_at 200", "mAP@10", -0.1,
               only=(400, 800, 1600, 2048)),),
        note={"small": _SHORT}, digits=2, derive=shortlists,
    ),
    Table(
        "shortlist-unseen", "tab:rerank_ablation_shortlist_in4k", "Length of the shortlist among unseen classes",
        "shortlist", "mAP@10, %", numbers("shortlist-unseen"),
        (Claim("Among unseen classes, longer shortlists keep helping", "mAP@10", "_at 200", 0.0, only=(400, 800, 1600),
               strict=True),),
        note={"small": _UNSEEN}, digits=2, derive=shortlists,
    ),
)  # fmt: skip
