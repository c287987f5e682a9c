"""Where an update's time goes: the GPU's kernels, profiled and grouped by what they are for.

    python benchmarks/breakdown.py --out results/breakdown-h200.json   # a GPU, full size
    python benchmarks/breakdown.py --quick                             # tiny, a CPU's operators

ProtoNet on random pixels, 5-way 5-shot with 15 query images per class, 32 tasks per update. Beside
the kernels' own time, summed, stands that of an update on the clock, not profiled.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import tyro
from timing import save_results, seconds
from torch.profiler import ProfilerActivity, profile
from update import images_of, our_update

GROUPS = {
    r"wgrad|init_device_workspace": "convolutions: gradients of weights",
    r"fprop|dgrad|conv": "convolutions: forward and gradients of inputs",
    r"nvjet|gemm|cutlass|cublas|addmm|::mm|bmm": "matrix products",
}
REST = "everything else"


def group_of(kernel: str) -> str:
    """What a kernel is for, by its name.

    >>> group_of("sm90_xmma_wgrad_indexed_implicit_gemm_bf16"), group_of("_leaky_backward")
    ('convolutions: gradients of weights', 'our kernel leaky_backward')
    """
    if re.fullmatch(r"_[a-z_]+", kernel):  # Triton's have the names of their functions
        return f"our kernel {kernel[1:]}"
    return next((name for rule, name in GROUPS.items() if re.search(rule, kernel)), REST)


def breakdown(backbone: str, updates: int, quick: bool) -> dict[str, Any]:
    """Milliseconds per update, all together and by group, and launches of each."""
    case = {
        "learner": "protonet",
        "backbone": backbone,
        "way": "ours",
        "width": 4 if quick else 64,
        "tasks": 2 if quick else 32,
    }
    update = our_update(case, images_of(16 if quick else 84, quick), quick)
    cuda = torch.cuda.is_available()
    seconds(update, 1, updates)
    alone = 1000 * seconds(update, 1, updates)[0]
    activity = ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiled:
        for _ in range(updates):
            update()
        if cuda:
            torch.cuda.synchronize()
    groups: dict[str, dict[str, float]] = {}
    for event in profiled.key_averages():
        spent = event.self_device_time_total if cuda else event.self_cpu_time_total
        if not spent:  # the CPU's part in launching kernels
            continue
        found = groups.setdefault(group_of(event.key), {"ms": 0.0, "launches": 0.0})
        found["ms"] += spent / 1000 / updates
        found["launches"] += event.count / updates
    ordered = dict(sorted(groups.items(), key=lambda item: -item[1]["ms"]))
    busy = sum(group["ms"] for group in ordered.values())
    return {"backbone": backbone, "ms": alone, "kernels_ms": busy, "groups": ordered}


def main(
    backbones: tuple[str, ...] = ("cnn4", "resnet12"), out: Path | None = None, quick: bool = False
) -> None:
    """Profile each backbone."""
    found = []
    for backbone in backbones:
        row = breakdown(backbone, 1 if quick else 8, quick)
        print(f"{backbone}: {row['ms']:.2f} ms, {row['kernels_ms']:.2f} in kernels", flush=True)
        for name, group in row["groups"].items():
            print(f"  {group['ms']:8.3f} ms {group['launches']:6.1f} × {name}", flush=True)
        found.append(row)
    save_results(out, found)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
