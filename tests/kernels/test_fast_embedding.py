"""When updates are recorded, when patch products are known, and what is set for how long."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from derts.config import LearnerConfig, ModelConfig
from derts.data.table import ImageTable
from derts.hardware import fast_math
from derts.kernels.fast_embedding import FastEmbedding
from derts.learners import build_learner

GIB = 1 << 30


def images(size: int = 32, channels: int = 3) -> ImageTable:
    pixels = torch.zeros(4, size, size, channels, dtype=torch.uint8)
    return ImageTable(pixels, torch.arange(4), tuple("abcd"))


def embedding(backbone: str, kernels: bool = True) -> FastEmbedding:
    model = ModelConfig(backbone, width=16)
    learner = build_learner(LearnerConfig("protonet"), model, way=5, item_shape=(32, 32, 3))
    made = FastEmbedding(learner.backbone, torch.device("cpu"))
    made.kernels = kernels
    return made


@pytest.mark.parametrize(("gib", "records"), [(139, True), (100, True), (80, False)])
def test_updates_of_resnet12_are_recorded_where_memory_allows(
    gib: int, records: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=gib * GIB)
    )
    assert embedding("resnet12").captures(images()) is records
    assert embedding("cnn4").captures(images())
    assert not embedding("resnet12", kernels=False).captures(images())


@pytest.mark.parametrize("backbone", ["cnn4", "resnet12"])
def test_patch_products_are_wanted_where_they_are_used(backbone: str) -> None:
    assert embedding(backbone).patch_products_pay(images())
    assert not embedding(backbone, kernels=False).patch_products_pay(images())
    assert not embedding(backbone).patch_products_pay(images(33))
    assert not embedding(backbone).patch_products_pay(images(channels=4))


def test_patch_products_of_another_table_are_not_used() -> None:
    made = embedding("cnn4")
    assert made.patch_products_of(images(), torch.tensor([[0, 1]])) is None


def test_torchs_settings_are_put_back() -> None:
    def settings() -> tuple[bool, bool, bool]:
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        return matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark

    before = settings()
    with fast_math(torch.device("cpu"), tune=True):
        assert settings() == before
    with contextlib.suppress(KeyError), fast_math(torch.device("cuda"), tune=True):
        assert settings() == (True, True, True)
        with fast_math(torch.device("cuda"), tune=False):
            assert settings() == (True, True, False)
        raise KeyError
    assert settings() == before
