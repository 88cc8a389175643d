"""A network from elsewhere that draws no images: power spectra of the young universe.

The radio signal of early hydrogen is summed up by its power P at 32 x 16 wave numbers, across and
along the line of sight. A simulated box is small, so its P scatters around the true mean. The
package 21cmpsdenoiser (MIT licence) has a score network of 9 million weights that draws such means,
given one scattered P. Both enter as logarithms, scaled to about [-1, 1]:

    x in R^(1 x 32 x 16),   VP with beta from 0.1 to 20,   output: the noise in x,   time 999 t

The package comes without spectra, so each seed makes its own condition. With k the length of the
wave vector, mu k its part along the line of sight and u = log10(k / 0.3 Mpc^-1), the mean is

    log10 P = c0 + c1 u + c2 u^2 + c3 u^3 + mu^2 (c4 + c5 u),   c Gaussian,

fitted to the bright spectra (mean log10 P > 1) of the test set in the package's source archive. The
box adds scatter that falls with the number of modes in a bin. Samples are decoded to log10 P, P in
mK^2: a distance of 0.01 is 2.3 percent of the power.

    pip install --no-deps 21cmpsdenoiser==1.0.2 einops
    python examples/spectra.py --out demo
    ld3 learn --model examples.spectra:model
"""

import argparse
import hashlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import ld3
from ld3.errors import ModelError
from ld3.models import Cond
from ld3.seeds import noise

INSTALL = "pip install --no-deps 21cmpsdenoiser==1.0.2 einops"
CONSTANTS = ("kperp", "kpar", "Nmodes", "noisy_mean", "noisy_std", "mean_mean", "mean_std")
APART = 1 << 40  # seeds of conditions begin here, away from those of the noise
CENTRE = (2.07, 0.30, -0.55, 0.01, 0.07, 0.21)  # of c0 to c5
SPREAD = (  # the Cholesky factor of their covariance
    (0.75, 0.00, 0.00, 0.00, 0.00, 0.00),
    (0.07, 0.52, 0.00, 0.00, 0.00, 0.00),
    (-0.12, -0.07, 0.20, 0.00, 0.00, 0.00),
    (0.02, -0.38, -0.07, 0.18, 0.00, 0.00),
    (-0.18, 0.07, 0.13, 0.03, 0.24, 0.00),
    (0.04, -0.11, -0.09, -0.11, -0.09, 0.13),
)
GRIDS = ("uniform", "quadratic", "edm", "logsnr", "cosine", "vp-uniform")


@dataclass(frozen=True)
class Spectra(ld3.FunctionModel):
    """A model made of functions that also knows the digest of its weights."""

    digest: str = "unknown"


