"""Small files that would take minutes or gigabytes are refused before they do."""

import io
import json
import re
import shutil
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from derts.cli import run
from derts.config_file import read_config, to_toml
from derts.data import ImageTable, find_source, save_table
from derts.data import prepare as make_store
from derts.errors import DertsError
from derts.facility_location import select
from derts.model_files import load_model
from derts.training import train
from derts.training.run_folder import Run
from tests.bad_input.conftest import Attempt
from tests.tiny import tiny

DEEP = {
    "one key": "data." + "a." * 50_000 + "a = 1",
    "quoted": "=".join(('"data"' + '."a"' * 50_000, "1")),
    "a table": "[" + "a . " * 50_000 + "a]",
    "many keys": "\n".join(f"a{number}.b.c.d = 1" for number in range(50_000)),
}


@pytest.mark.parametrize("name", DEEP)
def test_a_config_that_takes_minutes_to_parse_is_not_parsed(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(DEEP[name])
    started = time.monotonic()
    with pytest.raises(DertsError, match="too long or nested too deeply"):
        read_config(tmp_path / "config.toml")
    assert time.monotonic() - started < 2


def test_a_config_with_thousands_of_classes_is_read(tmp_path: Path) -> None:
    names = tuple(f"class.number.{number}, of v1.2.3" for number in range(8_000))
    config = tiny(tasks={"classes": names}).resolved()
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert read_config(tmp_path / "config.toml") == config


def test_an_archive_that_unpacks_to_gigabytes_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("it was read"))
    header = io.BytesIO()
    size = 110_000_000
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (size,)}
    )
    with zipfile.ZipFile(
        tmp_path / "train.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1
    ) as archive:
        archive.writestr("data.npy", header.getvalue() + bytes(size))
    assert (tmp_path / "train.npz").stat().st_size < 2_000_000
    assert find_source(tmp_path).kind == "mini-ImageNet packs"
    with pytest.raises(DertsError, match=r"would unpack from .* MB to 110 MB"):
        make_store(tmp_path, tmp_path / "store", size=8)
    monkeypatch.setattr("derts.data.sources.MOST_SQUEEZED", 10**6)
    monkeypatch.setattr("derts.data.sources.free_memory", lambda _: 10**8)
    with pytest.raises(DertsError, match=r"0.1 GB of arrays do not fit into the 0.1 GB"):
        make_store(tmp_path, tmp_path / "store", size=8)


def never(*_: Any, **__: Any) -> None:
    raise AssertionError("a network is built")


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ({"width": 9000}, [16, 16, 1]),
        ({"width": 600, "backbone": "resnet12"}, [16, 16, 1]),
        ({}, [160_000, 160_000, 1]),
        ({}, [16, 16, 10**7]),
        ({"backbone": "mlp", "width": 50_000}, [1280]),
        ({"backbone": "none"}, [10**9]),
    ],
)
def test_a_short_file_of_a_network_that_takes_gigabytes_is_not_built(
    model: dict[str, Any], shape: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("derts.predict.build_learner", never)
    card = {"item_shape": shape, "config": {"model": model, "learner": {"name": "anil"}}}
    about = {"derts": "derts-model-1", "card": json.dumps(card)}
    save_file({"weight": torch.zeros(9)}, tmp_path / "x.safetensors", about)
    with pytest.raises(DertsError, match=r"has 0\.0 MB, and the network of its config takes"):
        load_model(tmp_path / "x.safetensors")


def test_neither_is_that_of_a_run(finished_run: Path, tmp_path: Path, attempt: Attempt) -> None:
    shutil.copytree(finished_run, tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(re.sub(r"width = \d+", "width = 9000", config.read_text()))
    for words in (["evaluate"], ["diagnose"], ["export", str(tmp_path / "x.safetensors")]):
        code, line = attempt([words[0], str(tmp_path / "run"), *words[1:]])
        assert (code, "the network of its config takes" in line) == (2, True), line


@pytest.mark.parametrize("shape", [None, [], [16, 16], [0, 16, 1], [16, 16, 1, 1], "abc", 5])
def test_items_of_no_shape(shape: Any, tmp_path: Path) -> None:
    about = {"derts": "derts-model-1", "card": json.dumps({"item_shape": shape, "config": {}})}
    save_file({"weight": torch.zeros(9)}, tmp_path / "x.safetensors", about)
    with pytest.raises(DertsError, match=r"is damaged .*items of shape"):
        load_model(tmp_path / "x.safetensors")


@pytest.mark.parametrize("engine", ["greedy", "lazy", "stochastic"])
@pytest.mark.parametrize("power", [-1000, -500, 0, 510, 1000])
def test_the_size_of_numbers_does_not_change_what_is_selected(engine: str, power: int) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 4))
    plain = select(rows, 5, engine=engine)  # type: ignore[arg-type]
    scaled = select(np.ldexp(rows, power), 5, engine=engine)  # type: ignore[arg-type]
    assert scaled.indices.tolist() == plain.indices.tolist()
    assert scaled.objective == np.ldexp(plain.objective, power)


def test_numbers_at_the_ends_of_their_precision(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 4))
    half = select(torch.from_numpy(rows).half() * 1e4, 5)
    assert half.indices.tolist() == select(rows.astype(np.float16), 5).indices.tolist()
    np.save(tmp_path / "rows.npy", rows * 1e154)
    words = ["select", str(tmp_path / "rows.npy"), "--k", "5", "--out", str(tmp_path / "s.json")]
    assert run(words) == 0
    with pytest.raises(DertsError, match="too far apart for float64"):
        select(np.array([[1e308], [-1e308]]), 1)


@pytest.mark.parametrize("update", ["{}", "1e999"])
def test_an_event_that_is_none_is_named_before_training_goes_on(
    update: str, tmp_path: Path, letters: dict[str, ImageTable], capsys: pytest.CaptureFixture[str]
) -> None:
    save_table(letters, tmp_path / "store")
    config = tiny(data=str(tmp_path / "store"), updates=2, checkpoint_every=1)
    train(config, tmp_path / "run", quiet=True)
    log = tmp_path / "run" / "events.jsonl"
    log.write_text('{"event": "round", "update": ' + update + "}\n" + log.read_text())
    with pytest.raises(DertsError, match=r"line 1 of .* is no event of a run: remove it"):
        list(Run.open(tmp_path / "run").events())
    capsys.readouterr()
    for words in (["evaluate", str(tmp_path / "run")], ["report", str(tmp_path / "run")]):
        assert run(words) == 2
        assert "is no event of a run" in capsys.readouterr().err
    (tmp_path / "run" / "result.json").unlink()
    max((tmp_path / "run" / "checkpoints").iterdir()).unlink()
    assert run(["train", "--resume", str(tmp_path / "run"), "--quiet"]) == 2
    assert "is no event of a run" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "run")
