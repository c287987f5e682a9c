"""Stage 9: the loop, from a config to a run folder.

run          begin or resume, in one process or several; several seeds, one after the other
memory       refuses what cannot fit
driver       from stop to stop: train, validate, save (checkpoint), measure (result)
trainer      one update after the other: the strategy's batch (task_drawer), then step
step         forward, weigh, backward, optimise; bad_numbers skips what is not finite
label_looks  wrong labels of the data set, left out between updates
kept_weights which weights a run is judged by: early stopping
run_folder   what is written, which report/read.py reads
"""

from derts.training.run import resume, train
from derts.training.trainer import Trainer

__all__ = ["Trainer", "resume", "train"]
