"""The effect of choices of training: weights, smallest dim, spacing, finetuning (appendix J)."""

from __future__ import annotations

from matryo.reproduce.paper.derived import smallest_dims
from matryo.reproduce.paper.numbers import numbers
from matryo.reproduce.table import Claim, Table

TABLES = (
    Table(
        "finetuning", "tab:nesting_as_finetuning", "A fixed model made nested by finetuning its last layers", "dim",
        "top-1 accuracy, %", numbers("finetuning"),
        (
            Claim("Finetuning the heads alone is not enough at small dims", "MRL", "fc", 10.0, (0.0, 1 / 32),
                  strict=True),
            Claim("Training one more layer adds accuracy at the smallest dim", "4.2 conv3, fc",
                  "fc", 0.0, (0.0, 0.0), strict=True),
            Claim("Training two more layers adds still more",
                  "4.2 conv2, conv3, fc", "4.2 conv3, fc", 0.0, (0.0, 0.0), strict=True),
            Claim("Training the whole last block adds still more",
                  "4.2 full, fc", "4.2 conv2, conv3, fc", 0.0, (0.0, 0.0), strict=True),
            Claim("With the last block trained, larger dims are within 1.5 points of training from scratch",
                  "4.2 full, fc", "MRL", -1.5, (1 / 16, 1.0)),
        ),
        note={"small": "ConvNet: the projection, the last convolution, and the last block, for 3 epochs"},
        drawn=("MRL", "4.2 full, fc", "4.2 conv2, conv3, fc", "4.2 conv3, fc", "fc"),
    ),
    Table(
        "weights", "tab:ablation_trainloss", "Larger weights of the losses of small dims", "dim", "top-1 accuracy, %",
        numbers("weights"),
        (
            Claim("Weight 2 at the smallest dim raises its accuracy (in the paper by 3 points)",
                  "MRL-8boost", "MRL", 0.0,
                  (0.0, 0.0), strict=True),
            Claim("Weight 2 at the smallest dim costs at most 0.1 points at the large dims",
                  "MRL-8boost", "MRL", -0.1, (1 / 8, 1.0)),
            Claim("Weights 2 and 1.5 raise the accuracy of both smallest dims", "MRL-8+16boost", "MRL", 0.0,
                  (0.0, 1 / 128), strict=True),
        ),
        drawn=("MRL", "MRL-8boost", "MRL-8+16boost"),
    ),
    Table(
        "smallest-dim", "tab:ablation_train_smalldim", "Other smallest dims", "dim", "top-1 accuracy, %",
        numbers("smallest-dim"),
        (
            Claim("A smaller smallest dim hardly affects the others (within 0.7 points): 4 dims",
                  "MRL-4", "MRL-8", -0.7),
            Claim("A smaller smallest dim hardly affects the others (within 0.75 points): 6 dims",
                  "MRL-6", "MRL-8", -0.75),
            Claim("Dims below 8 have far lower accuracy: 4 dims, by more than 5 points",
                  "_8 of MRL-8", "_4 of MRL-4", 5.0, strict=True),
        ),
        derive=smallest_dims,
        drawn=("MRL-8", "MRL-6", "MRL-4"),
    ),
    Table(
        "spacing", "tab:ablation_uniform_nesting", "Logarithmic or uniform spacing of the dims", "dim",
        "1-NN accuracy, %", numbers("spacing"),
        (
            Claim("Logarithmic spacing is better at small dims", "MRL-Log", "MRL-Uniform", 0.0, (0.0, 1 / 16),
                  strict=True),
            Claim("Uniform spacing gains at most 0.5 points at large dims", "MRL-Log", "MRL-Uniform", -0.5,
                  (1 / 8, 1.0)),
        ),
        drawn=("MRL-Log", "MRL-Uniform"),
    ),
)  # fmt: skip
