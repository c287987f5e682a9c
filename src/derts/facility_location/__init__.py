"""Stage 7: K rows of a matrix that stand for all N of them, with weights.

selection   `select` and what it gives
greedy      the engines it asks, or on_gpu with gpu_kernels, gpu_stochastic; they ask distances
two_rounds  the same dealt out to shares or processes
"""

from derts.facility_location.selection import Engine, Selection, select, select_file
from derts.facility_location.two_rounds import select_two_rounds

__all__ = ["Engine", "Selection", "select", "select_file", "select_two_rounds"]
