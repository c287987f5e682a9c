"""Theorem 1's ε, measured: how well each estimate and weighting stands for a pool's gradient."""

from pathlib import Path
from typing import Any

import torch

from derts.data.table import Table
from derts.facility_location import select
from derts.gradients import (
    PoolEstimate,
    estimate_pool,
    exact_gradients,
    usable_estimates,
    with_random_labels,
)
from derts.learners.base import Learner
from derts.progress import Progress, silent
from derts.report.figures import new_figure, save_figure
from derts.selection.derts import Weighting, selection_weights
from derts.selection.noisy_tasks import find_noisy
from derts.tasks.pool import TaskPool
from derts.tasks.randomness import generator

WEIGHTINGS: tuple[Weighting, ...] = ("counts", "none", "calibrated")
NORMS = ("logit-theta", "logit")  # estimates whose norm tells noisy tasks
CALIBRATED_DRAWS = 10
PAIRS = 20_000  # pairs of tasks whose distances are ranked
Rows = list[tuple[str, ...]]
BAR_COLORS = ("#2b6cb0", "#a0aec0", "#2f855a", "#d69e2e")
RANDOM_COLOR = "#c53030"


def diagnose(
    learner: Learner[Any],
    images: Table,
    pool: TaskPool,
    *,
    ratio: float = 0.3,
    draws: int = 100,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Compare every estimate with the pool's exact gradient.

    The relative error is ‖Σ_S w g − Σ_M g‖ / ‖Σ_M g‖ with g the exact gradients, w scaled so that
    Σw = N, and S the tasks that the estimate selects: Theorem 1's ε, relative. Returned are:

    pool, selected  tasks in the pool, and in each selection
    random          relative error of random subsets of the same size: mean, and spread over draws
    estimates       a row per estimate: relative error by weighting, rank correlation of distances
                    with the exact ones, largest and effective weight
    scores          a row per noise score: how well it tells noisy tasks from clean (None: no noise)
    mislabelled     share of wrong labels in the pool
    """
    names = usable_estimates(learner)
    count = max(1, round(ratio * len(pool)))
    with progress("diagnosing", len(names) + 1, "steps") as advance:
        exact = exact_gradients(learner, images, pool)
        advance(1, note="exact gradients")
        cheap = [name for name in names if name != "exact"]
        reference = with_random_labels(pool, (0, "reference"))
        found = estimate_pool(learner, images, pool, cheap, reference=reference)
        found.gradients["exact"] = exact
        rows = []
        for name in names:
            rows.append(_estimate_row(name, found.gradients[name], exact, count))
            advance(1, note=name)
    random = generator((0, "random subsets"))
    orders = (torch.randperm(len(exact), generator=random)[:count] for _ in range(draws))
    errors = torch.tensor([relative_error(exact, order, torch.ones(count)) for order in orders])
    return {
        "pool": len(pool),
        "selected": count,
        "random": {"mean": float(errors.mean()), "deviation": float(errors.std()), "draws": draws},
        "estimates": rows,
        "scores": _score_rows(found, pool),
        "mislabelled": round(float(pool.mislabelled().mean()), 6),
    }


def relative_error(exact: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> float:
    """‖Σ_S w g − Σ_M g‖ / ‖Σ_M g‖ for exact gradients [N, P]; weights [K] are scaled to Σw = N.

    >>> exact = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [0.0, 3.0]])
    >>> round(relative_error(exact, torch.tensor([0, 1]), torch.tensor([3.0, 1.0])), 3)
    0.6
    """
    weights = (weights / weights.sum() * len(exact)).to(exact)
    target = exact.sum(0)
    return float((weights @ exact[indices.to(exact.device)] - target).norm() / target.norm())


def distance_rank_correlation(first: torch.Tensor, second: torch.Tensor) -> float:
    """Spearman's correlation of the distances of the same random pairs of rows in both."""
    random = generator((0, "pairs"))
    pairs = torch.randint(len(first), (2, PAIRS), generator=random)
    a, b = pairs[:, pairs[0] != pairs[1]]

    def ranks(rows: torch.Tensor) -> torch.Tensor:
        parts = [
            (rows[i.to(rows.device)] - rows[j.to(rows.device)]).norm(dim=1).cpu()
            for i, j in zip(a.split(256), b.split(256), strict=True)
        ]
        return torch.cat(parts).argsort().argsort().double()

    return float(torch.corrcoef(torch.stack((ranks(first), ranks(second))))[0, 1])


