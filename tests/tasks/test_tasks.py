"""Sampling, noise and the TaskPool contract."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from derts.data.table import ImageTable
from derts.errors import DertsError
from derts.tasks import Noise, SwapNoise, TaskNoise, TaskPool, TaskSampler, generator


def table(sizes: tuple[int, ...] = (30,) * 12) -> ImageTable:
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels), generator=generator(7))]
    images = torch.zeros(len(labels), 2, 2, 1, dtype=torch.uint8)
    return ImageTable(images, labels, tuple(f"class {n}" for n in range(len(sizes))))


def draw(tasks: int = 50, seed: int = 0, noise: Noise | None = None) -> TaskPool:
    return TaskPool.sample(table(), tasks=tasks, way=5, shot=5, query=15, seed=seed, noise=noise)


def test_images_are_different_and_belong_to_their_class() -> None:
    images = table(sizes=(20, 33, 21, 27, 20, 40))
    pool = TaskPool.sample(images, tasks=200, way=5, shot=4, query=16, seed=3)
    for task in range(len(pool)):
        indices = torch.cat((pool.support[task], pool.query[task]))
        assert len(indices.unique()) == 100
        labels = torch.cat((pool.support_labels[task], pool.query_labels[task]))
        for label in range(5):
            assert len(images.labels[indices[labels == label]].unique()) == 1
        assert len(images.labels[indices].unique()) == 5
    assert torch.bincount(pool.support_labels[0]).tolist() == [4] * 5


def test_classes_and_images_are_drawn_uniformly() -> None:
    images = table(sizes=(20, 40, 30, 25))
    pool = TaskPool.sample(images, tasks=4000, way=2, shot=1, query=1, seed=0)
    drawn = images.labels[pool.support].flatten()
    shares = torch.bincount(drawn).float() / len(drawn)
    assert shares.sub(0.25).abs().max() < 0.02
    per_image = torch.bincount(pool.support.flatten(), minlength=len(images)).float()
    large_class = per_image[images.labels == 1]
    assert large_class.sub(2000 / 40).abs().max() < 5 * (2000 / 40) ** 0.5


def test_the_same_seed_gives_the_same_pool_and_another_seed_another() -> None:
    assert draw() == draw()
    assert draw() != draw(seed=1)
    assert draw() != "pool"


def test_only_named_classes_are_used() -> None:
    images = table()
    names = ["class 3", "class 1", "class 7"]
    pool = TaskPool.sample(images, tasks=30, way=3, shot=1, query=1, seed=0, classes=names)
    assert set(images.labels[pool.support].flatten().tolist()) == {1, 3, 7}


@pytest.mark.parametrize(("rate", "share"), [(3.02, 0.25), (5.62, 0.40)])
def test_swap_noise_has_the_measured_rate(rate: float, share: float) -> None:
    pool = draw(tasks=3200, noise=SwapNoise(rate, limit=10))
    assert abs(float(pool.mislabelled().mean()) - share) < 0.01
    assert float(pool.mislabelled().std()) > 0.03


def test_a_low_limit_cannot_reach_forty_percent() -> None:
    pool = draw(tasks=800, noise=SwapNoise(rate=100.0, limit=5))
    assert float(pool.mislabelled().mean()) < 0.39


def test_swap_noise_keeps_every_class_its_shots_and_the_task_its_images() -> None:
    clean, noisy = draw(noise=None), draw(noise=SwapNoise(5.62))
    assert torch.equal(noisy.support_labels, clean.support_labels)
    for task in range(len(noisy)):
        ours = torch.cat((noisy.support[task], noisy.query[task])).sort().values
        theirs = torch.cat((clean.support[task], clean.query[task])).sort().values
        assert torch.equal(ours, theirs)


def test_true_labels_tell_the_class_of_the_image() -> None:
    images = table()
    noise: Noise
    for noise in (SwapNoise(5.62), TaskNoise(0.5)):
        pool = TaskPool.sample(images, tasks=40, way=5, shot=2, query=8, seed=1, noise=noise)
        for task in range(len(pool)):
            indices = torch.cat((pool.support[task], pool.query[task]))
            true = torch.cat((pool.true_support_labels[task], pool.true_query_labels[task]))
            pairs = set(zip(true.tolist(), images.labels[indices].tolist(), strict=True))
            assert len(pairs) == 5
        assert 0.1 < float(pool.mislabelled().mean()) < 0.7


def test_task_noise_corrupts_some_tasks_and_leaves_the_others_alone() -> None:
    pool = draw(tasks=3200, noise=TaskNoise(0.6, flip=0.8))
    corrupted = pool.mislabelled() > 0
    assert abs(float(corrupted.float().mean()) - 0.6) < 0.03
    assert abs(float(pool.mislabelled()[corrupted].mean()) - 0.8) < 0.01
    assert int(pool.support_labels.min()) == 0
    assert int(pool.support_labels.max()) == 4


def test_slices_masks_and_indices_give_pools(tmp_path: Path) -> None:
    pool = draw(tasks=10)
    assert pool[2:4] == pool[torch.tensor([2, 3])] == pool[[2, 3]]
    assert pool[torch.arange(10) < 3] == pool[:3]
    assert len(pool[torch.tensor(4)]) == 1
    assert TaskPool.concatenate(list(pool.split(4))) == pool
    assert [len(part) for part in pool.split(4)] == [4, 4, 2]
    assert pool.to("cpu") == pool
    copy = pool.clone()
    copy.support.zero_()
    assert copy != pool
    with pytest.raises(TypeError):
        hash(pool)


def test_a_saved_pool_loads_equal_with_its_recipe(tmp_path: Path) -> None:
    pool = draw(noise=TaskNoise(0.3))
    pool.save(tmp_path / "pool.safetensors")
    loaded = TaskPool.load(tmp_path / "pool.safetensors")
    assert loaded == pool
    assert loaded.recipe == pool.recipe
    assert loaded.recipe["seed"] == "0"


def test_a_damaged_or_missing_pool_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pool.safetensors"
    with pytest.raises(DertsError, match="no task pool"):
        TaskPool.load(path)
    draw().save(path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DertsError, match="damaged"):
        TaskPool.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"way": 13}, "way 13 needs 13 classes"),
        ({"shot": 20}, "has 30 images but shot 20"),
        ({"tasks": 0}, "at least 1"),
        ({"classes": ["class 1", "zebra"]}, "no class 'zebra'"),
    ],
)
def test_impossible_tasks_are_refused(change: dict[str, object], message: str) -> None:
    settings: dict[str, object] = {"tasks": 4, "way": 5, "shot": 5, "query": 15} | change
    with pytest.raises(DertsError, match=message):
        TaskPool.sample(table(), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [(-0.1, 0.8), (0.5, 1.2)])
def test_impossible_noise_is_refused(bad: tuple[float, float]) -> None:
    with pytest.raises(DertsError, match="between 0 and 1"):
        TaskNoise(*bad)
    with pytest.raises(DertsError, match="at least 0"):
        SwapNoise(-1.0)


@pytest.mark.parametrize("uneven", [False, True])
def test_a_pool_of_few_images(uneven: bool) -> None:
    labels = (
        torch.arange(600) % 10 if not uneven else (torch.arange(600).float().sqrt()).long() % 10
    )
    table = ImageTable(torch.zeros(600, 2, 2, 1, dtype=torch.uint8), labels, tuple("abcdefghij"))
    sampler = TaskSampler(table)
    pool = sampler.draw(tasks=400, way=5, shot=2, query=3, seed=7, images=100)
    used = torch.cat((pool.support, pool.query), 1)
    assert len(used.unique()) == 100
    assert torch.bincount(labels[used.unique()]).tolist() == [10] * 10
    true = torch.cat((pool.true_support_labels, pool.true_query_labels), 1)
    for images, own in zip(used, true, strict=True):
        assert len(images.unique()) == 25
        assert len({(int(a), int(b)) for a, b in zip(labels[images], own, strict=True)}) == 5
    # other pools use other images; asking for more than there are changes nothing
    other = sampler.draw(tasks=400, way=5, shot=2, query=3, seed=8, images=100)
    assert len(torch.cat((used, torch.cat((other.support, other.query), 1))).unique()) > 150
    plain = sampler.draw(tasks=9, way=5, shot=2, query=3, seed=7)
    assert sampler.draw(tasks=9, way=5, shot=2, query=3, seed=7, images=10**6) == plain


@pytest.mark.parametrize(
    "changes",
    [
        {"classes": torch.zeros(4, 2)},
        {"classes": torch.zeros(4, 5, dtype=torch.long)},
        {"classes": torch.zeros(3, 2, dtype=torch.long)},
        {"support": torch.zeros(4, 2, dtype=torch.int32)},
        {"query_labels": torch.full((4, 6), 2)},
        {"support_labels": torch.full((4, 2), -1)},
        {"query": torch.zeros(4, 5, dtype=torch.long)},
    ],
)
def test_a_file_with_impossible_tensors_is_refused(
    changes: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    pool = TaskPool.sample(table(), tasks=4, way=2, shot=1, query=3, seed=0)
    pool.save(tmp_path / "pool")
    assert TaskPool.load(tmp_path / "pool") == pool
    replace(pool, **changes).save(tmp_path / "odd")  # type: ignore[arg-type]
    with pytest.raises(DertsError, match="is not a task pool, or is damaged"):
        TaskPool.load(tmp_path / "odd")
