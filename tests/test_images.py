"""What a person sees: images of any scale, numbers by their significant digits."""

import struct
import zlib
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ld3.images import png, rescaled, shown_range
from ld3.report.plans import write_samples
from ld3.report.tables import significant


def pixels(content: bytes) -> list[int]:
    """Grey values of a PNG that :func:`png` made."""
    at, data = 8, b""
    while at < len(content):
        (size,) = struct.unpack(">I", content[at : at + 4])
        if content[at + 4 : at + 8] == b"IDAT":
            data += content[at + 8 : at + 8 + size]
        at += size + 12
    return list(zlib.decompress(data))[1:]  # of one row: without its filter


def test_images_in_the_usual_range_are_shown_as_they_are() -> None:
    images = torch.linspace(-1.2, 1.2, 64).view(1, 1, 8, 8)
    assert shown_range(images) == (-1.0, 1.0)
    assert rescaled(images, (-1.0, 1.0)) is images
    assert pixels(png(torch.tensor([[[-1.0, 0.0, 1.0, 9.0]]]))) == [0, 128, 255, 255]


@pytest.mark.parametrize(("low", "high"), [(0.0, 80.0), (-300.0, -100.0), (0.0, 2.0)])
def test_images_of_another_scale_are_scaled(low: float, high: float) -> None:
    """Galaxies with fluxes up to 80 are no white blobs."""
    images = torch.linspace(low, high, 10_000).view(1, 1, 100, 100)
    found = shown_range(images)
    assert found == pytest.approx((low + 0.005 * (high - low), high - 0.005 * (high - low)))
    ends: Tensor = rescaled(torch.tensor(found), found)
    assert ends.tolist() == pytest.approx([-1, 1], abs=1e-5)


def test_what_is_not_finite_does_not_decide() -> None:
    images = torch.tensor([float("nan"), float("inf"), 0.0, 4.0]).view(1, 1, 2, 2)
    low, high = shown_range(images)
    assert 0 <= low < high <= 4
    assert shown_range(torch.full((1, 1, 2, 2), float("nan"))) == (-1.0, 1.0)
    low, high = shown_range(torch.full((1, 1, 2, 2), 7.0))
    assert low < high


def test_files_of_samples_are_scaled_alike(tmp_path: Path) -> None:
    samples = torch.stack([torch.full((1, 1, 4), 0.0), torch.full((1, 1, 4), 100.0)])
    list(write_samples(tmp_path, [3, 4], samples))
    dark, light = ((tmp_path / f"{seed}.png").read_bytes() for seed in (3, 4))
    assert set(pixels(dark)) == {0} and set(pixels(light)) == {255}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.000102, "0.000102"), (0.00007, "0.0000700"), (0.04084, "0.0408"), (12.34, "12.3"),
        (1234.5, "1230"), (0.5, "0.500"), (100.0, "100"), (-0.0012345, "-0.00123"), (0.0, "0"),
        (1e-9, "1e-09"), (3.2e8, "3.2e+08"), (float("nan"), "nan"), (float("inf"), "inf"),
    ],
)  # fmt: skip
def test_numbers_keep_three_digits(value: float, text: str) -> None:
    assert significant(value) == text
