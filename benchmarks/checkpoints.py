"""Checkpoints: the speed of our DDPM++, the memory of loading it, FLOPs of all published networks.

Speed: one evaluation of EDM's CIFAR10 network at full size, through `load_checkpoint`, against the
same network written with plain torch layers. Medians over interleaved rounds in one process; the
outputs are compared first. Memory: the growth of a process's peak while it loads a file, over the
size of the file (on Linux). FLOPs: of one evaluation of one image, counted without running it, and
the time that follows for a GPU of 20 TFLOP/s, which is assumed.

    python benchmarks/checkpoints.py
    python benchmarks/checkpoints.py flops
"""

import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import ld3
from ld3.options import PipelineOptions
from ld3.zoo.checkpoints.edm import EDMConfig, Preconditioned
from ld3.zoo.checkpoints.latent_parts import LDM, LDM_CLASS, SD, LatentKind, make_coder, make_unet
from ld3.zoo.checkpoints.load import convert_checkpoint, load_checkpoint
from ld3.zoo.checkpoints.openai_files import PUBLISHED
from ld3.zoo.checkpoints.openai_unet import OpenAIUNet

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


SPEED = 20e12  # FLOP/s of a GPU, assumed
NFE = 6
EVALUATIONS = {"standard": 17_764, "paper-pixel": 78_004, "50,000 samples": 50_000 * NFE}
"""At this NFE: of the presets with their teachers, by docs/benchmarks.md, and of sampling."""

EDM_SIZES = {
    "EDM CIFAR10": WORDS,
    "EDM FFHQ, AFHQv2": {**WORDS, "img_resolution": 64, "channel_mult": [1, 2, 2, 2]},
    "EDM ImageNet-64": {"img_resolution": 64, "label_dim": 1000, "model_type": "DhariwalUNet"},
}


def counted(call: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        call()
    return counter.get_total_flops()


def flops() -> None:
    """Networks and their inputs are on the meta device: nothing is computed."""
    import latent_layouts as layouts

    found: dict[str, float] = {}
    with torch.device("meta"):
        for name, words in EDM_SIZES.items():
            config = EDMConfig.read(words)
            edm, size = Preconditioned(config), config.img_resolution
            found[name] = counted(partial(edm, torch.empty(1, 3, size, size), torch.ones(1)))
        for name, config in PUBLISHED.items():
            x = torch.empty(1, 3, config.size, config.size)
            found[name] = counted(partial(OpenAIUNet(config.unet), x, torch.ones(1)))
    unet, coder = layouts.unet, layouts.coder
    vq, kl = coder(3, 128, codes=8192), coder(4, 128, (1, 2, 4, 4), None)
    lsun, imagenet = (
        unet(3, 224, (1, 2, 3, 4), (8, 4, 2)),
        unet(3, 192, (1, 2, 3, 5), (8, 4, 2), 512),
    )
    text = unet(4, 320, (1, 2, 4, 4), (4, 2, 1), 768)
    found["LDM LSUN"] = latent_flops(LDM, lsun | vq)
    found["LDM ImageNet, guided"] = latent_flops(LDM_CLASS, imagenet | vq, (1, 512))
    found["SD 1.x, guided"] = latent_flops(SD, text | kl, (77, 768))
    print(f"{'network':<24}GFLOP   minutes: " + ", ".join(EVALUATIONS))
    for name, count in found.items():
        times = (count * evaluations / SPEED / 60 for evaluations in EVALUATIONS.values())
        print(f"{name:<24}{count / 1e9:5.0f}   " + "  ".join(f"{time:7.1f}" for time in times))


def latent_flops(
    kind: LatentKind, shapes: dict[str, tuple[int, ...]], tokens: tuple[int, int] | None = None
) -> float:
    """Of an evaluation, twice with tokens for guidance, and a share of decoding: one in NFE."""
    empty = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    unet, coder = (make(empty, kind, torch.float32) for make in (make_unet, make_coder))
    z = torch.empty(1, unet.config.in_channels, 64, 64, device="meta")
    words = {"encoder_hidden_states": z.new_empty(1, *tokens)} if tokens else {}
    way = {} if kind is SD else {"force_not_quantize": True}  # codes need numbers
    each = counted(partial(unet, z, z.new_ones(1), **words))
    return each * (2 if tokens else 1) + counted(partial(coder.decode, z, **way)) / NFE


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    if sys.argv[1:] == ["flops"]:
        flops()
        return
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
