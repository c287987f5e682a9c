"""For soak_fuzz.py: every kind of file that derts reads, its changer and readers; one of each."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from soak_changes import (
    Random,
    change_checkpoint,
    change_csv,
    change_journal,
    change_json,
    change_lines,
    change_npy,
    change_npz,
    change_pickle,
    change_safetensors,
    change_state,
    change_toml,
    damaged,
)

from derts.cli import run
from derts.data import open_data, prepare
from derts.errors import DertsError
from derts.facility_location import select
from derts.tasks import TaskPool

SMALL = partial(torch.nn.Sequential, torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
TRAIN = [
    "--tasks.way", "2", "--tasks.shot", "1", "--tasks.query", "1", "--model.width", "4",
    "--strategy.name", "derts", "--strategy.warmup", "1", "--strategy.pool", "6",
    "--strategy.ratio", "0.5",
    "--evaluation.tasks", "4", "--evaluation.query", "1", "--meta-batch", "2", "--updates",
    "3", "--checkpoint-every", "2", "--validate-every", "2", "--quiet",
]  # fmt: skip
SHORT = "--updates 3 --meta-batch 2 --evaluation.tasks 4 --quiet"  # also with an empty config
RUN_COMMANDS = (
    "runs .", "runs .", "compare run", "export run model.safetensors", "evaluate run",
    "train --resume run --quiet", "inspect run --quiet --most 3", "report run -o page.html",
    "predict run --support support --query query --out p.csv",
    "diagnose run --pool 4 --draws 2 --quiet",
)  # fmt: skip
STORE_COMMANDS = (
    "data info store", "data verify store", "evaluate run", "inspect run --quiet --most 3",
    "data corrupt store wrong --rate 0.3", f"train --data store --out new {' '.join(TRAIN)}",
)  # fmt: skip
PREPARE = ("data prepare {} made --size 8 --workers 1",
           "data prepare {} made --size 8 --workers 1 --skip-broken")  # fmt: skip
FEATURES = ("data prepare {} made", "inspect --features {} --out seen --quiet --most 3")
PREDICT = ("predict model.safetensors --support support --query query --out p.csv",)
NEEDED = ("run", "store", "support", "query")
Changer = Callable[[Random, bytes], bytes]
KINDS: dict[str, tuple[str, Changer, tuple[str, ...]]] = {
    "config": ("run/config.toml", change_toml, RUN_COMMANDS),
    "given config": ("given.toml", change_toml, (f"train --config given.toml --out new {SHORT}",)),
    "events": ("run/events.jsonl", change_lines, RUN_COMMANDS),
    "result": ("run/result.json", change_json, RUN_COMMANDS),
    "run's data": ("run/data.json", change_json, RUN_COMMANDS),
    "checkpoint": ("run/checkpoints/*.ckpt", change_checkpoint, RUN_COMMANDS),
    "round": ("run/rounds/*.safetensors", change_safetensors, RUN_COMMANDS[-3:-2]),
    "store": ("store/store.json", change_json, STORE_COMMANDS),
    "store's images": ("store/train.npy", change_npy, STORE_COMMANDS),
    "store's labels": ("store/train_labels.npy", change_npy, STORE_COMMANDS),
    "store's names": ("store/train_names.json", change_json, STORE_COMMANDS[3:4]),
    "true labels": ("store/true_labels.npy", change_npy, ("inspect run --quiet --score --most 3",)),
    "model": ("model.safetensors", change_safetensors, PREDICT),
    "selection": ("selection.json", change_json, ("selection",)),
    "pool": ("pool.safetensors", change_safetensors, ("pool",)),
    "matrix": ("g.npy", change_npy, ("select g.npy --k 3 --out s.json",
                                     "select g.npy --k 3 --out s.json --engine stochastic")),
    "review": ("review.csv", change_csv, ("clean run cleaned --quiet --apply review.csv",)),
    "confusions": ("c.csv", change_csv, ("data corrupt store wrong --noise confusion:c.csv",)),
    "results": ("known/reproduce-table1.json", change_json,
                ("reproduce table1 --report --from known --out grid --seeds 1",
                 "reproduce table1 --dry-run --known known --out grid --seeds 1 --dataset glyphs")),
    "digests": ("known/digests.json", change_json, ("results",)),
    "curves": ("curves.json", change_json, ("curves",)),
    "features": ("rows.npz", change_npz, tuple(one.format("rows.npz") for one in FEATURES)),
    "features' array": ("rows/x.npy", change_npy,
                        tuple(one.format("rows/x.npy") for one in FEATURES)),
    "features' labels": ("rows/labels.csv", change_csv,
                         tuple(one.format("rows/x.npy") for one in FEATURES)),
    "weights": ("w.safetensors", change_safetensors, ("weights",)),
    "state dict": ("w.pth", change_state, ("state dict",)),
    "journal": ("half/made.partial/journal", change_journal,
                ("data prepare half/photos half/made --size 8 --workers 1",)),
    "tiered images": ("tiered/train_images_png.pkl", change_pickle,
                      tuple(one.format("tiered") for one in PREPARE)),
    "tiered labels": ("tiered/train_labels.pkl", change_pickle,
                      tuple(one.format("tiered") for one in PREPARE)),
    "csv source": ("mini/train.csv", change_csv, tuple(one.format("mini") for one in PREPARE)),
    "pickle": ("cache/mini-imagenet-cache-train.pkl", change_pickle,
               tuple(one.format("cache") for one in PREPARE)),
    "pack": ("pack/train_0.npz", change_npz, tuple(one.format("pack") for one in PREPARE)),
    "images": ("photos/*/*.png", damaged, tuple(one.format("photos") for one in PREPARE)),
    "query images": (
        "query/*.png",
        damaged,
        (RUN_COMMANDS[-2], f"{RUN_COMMANDS[-2]} --skip-broken"),
    ),
}  # fmt: skip


def make_world(folder: Path) -> None:
    """One of every file that derts reads, each as it should be."""
    random = np.random.default_rng(0)
    for number in range(14):
        for image in range(4):
            place = folder / "photos" / f"class-{number}" / f"{image}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 255, (12, 12, 3), np.uint8)).save(place)
    for number in (0, 1):
        shutil.copytree(folder / "photos" / f"class-{number}", folder / "support" / f"c{number}")
    shutil.copytree(folder / "photos" / "class-2", folder / "query")
    shutil.copytree(folder / "photos" / "class-3", folder / "mini" / "images")
    for split in ("train", "val", "test"):
        rows = "filename,label\n0.png,a\n1.png,a\n2.png,b\n3.png,b\n"
        (folder / "mini" / f"{split}.csv").write_text(rows)
    (folder / "cache").mkdir()
    pixels = random.integers(0, 255, (4, 8, 8, 3)).astype(np.uint8)
    fields = {"image_data": pixels, "class_dict": {"cat": [0, 1], "dog": [2, 3]}}
    (folder / "cache" / "mini-imagenet-cache-train.pkl").write_bytes(pickle.dumps(fields, 4))
    (folder / "pack").mkdir()
    png = (folder / "query" / "0.png").read_bytes()
    np.savez(
        folder / "pack" / "train_0.npz",
        data=np.frombuffer(png * 4, np.uint8), offsets=np.arange(5) * len(png),
        labels=np.array([0, 0, 1, 1]), class_names=["cat", "dog"], categories=["pet", "pet"],
    )  # fmt: skip
    (folder / "tiered").mkdir()
    pngs = [np.frombuffer(png, np.uint8)] * 4
    labels = {
        "label_specific": np.array([0, 0, 1, 1]), "label_general": np.zeros(4, np.int64),
        "label_specific_str": ["cat", "dog"], "label_general_str": ["pet"],
    }  # fmt: skip
    for name, held in (("images_png", pngs), ("labels", labels)):
        (folder / "tiered" / f"train_{name}.pkl").write_bytes(pickle.dumps(held, 4))
    (folder / "rows").mkdir()
    matrix = random.normal(size=(24, 4)).astype(np.float32)
    classes = [f"c{row % 6}" for row in range(24)]
    np.savez(folder / "rows.npz", features=matrix, labels=classes)
    np.save(folder / "rows" / "x.npy", matrix)
    (folder / "rows" / "labels.csv").write_text("\n".join(classes) + "\n")
    small = SMALL()
    save_file(small.state_dict(), folder / "w.safetensors")
    torch.save(small.state_dict(), folder / "w.pth")
    shutil.copytree(folder / "photos", folder / "half" / "photos")
    with (
        patch("derts.data.prepare._Preparation.finish", side_effect=DertsError("stopped")),
        contextlib.suppress(DertsError),
    ):
        prepare(folder / "half" / "photos", folder / "half" / "made", size=8, workers=1)
    assert (folder / "half" / "made.partial" / "journal").is_file()
    quiet = io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(quiet),
        contextlib.redirect_stderr(quiet),
    ):
        for words in (
            "data prepare photos plain --size 16 --workers 1",
            "data corrupt plain store --rate 0.3",
            f"train --data store --out run {' '.join(TRAIN)}",
            "export run model.safetensors",
        ):
            assert run(words.split()) == 0, quiet.getvalue()
        shutil.copy("run/config.toml", "given.toml")
        np.save("g.npy", np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32))
        select(np.load("g.npy"), 4).save("selection.json")
        table = open_data("store")["train"]
        TaskPool.sample(table, tasks=3, way=2, shot=1, query=1, seed=0).save("pool.safetensors")
        names = (
            json.loads(Path("store/train_names.json").read_text())
            if Path("store/train_names.json").exists()
            else None
        )
        path = names[0] if names else f"train/{table.class_names[int(table.labels[0])]}/0"
        Path("review.csv").write_text(
            f"path,split,class,decision,new class\n{path},train,x,drop,\n"
        )
        Path("c.csv").write_text(
            f"class,given,share\n{table.class_names[0]},{table.class_names[1]},0.5\n"
        )
        results = Path(__file__).parents[1] / "results"
        Path("known").mkdir()
        for name in ("reproduce-table1.json", "digests.json"):
            shutil.copy(results / name, "known")
        shutil.copy(results / "reproduce-figure2-x0.25-curves.json", "curves.json")
