"""The rungs of a retrofit as baselines: maps that are chosen, that use labels, or that are learned with torch.

>>> rng = np.random.default_rng(0)
>>> turn = np.linalg.qr(rng.normal(size=(16, 16)))[0]
>>> train = EmbeddingSet.of(rng.normal(size=(800, 16)) * np.geomspace(1, 0.1, 16) @ turn)
>>> mapped = LadderRung("retrofit").fit(train).apply(train).vectors
>>> [round(float(np.square(z[:, :4]).sum() / np.square(z).sum()), 1) for z in (train.vectors, mapped)]
[0.2, 0.7]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from matryo.arguments import checked
from matryo.baselines.map import Map
from matryo.embeddings import EmbeddingSet
from matryo.errors import EmbeddingsError
from matryo.retrofit.fitting import Fit, Options

_NEEDS = {
    "classes": "labels of at least two rows of a class",
    "blocks": "a nesting of several dims",
}


@checked
@dataclass(frozen=True)
class LadderRung:
    """A rung of :class:`matryo.Retrofit` by name, or as "retrofit" the map that it takes for all dims.

    ``classes`` is fitted to the labels of the training embeddings, ``blocks`` keeps the span of the dims that they were
    trained for; ``learned`` and ``adaptor`` are trained with torch.
    """

    rung: str
    seed: int = 0

    @checked
    def fit(self, train: EmbeddingSet) -> Map:
        """Fit the ladder to ``train`` and return the rung."""
        trained = train.nesting if len(train.nesting) > 1 else None
        nesting = train.nesting if len(train.nesting) > 1 and train.nesting.dim == train.dim else None
        options = Options(nesting, trained, learn=self.rung == "learned", adapt=self.rung == "adaptor", seed=self.seed,
                          progress=False)  # fmt: skip
        fitted = Fit(options).run(train, None, None, train.labels if self.rung == "classes" else None)
        name = fitted.whole if self.rung == "retrofit" else self.rung
        if name not in fitted.rungs:
            rule = f"the rung {name} needs {_NEEDS.get(name, 'vectors of several dims')}"
            raise EmbeddingsError(rule, got=f"{train.path} without", cure="use the baseline retrofit")
        rung = fitted.rungs[name]
        mean = np.zeros(train.dim) if rung.mean is None else rung.mean
        return Map(rung.axes, mean, normalize=True, orthogonal=rung.correction is None, correction=rung.correction)
