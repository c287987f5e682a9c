"""Broken and hostile images of every format that is read: pixels, or a reason in one line."""

from __future__ import annotations

import io
import struct
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from derts.data.decode import FORMATS, MOST_BYTES, BrokenImageError, Images, decode
from derts.errors import DertsError
from derts.predict import FewShotModel

Attempt = Callable[[list[str]], tuple[int, str]]


def encoded(kind: str, side: int = 40, **options: object) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind: bytes, content: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + checksum


def png_with(*chunks: bytes) -> bytes:
    """A small PNG with chunks after its header."""
    whole = encoded("PNG")
    return whole[:33] + b"".join(chunks) + whole[33:]


def tiff(width: int, height: int, tags: int = 0) -> bytes:
    """An uncompressed TIFF that says so of its size; `tags` says that it has so many tags."""
    entries = [
        (256, 4, width), (257, 4, height), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 8),
        (277, 3, 1), (278, 4, height), (279, 4, min(width * height, 2**32 - 1)),
    ]  # fmt: skip
    rows = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in entries)
    return b"II*\0" + struct.pack("<IH", 8, tags or len(entries)) + rows + bytes(4)


def huge(kind: str) -> bytes:
    """A file that says it has billions of pixels."""
    far, small = 60_000, bytearray(encoded(kind))
    if kind == "JPEG":
        at = small.index(b"\xff\xc0") + 5
        small[at : at + 4] = struct.pack(">HH", far, far)
    elif kind == "PNG":
        header = struct.pack(">IIBBBBB", far, far, 8, 2, 0, 0, 0)
        return bytes(small[:8]) + chunk(b"IHDR", header) + bytes(small[33:])
    elif kind == "WEBP":
        return b"RIFF\x1e\0\0\0WEBPVP8X" + struct.pack("<I", 10) + b"\0" * 4 + b"\xff\xff\x3f" * 2
    elif kind == "GIF":
        small[6:10] = struct.pack("<HH", far, far)
    elif kind == "BMP":
        small[18:26] = struct.pack("<ii", far, far)
    elif kind == "TIFF":
        return tiff(far, far)
    else:
        return b"P6 60000 60000 255\n" + bytes(100)
    return bytes(small)


def animated(frames: int) -> bytes:
    images = [Image.new("L", (300, 300), number % 256) for number in range(frames)]
    buffer = io.BytesIO()
    images[0].save(buffer, "GIF", save_all=True, append_images=images[1:])
    return buffer.getvalue()


def many_scans(kind: str, **options: object) -> bytes:
    """A progressive JPEG whose last scan is there a thousand times; of an MPO, the first image."""
    whole = encoded(kind, 400, progressive=True, **options)
    end = whole.index(b"\xff\xd9", whole.index(b"\xff\xda"))
    last = whole.rindex(b"\xff\xda", 0, end)
    return whole[:last] + whole[last:end] * 1000 + whole[end:]


@cache
def corpus() -> list[tuple[str, bytes, str]]:
    return list(_corpus())


