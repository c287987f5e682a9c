"""Generated input of every kind ends in success or in one clear line: 1,910 cases."""

import hashlib
import io
import json
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from derts.cli import COMMANDS
from derts.config import TrainConfig
from derts.config_file import read_config, to_toml
from derts.data import ImageTable, open_store, verify_store
from derts.data import prepare as make_store
from derts.data.safe_pickle import load_pickle
from derts.errors import DertsError
from derts.facility_location import Selection, select
from derts.labels import relabel_by_votes
from derts.selection.noisy_tasks import find_noisy
from derts.tasks import TaskPool
from derts.training.checkpoint import MAGIC, checkpoint_files, load_checkpoint
from derts.training.run import open_trainer
from derts.training.run_folder import Run

pytestmark = pytest.mark.slow

Attempt = Callable[[list[str]], tuple[int, str]]


def generated(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


def ends_well(call: Callable[[], object]) -> bool:
    """Success, or a refusal in one line that can be read; any other exception is let through."""
    try:
        call()
    except DertsError as error:
        return bool(str(error).strip()) and str(error).isprintable()
    return True


@contextmanager
def folder_with(name: str = "", content: bytes = b"") -> Iterator[Path]:
    """A new folder; with a name, of a file in it with this content, the path of that file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        if name:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield path


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
damage = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "remove", "zero"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=4,
)


def damaged(content: bytes, steps: list[tuple[str, float, int]]) -> bytes:
    """The content with bytes changed, cut off, put in or taken out at a share of its length."""
    changed = bytearray(content)
    for kind, place, value in steps:
        at = int(place * len(changed))
        if kind == "cut":
            del changed[at:]
        elif kind == "insert":
            changed[at:at] = bytes([value]) * (1 + value % 9)
        elif kind == "remove":
            del changed[at : at + 1 + value % 9]
        elif kind == "zero":
            changed[at : at + 8] = bytes(len(changed[at : at + 8]))
        elif at < len(changed):
            changed[at] ^= value or 1
    return bytes(changed)


KEYS = ["updates", "seed", "data", "tasks", "model", "strategy", "tasks.way", "optimiser.lr",
        "strategy.name", "strategy.ratio", "hardware.device", "evaluation.split", "nonsense",
        "tasks.classes", "learner.inner_lr"]  # fmt: skip
toml_values = st.one_of(
    st.integers().map(str),
    st.floats().map(repr),
    st.text(max_size=6).map(json.dumps),
    st.sampled_from(["true", "nan", "inf", "-inf", "[]", "[1, 2]", "{}", "1979-05-27", '"derts"']),
)


@given(
    st.lists(st.tuples(st.sampled_from(KEYS), toml_values), max_size=4).map(
        lambda rows: "\n".join(f"{key} = {value}" for key, value in rows).encode()
    )
    | damage.map(lambda steps: damaged(to_toml(TrainConfig()).encode(), steps))
    | st.binary(max_size=40)
)
@generated(250)
def test_configs(content: bytes) -> None:
    with folder_with("config.toml", content) as path:
        found: list[TrainConfig] = []
        assert ends_well(lambda: found.append(read_config(path)))
        for config in found:
            path.write_text(to_toml(config), encoding="utf-8")
            assert read_config(path) == config


words = st.sampled_from(
    ["--updates", "--tasks.way", "--tasks.noise", "--optimiser.lr", "--strategy.ratio", "--seed",
     "--preset", "--config", "--out", "--resume", "--k", "--shot", "--size", "--workers", "--help=",
     "-o", "--only", "--dataset", "--seeds", "--support", "--tasks", "all", "table1", "bash",
     "train", "data", "select", "evaluate", "", "-", "--", "--=", "-h=1", "0", "-1", "nan", "1e999"]
) | st.text(max_size=6)  # fmt: skip


@given(
    st.sampled_from([*COMMANDS, "data"]),
    st.lists(words, max_size=4),
)
@generated(130)
def test_options(attempt: Attempt, in_folder: Path, command: str, given_words: list[str]) -> None:
    where = {
        "train": ["--data", "nowhere"],
        "demo": ["--seeds", "0"],
        "data prepare": ["nowhere", "store"],
        "data": [],
        "completion": [],
        "reproduce": ["--dry-run"],
        "predict": ["nowhere", "--support", "nowhere", "--query", "nowhere"],
    }.get(command, ["nowhere"])
    try:
        attempt([*command.split(), *given_words, *where])
    except SystemExit as stop:  # --help among the words
        if stop.code:
            raise
    assert not [path for path in in_folder.rglob("*") if path.suffix in (".tmp", ".partial")]


def image_bytes() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (6, 6), (1, 2, 3)).save(buffer, "PNG")
    return buffer.getvalue()


PNG = image_bytes()
names = st.text(
    st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=8
).filter(lambda name: name not in (".", ".."))
contents = st.sampled_from([PNG, b"", b"text", PNG[:20]]) | damage.map(
    lambda steps: damaged(PNG, steps)
)


@given(
    st.dictionaries(names, st.dictionaries(names, contents, max_size=3), max_size=5),
    st.booleans(),
)
@generated(80)
def test_folders(tree: dict[str, dict[str, bytes]], skip_broken: bool) -> None:
    with folder_with() as root:
        (root / "in").mkdir()
        for name, files in tree.items():
            (root / "in" / name).mkdir(exist_ok=True)
            for number, (file, content) in enumerate(files.items()):
                (root / "in" / name / f"{number}{file}.png").write_bytes(content)
        assert prepared_or_refused(root, skip_broken=skip_broken)


def prepared_or_refused(root: Path, skip_broken: bool = False) -> bool:
    """Whether preparing ended well; a store that is there must be whole."""
    store = root / "out"
    well = ends_well(
        lambda: make_store(root / "in", store, size=8, workers=1, skip_broken=skip_broken)
    )
    if store.exists():
        verify_store(store)
        open_store(store)
    return well


csv_cells = st.sampled_from(
    ["a.png", "../secret.png", "/etc/passwd", "b.png", "", ".", "..", "images/../../secret.png",
     "a.png\0", "a\nb.png", '"', "\u202egnp.a"]
) | st.text(max_size=6)  # fmt: skip


@given(
    st.lists(st.tuples(csv_cells, csv_cells), max_size=5),
    st.sampled_from(["filename,label\n", "filename\n", "", "label,filename\n",
                     "\ufefffilename,label\n"]),
    st.binary(max_size=4),
)  # fmt: skip
@generated(120)
def test_csvs(rows: list[tuple[str, str]], header: str, tail: bytes) -> None:
    with folder_with("secret.png", PNG) as secret:
        root = secret.parent
        (root / "in" / "images").mkdir(parents=True)
        for name in ("a.png", "b.png"):
            (root / "in" / "images" / name).write_bytes(PNG)
        text = header + "".join(f"{file},{label}\n" for file, label in rows)
        table = text.encode("utf-8", "surrogatepass") + tail
        for split in ("train", "val", "test"):
            (root / "in" / f"{split}.csv").write_bytes(table)
        assert prepared_or_refused(root)


WHOLE_PICKLE = pickle.dumps(
    {
        "image_data": np.zeros((4, 6, 6, 3), np.uint8),
        "class_dict": {"cat": [0, 1], "dog": np.array([2, 3])},
    },
    protocol=4,
)


@given(damage.map(lambda steps: damaged(WHOLE_PICKLE, steps)) | st.binary(max_size=60))
@generated(220)
def test_pickles(content: bytes) -> None:
    with folder_with("in/mini-imagenet-cache-train.pkl", content) as path:
        assert ends_well(lambda: load_pickle(path))
        assert prepared_or_refused(path.parents[1])


def jpeg_pack() -> bytes:
    buffer = io.BytesIO()
    offsets = np.arange(5) * len(PNG)
    pixels = np.frombuffer(PNG * 4, np.uint8)
    labels = np.array([0, 0, 1, 1])
    names = {"class_names": ["cat", "dog"], "categories": ["pet", "pet"]}
    np.savez(buffer, data=pixels, offsets=offsets, labels=labels, **names)  # type: ignore[arg-type]
    return buffer.getvalue()


WHOLE_PACK = jpeg_pack()


@given(damage)
@generated(120)
def test_packs(steps: list[tuple[str, float, int]]) -> None:
    with folder_with("in/train_0.npz", damaged(WHOLE_PACK, steps)) as path:
        assert prepared_or_refused(path.parents[1])


def change(content: Any, path: list[int], value: Any) -> Any:
    """A copy of nested JSON with the entry that a path of numbers leads to replaced."""
    if not path or not isinstance(content, dict | list) or not content:
        return value
    keys = list(content) if isinstance(content, dict) else list(range(len(content)))
    key = keys[path[0] % len(keys)]
    copy = dict(content) if isinstance(content, dict) else list(content)
    copy[key] = change(content[key], path[1:], value)
    return copy


changes = st.tuples(st.lists(st.integers(0, 20), max_size=4), anything)


def altered(content: bytes, how: Any) -> bytes:
    """Other bytes, or JSON with another value somewhere."""
    if isinstance(how, list):
        return damaged(content, how)
    return json.dumps(change(json.loads(content), *how)).encode()


@given(st.sampled_from(["store.json", "train.npy", "train_labels.npy"]), damage | changes)
@generated(150)
def test_stores(store: Path, name: str, how: Any) -> None:
    with folder_with() as folder:
        copy = folder / "store"
        shutil.copytree(store, copy)
        path = copy / ("store.json" if isinstance(how, tuple) else name)
        path.write_bytes(altered(path.read_bytes(), how))
        assert ends_well(lambda: open_store(copy))
        assert ends_well(lambda: verify_store(copy))


def with_checksum(content: bytes) -> bytes:
    return MAGIC + hashlib.sha256(content).hexdigest().encode() + b"\n" + content


@given(damage, st.booleans())
@generated(150)
def test_checkpoints(finished_run: Path, steps: list[tuple[str, float, int]], sealed: bool) -> None:
    """Sealed: the content is damaged but its checksum fits, as an attacker would do it."""
    whole = checkpoint_files(finished_run / "checkpoints")[-1].read_bytes()
    content = damaged(whole.partition(b"\n")[2] if sealed else whole, steps)
    content = with_checksum(content) if sealed else content
    with folder_with("update-0000002.ckpt", content) as path:
        assert ends_well(lambda: load_checkpoint(path))


@given(st.lists(st.integers(0, 30), min_size=1, max_size=3), anything)
@generated(40)
def test_run_folders(
    finished_run: Path, letters: dict[str, ImageTable], path: list[int], value: Any
) -> None:
    """The checkpoint's state has another value somewhere."""
    newest = checkpoint_files(finished_run / "checkpoints")[-1]
    state = change(load_checkpoint(newest), path, value)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    with folder_with() as folder:
        copy = folder / "run"
        shutil.copytree(finished_run, copy)
        (copy / "checkpoints" / newest.name).write_bytes(with_checksum(buffer.getvalue()))
        assert ends_well(lambda: open_trainer(copy, letters))
        (copy / "events.jsonl").write_bytes(buffer.getvalue()[:200])
        assert list(Run.open(copy).events()) == []


WHOLE_SELECTION = select(torch.randn(12, 2, generator=torch.Generator().manual_seed(0)), 4)


@given(damage | changes)
@generated(120)
def test_selections(how: Any) -> None:
    content = altered(WHOLE_SELECTION.to_json().encode(), how)
    with folder_with("selection.json", content) as path:
        assert ends_well(lambda: list(Selection.load(path).batches(torch.arange(12), 2)))


@given(damage, st.integers(-2, 15))
@generated(120)
def test_matrices(
    attempt: Attempt, in_folder: Path, steps: list[tuple[str, float, int]], k: int
) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(20, dtype=np.float32).reshape(10, 2))
    Path("g.npy").write_bytes(damaged(buffer.getvalue(), steps))
    Path("s.json").unlink(missing_ok=True)
    code, _ = attempt(["select", "g.npy", "--k", str(k), "--out", "s.json"])
    assert Path("s.json").exists() == (code == 0)
    if code == 0:
        Selection.load("s.json")