def _estimate_row(
    name: str, gradients: torch.Tensor, exact: torch.Tensor, count: int
) -> dict[str, Any]:
    def error(kind: Weighting, indices: torch.Tensor, counts: torch.Tensor) -> float:
        weights = selection_weights(kind, gradients, indices, counts)
        return relative_error(exact, indices, weights)

    selection, random = select(gradients, count), generator((0, "subset"))
    counts, size = selection.weights, len(gradients)
    draws = (torch.randperm(size, generator=random)[:count] for _ in range(CALIBRATED_DRAWS))
    errors = [error("calibrated", order, torch.ones(count)) for order in draws]
    return {
        "estimate": name,
        "size": gradients.shape[1],
        "error": {
            **{kind: error(kind, selection.indices, counts) for kind in WEIGHTINGS},
            "random subset, calibrated": sum(errors) / len(errors),
        },
        "largest_count": float(counts.max()),
        "effective_tasks": float(counts.sum().square() / counts.square().sum()),
        "rank_correlation": distance_rank_correlation(gradients, exact),
    }


def _score_rows(found: PoolEstimate, pool: TaskPool) -> list[dict[str, Any]]:
    wrong = pool.mislabelled()
    noisy = wrong > 0
    mixed = bool(noisy.any()) and not bool(noisy.all())
    scores = {f"norm of {name}": found.gradients[name].norm(dim=1).cpu() for name in NORMS}
    rows = []
    for name, values in {**scores, "loss": found.losses.cpu()}.items():
        drop = find_noisy(values, found.reference_losses if name == "loss" else None).drop
        kept = None if bool(drop.all()) else float(wrong[~drop].mean())
        row = {"score": name, "auroc": auroc(values, noisy) if mixed else None}
        rows.append(row | {"dropped": float(drop.float().mean()), "mislabelled_kept": kept})
    return rows


def auroc(scores: torch.Tensor, noisy: torch.Tensor) -> float:
    """Chance that a noisy task scores above a clean one, ties counting half.

    scores [N], noisy bool [N] with both kinds; a score that is not a number counts as highest.

    >>> auroc(torch.tensor([0.1, 0.2, 0.2, 0.9]), torch.tensor([False, False, True, True]))
    0.875
    """
    values = scores.double().nan_to_num(nan=torch.inf)
    ours, theirs = values[noisy][:, None], values[~noisy]
    return float((ours > theirs).double().mean() + (ours == theirs).double().mean() / 2)


def table_rows(values: dict[str, Any]) -> tuple[Rows, Rows]:
    """Two tables of text, each with a heading: the estimates, and the noise scores."""
    kinds = list(values["estimates"][0]["error"])
    estimates: Rows = [
        ("estimate", "size", *kinds, "largest γ", "effective tasks", "rank correlation")
    ]
    for row in values["estimates"]:
        errors = [f"{row['error'][kind]:.3f}" for kind in kinds]
        numbers = (f"{row['largest_count']:.0f}", f"{row['effective_tasks']:.0f}")
        correlation = f"{row['rank_correlation']:.2f}"
        estimates.append((row["estimate"], str(row["size"]), *errors, *numbers, correlation))
    random = f"{values['random']['mean']:.3f} ± {values['random']['deviation']:.3f}"
    others = ("",) * (len(kinds) - 1)
    estimates.append(("random subset", "", random, *others, "1", str(values["selected"]), ""))
    scores: Rows = [("noise score", "AUROC", "automatic split drops", "wrong labels kept")]
    for row in values["scores"]:
        auroc = "no noise" if row["auroc"] is None else f"{row['auroc']:.3f}"
        kept = "" if row["mislabelled_kept"] is None else f"{100 * row['mislabelled_kept']:.1f}%"
        scores.append((row["score"], auroc, f"{100 * row['dropped']:.1f}%", kept))
    return estimates, scores


def draw_diagnosis(values: dict[str, Any], path: Path) -> None:
    """Relative error by estimate and weighting, beside random subsets of the same size."""
    figure = new_figure((8, 4.2))
    axes = figure.subplots()
    rows, random = values["estimates"], values["random"]
    kinds = list(rows[0]["error"])
    width = 0.8 / len(kinds)
    for number, kind in enumerate(kinds):
        places = [index + (number - (len(kinds) - 1) / 2) * width for index in range(len(rows))]
        heights = [row["error"][kind] for row in rows]
        axes.bar(places, heights, width, label=kind, color=BAR_COLORS[number % len(BAR_COLORS)])
    label = f"random subset, mean of {random['draws']:.0f}"
    axes.axhline(random["mean"], color=RANDOM_COLOR, linestyle="--", linewidth=1.2, label=label)
    axes.set(ylabel="relative error of the pool's exact gradient", ylim=(0, None))
    axes.set_xticks(range(len(rows)), [row["estimate"] for row in rows], rotation=15)
    axes.set_title(f"{values['selected']} of {values['pool']} tasks selected (lower is better)")
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path, dpi=150)
