"""Stage 7: K rows of a matrix that stand for all N of them, with weights."""

from derts.facility_location.selection import Engine, Selection, select, select_file
from derts.facility_location.two_rounds import select_two_rounds

__all__ = ["Engine", "Selection", "select", "select_file", "select_two_rounds"]
