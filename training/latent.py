"""Train ``fashion-latent``: a diffusion model of the latents of ``coder.py``.

    z_n = alpha_n z + sigma_n e,    e(n) = mean |F(z_n; log(sigma_n / alpha_n) / 4) - v|^2

with v = alpha_n e - sigma_n z, alpha_n^2 = prod_{m <= n} (1 - beta_m), sigma_n^2 = 1 - alpha_n^2
and beta_n the square of 1000 even steps from sqrt(0.0015) to sqrt(0.0195). In seven eighths of the
cases log(sigma_n / alpha_n) is normal, N(-0.3, 1), in the rest uniform: samples lose their class
between 0.3 and 3 of sigma_n / alpha_n. The loss is that of ``learner.py``. The label is hidden 10 %
of the time. Needs ``runs/autoencoder``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from data import DATA, load
from learner import Learner, Raw, averaged, hide, shipped, shortened, spread
from long import Every, Pace, arguments, pace_of, train
from quality import grade, losses
from torch import Tensor, nn

from ld3.schedules import Discrete
from ld3.zoo.networks import Autoencoder, UNet
from ld3.zoo.shipped import ClassModel

SCHEDULE = {"steps": 1000, "beta_start": 0.0015, "beta_end": 0.0195}
CODER: dict[str, Any] = {"channels": 1, "latent": 4, "widths": [32, 64]}
SIZES: dict[str, Any] = {
    "channels": 4,
    "patch": 1,
    "widths": [88],
    "blocks": 3,
    "middle": 1,
    "classes": 10,
    "embedding": 128,
    "f_max": 2.0,
}
ABOUT: dict[str, Any] = {
    "class": "UNet",
    "arguments": SIZES,
    "prediction": "v = alpha noise - sigma data, c_noise = log(sigma / alpha) / 4",
    "schedule": {**SCHEDULE, "kind": "beta = linspace(sqrt(start), sqrt(end), steps)^2"},
    "autoencoder": "autoencoder",
    "shape": [4, 7, 7],
}
MEAN, STD = -0.3, 1.0  # of most log(sigma_n / alpha_n)
UNIFORM = 8  # one in so many is uniform
PACE = Pace(lr=1e-3, flat=3000, seed=6)


def build() -> UNet:
    return UNet(**SIZES)


def trained_coder(folder: Path) -> Autoencoder:
    """The autoencoder of a finished run, frozen."""
    coder = Autoencoder(**CODER)
    coder.load_state_dict(torch.load(folder / "final.pt", weights_only=True)["weights"])
    return coder.eval().requires_grad_(False)


def schedule() -> tuple[Tensor, Tensor]:
    """alpha_n and sigma_n, (1000,) each, in float64."""
    ends = SCHEDULE["beta_start"] ** 0.5, SCHEDULE["beta_end"] ** 0.5
    beta = torch.linspace(*ends, int(SCHEDULE["steps"]), dtype=torch.float64) ** 2
    kept = (1 - beta).cumprod(0)
    return kept.sqrt(), (1 - kept).sqrt()


def draw(count: int, g: torch.Generator, level: Tensor) -> Tensor:
    """Indices n, (count,): most are normal in ``level``, which grows with n, the rest uniform."""
    low, high = level[[0, -1]]
    flat = low + (high - low) * spread(count // UNIFORM, g).double()
    bell = MEAN + STD * torch.special.ndtri(spread(count - count // UNIFORM, g)).double()
    return torch.searchsorted(level, torch.cat([bell, flat])).clamp_max(len(level) - 1)


def errors(raw: Raw, z: Tensor, y: Tensor, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """e(n) and u = log(sigma_n / alpha_n) / 4, (B,) both."""
    alphas, sigmas = schedule()
    n = draw(len(z), g, (sigmas / alphas).log())
    u = ((sigmas[n] / alphas[n]).log() / 4).float()
    a, s = (c[n].float()[:, None, None, None] for c in (alphas, sigmas))
    e = torch.randn(z.shape, generator=g)
    v = raw(a * z + s * e, u, hide(y, g))
    return (v - (a * e - s * z)).square().mean((1, 2, 3)), u


def loss(learner: nn.Module, z: Tensor, y: Tensor, g: torch.Generator) -> Tensor:
    assert isinstance(learner, Learner)
    return learner.weigh(*errors(shortened(learner.net), z, y, g))


def error(net: nn.Module, z: Tensor, y: Tensor, g: torch.Generator) -> Tensor:
    """The mean of e(n), without weights."""
    return errors(net, z, y, g)[0].mean()


def as_model(net: nn.Module, coder: Autoencoder) -> ClassModel:
    """The latent model, with its decoder, as a model that ``ld3`` samples from."""
    path = Discrete.scaled_linear(SCHEDULE["beta_start"], SCHEDULE["beta_end"])
    return ClassModel(
        lambda x, t, label: net(x, -0.25 * path.lam(t.double()).float(), label),
        path,
        "v",
        (4, 7, 7),
        torch.device("cpu"),
        coder,
    )


@torch.no_grad()
def encode(coder: Autoencoder, images: Tensor) -> Tensor:
    """Latents, (N,4,7,7)."""
    return torch.cat([coder.encode(x) for x in images.split(500)])


def main() -> None:
    parser = arguments(__doc__ or "", "fashion-latent", PACE)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the idx files")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    coder = trained_coder(args.run.parent / "autoencoder")
    (images, labels), (unseen, names) = load(args.data, "train"), load(args.data, "t10k")
    latents = encode(coder, images)
    parts = {"test": (encode(coder, unseen[:1000]), names[:1000]), "train": (latents, labels)}

    def check(weights: dict[str, Tensor], _: int) -> dict[str, Any]:
        net = averaged(build(), weights)
        told = losses(lambda z, y, g: error(net, z, y, g), parts)
        return {**grade(as_model(net, coder), 1000), **told}

    net = shipped(build(), "fashion-latent") if args.go_on else build()
    every = Every(check=60 * args.check_minutes)
    train(Learner(net), loss, latents, labels, pace_of(args, PACE), args.run, check, every)


if __name__ == "__main__":
    main()
