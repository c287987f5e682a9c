"""The TaskPool contract: slices, files, and a recipe that tells what was done."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from derts.data.table import ImageTable
from derts.errors import DertsError
from derts.tasks import TaskNoise, TaskPool

Make = Callable[..., ImageTable]


@pytest.fixture
def pool(table: Make) -> TaskPool:
    return TaskPool.sample(
        table(*(8,) * 6), tasks=10, way=2, shot=1, query=3, seed=0, noise=TaskNoise(0.3)
    )


def test_slices_masks_and_indices_give_pools(pool: TaskPool) -> None:
    assert pool[2:4] == pool[torch.tensor([2, 3])] == pool[[2, 3]]
    assert pool[torch.arange(10) < 3] == pool[:3]
    assert len(pool[torch.tensor(4)]) == 1
    assert TaskPool.concatenate(list(pool.split(4))) == pool
    assert [len(part) for part in pool.split(4)] == [4, 4, 2]
    assert pool.to("cpu") == pool != "pool"
    copy = pool.clone()
    copy.support.zero_()
    assert copy != pool
    with pytest.raises(TypeError):
        hash(pool)


def test_a_pool_tells_what_was_done_to_it(pool: TaskPool, tmp_path: Path) -> None:
    assert (pool.recipe["tasks"], pool.recipe["seed"], pool.changes) == (10, "0", [])
    part = pool[2:6]
    assert (part.recipe["tasks"], part.recipe["seed"]) == (4, "0")
    votes = part.relabelled("majority vote", query_labels=part.true_query_labels)
    assert votes.changes == ["4 of 10 tasks", "relabelled by majority vote"]
    assert torch.equal(votes.query_labels, pool.true_query_labels[2:6])
    assert repr(votes[[1]]).endswith("; relabelled by majority vote; 1 of 4 tasks)")
    both = TaskPool.concatenate([pool, votes])
    assert (both.recipe["tasks"], both.changes) == (14, ["2 pools concatenated"])
    assert both.recipe["pools"] == [pool.recipe, votes.recipe]
    both.save(tmp_path / "pool")
    assert TaskPool.load(tmp_path / "pool").recipe == both.recipe
    assert pool[:] is pool  # nothing was done
    assert pool.clone().to("cpu").changes == []


def test_a_saved_pool_loads_equal_with_its_recipe(pool: TaskPool, tmp_path: Path) -> None:
    pool.save(tmp_path / "pool.safetensors")
    loaded = TaskPool.load(tmp_path / "pool.safetensors")
    assert (loaded, loaded.recipe) == (pool, pool.recipe)


def test_a_clean_pool_whose_labels_share_memory_is_saved(table: Make, tmp_path: Path) -> None:
    clean = TaskPool.sample(table(*(8,) * 6), tasks=3, shot=1, query=3)
    clean[:2].save(tmp_path / "pool")
    assert TaskPool.load(tmp_path / "pool") == clean[:2]


def test_a_damaged_or_missing_pool_is_refused(pool: TaskPool, tmp_path: Path) -> None:
    path = tmp_path / "pool.safetensors"
    with pytest.raises(DertsError, match="no task pool"):
        TaskPool.load(path)
    pool.save(path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DertsError, match="damaged"):
        TaskPool.load(path)
    save_file({"support": pool.support}, path, {"way": "2", "recipe": "{}"})
    with pytest.raises(DertsError, match="is not a task pool"):
        TaskPool.load(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"classes": torch.zeros(10, 2)},
        {"classes": torch.zeros(10, 5, dtype=torch.long)},
        {"classes": torch.zeros(3, 2, dtype=torch.long)},
        {"support": torch.zeros(10, 2, dtype=torch.int32)},
        {"query_labels": torch.full((10, 6), 2)},
        {"support_labels": torch.full((10, 2), -1)},
        {"query": torch.zeros(10, 5, dtype=torch.long)},
    ],
)
def test_a_file_with_impossible_tensors_is_refused(
    changes: dict[str, torch.Tensor], pool: TaskPool, tmp_path: Path
) -> None:
    replace(pool, **changes).save(tmp_path / "odd")  # type: ignore[arg-type]
    with pytest.raises(DertsError, match="is not a task pool, or is damaged"):
        TaskPool.load(tmp_path / "odd")
