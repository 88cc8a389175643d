r"""Train the autoencoder of ``fashion-latent``: 1x28x28 <-> 4x7x7, without blur.

With z = E(x), s the deviation of z, y = G(z + 0.05 s n), a perceptual distance d and a critic C
that grades patches:

    autoencoder:  E |y - x|_1 + 0.5 d(y, x) + 0.001 |z|^2 + a softplus(-C(y))
    critic:       E softplus(C(y)) + softplus(-C(x)) + (r / 2) |grad_x C(x)|^2

The first two terms alone ask for the median of what z leaves open, which looks blurred; the critic
(logistic loss with a gradient penalty, arXiv 1801.04406) asks for something that looks like data.
a is 0 until iteration ``--critic-from``. The noise on z makes the decoder smooth. The rate falls to
0 at ``--until``. The critic is thrown away.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from averages import Averages
from data import DATA, load, pick, stream
from latent import CODER
from long import Pace, Stop, arguments, note, pace_of, save
from torch import Tensor, nn

from ld3 import zoo
from ld3.metrics import Moments, frechet_distance
from ld3.zoo.networks import Autoencoder, Perceptual
from ld3.zoo.shipped import network

ADVERSARY, PENALTY = 0.05, 0.5
PACE = Pace(lr=1e-3, warmup=100, flat=4000, seed=5, betas=(0.5, 0.99))
Steps = tuple[torch.optim.Adam, torch.optim.Adam]


def critic() -> nn.Sequential:
    """A grade for each patch of about 22x22 pixels, (B,1,7,7)."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.LeakyReLU(0.2),
        nn.Conv2d(32, 64, 4, stride=2, padding=1), nn.LeakyReLU(0.2),
        nn.Conv2d(64, 96, 4, stride=2, padding=1), nn.LeakyReLU(0.2),
        nn.Conv2d(96, 96, 3, padding=1), nn.LeakyReLU(0.2),
        nn.Conv2d(96, 1, 1),
    )  # fmt: skip


def look_alike(eye: Perceptual, x: Tensor, y: Tensor) -> Tensor:
    """d(x, y): sum over stages of the mean over pixels of |f(x)/|f(x)| - f(y)/|f(y)||^2, (B,)."""

    def unit(f: Tensor) -> Tensor:
        return f * (f.square().sum(1, keepdim=True) + 1e-6).rsqrt()

    stages = zip(eye.features(x), eye.features(y), strict=True)
    return torch.stack([(unit(f) - unit(g)).square().sum(1).mean((1, 2)) for f, g in stages]).sum(0)


def penalty(grader: nn.Module, x: Tensor) -> Tensor:
    """E |grad_x C(x)|^2, C the mean grade."""
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(grader(x).mean((1, 2, 3)).sum(), x, create_graph=True)
    return slope.square().sum((1, 2, 3)).mean()


