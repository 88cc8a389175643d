"""Checkpoints: the speed of our DDPM++ and the memory of loading it.

Speed: one evaluation of EDM's CIFAR10 network at full size, through `load_checkpoint`, against the
same network written with plain torch layers. Medians over interleaved rounds in one process; the
outputs are compared first. Memory: the growth of a process's peak while it loads a file, over the
size of the file (on Linux).

    python benchmarks/checkpoints.py
"""

import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ld3
from ld3.options import PipelineOptions
from ld3.zoo.checkpoints.load import convert_checkpoint, load_checkpoint

WORDS = {
    "img_resolution": 32, "img_channels": 3, "label_dim": 0, "model_type": "SongUNet",
    "embedding_type": "positional", "encoder_type": "standard", "channel_mult_noise": 1,
    "resample_filter": [1, 1], "model_channels": 128, "channel_mult": [2, 2, 2], "num_blocks": 4,
    "attn_resolutions": [16], "augment_dim": 9,
}  # fmt: skip
BATCH, ROUNDS = 2, 9


class PlainBlock(nn.Module):
    """A block of DDPM++ in torch's own layers."""

    def __init__(self, state: dict[str, Tensor], name: str, resample: str) -> None:
        super().__init__()
        layers = {
            key[len(name) + 1 :]: value
            for key, value in state.items()
            if key.startswith(f"{name}.")
        }
        self.resample = resample
        for key in ("norm0", "norm1", "norm2"):
            if f"{key}.weight" in layers:
                width = len(layers[f"{key}.weight"])
                setattr(self, key, nn.GroupNorm(min(32, width // 4), width, eps=1e-6))
        for key in ("conv0", "conv1", "skip", "qkv", "proj"):
            if f"{key}.weight" in layers:
                after, before, kernel, _ = layers[f"{key}.weight"].shape
                setattr(self, key, nn.Conv2d(before, after, kernel, padding=kernel // 2))
        self.affine = nn.Linear(*reversed(layers["affine.weight"].shape))
        own = set(self.state_dict())
        self.load_state_dict({key: value for key, value in layers.items() if key in own})

    def _sized(self, x: Tensor) -> Tensor:
        if self.resample == "down":
            return F.avg_pool2d(x, 2)
        return F.interpolate(x, scale_factor=2.0) if self.resample == "up" else x

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        h = self.conv0(self._sized(F.silu(self.norm0(x))))
        h = self.conv1(F.silu(self.norm1(h + self.affine(emb)[:, :, None, None])))
        x = self._sized(x)
        x = (h + (self.skip(x) if hasattr(self, "skip") else x)) * math.sqrt(0.5)
        if not hasattr(self, "qkv"):
            return x
        b, c, height, width = x.shape
        q, k, v = self.qkv(self.norm2(x)).reshape(b, c, 3, -1).unbind(2)
        weights = torch.softmax(q.transpose(1, 2) @ k / math.sqrt(c), dim=2)
        mixed = (v @ weights.transpose(1, 2)).reshape(b, c, height, width)
        return (self.proj(mixed) + x) * math.sqrt(0.5)


class Plain(nn.Module):
    """DDPM++ from a state dict."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        super().__init__()
        state = {name.removeprefix("model."): value for name, value in state.items()}
        self.first = nn.Linear(128, 512)
        self.second = nn.Linear(512, 512)
        self.entry = nn.Conv2d(3, 128, 3, padding=1)
        self.norm = nn.GroupNorm(32, 256, eps=1e-6)
        self.exit = nn.Conv2d(256, 3, 3, padding=1)
        for layer, name in (
            (self.first, "map_layer0"), (self.second, "map_layer1"),
            (self.entry, "enc.32x32_conv"), (self.norm, "dec.32x32_aux_norm"),
            (self.exit, "dec.32x32_aux_conv"),
        ):  # fmt: skip
            layer.load_state_dict({key: state[f"{name}.{key}"] for key in ("weight", "bias")})
        names = dict.fromkeys(".".join(key.split(".")[:2]) for key in state if ".affine." in key)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        self.joins = []
        for name in names:
            resample = next((r for r in ("down", "up") if name.endswith(f"_{r}")), "")
            block = PlainBlock(state, name, resample)
            if name.startswith("enc."):
                self.down.append(block)
            else:
                self.up.append(block)
                self.joins.append("_block" in name)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        total = (sigma**2 + 0.25)[:, None, None, None]
        angle = sigma.log()[:, None] / 4 * torch.exp(torch.arange(64) * (-math.log(10000) / 63))
        emb = F.silu(self.first(torch.cat([angle.sin(), angle.cos()], dim=1)))
        emb = F.silu(self.second(emb))
        h = self.entry(x / total.sqrt())
        skips = [h]
        for block in self.down:
            h = block(h, emb)
            skips.append(h)
        for block, joins in zip(self.up, self.joins, strict=True):
            h = block(torch.cat([h, skips.pop()], dim=1) if joins else h, emb)
        out = self.exit(F.silu(self.norm(h)))
        s = sigma[:, None, None, None]
        return 0.25 / total * x + s * 0.5 / total.sqrt() * out


@torch.no_grad()
def speed(path: Path) -> None:
    torch.set_num_threads(1)
    model = load_checkpoint(path, options=PipelineOptions())
    denoise = ld3.bind(model)
    plain = Plain(model.network.state_dict()).eval()  # type: ignore[attr-defined]
    x = ld3.prior(model, range(BATCH)) / 20
    t = torch.tensor(4.0, dtype=torch.float64)
    sigma = t.float().expand(BATCH)
    difference = (denoise(x, t) - plain(x, sigma)).abs().max().item()
    rounds: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        denoise(x, t)
        middle = time.perf_counter()
        plain(x, sigma)
        rounds.append((middle - start, time.perf_counter() - middle))
    ours, theirs = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(a / b for a, b in rounds)
    print(f"CIFAR10 DDPM++, batch {BATCH}, one thread; outputs differ by {difference:.1e}")
    print(f"ours {ours * 1e3:.0f} ms   plain layers {theirs * 1e3:.0f} ms   ratio {ratio:.2f}")


CHILD = """
import sys
from pathlib import Path
import torch
from ld3.zoo.checkpoints.load import load_checkpoint

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])

load_checkpoint(sys.argv[2])  # a small one, so that all code is there
before = peak()
model = load_checkpoint(sys.argv[1])
print(peak() - before)
"""


def memory(path: Path, small: Path) -> None:
    """Peak of a fresh process above that of loading a small file, over the file's size."""
    grown = int(
        subprocess.check_output([sys.executable, "-c", CHILD, str(path), str(small)], text=True)
    )
    size = path.stat().st_size
    print(
        f"{path.suffix:<13}file {size / 1e6:6.1f} MB   peak {grown / 1e6:6.1f} MB   "
        f"ratio {grown / size:.2f}"
    )


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from checkpoint_files import edm_pickle

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "edm.pkl"
        path.write_bytes(edm_pickle(WORDS))
        speed(path)
        print("\nloading it")
        small = Path(folder) / "small.pkl"
        small.write_bytes(edm_pickle({**WORDS, "model_channels": 8}))
        memory(path, small)
        memory(convert_checkpoint(path, Path(folder) / "edm.safetensors"), small)


if __name__ == "__main__":
    main()
