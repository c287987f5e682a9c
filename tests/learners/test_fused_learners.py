"""When a learner records its updates, and when it wants to know its images' patch products."""

from types import SimpleNamespace

import pytest
import torch

from derts.config import LearnerConfig, ModelConfig
from derts.data.table import ImageTable
from derts.learners import AnyLearner, build_learner

GIB = 1 << 30


def images(size: int = 32, channels: int = 3) -> ImageTable:
    pixels = torch.zeros(4, size, size, channels, dtype=torch.uint8)
    return ImageTable(pixels, torch.arange(4), tuple("abcd"))


def learner(backbone: str, name: str = "protonet", batch_norm: str = "shared") -> AnyLearner:
    model = ModelConfig(backbone, width=16, batch_norm=batch_norm)  # type: ignore[arg-type]
    config = LearnerConfig(name=name)  # type: ignore[arg-type]
    built = build_learner(config, model, way=5, image_shape=(32, 32, 3))
    built.fused = True
    return built


@pytest.mark.parametrize(("gib", "records"), [(139, True), (100, True), (80, False)])
def test_updates_of_resnet12_are_recorded_where_memory_allows(
    gib: int, records: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=gib * GIB)
    )
    assert learner("resnet12").captures_on(images()) is records
    assert learner("cnn4").captures_on(images())
    assert not learner("resnet12", "maml").captures_on(images())
    plain = learner("resnet12")
    plain.fused = False
    assert not plain.captures_on(images())


@pytest.mark.parametrize("backbone", ["cnn4", "resnet12"])
def test_products_are_wanted_where_they_are_used(backbone: str) -> None:
    assert learner(backbone).takes_products(images())
    assert not learner(backbone).takes_products(images(33))
    assert not learner(backbone).takes_products(images(channels=4))
    assert not learner(backbone, "maml").takes_products(images())
    # they are sums over all tasks
    assert not learner(backbone, batch_norm="task").takes_products(images())
