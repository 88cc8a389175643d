"""Train ``fashion-points``: clouds of points on the reliefs of the shoes in Fashion-MNIST.

A relief is the surface (x, y, height) above the shoe in an image: x and y within [-1, 1], the
height 0.7 times the brightness, blurred a little. Points are drawn evenly over the pixels brighter
than an eighth, anew in every iteration; a cloud is then shifted and scaled to mean 0 and variance 1
over all its numbers. With q(z | cloud) = N(m, v) from an encoder and the flow F of the prior,

    loss = mean |eps(x_n, beta_n, z) - e|^2 + 0.001 (-H(q) - log N(F(z); 0, I) - log |F'(z)|)

(Luo and Hu 2021). The points are independent given z, so 256 of them are enough to learn from, and
each group of 32 has a step n of its own. beta is at most 0.02: while training, the network gets
100 beta in its place, and its weights take over the factor at the end. The first layer starts four
times as large as usual, because edges of shapes are learned slowly otherwise. The encoder is not
part of the shipped file.

    python training/points.py --iterations 3000 --batch 16 --lr 0.002 --seed 7
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from data import load, stream
from loop import Plan, arguments, finish, train
from torch import Tensor, nn

from ld3.zoo.points import PointConfig, PointNetwork, context

CONFIG = PointConfig(latent=64, flow_depth=10, flow_hidden=128, widths=(96, 192, 288, 192, 96))
POINTS = 512  # of a sample
SEEN, GROUPS = 256, 8  # points of a cloud in one iteration, and steps they are at
FACTOR = 100.0  # of beta and sin beta while training
PRIOR = 1e-3  # weight of the prior
TEST_CLOUDS = 100  # shipped, to compare samples with
SHOES = (7, 9)  # sneakers and ankle boots
ABOUT: dict[str, Any] = {
    "class": "PointNetwork",
    "arguments": json.loads(json.dumps(asdict(CONFIG))),
    "prediction": "eps, network time = beta",
    "points": POINTS,
}


def shoes(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Images and labels of the shoes alone."""
    images, labels = load(folder, part)
    kept = torch.isin(labels, torch.tensor(SHOES))
    return images[kept], labels[kept]


def clouds(images: Tensor, points: int, g: torch.Generator) -> Tensor:
    """Points on the reliefs of images (N,1,28,28) from -1 to 1: (N, points, 3), mean 0, var 1."""
    light = (images.contiguous() + 1) / 2
    size = light.shape[-1]
    kernel = torch.tensor([1.0, 2.0, 1.0]) / 4
    blurred = F.conv2d(light, kernel.outer(kernel)[None, None], padding=1)
    inside = (light > 1 / 8).flatten(1).float()
    cell = torch.multinomial(inside, points, replacement=True, generator=g)  # (N, points)
    corner = torch.stack([cell % size, cell // size], -1).float()
    xy = (corner + torch.rand(*cell.shape, 2, generator=g)) * (2 / size) - 1  # (N, points, 2)
    height = F.grid_sample(blurred, xy[:, None], padding_mode="border", align_corners=False)
    cloud = torch.stack([xy[..., 0], -xy[..., 1], 0.7 * height[:, 0, 0]], -1)
    cloud = cloud - cloud.mean(1, keepdim=True)
    return cloud / cloud.square().mean((1, 2), keepdim=True).sqrt()


def test_clouds(folder: Path) -> Tensor:
    """Clouds of the first test images, (TEST_CLOUDS, POINTS, 3)."""
    return clouds(shoes(folder, "t10k")[0][:TEST_CLOUDS], POINTS, stream(0, 2, 0))


class Encoder(nn.Module):
    """m and log v of the shape of a cloud: features of points, their maximum, two small heads."""

    def __init__(self, latent: int) -> None:
        super().__init__()

        def layer(inner: int, outer: int) -> list[nn.Module]:
            return [nn.Linear(inner, outer), nn.BatchNorm1d(outer), nn.ReLU()]

        def head() -> nn.Module:
            return nn.Sequential(*layer(384, 192), *layer(192, 96), nn.Linear(96, latent))

        self.points = nn.Sequential(*layer(3, 64), *layer(64, 128), *layer(128, 384))
        self.mean, self.log_var = head(), head()

    def forward(self, cloud: Tensor) -> tuple[Tensor, Tensor]:
        count, points, _ = cloud.shape
        top = self.points(cloud.flatten(0, 1)).view(count, points, -1).amax(1)
        return self.mean(top), self.log_var(top)


class Learner(nn.Module):
    """Encoder and network together; the network's time is multiplied by FACTOR."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.network = Encoder(CONFIG.latent), PointNetwork(CONFIG)
        first = self.network.diffusion.net.layers[0]._layer  # type: ignore[union-attr, index]
        for weight in first.parameters():
            weight.data *= 4

    def folded(self) -> PointNetwork:
        """The network as it is shipped: FACTOR goes into the weights of beta and sin beta."""
        for layer in self.network.diffusion.net.layers:  # type: ignore[union-attr]
            for part in (layer._hyper_bias, layer._hyper_gate):
                part.weight.data[:, :2] *= FACTOR
        return self.network


def loss(learner: nn.Module, images: Tensor, _: Tensor, g: torch.Generator) -> Tensor:
    assert isinstance(learner, Learner)
    x0 = clouds(images, SEEN, g)
    with torch.autocast("cpu", torch.bfloat16):
        mean, log_var = (v.float() for v in learner.encoder(x0))
    z = mean + (log_var / 2).exp() * torch.randn(mean.shape, generator=g)
    w, log_det = learner.network.flow(z)
    prior = (w.square().sum(1) / 2 - log_det - log_var.sum(1) / 2).mean()  # up to a constant

    count = len(x0) * GROUPS
    share = (torch.arange(count) + torch.rand(count, generator=g)) / count
    share = share.view(GROUPS, -1).T.flatten()  # a cloud's groups lie in different eighths
    index = (CONFIG.steps * share).long()
    log_alpha = torch.tensor(CONFIG.schedule.log_alphas)[index]
    alpha = log_alpha.exp()[:, None, None]
    sigma = (-torch.expm1(2 * log_alpha)).sqrt()[:, None, None]
    grouped = x0.view(count, -1, 3)
    e = torch.randn(grouped.shape, generator=g)
    beta = CONFIG.beta((index + 1) / CONFIG.steps)
    c = context(beta, z.repeat_interleave(GROUPS, 0))
    c = torch.cat([FACTOR * c[:, :2], c[:, 2:]], 1)
    with torch.autocast("cpu", torch.bfloat16):
        net = learner.network.diffusion.net
        found = net.in_context(alpha * grouped + sigma * e, c)  # type: ignore[union-attr, operator]
    return (found.float() - e).square().mean() + PRIOR * prior


def main() -> None:
    parser = arguments(__doc__ or "", "fashion-points", 3000, 2e-3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    images, labels = shoes(args.data, "train")
    plan = Plan(args.iterations, args.batch, args.lr, seed=args.seed, threads=args.threads)
    mean = train(Learner(), loss, images, labels, plan, args.run)
    assert isinstance(mean, Learner)
    command = (
        f"python training/points.py --iterations {plan.iterations} --batch {plan.batch} "
        f"--lr {plan.lr} --seed {plan.seed}"
    )
    finish(args.run, mean.folded(), plan, command, ABOUT)


if __name__ == "__main__":
    main()
