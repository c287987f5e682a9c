"""Tables of time: docs/performance.md, and the figure of growth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from result_files import RESULTS, Rows, read

from derts.paper.cells import read_json
from derts.statistics import over_seeds

PEERS = ("apricot lazy", "submodlib lazy")  # the same picks by others
RATIOS = (
    ("derts, clean tasks", "derts", 1.03),
    ("derts, 40% of labels swapped", "derts", 1.06),
    ("derts, 60% of tasks mislabelled", "derts", 1.06),
    ("paper", "derts", 1.58),
    ("us", "us", 1.05),
    ("ats", "ats", 2.5),
)
TIMES = (  # in words, in our file, in the paper
    ("random", "random", "random"),
    ("US", "us", "us"),
    ("ATS", "ats", "ats"),
    ("the paper's rule", "paper", "derts"),
    ("derts, clean tasks as they are", "derts, clean tasks", ""),
    ("derts, selecting in every round", "derts", ""),
)
DISTANCES, GREEDY = "distances between all pairs, d = 5", "greedy selection, d = 5"


def update_rows() -> Rows:
    """One update, ours and others."""
    rows: Rows = [("learner", "backbone", "tasks", "how", "ms per update", "× ours")]
    for row in read("update-h200.json")["results"]:
        time = f"{row['ms']:.1f}" if "ms" in row else row["failed"]
        ratio = f"{row['times_ours']:.1f}" if "times_ours" in row else ""
        rows.append((row["learner"], row["backbone"], str(row["tasks"]), row["way"], time, ratio))
    return rows


def cpu_update_rows() -> Rows:
    """One update on a CPU, beside the usual loop and torch's own modules."""
    ways = "loop", "ours", "ours, bfloat16", "floor"
    rows: Rows = [("learner", "pixels", *ways, "loop / ours", "ours / floor")]
    found: dict[tuple[str, int], dict[str, float]] = {}
    for row in read("update-cpu.json")["results"]:
        found.setdefault((row["learner"], row["size"]), {})[row["way"]] = row["ms"]
    for (learner, size), ms in found.items():
        times = [f"{ms[way]:.0f} ms" for way in ways]
        ratios = ms["loop"] / ms["ours"], ms["ours"] / ms["floor"]
        rows.append((learner, str(size), *times, *(f"{ratio:.2f}" for ratio in ratios)))
    return rows


def pieces_rows() -> Rows:
    """An update under a limit on memory, beside the uncut one."""
    rows: Rows = [("on", "update", "limit, GiB", "pieces", "least ms", "× uncut", "peak, GiB")]
    for file in sorted(RESULTS.glob("pieces-*.json")):
        uncut = 0.0
        for row in read(file.name)["results"]:
            update = f"{row['backbone']}-{row['width']}, {row['tasks']} tasks"
            about = file.stem.removeprefix("pieces-"), update, str(row["limit"] or "")
            if "failed" in row:
                rows.append((*about, "", row["failed"], "", ""))
                continue
            uncut = uncut if row["limit"] else row["least_ms"]
            times = f"{row['least_ms']:.0f}", f"{row['least_ms'] / uncut:.2f}"
            rows.append((*about, str(row["pieces"]), *times, f"{row['gib']:.2f}"))
    return rows


def start_rows() -> Rows:
    """Where the seconds before the first update go."""
    rows: Rows = [("part", "two CPU cores, s", "least to most", "H200, s", "least to most")]
    files = (read(f"start-{name}.json")["results"][0]["parts"] for name in ("cpu", "h200"))
    for pair in zip(*files, strict=True):
        times = [
            (f"{x['seconds']:.2f}", f"{min(x['all']):.2f} to {max(x['all']):.2f}") for x in pair
        ]
        rows.append((pair[0]["what"], *times[0], *times[1]))
    return rows


def breakdown_rows() -> Rows:
    """What an update's kernels are for, and their time."""
    rows: Rows = [("backbone", "what", "ms", "of the kernels' time", "launches")]
    for row in read("breakdown-h200.json")["results"]:
        on_the_clock = f"one update on the clock: {row['ms']:.2f} ms"
        rows.append((row["backbone"], on_the_clock, f"{row['kernels_ms']:.2f}", "100%", ""))
        for name, group in row["groups"].items():
            share = f"{100 * group['ms'] / row['kernels_ms']:.1f}%"
            rows.append(("", name, f"{group['ms']:.2f}", share, f"{group['launches']:.0f}"))
    return rows


