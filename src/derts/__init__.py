"""derts: choose the tasks that are worth training on.

Read the package in the order in which the data flows:

    data               1. images or features, labels  -> Table
    tasks              2. few-shot tasks as indices   -> TaskPool
    models             3. backbones                   -> features
    learners           4. meta-learners               -> adapted heads, query logits, outer loss
    gradients          5. an estimate for each task   -> matrix [tasks, dim]
    labels             6. which labels can be trusted -> Trust, or relabelled tasks
    facility_location  7. rows that stand for all     -> weighted row numbers
    selection          8. who trains next             -> weighted meta-batches
    training           9. the loop                    -> checkpoints and a run folder
    evaluation        10. fixed test tasks            -> mean and interval
    report            11. run folders                 -> one page, sheets of pictures

    predict    use a trained model: a few labelled images in, labels for the rest out
    paper      the paper's tables, to be run again
    commands   the command line: parse, call, print

    config, config_file             every setting; presets and TOML files
    clock, progress, statistics     seconds, bars, intervals; errors, files, provenance
    model_files, onnx_file          models from run folders and files, and as one file
    prototype_classifier            class means for scikit-learn users
    embed                           a store of features from one of images
    diagnosis                       how well estimates stand for a pool's gradient
    kernels, hardware, distributed  hand-written GPU kernels, the machine, several processes
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # with «as», so that type checkers take them for ours
    from derts.config import LearnerConfig as LearnerConfig
    from derts.config import ModelConfig as ModelConfig
    from derts.config import TrainConfig as TrainConfig
    from derts.data import FeatureTable as FeatureTable
    from derts.data import ImageTable as ImageTable
    from derts.data import from_dataset as from_dataset
    from derts.data import glyphs as glyphs
    from derts.data import open_data as open_data
    from derts.errors import DertsError as DertsError
    from derts.evaluation import evaluate as evaluate
    from derts.facility_location import Selection as Selection
    from derts.facility_location import select as select
    from derts.gradients import estimate_gradients as estimate_gradients
    from derts.labels import Trust as Trust
    from derts.labels import label_trust as label_trust
    from derts.learners import ANIL as ANIL
    from derts.learners import MAML as MAML
    from derts.learners import Learner as Learner
    from derts.learners import ProtoNet as ProtoNet
    from derts.learners import build_learner as build_learner
    from derts.learners.wrapped import OwnLearner as OwnLearner
    from derts.model_files import load_model as load_model
    from derts.predict import FewShotModel as FewShotModel
    from derts.prototype_classifier import PrototypeClassifier as PrototypeClassifier
    from derts.selection import Strategy as Strategy
    from derts.tasks import SwapNoise as SwapNoise
    from derts.tasks import TaskNoise as TaskNoise
    from derts.tasks import TaskPool as TaskPool
    from derts.training import Trainer as Trainer
    from derts.training import train as train

__version__ = "0.1.0"

_HOMES = {
    name: home
    for home, names in {
        "config": "LearnerConfig ModelConfig TrainConfig",
        "data": "FeatureTable ImageTable from_dataset glyphs open_data",
        "errors": "DertsError",
        "evaluation": "evaluate",
        "facility_location": "Selection select",
        "gradients": "estimate_gradients",
        "labels": "Trust label_trust",
        "learners": "ANIL MAML Learner ProtoNet build_learner",
        "learners.wrapped": "OwnLearner",
        "model_files": "load_model",
        "predict": "FewShotModel",
        "prototype_classifier": "PrototypeClassifier",
        "selection": "Strategy",
        "tasks": "SwapNoise TaskNoise TaskPool",
        "training": "Trainer train",
    }.items()
    for name in names.split()
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    # on demand, so that `derts --help` does not wait for torch
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
