"""Accuracy by dim: heads, nearest neighbours, cascades, and other modalities (sections 4.2 and appendix C, D)."""

from __future__ import annotations

from matryo.reproduce.paper.derived import lowest_trained, saving, span
from matryo.reproduce.paper.numbers import numbers
from matryo.reproduce.table import Claim, Table

_SMALL_DIMS = (0.0, 1 / 16)
_PAIRS = "pairs of drawings and their names (`emoji-pairs`) stand in for ALIGN's data"
_PRIVATE = "ALIGN's and JFT's data are not public"

TABLES = (
    Table(
        "accuracy", "tab:r50_accuracy_main", "Top-1 accuracy of the heads", "dim", "top-1 accuracy, %",
        numbers("accuracy"),
        (
            Claim("MRL is at least as accurate as a fixed model of each dim (within 0.1 points)", "MRL", "FF", -0.1),
            Claim("MRL-E is within 1 point of the fixed models from 16 dims on", "MRL-E", "FF", -1.0, (1 / 128, 1.0)),
            Claim("MRL is far ahead of SVD and of a probe on random features at small dims", "MRL",
                  ("SVD", "Rand. LP"), 5.0, _SMALL_DIMS, strict=True),
            Claim("A slimmable network loses much accuracy at small dims", "MRL", "Slim. Net", 10.0, (0.0, 1 / 8),
                  strict=True),
        ),
        figures=("r50-acc",), drawn=("MRL", "MRL-E", "FF", "SVD", "Rand. LP"),
    ),
    Table(
        "1-nn", "tab:r50-knn-acc", "1-nearest-neighbour accuracy", "dim", "1-NN accuracy, %", numbers("1-nn"),
        (
            Claim("MRL is more accurate than the fixed models at small dims, by up to 2 points", "MRL", "FF", 0.0,
                  _SMALL_DIMS, strict=True),
            Claim("MRL is as accurate as the fixed models at the other dims (within 0.5 points)", "MRL", "FF", -0.5,
                  (1 / 16, 1.0)),
            Claim("SVD, random features and random projections fall far behind at small dims", "MRL",
                  ("SVD", "Rand. FS", "JL"), 5.0, (0.0, 1 / 64), strict=True),
            Claim("MRL outperforms all baselines at every dim", "MRL",
                  ("FF", "SVD", "Rand. FS", "JL", "Slim. Net")),
        ),
        figures=("r50-knn-acc",), drawn=("MRL", "MRL-E", "FF", "SVD", "Rand. FS", "JL"),
    ),
    Table(
        "cascade", "tab:r50_cascades", "Adaptive classification", "last dim", "accuracy, %",
        {**numbers("cascade"), "_FF": numbers("accuracy")["FF"]},
        (
            Claim("A cascade is as accurate as the fixed model of a quarter of the full dim, with fewer expected dims",
                  "_saving", "", 1.0, strict=True),
            Claim("A cascade is more accurate than fixed models of its expected size", "Accuracy", "_FF of that size",
                  strict=True),
            Claim("At its largest stop, a cascade is within 0.8 points of the fixed model of full dim", "Accuracy",
                  "_FF of full dim", -0.8, (1.0, 1.0)),
        ),
        derive=saving, figures=("r50-mrl-cascade-acc",),
    ),
    Table(
        "web-scale", "tab:r50-align_jft_knn", "Models of web-scale data", "dim", "accuracy, %", numbers("web-scale"),
        (
            Claim("ALIGN-MRL is far more accurate than ALIGN's truncated vectors at small dims", "ALIGN-MRL", "ALIGN",
                  3.0, (0.0, 1 / 8), strict=True),
            Claim("ALIGN-MRL is within 0.5 points of ALIGN at full dim", "ALIGN-MRL", "ALIGN", -0.5, (1.0, 1.0)),
        ),
        figures=("ViT-acc",), missing={"paper": _PRIVATE},
        note={"small": f"{_PAIRS}; the numbers are hit@1 from drawing to name"}, drawn=("ALIGN-MRL", "ALIGN"),
    ),
    Table(
        "between", "tab:align_jft_interpolated", "Dims between the trained ones", "dim", "accuracy, %",
        {**numbers("between"), "_trained": numbers("web-scale")["ALIGN-MRL"]},
        (Claim("At dims between two trained ones, accuracy is not below that of the smaller one (within 0.2 points)",
               "ALIGN-MRL", "_of the dim below", -0.2),),
        derive=lowest_trained, figures=("int-acc",), missing={"paper": _PRIVATE}, note={"small": _PAIRS},
    ),
    Table(
        "cosines", "tab:align-cosine-sim", "Cosines of positive and random pairs", "pairs", "mean cosine",
        numbers("cosines"),
        (
            Claim("MRL raises the cosine of positive pairs", "ALIGN-MRL", "ALIGN", only=("positive text to image",),
                  strict=True),
            Claim("MRL widens the span between positive and random pairs", "ALIGN-MRL", "ALIGN", only=("span",),
                  strict=True),
        ),
        missing={"paper": _PRIVATE}, note={"small": _PAIRS}, digits=3, derive=span,
    ),
    Table(
        "masked-words", "tab:bert_mlm", "Masked language modelling", "dim", "accuracy of masked words, %",
        numbers("masked-words"),
        (Claim("BERT-MRL is within 0.5 points of a fixed BERT of each dim", "BERT-MRL", "BERT-FF", -0.54),),
        missing={"small": "no text corpus is bundled", "paper": "train `bert-base-mlm` on Wikipedia and BooksCorpus; "
                 "`matryo train` prints the accuracy of masked words at every dim"},
    ),
)  # fmt: skip