def overheads() -> dict[tuple[str, str], dict[str, Any]]:
    """What strategies cost, by learner and strategy."""
    rows = read("overhead-h200.json")["results"]
    return {(row["learner"], row["strategy"]): row for row in rows}


def times_rows() -> Rows:
    """The paper's table 2, ANIL on clean tasks: seconds of 100 updates, theirs beside ours."""
    theirs, found = papers_seconds(), overheads()
    rows: Rows = [("100 updates of ANIL", "the paper, s", "× random", "ours, s", "× random")]
    for words, name, of_paper in TIMES:
        ours, seconds = found["anil", name], theirs.get(of_paper)
        paper = (
            (f"{100 * seconds:.0f}", f"{seconds / theirs['random']:.2f}") if seconds else ("", "")
        )
        rows.append((words, *paper, f"{ours['ms_per_update'] / 10:.2f}", f"{ours['ratio']:.2f}"))
    return rows


def papers_seconds() -> dict[str, float]:
    """The paper's seconds per update, by strategy."""
    cells = read_json("paper.json")["tables"]["table2_time"]["cells"]
    return {cell["strategy"]: cell["seconds_per_iteration"] for cell in cells}


def target_rows() -> Rows:
    """Floor, peer, ours and aim of what the aims name."""
    overhead, seconds = overheads(), papers_seconds()
    updates = {
        (row["learner"], row["backbone"], row["way"]): row
        for row in read("update-h200.json")["results"]
    }
    kernels = {row["kernel"]: row["ms"] for row in read("kernels-h200.json")["results"]}
    rows: Rows = [("what", "floor", "others", "ours", "others / ours", "aim", "")]

    def add(
        what: str, floor: str, other: tuple[float, str], ours: float, aim: float, unit: str
    ) -> None:
        met = "met" if ours <= aim else "**missed**"
        peer = f"{other[0]:.4g}{unit} ({other[1]})"
        ratio = f"{other[0] / ours:.3g}"
        rows.append((what, floor, peer, f"{ours:.4g}{unit}", ratio, f"≤ {aim:g}{unit}", met))

    for learner in ("anil", "protonet"):
        mine = overhead[learner, "random"]["ms_per_update"]
        peer = (updates[learner, "cnn4", "loop"]["ms"], "the usual loop")
        add(f"update, {learner}, CNN4-64", "2.4 ms arithmetic, 6 ms memory", peer, mine, 15, " ms")
    for learner in ("anil", "protonet"):
        if (learner, "resnet12", "ours") not in updates:
            continue
        mine = updates[learner, "resnet12", "ours"]["ms"]
        peer = (updates[learner, "resnet12", "loop"]["ms"], "the usual loop")
        add(f"update, {learner}, ResNet-12", "61 ms arithmetic", peer, mine, 110, " ms")
    for strategy, kind, aim in RATIOS:
        for learner in ("anil", "protonet"):
            if (learner, strategy) in overhead:
                ratio = overhead[learner, strategy]["ratio"]
                peer = (seconds[kind] / seconds["random"], "the paper")
                add(f"{strategy} / random, {learner}", "1", peer, ratio, aim, "")
    selection = sum(kernels[name] for name in (DISTANCES, GREEDY))
    peers = {
        row["method"]: 1000 * row["seconds"]
        for row in read("selection-cpu.json")["results"]
        if (row["rows"], row["dimensions"]) == (3200, 5) and row["method"] in PEERS
    }
    best = min(peers, key=lambda name: peers[name])
    peer = (peers[best], f"{best}, two CPU cores, distances given")
    add("distances of 3,200 tasks and 960 picks, on the GPU", "", peer, selection, 5, " ms")
    return rows


