"""Train ``fashion-latent``: first an autoencoder, then a diffusion model of its latents.

Autoencoder:  loss = E |G(z + 0.1 s n) - x|_1 + 0.3 d(G(z + 0.1 s n), x),  z = E(x), s = std z,
d the distance of the perceptual net.  The noise on z makes the decoder smooth.

Diffusion:  z_n = alpha_n z + sigma_n e,  loss = E |F(z_n; log(sigma_n / alpha_n) / 4) - v|^2 with
v = alpha_n e - sigma_n z, alpha_n^2 = prod_{m <= n} (1 - beta_m), sigma_n^2 = 1 - alpha_n^2 and
beta_n the square of 1000 even steps from sqrt(0.0015) to sqrt(0.0195).
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import torch
from data import load
from fashion import hide, spread
from loop import Plan, arguments, finish, train
from torch import Tensor, nn

from ld3.zoo.networks import Autoencoder, Perceptual, UNet

SCHEDULE = {"steps": 1000, "beta_start": 0.0015, "beta_end": 0.0195}
CODER = {"channels": 1, "latent": 4, "widths": [32, 64]}
SIZES = {
    "channels": 4,
    "patch": 1,
    "widths": [88],
    "blocks": 3,
    "middle": 1,
    "classes": 10,
    "embedding": 128,
    "f_max": 2.0,
}


def trained(net: nn.Module, folder: Path) -> nn.Module:
    """``net`` with the weights of a finished run, frozen."""
    net.load_state_dict(torch.load(folder / "final.pt", weights_only=True)["weights"])
    return net.eval().requires_grad_(False)


def schedule() -> tuple[Tensor, Tensor]:
    """alpha_n and sigma_n, (1000,) each, in float64."""
    ends = SCHEDULE["beta_start"] ** 0.5, SCHEDULE["beta_end"] ** 0.5
    beta = torch.linspace(*ends, int(SCHEDULE["steps"]), dtype=torch.float64) ** 2
    kept = (1 - beta).cumprod(0)
    return kept.sqrt(), (1 - kept).sqrt()


def look_alike(eye: Perceptual, x: Tensor, y: Tensor) -> Tensor:
    """Sum over stages of the mean over pixels of |f(x)/|f(x)| - f(y)/|f(y)||^2, (B,)."""

    def unit(f: Tensor) -> Tensor:
        return f * (f.square().sum(1, keepdim=True) + 1e-6).rsqrt()

    stages = zip(eye.features(x), eye.features(y), strict=True)
    return torch.stack([(unit(f) - unit(g)).square().sum(1).mean((1, 2)) for f, g in stages]).sum(0)


def autoencoder(args: Namespace, plan: Plan, command: str) -> None:
    """Train encoder and decoder, then fix the scale of the latents."""
    eye = Perceptual(widths=[24, 48, 80, 96])
    trained(eye, args.run.parent / "perceptual")
    images, labels = load(args.data, "train")

    def loss(net: nn.Module, x: Tensor, _: Tensor, g: torch.Generator) -> Tensor:
        assert isinstance(net, Autoencoder)
        z = net.encode(x)  # (B,4,7,7)
        shaken = z + 0.1 * z.std() * torch.randn(z.shape, generator=g)
        y = net.decode(shaken)  # (B,1,28,28)
        size = 1e-3 * z.square().mean()
        return (y - x).abs().mean() + 0.3 * look_alike(eye, y, x).mean() + size

    mean = train(Autoencoder(**CODER), loss, images, labels, plan, args.run)
    assert isinstance(mean, Autoencoder)
    with torch.no_grad():
        z = torch.cat([mean.encode(x) for x in images.split(500)])
        mean.mean.copy_(z.mean())
        mean.scale.copy_(z.std())
        test, _ = load(args.data, "t10k")
        error = torch.cat([(mean.decode(mean.encode(x)) - x).abs() for x in test.split(500)]).mean()
    print("test mean absolute error", error.item())
    about = {"class": "Autoencoder", "arguments": CODER, "test_mae": round(error.item(), 5)}
    finish(args.run, mean, plan, command, about)


def diffusion(args: Namespace, plan: Plan, command: str) -> None:
    """Train the network on the latents of the training pictures."""
    coder = Autoencoder(**CODER)
    trained(coder, args.run.parent / "autoencoder")
    images, labels = load(args.data, "train")
    with torch.no_grad():
        latents = torch.cat([coder.encode(x) for x in images.split(500)])  # (60000,4,7,7)
    alphas, sigmas = schedule()

    def loss(net: nn.Module, z: Tensor, y: Tensor, g: torch.Generator) -> Tensor:
        n = (len(alphas) * spread(len(z), g)).long()  # (B,)
        a, s = (c[n].float()[:, None, None, None] for c in (alphas, sigmas))
        e = torch.randn(z.shape, generator=g)
        v = net(a * z + s * e, (sigmas[n] / alphas[n]).log() / 4, hide(y, g))
        return (v - (a * e - s * z)).square().mean()

    mean = train(UNet(**SIZES), loss, latents, labels, plan, args.run)
    about = {
        "class": "UNet",
        "arguments": SIZES,
        "prediction": "v = alpha noise - sigma data, c_noise = log(sigma / alpha) / 4",
        "schedule": {**SCHEDULE, "kind": "beta = linspace(sqrt(start), sqrt(end), steps)^2"},
        "autoencoder": "autoencoder",
        "shape": [4, 7, 7],
    }
    finish(args.run, mean, plan, command, about)


def main() -> None:
    parser = arguments(__doc__ or "", "<name>", 1000, 1e-3)
    parser.add_argument("which", choices=["autoencoder", "diffusion"])
    args = parser.parse_args()
    if args.run.name == "<name>":
        args.run = args.run.with_name({"diffusion": "fashion-latent"}.get(args.which, args.which))
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    plan = Plan(
        args.iterations, args.batch, args.lr, seed=args.seed, shards=4, threads=args.threads
    )
    command = f"python training/latent.py {args.which} --iterations {args.iterations}"
    command += f" --batch {args.batch} --lr {args.lr:g} --seed {args.seed}"
    {"autoencoder": autoencoder, "diffusion": diffusion}[args.which](args, plan, command)


if __name__ == "__main__":
    main()
