"""Class means as an estimator of scikit-learn: what `derts predict` does with features."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from derts.errors import DertsError
from derts.labels import label_trust
from derts.models.feature_backbone import LENGTH

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:  # only who makes a classifier needs it: `from derts import *` does not

    class ClassifierMixin:  # type: ignore[no-redef]
        """Stands where scikit-learn's would."""

        def __new__(cls, *_: Any, **__: Any) -> Any:
            raise DertsError("PrototypeClassifier needs scikit-learn: pip install scikit-learn")

    BaseEstimator = object

DIVISOR = 64.0
"""ProtoNet's default `distance_divisor`."""


class PrototypeClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Each class is the mean of its rows; a row belongs to the nearest mean.

    With `trust` rows count by how far their label can be trusted (`derts.label_trust`), which
    `trust_` tells after `fit`: for training labels that may be wrong.

    >>> import numpy as np
    >>> rows, labels = np.array([[0.0], [1.0], [9.0]]), ["low", "low", "high"]
    >>> PrototypeClassifier().fit(rows, labels).predict([[2.0], [8.0]])
    array(['low', 'high'], dtype='<U4')
    """

    def __init__(self, *, trust: bool = False) -> None:
        self.trust = trust

    def fit(self, X: Any, y: Any) -> PrototypeClassifier:  # noqa: N803
        """Rows [n, d] and their n labels, of any kind."""
        fewest = 2 if self.trust else 1
        rows, labels = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=fewest)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        members = np.eye(len(self.classes_))[numbers]  # [n, classes]
        if self.trust:
            try:
                self.trust_ = label_trust(rows, numbers, classes=[str(c) for c in self.classes_])
            except DertsError as error:  # as scikit-learn's tools expect it
                raise ValueError(str(error)) from None
            members *= self.trust_.probability.double().clamp(min=1e-12).numpy()[:, None]
        self.means_ = (members / members.sum(0)).T @ rows
        spread = np.square(rows - rows.mean(0)).sum(1).mean()
        self.scale_ = LENGTH**2 / DIVISOR / spread if spread > 0 else 1.0
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Probabilities [n, classes], classes as in `classes_`."""
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False, dtype=np.float64)
        means = self.means_ - self.means_.mean(0)  # near zero, where differences are exact
        rows = rows - self.means_.mean(0)
        logits = (2 * rows @ means.T - np.square(means).sum(1)) * self.scale_
        shares = np.exp(logits - logits.max(1, keepdims=True))
        found: NDArray[np.float64] = shares / shares.sum(1, keepdims=True)
        return found

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The most probable class of each row."""
        best = self.predict_proba(X).argmax(1)
        found: NDArray[Any] = self.classes_[best]
        return found
