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

if TYPE_CHECKING:
    from derts.config import LearnerConfig, ModelConfig, TrainConfig
    from derts.data import FeatureTable, ImageTable, from_dataset, glyphs, open_data
    from derts.errors import DertsError
    from derts.evaluation import evaluate
    from derts.facility_location import Selection, select
    from derts.gradients import estimate_gradients
    from derts.labels import Trust, label_trust
    from derts.learners import ANIL, MAML, Learner, ProtoNet, build_learner
    from derts.learners.wrapped import OwnLearner
    from derts.model_files import load_model
    from derts.predict import FewShotModel
    from derts.prototype_classifier import PrototypeClassifier
    from derts.selection import Strategy
    from derts.tasks import SwapNoise, TaskNoise, TaskPool
    from derts.training import Trainer, train

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

__all__ = [
    "ANIL",
    "MAML",
    "DertsError",
    "FeatureTable",
    "FewShotModel",
    "ImageTable",
    "Learner",
    "LearnerConfig",
    "ModelConfig",
    "OwnLearner",
    "ProtoNet",
    "PrototypeClassifier",
    "Selection",
    "Strategy",
    "SwapNoise",
    "TaskNoise",
    "TaskPool",
    "TrainConfig",
    "Trainer",
    "Trust",
    "__version__",
    "build_learner",
    "estimate_gradients",
    "evaluate",
    "from_dataset",
    "glyphs",
    "label_trust",
    "load_model",
    "open_data",
    "select",
    "train",
]


def __getattr__(name: str) -> Any:
    # on demand, so that `derts --help` does not wait for torch
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
