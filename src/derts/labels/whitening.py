"""Features in which classes spread alike in all directions."""

import torch
from torch import Tensor

from derts.errors import DertsError

SHRINKAGE = 10.0  # images per dimension with which the spread within classes is half believed


def whitening(covariance: Tensor, freedom: float) -> Tensor:
    """[d, d]: x @ it has about the same spread within classes in all directions.

    covariance  within classes, float64 [d, d]; of `freedom` images more than there are classes
    """
    dim = len(covariance)
    level = float(covariance.diagonal().mean()) or 1.0
    shrinkage = SHRINKAGE * dim / (SHRINKAGE * dim + freedom)
    identity = torch.eye(dim, dtype=covariance.dtype, device=covariance.device)
    mixed = (1 - shrinkage) * covariance + (shrinkage + 1e-6) * level * identity
    if not bool(mixed.isfinite().all()):
        fix = "scale them to numbers of about 1"
        raise DertsError(f"the features are too large to compute their spread: {fix}")
    root = torch.linalg.cholesky(mixed)  # x ↦ x L⁻ᵀ for mixed = L Lᵀ
    found: Tensor = torch.linalg.solve_triangular(root, identity, upper=False).T
    return found