@given(damage)
@generated(100)
def test_pools(letters: dict[str, ImageTable], steps: list[tuple[str, float, int]]) -> None:
    pool = TaskPool.sample(letters["train"], tasks=2, way=2, shot=1, query=1, seed=0)
    with folder_with("pool.safetensors") as path:
        pool.save(path)
        path.write_bytes(damaged(path.read_bytes(), steps))
        assert ends_well(lambda: repr(TaskPool.load(path)))


@given(
    st.sampled_from(["support", "query", "support_labels", "true_query_labels", "classes"]),
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from([torch.int64, torch.int32, torch.float32, torch.bool]),
    st.integers(-2, 2**40),
)
@generated(100)
def test_pools_with_other_tensors(
    letters: dict[str, ImageTable], name: str, shape: list[int], dtype: torch.dtype, value: int
) -> None:
    pool = TaskPool.sample(letters["train"], tasks=2, way=2, shot=1, query=1, seed=0)
    other = torch.full(shape, value).to(dtype)
    with folder_with("pool.safetensors") as path:
        replace(pool, **{name: other}).save(path)  # type: ignore[arg-type]
        assert ends_well(lambda: relabel_by_votes(TaskPool.load(path)))


numbers = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1e38, -1e38, 1e-45])
shapes = st.lists(st.integers(0, 4), max_size=3)


