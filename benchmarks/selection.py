"""Selection against apricot, submodlib and FasterPAM: time, objective and memory.

    python benchmarks/selection.py                 # all sizes; results/selection-cpu.json, docs
    python benchmarks/selection.py --quick         # tiny sizes, writes nothing
    python benchmarks/selection.py --resume        # goes on where it was stopped
    python benchmarks/selection.py --document      # table and figure again from the JSON

Every case runs in a process of its own, so that its peak memory is its own. All peers get the
same distances: similarities dmax − D (apricot's own "euclidean" is squared, submodlib's is
exp(−D/d)). All are judged by the same objective, the sum of distances to the nearest selected row.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from derts.facility_location import Engine, select
from derts.facility_location.distances import Distances
from derts.facility_location.greedy import greedy
from derts.facility_location.selection import assign

ROOT = Path(__file__).resolve().parents[1]
JSON, TABLE = ROOT / "results/selection-cpu.json", ROOT / "docs/selection.md"
FIGURE = ROOT / "docs/figures/selection.png"
MANY, SHARE = (1_000, 3_200, 10_000, 25_600, 32_000), 0.3
SIZES = {5: MANY, 50: (3_200, 25_600), 500: MANY, 2_048: (3_200, 25_600)}  # rows by dimensions
OURS = "derts greedy, distances given"
METHODS = {
    "derts greedy": "derts",
    OURS: "derts",
    "derts stochastic": "derts",
    "apricot lazy": "apricot",
    "apricot stochastic": "apricot",
    "submodlib lazy": "submodlib",
    "submodlib stochastic": "submodlib",
    "FasterPAM": "kmedoids",
}
Case = dict[str, Any]
Matrix = NDArray[Any]


def kilobytes(name: str) -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith(name))


def prepare(method: str, points: torch.Tensor, k: int) -> Callable[[], Any]:
    """Everything that is given, outside the timing; calling the result selects k rows."""
    # up to 32,000 rows the matrix is kept, as the peers keep theirs; 100,000 rows go by blocks
    limit = 8.0 if len(points) <= 32_000 else 2.0
    if method == "derts greedy":
        return lambda: select(points, k, memory_limit_gib=limit).indices.numpy()
    if method == "derts stochastic":
        engine: Engine = "stochastic"
        return lambda: select(points, k, engine=engine, memory_limit_gib=limit).indices.numpy()
    given = Distances(points, memory_limit_gib=8)
    if method == OURS:

        def ours() -> Matrix:
            picks, _, nearest = greedy(given, k, 8)
            assign(given, picks, nearest)
            return picks

        return ours
    matrix = given.rows(np.arange(len(points)))
    if method == "FasterPAM":
        import kmedoids

        return lambda: kmedoids.fasterpam(matrix, k, random_state=0).medoids
    similarity = matrix.max().astype(np.float64) - matrix
    kind = method.split()[1]
    if method.startswith("apricot"):
        from apricot import FacilityLocationSelection

        def apricot() -> Any:
            chosen = FacilityLocationSelection(
                k,
                metric="precomputed",
                optimizer=kind,
                optimizer_kwds={"epsilon": 0.01} if kind == "stochastic" else {},
                random_state=0,
            )
            return chosen.fit(similarity).ranking

        return apricot
    from submodlib import FacilityLocationFunction

    single = similarity.astype(np.float32)

    def submodlib() -> Any:
        function = FacilityLocationFunction(
            n=len(single), mode="dense", separate_rep=False, sijs=single, pybind_mode="array"
        )
        pairs = function.maximize(
            budget=k, optimizer=f"{kind.title()}Greedy", epsilon=0.01, show_progress=False
        )
        return [index for index, _ in pairs]

    return submodlib


def run_case(case: Case) -> Case:
    """Runs in its own process."""
    count, dimensions = case["rows"], case["dimensions"]
    generator = torch.Generator().manual_seed(0)
    warm = torch.randn(64, dimensions, generator=generator)
    prepare(case["method"], warm, 8)()  # compiles what compiles itself
    points = torch.randn(count, dimensions, generator=generator)
    run = prepare(case["method"], points, int(SHARE * count))
    Path("/proc/self/clear_refs").write_text("5")
    before, seconds, picks = kilobytes("VmRSS"), [], None
    for _ in range(case["repeats"]):
        start = time.perf_counter()
        picks = run()
        seconds.append(time.perf_counter() - start)
    peak = max(0, kilobytes("VmHWM") - before) / 2**20
    chosen = points[torch.as_tensor(np.asarray(picks, dtype=np.int64))].double()
    objective = sum(
        float(torch.cdist(part.double(), chosen).min(1).values.sum()) for part in points.split(500)
    )
    return {
        **case,
        "selected": len(set(np.asarray(picks).tolist())),
        "seconds": statistics.median(seconds),
        "all_seconds": seconds,
        "peak_gib": peak,
        "objective": objective,
    }


def measure(case: Case, limit: float) -> Case:
    command = [sys.executable, __file__, "--case", json.dumps(case)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=case["repeats"] * limit + 60
        )
    except subprocess.TimeoutExpired:
        return {**case, "skipped": f"took longer than {limit:.0f} s"}
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["killed"])[-1]
        return {**case, "skipped": f"failed: {reason}"}
    measured: Case = json.loads(done.stdout.splitlines()[-1])
    return measured


def plan(case: Case, earlier: list[Case], arguments: argparse.Namespace) -> str | None:
    """Why a case is not run, or None."""
    package = METHODS[case["method"]]
    if case["method"] in (OURS, "derts greedy"):
        return None
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed"
    # float32 distances, float64 similarities and what they were made from
    if package != "derts" and case["rows"] ** 2 * 16 > arguments.memory * 2**30:
        return f"needs more than {arguments.memory:.0f} GiB"
    same = [
        past
        for past in earlier
        if past["method"] == case["method"]
        and past["dimensions"] == case["dimensions"]
        and "seconds" in past
    ]
    if same:
        # Lazy greedy grew by N^2.6 where it was measured.
        predicted = same[-1]["seconds"] * (case["rows"] / same[-1]["rows"]) ** 2.6
        if predicted > arguments.limit:
            return f"predicted {predicted:.0f} s, limit {arguments.limit:.0f} s"
    return None


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "load_at_start": os.getloadavg()[0],
    }


def cases(quick: bool) -> list[Case]:
    some: list[Case] = [
        {"method": method, "rows": rows, "dimensions": dimensions}
        for dimensions, sizes in ({5: (200,)} if quick else SIZES).items()
        for rows in sizes
        for method in METHODS
    ]
    if not quick:
        some.append({"method": "derts greedy", "rows": 100_000, "dimensions": 5})
    for case in some:
        ours = METHODS[case["method"]] == "derts"
        few, many = (3, 25) if ours else (1, 3)
        case["repeats"] = many if case["rows"] <= 3_200 else few if case["rows"] <= 10_000 else 1
    return some


def measure_all(arguments: argparse.Namespace) -> None:
    measured: dict[str, Any] = {"machine": machine(), "share": SHARE, "results": []}
    if arguments.resume and JSON.exists():
        measured = json.loads(JSON.read_text())
    results = measured["results"]
    for case in cases(arguments.quick):
        if arguments.rows and case["rows"] not in arguments.rows:
            continue
        if arguments.dimensions and case["dimensions"] not in arguments.dimensions:
            continue
        if any(case.items() <= result.items() for result in results):
            continue
        reason = plan(case, results, arguments)
        results.append(
            {**case, "skipped": reason}
            if reason
            else {"load": os.getloadavg()[0], **measure(case, 5 * arguments.limit)}
        )
        print(describe(results[-1]), flush=True)
        if not arguments.quick:
            JSON.write_text(json.dumps(measured, indent=1) + "\n")


def describe(result: Case) -> str:
    name = f"{result['method']:30} N={result['rows']:<7} d={result['dimensions']:<4}"
    if "skipped" in result:
        return f"{name} skipped: {result['skipped']}"
    numbers = f"{result['seconds']:9.3f} s  {result['objective']:12.1f}"
    return f"{name} {numbers}  {result['peak_gib']:.2f} GiB"


def document(measured: dict[str, Any]) -> None:
    """Writes the table between the markers of docs/selection.md, and the figure."""
    results, about = measured["results"], measured["machine"]
    found = {(r["method"], r["rows"], r["dimensions"]): r for r in results}
    columns = [(n, d) for d, sizes in SIZES.items() for n in sizes if (OURS, n, d) in found]
    best = found[OURS, 3_200, 5]["objective"]
    lines = [
        f"Seconds, measured in one run on {about['cores']} cores of {about['cpu']}, torch "
        f"{about['torch']}. Medians of 25 (ours) and 3 (others) up to N = 3,200, of 3 and 1 at "
        "10,000; single runs above. The last column is the objective beside exact greedy's at "
        "N = 3,200, d = 5; lower is better.",
        "",
        "| method | " + " | ".join(f"{n:,} × {d}" for n, d in columns) + " | objective |",
        "| --- |" + " ---: |" * (len(columns) + 1),
    ]
    for method in METHODS:
        cells = [found[method, *column] for column in columns]
        seconds = [f"{cell['seconds']:.3g}" if "seconds" in cell else "–" for cell in cells]
        objective = f"{found[method, 3_200, 5]['objective'] / best:.3f}"
        lines.append(f"| {' | '.join([method, *seconds, objective])} |")
    begin, end = "<!-- benchmark -->", "<!-- end of benchmark -->"
    before, rest = TABLE.read_text().split(begin)
    table = "\n".join(lines)
    TABLE.write_text(f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}")

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [dimensions for dimensions, sizes in SIZES.items() if sizes == MANY]
    figure, panels = pyplot.subplots(1, len(shown), figsize=(10, 4.2), sharey=True)
    for panel, dimensions in zip(panels, shown, strict=True):
        for method, package in METHODS.items():
            line = [
                (r["rows"], r["seconds"])
                for r in results
                if r["method"] == method and r["dimensions"] == dimensions and "seconds" in r
            ]
            style = {"linewidth": 2.5} if package == "derts" else {"linestyle": "--"}
            if line:
                panel.loglog(*zip(*line, strict=True), marker="o", label=method, **style)
        panel.set(title=f"d = {dimensions}, K = {SHARE} N", xlabel="rows N")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("seconds")
    panels[0].legend(fontsize=8)
    figure.tight_layout()
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, writes nothing")
    parser.add_argument("--document", action="store_true", help="only write table and figure")
    parser.add_argument("--resume", action="store_true", help="keep the cases already measured")
    parser.add_argument("--rows", type=int, nargs="*", help="only these sizes")
    parser.add_argument("--dimensions", type=int, nargs="*", help="only these")
    parser.add_argument("--limit", type=float, default=60, help="seconds a peer may take")
    parser.add_argument("--memory", type=float, default=6, help="GiB a peer may take")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(run_case(json.loads(arguments.case))))
        return
    if not arguments.document:
        measure_all(arguments)
    if not arguments.quick:
        document(json.loads(JSON.read_text()))


if __name__ == "__main__":
    main()