def overhead_rows() -> Rows:
    """Where each strategy's time goes."""
    phases = ("tasks", "update", "pool", "embedding", "estimating", "selecting")
    rows: Rows = [("learner", "strategy", "ms per update", "× random", *phases)]
    for row in overheads().values():
        spent = [row["phases_ms"].get(phase, 0.0) for phase in phases]
        rows.append(
            (
                row["learner"],
                row["strategy"],
                f"{row['ms_per_update']:.2f}",
                f"{row['ratio']:.3f}",
                *(f"{value:.2f}" if value else "" for value in spent),
            )
        )
    return rows


def fused_rows() -> Rows:
    """Accuracy with the kernels beside the plain path's."""
    rows: Rows = [("learner", "plain path, compiled", "kernels", "ms before", "ms now")]
    runs = {kind: read(f"{kind}-h200.json")["runs"] for kind in ("baseline", "baseline-fused")}
    for learner in ("anil", "protonet"):
        shown, times = [], []
        for found in runs.values():
            mine = [run for run in found if run["config"]["learner"]["name"] == learner]
            shown.append(str(over_seeds([run["accuracy"] for run in mine])))
            times.append(sorted(run["ms_per_update"] for run in mine)[len(mine) // 2])
        rows.append((learner, *shown, *(f"{time:.1f}" for time in times)))
    return rows


def growth_rows() -> Rows:
    """Time against tasks, image size and pool size."""
    names = {"tasks": "tasks per update", "size": "pixels a side", "images": "images", "pool": "N"}
    rows: Rows = [("what grows", "to", "milliseconds", "GiB")]
    for row in read("growth-h200.json")["results"]:
        memory = "" if row["gib"] is None else f"{row['gib']:.2f}"
        rows.append((names[row["kind"]], f"{row['at']:,}", f"{row['ms']:.1f}", memory))
    return rows


def draw_growth(path: Path) -> None:
    """One panel of time, and where it is known of memory, for each thing that grows."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    titles = {
        "tasks": ("an update against its tasks", "tasks"),
        "size": ("an update against image size", "pixels a side"),
        "images": ("an update against images", "images"),
        "pool": ("one selection against the pool", "tasks in the pool"),
    }
    results = read("growth-h200.json")["results"]
    kinds = [kind for kind in titles if any(row["kind"] == kind for row in results)]
    units = {"ms": "milliseconds", "gib": "GiB on the GPU"}
    known = [unit for unit in units if all(row[unit] is not None for row in results)]
    size = (3.6 * len(kinds), 3 * len(known))
    figure, axes = pyplot.subplots(len(known), len(kinds), figsize=size, squeeze=False)
    for unit, across in zip(known, axes, strict=True):
        for axis, kind in zip(across, kinds, strict=True):
            points = [(row["at"], row[unit]) for row in results if row["kind"] == kind]
            _panel(axis, points)
            axis.set_title(titles[kind][0], fontsize=10)
            axis.set_xlabel(titles[kind][1])
            axis.set_ylabel(units[unit])
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _panel(axis: Any, points: list[tuple[int, float]]) -> None:
    """Points on two logarithmic scales, each named at its tick."""
    axis.loglog(*zip(*points, strict=True), marker="o")
    axis.minorticks_off()
    axis.set_xticks([at for at, _ in points], [f"{at:,}" for at, _ in points], rotation=45)
    values = [value for _, value in points]
    if max(values) < 3 * min(values):  # too near each other for ticks of their own
        axis.set_yscale("linear")
        axis.set_ylim(0, 1.1 * max(values))
    else:
        shown: list[float] = []  # one beside the other, not one over the other
        for value in sorted(values, reverse=True):
            if not shown or value < 0.75 * shown[-1]:
                shown.append(value)
        axis.set_yticks(shown, [f"{v:,.0f}" if v >= 100 else f"{v:.3g}" for v in shown])
    axis.grid(alpha=0.3)


def kernel_rows() -> Rows:
    """Every kernel's difference from its plain counterpart, and its time."""
    rows: Rows = [("kernel", "differs by", "allowed", "ms")]
    for row in read("kernels-h200.json")["results"]:
        numbers = (f"{row['difference']:.2g}", f"{row['allowed']:g}", f"{row['ms']:.2f}")
        name = row["kernel"].replace("images seen anew", "augmented images")
        rows.append((name, *numbers))
    return rows