def rebuild(net: Autoencoder, x: Tensor, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """G(E(x) + noise) and E(x)."""
    z = net.encode(x)  # (B,4,7,7)
    shaken = z + 0.05 * z.std() * torch.randn(z.shape, generator=g)
    return net.decode(shaken), z


@torch.no_grad()
def judged(net: Autoencoder, images: Tensor) -> dict[str, float]:
    """Mean absolute error, sharpness and Fréchet distance of rebuilt images.

    Sharpness is the mean absolute difference of neighbouring pixels over that of the originals.
    """
    judge, features, error = zoo.judge(), [], 0.0
    rough = {"y": 0.0, "x": 0.0}
    for x in images.split(500):
        y = net.decode(net.encode(x)).clamp(-1, 1)
        error += (y - x).abs().mean().item() * len(x) / len(images)
        for key, value in (("x", x), ("y", y)):
            rough[key] += value.diff(dim=-1).abs().mean().item() * len(x)
        features.append(judge.features(y))
    distance = frechet_distance(Moments.of(features), zoo.judge_moments("test"))
    told = {"mae": error, "sharpness": rough["y"] / rough["x"], "frechet": distance}
    return {key: round(value, 5) for key, value in told.items()}


def iterate(
    net: Autoencoder,
    grader: nn.Module,
    eye: Perceptual,
    steps: Steps,
    x: Tensor,
    g: torch.Generator,
    share: float,
) -> tuple[float, float]:
    """One iteration of both; gives the errors |y - x|_1 + 0.5 d and the critic's loss."""
    y, z = rebuild(net, x, g)
    error = (y - x).abs().mean() + 0.5 * look_alike(eye, y, x).mean()
    value = error + 1e-3 * z.square().mean()
    if share:
        value = value + share * F.softplus(-grader(y)).mean()
    steps[0].zero_grad()
    value.backward()  # type: ignore[no-untyped-call]
    steps[0].step()
    if not share:
        return error.item(), 0.0
    steps[1].zero_grad()
    loss = F.softplus(grader(y.detach())).mean() + F.softplus(-grader(x)).mean()
    (loss + PENALTY / 2 * penalty(grader, x)).backward()  # type: ignore[no-untyped-call]
    steps[1].step()
    return error.item(), loss.item()


def finish(net: Autoencoder, averages: Averages, images: Tensor, unseen: Tensor, run: Path) -> None:
    """Averaged weights, latents scaled to mean 0 and deviation 1, written to ``final.pt``."""
    net.load_state_dict({**net.state_dict(), **averages.state()["0.05"]})
    net.eval()
    with torch.no_grad():
        z = torch.cat([net.encode(x) for x in images.split(500)])
        net.mean.copy_(z.mean())
        net.scale.copy_(z.std())
    facts = judged(net, unseen)
    note(run / "quality.jsonl", facts)
    about: dict[str, Any] = {"class": "Autoencoder", "arguments": CODER, "test": facts}
    weights = {k: v.contiguous() for k, v in net.state_dict().items()}
    save(run / "final.pt", {"weights": weights, "about": json.dumps(about)})


def train(args: argparse.Namespace, pace: Pace) -> None:
    images, unseen = load(args.data, "train")[0], load(args.data, "t10k")[0]
    net, grader, run = Autoencoder(**CODER), critic(), args.run
    eye = network("perceptual", Perceptual, "cpu")
    run.mkdir(parents=True, exist_ok=True)
    both = nn.ModuleList([net, grader]).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    steps = tuple(torch.optim.Adam(part.parameters(), betas=pace.betas) for part in both)
    averages, stop, i, spent = Averages(net), Stop(), 0, 0.0
    if (run / "last.pt").exists():
        state = torch.load(run / "last.pt", weights_only=True)
        both.load_state_dict(state["both"])
        for step, kept in zip(steps, state["steps"], strict=True):
            step.load_state_dict(kept)
        averages.load(state["averages"])
        i, spent = state["iteration"], state["seconds"]
    began = saved = time.monotonic()
    told = [0.0, 0.0]
    while not stop.asked and i < args.until:
        x = images[pick(len(images), pace.batch, pace.seed, i)]
        x = x.contiguous(memory_format=torch.channels_last)
        for step in steps:
            step.param_groups[0]["lr"] = pace.rate(i)
        share = ADVERSARY * min(1.0, max(0.0, (i - args.critic_from) / 1000))
        parts = iterate(net, grader, eye, steps, x, stream(pace.seed, 1, i), share)
        i += 1
        averages.update(i)
        told = [a + b / 50 for a, b in zip(told, parts, strict=True)]
        seconds = round(spent + time.monotonic() - began, 1)
        if i % 50 == 0:
            line = {"iteration": i, "error": round(told[0], 5), "critic": round(told[1], 5)}
            note(run / "log.jsonl", {**line, "seconds": seconds})
            told = [0.0, 0.0]
        if i % 2000 == 0:
            note(run / "quality.jsonl", {"iteration": i, **judged(net, unseen[:2000])})
        if time.monotonic() - saved > 600 or stop.asked or i == args.until:
            content = {"both": both.state_dict(), "steps": [s.state_dict() for s in steps]}
            more = {"averages": averages.state(), "iteration": i, "seconds": seconds}
            save(run / "last.pt", {**content, **more})
            saved = time.monotonic()
    if i >= args.until:
        finish(net, averages, images, unseen, run)


def main() -> None:
    parser = arguments(__doc__ or "", "autoencoder", PACE)
    parser.set_defaults(until=12_000, decay_from=8_000)
    parser.add_argument("--critic-from", type=int, default=3000)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the idx files")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    train(args, pace_of(args, PACE))


if __name__ == "__main__":
    main()
