"""Memory: what a run needs, guessed before its first update, and settings that need less."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from derts.config import TrainConfig
from derts.data.table import Table
from derts.errors import DertsError
from derts.hardware import free_memory
from derts.learners.pool_features import FEATURE_BYTES, MAML_ON_CPU, MAML_ON_GPU

GIB = 2**30
# per backbone: activations of an image at the peak of an update, in maps of the first block (its
# width × the image's sides, float32), as counted by running one; parameters by the square of the
# width; features by the width
MAPS = {"cnn4": 4.0, "resnet12": 19.0}
# the same where images go through in pieces: of all images, of those of a piece
MAPS_IN_PIECES = {"cnn4": (0.75, 4.0), "resnet12": (4.5, 13.0)}
LEAST_PIECE = 16  # images
MAPS_OF_KERNELS = {"cnn4": 1.3, "resnet12": 12.3}  # in bfloat16; results/pieces-h200.json
MAPS_OF_TASKS = {"cnn4": 1.6}  # MAML's kernels: 2.4, 8.8, 16.8 GiB for 4, 16, 32 tasks on an H200
PARAMETERS = {"cnn4": 27, "resnet12": 1950}
SECOND_ORDER = 2.4  # maps of a support image in an inner step of MAML over those of any other
DRAWN = 32.0  # bytes of an image of a test task, while they are drawn
OF_PARAMETERS = 10  # gradients, Adam, what is kept for bad numbers, a checkpoint being written
PROGRAM = {"cpu": 0.5 * GIB, "cuda": 0.7 * GIB}  # Python, torch and its libraries
SCATTERED = {"cpu": 2.0, "cuda": 1.1}  # memory held over memory in use: 1.6 to 2.0 on a CPU


def needed_memory(
    config: TrainConfig, shape: tuple[int, ...], device: str = "cpu", pieces: int = 1
) -> float:
    """About how many bytes a run on images of a shape (height, width, channels) will hold.

    Of test tasks alone where the backbone is unknown. Images lie on the disk, or are streamed.
    Each meta-batch is computed in so many pieces.

    >>> f"{needed_memory(TrainConfig(), (84, 84, 3)) / GIB:.0f} GiB"
    '44 GiB'
    """
    backbone, width = config.model.backbone, config.model.width
    kind = device if device in PROGRAM else "cpu"
    tasks, steps = config.tasks, config.learner.inner_steps
    support, query = tasks.way * tasks.shot, tasks.way * tasks.query
    tested = support + tasks.way * config.evaluation.query
    drawn = DRAWN * config.evaluation.tasks * tested
    if len(shape) != 3 or backbone not in MAPS:
        return drawn
    one_map, maps = 4.0 * width * shape[0] * shape[1], MAPS[backbone]
    by_kernels = kind == "cuda" and config.hardware.precision == "bfloat16"
    if by_kernels and config.learner.name != "maml":
        maps = MAPS_OF_KERNELS.get(backbone, maps)
    if pieces > 1:
        of_all, of_piece = MAPS_IN_PIECES[backbone]
        maps = min(maps, of_all + of_piece / pieces)
    parameters = 4.0 * PARAMETERS[backbone] * width**2
    program = PROGRAM[kind] + OF_PARAMETERS * parameters + drawn
    half = 0.5 if config.hardware.precision == "bfloat16" else 1.0
    if config.learner.name == "maml":
        inner = 1.0 if config.learner.first_order else SECOND_ORDER * steps
        maps = MAPS_OF_TASKS.get(backbone, maps) if by_kernels else MAPS[backbone]
        per_task = maps * (support + query + inner * support) * one_map
        tasks_at_once = -(-config.meta_batch // pieces)
        update = tasks_at_once * (per_task + 2 * (steps + 1) * parameters)
        at_once = min(MAML_ON_GPU if kind == "cuda" else MAML_ON_CPU, config.evaluation.tasks)
        evaluation = at_once * maps * (1.3 * support + 0.65 * tested) * one_map
        return program + 1.2 * SCATTERED[kind] * half * max(update, evaluation)
    update = config.meta_batch * maps * (support + query) * one_map
    features = 4.0 * width * (8 if backbone == "resnet12" else (shape[0] >> 4) * (shape[1] >> 4))
    pools = 512 * max(support + query, tested) * features
    if config.strategy.name != "random":
        pool, images = config.strategy.pool, config.strategy.pool_images or FEATURE_BYTES
        pools += min(images * features, FEATURE_BYTES) + min(4.0 * pool**2, 2 * GIB)
        pools += 24.0 * pool * (support + query)
    return program + SCATTERED[kind] * half * update + pools


def plan_pieces(
    config: TrainConfig, tables: Mapping[str, Table], device: torch.device, processes: int = 1
) -> int:
    """In how many pieces to compute a meta-batch, so that a run fits into what is free.

    One that never fits is refused, with settings that do.
    """
    limit = config.hardware.memory_gib
    free: float | None = free_memory(device)
    words = "are free: free some, or"
    if limit is not None and (free is None or limit * GIB < free):
        free, words = limit * GIB, "are allowed: raise --hardware.memory-gib, or"
    if free is None or "train" not in tables:
        return 1
    shape, most_held = tables["train"].item_shape, free / 2
    if config.tasks.rotated:
        free -= 4 * tables["train"].items.nbytes
    elif device.type == "cuda":
        validated = config.validate_every or config.strategy.name == "derts"
        used = {"train", config.evaluation.split} | ({"val"} if validated else set())
        sizes = [tables[split].items.nbytes for split in used & tables.keys()]
        free -= sum(size for size in sizes if size < most_held)  # larger ones are streamed
    share = replace(config, meta_batch=-(-config.meta_batch // processes))
    pieces, most = 1, most_pieces(share)
    while (needed := needed_memory(share, shape, device.type, pieces)) > free and pieces < most:
        pieces = min(2 * pieces, most)
    if needed <= free:
        return pieces
    fix = f"{words} prepare smaller images with derts data prepare --size"
    if (fits := settings_that_fit(share, shape, device.type, free)) is not None:
        changed = {
            "--meta-batch": (fits.meta_batch * processes, share.meta_batch * processes),
            "--model.width": (fits.model.width, config.model.width),
            "--evaluation.tasks": (fits.evaluation.tasks, config.evaluation.tasks),
            "--strategy.pool": (fits.strategy.pool, config.strategy.pool),
        }
        less = [f"{name} {new}" for name, (new, old) in changed.items() if new != old]
        fix = f"{words.split(':')[0]}: try {' '.join(less)}"
        fix += ", or --preset laptop" if device.type == "cpu" else ""
    cause = f"training needs about {needed / GIB:,.1f} GiB of memory on {device}"
    cause += f", a meta-batch being cut into {pieces} pieces" if pieces > 1 else ""
    raise DertsError(f"{cause}, and {free / GIB:,.1f} {fix}")


def most_pieces(config: TrainConfig) -> int:
    """How many pieces a meta-batch may be computed in: of tasks for MAML, of images for others."""
    tasks = config.tasks
    images = config.meta_batch * tasks.way * (tasks.shot + tasks.query)
    return config.meta_batch if config.learner.name == "maml" else max(1, images // LEAST_PIECE)


def check_file_size(config: TrainConfig, shape: tuple[int, ...], files: Sequence[Path]) -> None:
    """Refuse files of weights that are far too short for a config, before its learner is built.

    A config may say of a file of some KB that its network takes all memory.
    """
    model, way = config.model, config.tasks.way
    if model.backbone in MAPS and len(shape) == 3:
        numbers = PARAMETERS[model.backbone] * model.width**2 + 9 * shape[2] * model.width
        places = 8 if model.backbone == "resnet12" else (shape[0] >> 4) * (shape[1] >> 4)
        features = model.width * places
    elif model.backbone in ("linear", "mlp", "none") and len(shape) == 1:
        features = shape[0] if model.backbone == "none" else min(shape[0], 2 * model.width)
        numbers = shape[0] * (1 if model.backbone == "none" else features)
        numbers += 2 * model.width * features if model.backbone == "mlp" else 0
    else:
        return
    if config.learner.name != "protonet":
        numbers += way * features
    held = max(file.stat().st_size for file in files)
    if 4 * numbers > 2 * held + 4e6:  # weights may be of two bytes
        wrong = f"{files[-1]} has {held / 1e6:,.1f} MB, and the network of its config takes"
        fix = "use the config it was trained with"
        raise DertsError(f"{wrong} {4 * numbers / 1e6:,.1f}: {fix}")


def settings_that_fit(
    config: TrainConfig, shape: tuple[int, ...], device: str, free: float
) -> TrainConfig | None:
    """The config with tasks, width or pool halved until it fits; None: it never does."""
    while needed_memory(config, shape, device, most_pieces(config)) > free:
        model, strategy, tested = config.model, config.strategy, config.evaluation
        smaller = []
        if config.meta_batch > 1:
            smaller.append(replace(config, meta_batch=config.meta_batch // 2))
        if model.width > 8:
            smaller.append(replace(config, model=replace(model, width=model.width // 2)))
        if strategy.pool > 100 and strategy.name != "random":
            smaller.append(replace(config, strategy=replace(strategy, pool=strategy.pool // 2)))
        if tested.tasks > 100:
            smaller.append(replace(config, evaluation=replace(tested, tasks=tested.tasks // 2)))
        if not smaller:
            return None
        if config.meta_batch <= 4:  # fewer tasks make a poor gradient
            smaller.reverse()
        needs = [needed_memory(one, shape, device, most_pieces(one)) for one in smaller]
        least = min(needs)
        config = next(c for c, need in zip(smaller, needs, strict=True) if need <= 1.1 * least)
    return config
