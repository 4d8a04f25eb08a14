"""The scikit-learn estimator API without scikit-learn: parameters that can be read, set and cloned."""

from __future__ import annotations

import inspect
from typing import Any, Self

from matryo.errors import InputError


class Classifier:
    """Base class of classifiers: ``__init__`` only stores parameters, and learned attributes end in ``_``."""

    _estimator_type = "classifier"   # for scikit-learn before 1.6, which has no tags

    def get_params(self, deep: bool = True) -> dict[str, Any]:   # noqa: ARG002  (nothing here is nested)
        """Return the arguments of ``__init__`` and their values."""
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        return {name: getattr(self, name) for name in names}

    def set_params(self, **params: Any) -> Self:
        """Change arguments of ``__init__`` and return self."""
        names = self.get_params()
        if strange := [name for name in params if name not in names]:
            raise InputError(
                f"{type(self).__name__} has no such parameter", got=strange, cure=f"choose from {', '.join(names)}"
            )
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        """Return the call that makes it, with the parameters that differ from the defaults."""
        defaults = inspect.signature(type(self).__init__).parameters
        changed = {name: value for name, value in self.get_params().items() if value is not defaults[name].default}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    def __sklearn_tags__(self) -> Any:
        """Return the tags that scikit-learn requires of an estimator; only this imports it."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(three_d_array=True),
        )

    def _forget(self) -> None:
        """Delete the attributes that an earlier fit learned."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
