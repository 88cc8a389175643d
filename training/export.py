"""Put finished runs into the package: float16 weights and ``manifest.json``.

For each file the manifest holds: sha256, bytes, class and its arguments, number of parameters,
constants of the model, how it was trained, and how much rounding to float16 moves the output:
|f16(x) - f32(x)| / |f32(x)| in the 2-norm, on noise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from data import DATA, load
from points import POINTS, TEST_CLOUDS, test_clouds
from safetensors.torch import save_file
from torch import Tensor, nn

from ld3.metrics import Moments, frechet_distance
from ld3.zoo import networks
from ld3.zoo.checkpoints.edm import EDMConfig, EDMNetwork
from ld3.zoo.checkpoints.safetensors_files import CONFIG
from ld3.zoo.points import PointConfig, PointNetwork

NAMES = [
    "fashion", "fashion-flow", "fashion-latent", "fashion-points", "autoencoder", "perceptual",
    "judge", "road",
]  # fmt: skip
BESIDE = {
    "judge": ("judge_stats.safetensors",),
    "fashion-points": ("fashion-points-test.safetensors",),
}  # files that belong to others
WEIGHTS = Path(__file__).resolve().parent.parent / "src" / "ld3" / "zoo" / "weights"


def halve(name: str, value: Tensor) -> Tensor:
    """float16 for every array of floats; scalars and integers stay as they are."""
    if not value.is_floating_point() or value.dim() == 0:
        return value
    half = value.half()
    if not torch.isfinite(half).all():
        raise ValueError(f"{name} does not fit into float16")
    return half.contiguous()


def point_network(**sizes: Any) -> PointNetwork:
    return PointNetwork(PointConfig(**{**sizes, "widths": tuple(sizes["widths"])}))


def song_network(**sizes: Any) -> EDMNetwork:
    return EDMNetwork(EDMConfig.read(sizes))


def tensors_of(about: dict[str, Any], weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as the file has them, in half precision: those of ``road`` with EDM's names."""
    prefix = "model." if about["class"] == "SongUNet" else ""
    return {prefix + k: halve(k, v) for k, v in weights.items()}


def metadata_of(about: dict[str, Any]) -> dict[str, str]:
    """The configuration that the reader of checkpoints wants inside of ``road``."""
    if about["class"] != "SongUNet":
        return {}
    config = EDMConfig.read(about["arguments"])
    return {CONFIG: json.dumps({"family": "edm", **asdict(config)}, sort_keys=True)}


def build(about: dict[str, Any], weights: dict[str, Tensor]) -> nn.Module:
    """The network of a manifest entry with the weights given, as float32."""
    own = {"PointNetwork": point_network, "SongUNet": song_network}
    kind = own.get(about["class"]) or getattr(networks, about["class"])
    net: nn.Module = kind(**about["arguments"])
    net.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in weights.items()})
    return net.eval()


@torch.no_grad()
def probe(net: nn.Module, about: dict[str, Any]) -> Tensor:
    """Output of a network on fixed noise."""
    g = torch.Generator().manual_seed(0)
    if isinstance(net, PointNetwork):
        z = net.flow.inverse(torch.randn(16, about["arguments"]["latent"], generator=g))
        return net.eps(torch.randn(16, 64, 3, generator=g), torch.linspace(1e-4, 0.02, 16), z)
    if isinstance(net, EDMNetwork):
        x, label = torch.randn(16, *about["shape"], generator=g), torch.arange(16) % 2
        return net(x, torch.linspace(0, 1, 16), F.one_hot(label, 2).float())
    if "shape" in about:  # a diffusion model
        u, label = torch.linspace(0, 1, 16), torch.arange(16) % 11
        return net(torch.randn(16, *about["shape"], generator=g), u, label)
    x = torch.randn(16, 1, 28, 28, generator=g).clamp(-1, 1)
    return net.decode(net.encode(x)) if isinstance(net, networks.Autoencoder) else net.logits(x)


@torch.no_grad()
def judge_statistics(judge: networks.Judge, data: Path, path: Path) -> dict[str, Any]:
    """Mean and covariance of the classifier's features, of the test and of the training images."""
    stats: dict[str, Tensor] = {}
    for part, key in (("t10k", "test"), ("train", "train")):
        images, _ = load(data, part)
        f = torch.cat([judge.features(x) for x in images.split(500)]).double()  # (N,D)
        stats[f"{key}_mean"], stats[f"{key}_cov"] = f.mean(0).float(), f.T.cov().float()
    save_file({k: v.contiguous() for k, v in stats.items()}, path)
    train, test = (
        Moments.known(stats[f"{part}_mean"], stats[f"{part}_cov"], count)
        for part, count in (("train", 60_000), ("test", 10_000))
    )
    shapes = {k: list(v.shape) for k, v in stats.items()}
    return {"tensors": shapes, "frechet_train_test": frechet_distance(train, test)}


def digest(path: Path) -> dict[str, Any]:
    """Checksum and size of a file."""
    raw = path.read_bytes()
    return {"sha256": hashlib.sha256(raw).hexdigest(), "bytes": len(raw)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of all runs")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder to write to")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the idx files")
    args = parser.parse_args()
    args.weights.mkdir(parents=True, exist_ok=True)
    manifest = args.weights / "manifest.json"
    old = json.loads(manifest.read_text())["files"] if manifest.exists() else {}
    files: dict[str, Any] = {}
    for name in NAMES:
        run = args.runs / name / "final.pt"
        if not run.exists():
            kept = [f"{name}.safetensors", *BESIDE.get(name, ())]
            files |= {file: old[file] for file in kept if file in old}
            continue
        final = torch.load(run, weights_only=True)
        about, full = json.loads(final["about"]), final["weights"]
        path = args.weights / f"{name}.safetensors"
        halved = tensors_of(about, full)
        save_file(halved, path, metadata_of(about) or None)
        net = build(about, {k.removeprefix("model."): v for k, v in halved.items()})
        exact = probe(build(about, full), about)
        moved = float((probe(net, about) - exact).norm() / exact.norm())
        count = sum(p.numel() for p in net.parameters())
        files[path.name] = {**digest(path), **about, "parameters": count, "rounding": moved}
        print(f"{path.name}: {count} parameters, rounding {moved:.1e}")
        if isinstance(net, networks.Judge):
            key, path = "judge_stats.safetensors", args.weights / "judge_stats.safetensors"
            judge = files["judge.safetensors"]["sha256"]
            if old.get(key, {}).get("judge") == judge and path.exists():
                files[key] = old[key]
                continue
            files[key] = {**judge_statistics(net, args.data, path), **digest(path), "judge": judge}
            print("Frechet distance of train to test:", files[key]["frechet_train_test"])
        if isinstance(net, PointNetwork):
            path = args.weights / "fashion-points-test.safetensors"
            save_file({"clouds": test_clouds(args.data).half()}, path)
            files[path.name] = {**digest(path), "tensors": {"clouds": [TEST_CLOUDS, POINTS, 3]}}
    total = sum(entry["bytes"] for entry in files.values())
    for name in files:
        (args.weights / name).chmod(0o644)
    manifest.write_text(json.dumps({"format": 1, "bytes": total, "files": files}, indent=1) + "\n")
    print(f"{len(files)} files, {total / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