def model() -> Spectra:
    """The network of the installed package, with conditions made from seeds."""
    folder = package()
    network, constants = load_network(folder), load_constants(folder)
    low, width = constants["noisy_mean"], constants["noisy_std"]  # of conditions
    lowest, range_ = constants["mean_mean"], constants["mean_std"]  # of samples

    def function(x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        out: Tensor = network(x, 999 * t.expand(len(x)), x_cdn=cond)
        return out

    return Spectra(
        function,
        # as far down as it was trained: at 1e-3 the noise left would hide the spread of samples
        ld3.VPLinear(t_min=1e-5),
        prediction="eps",
        shape=(1, 32, 16),
        make_conditions=lambda seeds: (boxes(seeds, constants)[1] - low) / width * 2 - 1,
        decoder=lambda x: (x + 1) / 2 * range_ + lowest,
        digest=hashlib.sha256((folder / "denoiser_model.pt").read_bytes()).hexdigest()[:16],
    )


def package() -> Path:
    """Where the package is. It is not imported: that would ask for astropy, scipy and more."""
    found = importlib.util.find_spec("psdenoiser")
    if found is None or not found.submodule_search_locations:
        raise ModelError(f"spectra: got no package 21cmpsdenoiser, expected 1.0.2: {INSTALL}")
    return Path(found.submodule_search_locations[0])


def load_network(folder: Path) -> torch.nn.Module:
    """The package's own network class, with its weights; nothing is unpickled."""
    spec = importlib.util.spec_from_file_location("psdenoiser_model", folder / "model.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    with torch.random.fork_rng(devices=[]):  # the file sets torch's global seed
        try:
            spec.loader.exec_module(module)
        except ImportError as error:
            raise ModelError(f"spectra: {error}: {INSTALL}") from None
        network: torch.nn.Module = module.UNet(dim=(32, 16))
    weights = torch.load(folder / "denoiser_model.pt", map_location="cpu", weights_only=True)
    network.load_state_dict(weights)
    standardise(network.requires_grad_(False), module.WeightStandardizedConv2d)
    return network.eval()


def standardise(network: torch.nn.Module, kind: type[torch.nn.Conv2d]) -> None:
    """Its convolutions scale their weights anew in every call, by the same arithmetic as here.

    Ours are frozen, so once is enough: the same numbers to the bit in about half the time.
    """
    for conv in network.modules():
        if isinstance(conv, kind):
            w = conv.weight
            centred = w - w.mean((1, 2, 3), keepdim=True)
            w.copy_(centred / (w.var((1, 2, 3), keepdim=True, unbiased=False) + 1e-5).rsqrt())
            conv.__class__ = torch.nn.Conv2d  # type: ignore[assignment]


def load_constants(folder: Path) -> dict[str, Tensor]:
    """Wave numbers, modes per bin and the two scales."""
    with np.load(folder / "constants.npz", allow_pickle=False) as file:
        return {name: torch.from_numpy(file[name]).float() for name in CONSTANTS}


def boxes(seeds: Sequence[int], constants: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """log10 of a mean power for each seed, and of what one box shows of it: (B, 1, 32, 16) each."""
    z = noise([APART + seed for seed in seeds], (6 + 32 * 16,))
    c = torch.tensor(CENTRE) + z[:, :6] @ torch.tensor(SPREAD).T
    across, along = torch.meshgrid(constants["kperp"], constants["kpar"], indexing="ij")
    k = torch.hypot(across, along)
    u, mu2 = torch.log10(k / 0.3), (along / k) ** 2
    terms = torch.stack([torch.ones_like(u), u, u**2, u**3, mu2, mu2 * u])
    mean = torch.einsum("bc,cij->bij", c, terms)[:, None]
    modes = constants["Nmodes"].clone()
    modes[modes == 0] = 8  # empty bins are filled from their neighbours
    scatter = (0.1 / modes + 0.015**2).sqrt()
    return mean, mean + scatter * z[:, 6:].reshape(mean.shape)


@torch.inference_mode()
def draw(spectra: Spectra, solver: str, grid: str, steps: int, seeds: Sequence[int]) -> Tensor:
    """One decoded sample per seed."""
    k = ld3.knots(spectra.schedule, ld3.make_grid(grid, spectra.schedule, steps))
    network = ld3.bind_network(spectra, spectra.conditions(seeds))
    table = ld3.compile_table(ld3.make_solver(solver), k, spectra.prediction)
    return spectra.decode(table.run(network, ld3.prior(spectra, seeds)))


def main() -> None:
    import matplotlib.pyplot as plt  # here, so that `ld3 learn` does without

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the image")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    spectra, seeds = model(), range(6)
    exact = draw(spectra, "unipc", "logsnr", 60, seeds)
    samples = {grid: draw(spectra, "dpmpp", grid, 5, seeds) for grid in GRIDS}
    errors = {grid: (samples[grid] - exact).square().mean().sqrt().item() for grid in GRIDS}
    print(f"dpmpp, 5 evaluations: RMS distance to an accurate run in log10 P, {len(seeds)} samples")
    for grid in GRIDS:
        print(f"{grid:<12}{errors[grid]:>8.4f}")
    best = min(GRIDS, key=lambda grid: errors[grid])
    mean, seen = boxes(seeds, load_constants(package()))
    rows = {"one box": seen, "true mean": mean, "accurate": exact, f"{best}, 5": samples[best]}

    figure, axes = plt.subplots(len(rows), len(seeds), figsize=(8, 3.2), layout="constrained")
    for line, (label, spectrum) in zip(axes, rows.items(), strict=True):
        line[0].set_ylabel(label, rotation=0, ha="right", va="center")
        for axis, one, scale in zip(line, spectrum[:, 0], mean[:, 0], strict=True):
            axis.imshow(one.T, origin="lower", vmin=scale.min(), vmax=scale.max())
            axis.set_xticks([])
            axis.set_yticks([])
    image = args.out / "spectra.png"
    figure.savefig(image, dpi=130)
    print(f"\nImage: {image}")


if __name__ == "__main__":
    main()