def _corpus() -> Iterator[tuple[str, bytes, str]]:
    """Name, content, and a word of the reason; nothing where any end will do."""
    for kind in FORMATS:
        whole = encoded(kind)
        for share in (0.02, 0.2, 0.5, 0.9):
            yield f"cut-{share}.{kind}", whole[: int(share * len(whole))], ""
        for seed in range(6):
            random, changed = np.random.default_rng(seed), bytearray(whole)
            for place in random.integers(0, min(len(whole), 300), 4):
                changed[place] = int(random.integers(0, 256))
            yield f"changed-{seed}.{kind}", bytes(changed), ""
        yield f"huge.{kind}", huge(kind), "more pixels"
    bomb = zlib.compress(bytes(60_000_000), 1)
    yield "empty.png", b"", "empty file"
    yield "text.jpg", b"this is no image\n" * 50, "known format"
    yield "zeros.bmp", bytes(5000), "known format"
    yield (
        "script.png",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n{} loop\n",
        "known format",
    )
    yield "page.jpg", b"%PDF-1.4\n", "known format"
    yield "text-chunk.png", png_with(chunk(b"zTXt", b"a\0\0" + bomb)), "too large"
    yield "profile.png", png_with(chunk(b"iCCP", b"a\0\0" + bomb)), ""
    texts = [chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(900_000), 1))] * 99
    yield "many-texts.png", png_with(*texts), ""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 30, 30, 8, 2, 0, 0, 0))
    yield "squeezed.png", b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", bomb), ""
    yield "scans.jpg", many_scans("JPEG"), "100 scans"
    second = [Image.new("RGB", (8, 8))]  # two images make an MPO, as cameras of two lenses do
    yield "pair.jpg", many_scans("MPO", save_all=True, append_images=second), "100 scans"
    yield "frames.gif", animated(50), ""
    yield "tags.tif", tiff(40, 40, 65_535), ""
    yield "wide.ppm", b"P5 9000000 1 255\n", ""
    yield "plain.ppm", b"P3 4000 4000 255\n" + b"1 " * 1000, ""
    yield "heic.jpg", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100), "it is HEIC"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    for name, content, _ in corpus():
        endings = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "GIF": "gif", "BMP": "bmp",
                   "TIFF": "tif", "PPM": "ppm"}  # fmt: skip
        stem, ending = name.rsplit(".", 1)
        (folder / f"{stem}-{ending}.{endings.get(ending, ending)}").write_bytes(content)
    return folder


def test_every_one_gives_pixels_or_a_reason() -> None:
    broken = 0
    for name, content, word in corpus():
        started = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing is said past us
            try:
                assert decode(content, 16, 3).shape == (16, 16, 3)
                assert not word, name
            except BrokenImageError as error:
                broken += 1
                reason = str(error)
                assert word in reason, (name, reason)
                assert 0 < len(reason) <= 120, name
                assert reason.isprintable(), name
                assert "<_io" not in reason, name
        assert time.monotonic() - started < 5, name
    assert broken > 50


def test_limits_of_text_are_those_that_pillow_has() -> None:
    assert PngImagePlugin.MAX_TEXT_CHUNK <= 2**20
    assert PngImagePlugin.MAX_TEXT_MEMORY <= 2**26


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "long.tif").open("wb") as file:
        file.truncate(MOST_BYTES + 1)  # of holes
    with pytest.raises(BrokenImageError, match="longer than 300 MB"):
        Images([tmp_path / "long.tif"]).read(0)


def test_memory_that_runs_out_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("derts.data.decode.fit", exhausted)
    with pytest.raises(BrokenImageError, match="fit into memory"):
        decode(encoded("PNG"), 16, 3)


def test_prepare_leaves_them_out_or_names_the_first(
    hostile: Path, tmp_path: Path, attempt: Attempt
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "whole.png").write_bytes(encoded("PNG"))
    for file in hostile.iterdir():
        (tmp_path / "photos" / "b" / file.name).symlink_to(file)
    words = ["data", "prepare", str(tmp_path / "photos"), str(tmp_path / "store"), "--size", "16"]
    code, line = attempt(words)
    assert code == 2
    assert "of the images cannot be read, the first is b/" in line
    assert attempt([*words, "--skip-broken"]) == (0, "")


def test_predict_leaves_them_out_or_names_the_first(hostile: Path) -> None:
    from derts.config import ModelConfig, TrainConfig
    from derts.learners import build_learner

    config = TrainConfig(model=ModelConfig(width=2))
    learner = build_learner(config.learner, config.model, way=5, item_shape=(16, 16, 3))
    model = FewShotModel(config, {"item_shape": (16, 16, 3)}, learner.state_dict())
    white, black = Image.new("RGB", (9, 9), "white"), Image.new("RGB", (9, 9))
    classifier = model.adapt({"white": [white], "black": [black]})
    with pytest.raises(DertsError, match=r"cannot be read as an image \(.*--skip-broken"):
        classifier.predict(hostile)
    left_out: list[tuple[str, str]] = []
    found = classifier.predict(hostile, left_out=left_out)
    names = {one.name for one in found}
    assert len(found) + len(left_out) == len(list(hostile.iterdir()))
    assert "frames-gif.gif" in names
    assert not names & {name for name, _ in left_out}
    with pytest.raises(DertsError, match="no image that can be read"):
        model.adapt({"white": [white], "bad": [hostile / "text-jpg.jpg"]}, left_out=[])
