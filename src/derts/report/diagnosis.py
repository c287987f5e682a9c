"""A diagnosis as tables and one figure."""

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
    """Relative error by estimate and weighting, beside random subsets of the same size."""
    figure = new_figure((8, 4.2))
    axes = figure.subplots()
    rows = values["estimates"]
    kinds = list(rows[0]["error"])
    width = 0.8 / len(kinds)
    for number, kind in enumerate(kinds):
        places = [index + (number - (len(kinds) - 1) / 2) * width for index in range(len(rows))]
        heights = [row["error"][kind] for row in rows]
        axes.bar(places, heights, width, label=kind, color=BAR_COLORS[number % len(BAR_COLORS)])
    random = values["random"]
    label = f"random subset, mean of {random['draws']:.0f}"
    axes.axhline(random["mean"], color=RANDOM_COLOR, linestyle="--", linewidth=1.2, label=label)
    axes.set_ylim(bottom=0)
    axes.set_xticks(range(len(rows)), [row["estimate"] for row in rows], rotation=15)
    axes.set_ylabel("relative error of the pool's exact gradient")
    axes.set_title(f"{values['selected']} of {values['pool']} tasks selected (lower is better)")
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path, dpi=150)