@given(shapes, st.lists(numbers, min_size=1, max_size=5), st.integers(-1, 6), numbers)
@generated(150)
def test_functions(shape: list[int], values: list[float], k: int, value: float) -> None:
    count = int(np.prod(shape))
    tensor = torch.tensor(values).repeat(count)[:count].reshape(shape)
    calls: list[Any] = [
        lambda: select(tensor, k),
        lambda: select(tensor.numpy(), k, engine="stochastic", epsilon=value),
        lambda: find_noisy(tensor, reference=tensor),
        lambda: find_noisy(tensor + value),
        lambda: ImageTable(tensor, torch.zeros(count).long(), ("a",)),
        lambda: TaskPool.sample(
            ImageTable(torch.zeros(6, 4, 4, 1).byte(), torch.arange(6) // 3, ("a", "b")),
            tasks=k, way=k, shot=k, query=1,
        ),
    ]  # fmt: skip
    assert all(ends_well(call) for call in calls)


READERS = [
    ["report", "RUN", "-o", "page.html"],
    ["runs", "."],
    ["compare", "RUN", "RUN"],
    ["export", "RUN", "model.safetensors"],
    ["predict", "RUN", "--support", "nowhere", "--query", "nowhere"],
]


@pytest.mark.slow
@given(
    st.sampled_from(["events.jsonl", "result.json", "config.toml", "round", "checkpoint"]),
    damage | changes,
    st.sampled_from(READERS),
)
@generated(60)
def test_commands_that_read_runs(
    attempt: Attempt, in_folder: Path, finished_run: Path, name: str, how: Any, words: list[str]
) -> None:
    """One of a run's files has other bytes, or other values in its right format."""
    shutil.rmtree("run", ignore_errors=True)
    shutil.copytree(finished_run, "run")
    folder = {"round": "rounds", "checkpoint": "checkpoints"}.get(name)
    file = sorted(Path("run", folder).iterdir())[-1] if folder else Path("run", name)
    if isinstance(how, list) or file.suffix == ".json":
        file.write_bytes(altered(file.read_bytes(), how))
    elif file.suffix == ".jsonl":
        lines = file.read_bytes().splitlines()
        file.write_bytes(b"\n".join(altered(line, how) for line in lines))
    attempt(["run" if word == "RUN" else word for word in words])
    assert not list(in_folder.rglob(".*.tmp"))
