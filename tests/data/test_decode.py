"""One image of any mode becomes pixels of the wanted size; only formats we mean are opened."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from derts.data.decode import FORMATS, BrokenImageError, decode

Encode = Callable[..., bytes]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
@pytest.mark.parametrize("channels", [1, 3])
def test_modes_of_png(mode: str, channels: int, encoded: Encode) -> None:
    image = Image.new(mode, (20, 30), 0)
    assert decode(encoded(image), 8, channels).shape == (8, 8, channels)


@pytest.mark.parametrize(
    ("mode", "kind"), [("CMYK", "JPEG"), ("YCbCr", "JPEG"), ("F", "TIFF"), ("I", "TIFF")]
)
def test_modes_of_other_kinds(mode: str, kind: str, encoded: Encode) -> None:
    assert decode(encoded(Image.new(mode, (20, 30)), kind), 8, 3).shape == (8, 8, 3)


@pytest.mark.parametrize("kind", FORMATS)
def test_formats(kind: str, encoded: Encode) -> None:
    content = encoded(Image.new("RGB", (20, 30), (250, 250, 250)), kind)
    assert decode(content, 8, 3).mean() > 240


@pytest.mark.parametrize("kind", ["EPS", "ICO", "PCX", "TGA"])
def test_other_formats_are_refused(kind: str, encoded: Encode) -> None:
    """Pillow would hand PostScript to Ghostscript."""
    with pytest.raises(BrokenImageError, match="known format: JPEG"):
        decode(encoded(Image.new("RGB", (20, 30)), kind), 8, 3)


def test_transparent_becomes_white(encoded: Encode) -> None:
    clear = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    assert (decode(encoded(clear), 8, 3) == 255).all()
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([0, 0, 0, 255, 0, 0])
    assert (decode(encoded(palette), 8, 3) == (255, 0, 0)).all()
    assert (decode(encoded(palette, transparency=1), 8, 3) == 255).all()


def test_sixteen_bits_keep_their_brightness(encoded: Encode) -> None:
    values = np.full((8, 8), 40_000, dtype=np.uint16)
    assert (decode(encoded(values), 8, 1) == 156).all()


def test_camera_rotation_is_applied(encoded: Encode) -> None:
    image = Image.new("RGB", (16, 16))
    image.paste((255, 255, 255), (0, 0, 16, 8))  # white above
    exif = Image.Exif()
    exif[0x0112] = 3
    rotated = decode(encoded(image, exif=exif), 16, 3)
    assert (rotated[:8].mean(), rotated[8:].mean()) == (0, 255)


def test_same_size_is_not_resampled(encoded: Encode) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (84, 84, 3), dtype=np.uint8)
    np.testing.assert_array_equal(decode(encoded(pixels), 84, 3), pixels)
    np.testing.assert_array_equal(decode(pixels, 84, 3), pixels)


def test_centre_is_cut_out_and_long_images_stay_cheap(encoded: Encode) -> None:
    image = Image.new("RGB", (60, 20))
    image.paste((255, 255, 255), (20, 0, 40, 20))
    assert decode(encoded(image), 10, 3)[:, 1:-1].min() > 200
    assert decode(encoded(Image.new("L", (1, 20_000))), 84, 1).shape == (84, 84, 1)


def test_large_jpeg_close_to_exact(encoded: Encode) -> None:
    ramp = np.linspace(0, 255, 1000).astype(np.uint8)
    image = Image.fromarray(np.broadcast_to(ramp, (1000, 1000)).copy()).convert("RGB")
    quick = decode(encoded(image, "JPEG", quality=95), 84, 3).astype(int)
    exact = decode(np.asarray(image), 84, 3).astype(int)
    assert np.abs(quick - exact).max() <= 4


def test_decompression_bomb_is_an_error(encoded: Encode, monkeypatch: pytest.MonkeyPatch) -> None:
    content = encoded(Image.new("L", (100, 100)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 8000)
    with pytest.raises(BrokenImageError, match="more pixels"):
        decode(content, 8, 1)
