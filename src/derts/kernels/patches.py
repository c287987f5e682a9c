"""Where the 3×3 patches of an image are in the rows that the pixel kernels make of it.

A row holds the 4×4 pixels that the four positions of a pooled cell see, four bytes a pixel
(derts.kernels.pixels).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

ENTRIES = 64  # of a cell's row: byte b of pixel p is entry 16 b + p
FOURTH = 3 * 16 + 5  # entry of the fourth byte of a pixel that is always inside of the image


def _places(channels: int, device: torch.device) -> Tensor:
    """int64 [4, 9C + 1]: where the patch of each position, and the one, are in a row."""
    row = torch.arange(16 * channels, device=device).view(channels, 4, 4)
    corners, patch = row[0, :2, :2].reshape(4, 1), row[:, :3, :3].reshape(1, -1)
    return F.pad(corners + patch, (0, 1), value=FOURTH)


def products_of_patches(found: Tensor, channels: int) -> Tensor:
    """Products of rows [..., 64, 64] -> of the patches in them, [..., 9C + 1, 9C + 1]."""
    places = _places(channels, found.device)
    return torch.stack([found[..., place, :][..., place] for place in places]).sum(0)


def filters_of_rows(weight: Tensor) -> Tensor:
    """Filters [F, C, 3, 3] -> bfloat16 [4, 64, F]: what each position multiplies a row by."""
    filters, channels = weight.shape[:2]
    places = _places(channels, weight.device)[:, :-1]
    spread = torch.zeros(4, ENTRIES, filters, dtype=torch.bfloat16, device=weight.device)
    flat = weight.flatten(1).T.to(torch.bfloat16).expand(4, -1, -1)
    return spread.scatter_(1, places[..., None].expand(-1, -1, filters), flat)


def gradients_of_filters(found: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Σ of row ⊗ gradient [4, 64, F] -> gradients of filters, of `shape`, and of a shift [F]."""
    places = _places(shape[1], found.device)
    gradient = found.gather(1, places[..., None].expand(-1, -1, found.shape[2])).sum(0)
    return gradient[:-1].T.reshape(shape), gradient[-1]
