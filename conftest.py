"""Modules that only a GPU machine can import are not looked into for examples elsewhere."""

import importlib.util
from pathlib import Path

KERNELS = (
    "facility_location/distance_kernel",
    "facility_location/greedy_kernel",
    "facility_location/greedy_large_kernel",
    "kernels/inner_products",
    "kernels/norm_pool",
    "kernels/pixel_conv",
    "kernels/pixel_join",
    "kernels/pixels",
    "kernels/residual",
)
collect_ignore = (
    []
    if importlib.util.find_spec("triton")
    else [str(Path(__file__).parent / f"src/derts/{name}.py") for name in KERNELS]
)
