"""Modules that only a GPU machine can import are not looked into for examples elsewhere."""

import importlib.util
from pathlib import Path

KERNELS = (
    "distances",
    "greedy",
    "greedy_large",
    "inner_products",
    "norm_pool",
    "pixel_conv",
    "pixel_join",
    "pixels",
    "residual",
)
collect_ignore = (
    []
    if importlib.util.find_spec("triton")
    else [str(Path(__file__).parent / f"src/derts/kernels/{name}.py") for name in KERNELS]
)
