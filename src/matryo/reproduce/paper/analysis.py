"""Few-shot, long tails, robustness, disagreement of dims and superclasses (section 5, appendix G, H, K)."""

from __future__ import annotations

from matryo.reproduce.paper.derived import full_dim, oracle, superclass_loss
from matryo.reproduce.paper.numbers import numbers
from matryo.reproduce.table import Claim, Table

_SHIFT = "drawings by other vendors (twemoji, high-contrast) stand in for ImageNet-V2 and ImageNet-Sketch"
_FLUID = "FLUID's stream is not public as one set of images; `matryo evaluate --protocols stream` measures your own"

TABLES = (
    Table(
        "few-shot", "Tab:FSL-INV2", "Few-shot accuracy", "dim", "accuracy of the nearest class mean, %",
        numbers("few-shot"),
        (
            Claim("MRL equals the fixed models for any number of shots and dims (within 0.5 points)", "MRL *", "FF *",
                  -0.5),
        ),
        note={"small": "the three test styles together, 3 drawings a class, so 1 and 2 shots"},
        drawn=("MRL 1-shot", "FF 1-shot", "MRL 2-shot", "FF 2-shot", "MRL 5-shot", "FF 5-shot"),
    ),
    Table(
        "stream", "tab:fluid", "Long-tail stream with novel classes (FLUID)", "dim", "accuracy, %", numbers("stream"),
        (
            Claim("MRL is up to 2 points more accurate on novel classes in the tail", "MRL novel-tail",
                  "FF novel-tail", 1.5, some=True),
            Claim("MRL costs no accuracy on classes of the pretraining (within 1.5 points at full dim)",
                  "MRL pretrain-*", "FF pretrain-*", -1.5, (1.0, 1.0)),
        ),
        missing={"paper": _FLUID},
        note={"small": "400 classes were hidden from training; both models were trained without them"},
    ),
    Table(
        "robustness", "tab:robustness", "Accuracy of the heads on shifted test sets", "dim", "top-1 accuracy, %",
        numbers("robustness"),
        (
            Claim("On ImageNet-V2, MRL is at least as accurate as the fixed models", "ImageNet-V2 MRL",
                  "ImageNet-V2 FF"),
            Claim("On ImageNet-R, MRL is within 2.1 points of the fixed models", "ImageNet-R MRL",
                  "ImageNet-R FF", -2.1),
            Claim("On ImageNet-A, MRL is more accurate than the fixed models", "ImageNet-A MRL", "ImageNet-A FF",
                  strict=True),
            Claim("On ImageNet-Sketch, MRL is within 0.5 points of the fixed models", "ImageNet-Sketch MRL",
                  "ImageNet-Sketch FF", -0.5),
        ),
        note={"small": _SHIFT}, drawn=("ImageNet-V2 MRL", "ImageNet-V2 FF", "ImageNet-V2 MRL-E"),
    ),
    Table(
        "zero-shot", "tab:r50-align_zeroshot", "Zero-shot classification of images by texts", "dim",
        "top-1 accuracy, %", numbers("zero-shot"),
        (
            Claim("A quarter of the dims keeps zero-shot accuracy within 1.5 points of the full dim", "V1", "_V1 full",
                  -1.5, (0.25, 0.5)),
        ),
        missing={"paper": "ALIGN's data is not public"},
        note={"small": "drawings not in training are classified among the names of all drawings of that split"},
        derive=full_dim("V1"),
    ),
    Table(
        "oracle", "tab:oracle-acc", "Share of queries that each dim is the first to classify correctly", "dim",
        "share, %", {**numbers("oracle"), "_MRL alone": numbers("accuracy")["MRL"]},
        (
            Claim("Perfect routing to a dim would gain accuracy over the best dim, up to 4.6 points", "MRL",
                  "_best dim", 0.5, only=("oracle",), strict=True),
        ),
        figures=("r50-perclass",), derive=oracle,
    ),
    Table(
        "oracle-shifted", "tab:oracle_robustness", "Perfect routing on shifted test sets", "test set",
        "top-1 accuracy, %", numbers("oracle-shifted"),
        (
            Claim("Perfect routing gains more than 4 points over the fixed model of full dim on every test set",
                  "MRL oracle", "FF", 4.0, strict=True),
        ),
        note={"small": _SHIFT},
    ),
    Table(
        "superclass", "tab:superclass", "Accuracy on superclasses", "dim", "accuracy, %",
        {**numbers("superclass"), "_MRL classes": numbers("accuracy")["MRL"]},
        (
            Claim("Small dims lose less accuracy on superclasses than on classes", "_kept of superclasses",
                  "_kept of classes", strict=True),
            Claim("MRL is at least as accurate on superclasses as the fixed models, at every dim", "MRL", "FF"),
        ),
        figures=("superclass_barplot_main", "superclass_main"), derive=superclass_loss, drawn=("MRL", "FF"),
        note={"small": "the 10 groups of emoji are the superclasses"},
    ),
    Table("superclass-names", "tab:superclass_names", "Names of the superclasses", "–", "–",
          missing=dict.fromkeys(("small", "paper"), "a list of names; it has no numbers")),
)  # fmt: skip
