"""A diagnosis as tables and one figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from derts.report.figures import new_figure, save_figure

Rows = list[tuple[str, ...]]
BAR_COLORS = ("#2b6cb0", "#a0aec0", "#2f855a", "#d69e2e")
RANDOM_COLOR = "#c53030"


def table_rows(values: dict[str, Any]) -> tuple[Rows, Rows]:
    """Two tables of text, each with a heading: the estimates, and the noise scores."""
    kinds = list(values["estimates"][0]["error"])
    estimates: Rows = [
        ("estimate", "size", *kinds, "largest γ", "effective tasks", "rank correlation")
    ]
    for row in values["estimates"]:
        errors = [f"{row['error'][kind]:.3f}" for kind in kinds]
        numbers = (f"{row['largest_count']:.0f}", f"{row['effective_tasks']:.0f}")
        estimates.append(
            (row["estimate"], str(row["size"]), *errors, *numbers, f"{row['rank_correlation']:.2f}")
        )
    random = values["random"]
    uniform = f"{random['mean']:.3f} ± {random['deviation']:.3f}"
    blank = ("",) * (len(kinds) - 1)
    estimates.append(("random subset", "", uniform, *blank, "1", str(values["selected"]), ""))
    scores: Rows = [("noise score", "AUROC", "automatic split drops", "wrong labels kept")]
    for row in values["scores"]:
        auroc = "no noise" if row["auroc"] is None else f"{row['auroc']:.3f}"
        kept = "" if row["mislabelled_kept"] is None else f"{100 * row['mislabelled_kept']:.1f}%"
        scores.append((row["score"], auroc, f"{100 * row['dropped']:.1f}%", kept))
    return estimates, scores


def draw_diagnosis(values: dict[str, Any], path: Path) -> None:
    """Relative error by estimate and weighting against random subsets; and the noise scores."""
    figure = new_figure((10, 4.2))
    left, right = figure.subplots(1, 2, width_ratios=(3, 1.3))
    rows = values["estimates"]
    kinds = list(rows[0]["error"])
    width = 0.8 / len(kinds)
    for number, kind in enumerate(kinds):
        places = [index + (number - (len(kinds) - 1) / 2) * width for index in range(len(rows))]
        heights = [row["error"][kind] for row in rows]
        left.bar(places, heights, width, label=kind, color=BAR_COLORS[number % len(BAR_COLORS)])
    random = values["random"]
    label = f"random subset, mean of {random['draws']:.0f}"
    left.axhline(random["mean"], color=RANDOM_COLOR, linestyle="--", linewidth=1.2, label=label)
    left.set_ylim(bottom=0)
    left.set_xticks(range(len(rows)), [row["estimate"] for row in rows], rotation=15)
    left.set_ylabel("relative error of the pool's exact gradient")
    left.set_title(f"{values['selected']} of {values['pool']} tasks selected (lower is better)")
    left.legend(frameon=False, fontsize=8)
    _draw_scores(right, values["scores"])
    save_figure(figure, path, dpi=150)


def _draw_scores(axes: Any, scores: list[dict[str, Any]]) -> None:
    names = [row["score"].replace(" of ", "\nof ") for row in scores]
    if scores[0]["auroc"] is None:
        heights = [100 * row["dropped"] for row in scores]
        shown = [f"{height:.1f}%" for height in heights]
        axes.set_xlim(0, max(5.0, 1.2 * max(heights)))
        axes.set_xlabel("share of this clean pool that the\nautomatic split drops, %")
    else:
        heights = [row["auroc"] for row in scores]
        shown = [f"{height:.3f}" for height in heights]
        axes.axvline(0.5, color=RANDOM_COLOR, linestyle="--", linewidth=1.2)
        axes.set_xlim(0, 1.25)
        axes.set_xlabel("AUROC, noisy against clean tasks")
    axes.bar_label(axes.barh(range(len(names)), heights, color=BAR_COLORS[0]), shown, padding=3)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_title("Which score sees noise?")
