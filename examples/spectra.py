"""A network from elsewhere that draws no images: power spectra of the young universe.

The radio signal of early hydrogen is summed up by its power P at 32 x 16 wave numbers, across and
along the line of sight. A simulated box is small, so its P scatters around the true mean. The
package 21cmpsdenoiser (MIT licence) has a score network of 9 million weights that draws such means
given one scattered P. Both are written as logarithms, scaled to about [-1, 1]:

    x in R^(1 x 32 x 16),   beta from 0.1 to 20 (VP),   output: the noise in x,   told 999 t

The wheel has no spectra, so each seed makes its own condition: a quadratic surface over the two
log k, with coefficients that spread as in the test set of the package's source archive, times
scatter as large as the number of modes in each bin asks for. Samples are decoded to log10 P, with
P in mK^2: errors are in powers of ten, 0.01 is 2.3 percent.

    pip install --no-deps 21cmpsdenoiser==1.0.2 einops
    ld3 learn --model examples.spectra:model
    python examples/spectra.py --out demo
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
APART = 1 << 40  # seeds of conditions begin here, away from those of the noise
LEVEL = (-1.4, 3.1)  # log10 P in the middle of the plane: even between these
SHAPE = torch.tensor(  # mean and spread of the other coefficients; u across, v along the sight
    [
        [0.13, 0.11],  # v
        [-0.01, 0.03],  # v^2
        [0.02, 0.15],  # u
        [-0.13, 0.06],  # u v
        [-0.03, 0.05],  # u^2
    ]
)


@dataclass(frozen=True)
class Spectra(ld3.FunctionModel):
    """A function model that also knows its weights."""

    digest: str = "unknown"


def model() -> Spectra:
    """The network of the installed package, with conditions made from seeds."""
    folder = package()
    weights = folder / "denoiser_model.pt"
    network = load_network(folder / "model.py", weights)
    with np.load(folder / "constants.npz") as file:
        constants = {name: torch.from_numpy(file[name]).float() for name in KEPT}

    def function(x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        return network(x, 999 * t.expand(len(x)), x_cdn=cond)

    def conditions(seeds: Sequence[int]) -> Tensor:
        low, width = constants["noisy_mean"], constants["noisy_std"]
        return (scattered(seeds, constants) - low) / width * 2 - 1

    def decode(x: Tensor) -> Tensor:
        low, width = constants["mean_mean"].to(x), constants["mean_std"].to(x)
        return (x + 1) / 2 * width + low

    return Spectra(
        function,
        ld3.VPLinear(t_min=1e-5),
        prediction="eps",
        shape=(1, 32, 16),
        make_conditions=conditions,
        decoder=decode,
        digest=hashlib.sha256(weights.read_bytes()).hexdigest()[:16],
    )


KEPT = ("kperp", "kpar", "Nmodes", "noisy_mean", "noisy_std", "mean_mean", "mean_std")


def package() -> Path:
    """Where the package is. It is not imported, for that would ask for astropy and more."""
    found = importlib.util.find_spec("psdenoiser")
    if found is None or not found.submodule_search_locations:
        raise ModelError(f"spectra: got no package 21cmpsdenoiser, wanted it; {INSTALL}")
    return Path(found.submodule_search_locations[0])


def load_network(source: Path, weights: Path) -> torch.nn.Module:
    """The package's own network with its weights; nothing is unpickled."""
    spec = importlib.util.spec_from_file_location("psdenoiser_model", source)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    with torch.random.fork_rng(devices=[]):  # the file sets the global seed when it is read
        try:
            spec.loader.exec_module(module)
        except ImportError as error:
            raise ModelError(f"spectra: {error}; {INSTALL}") from None
        network: torch.nn.Module = module.UNet(dim=(32, 16))
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return network.eval().requires_grad_(False)


def smooth(seeds: Sequence[int], constants: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """log10 of a mean power for each seed (B, 1, 32, 16), and unit scatter that goes with it."""
    z = noise([APART + seed for seed in seeds], (6 + 32 * 16,))
    low, high = LEVEL
    level = low + (high - low) * torch.special.ndtr(z[:, :1])  # even, from a Gaussian
    shape = SHAPE[:, 0] + SHAPE[:, 1] * z[:, 1:6]
    u, v = torch.meshgrid(*(unit(constants[k].log()) for k in ("kperp", "kpar")), indexing="ij")
    surfaces = torch.stack([torch.ones_like(u), v, v * v, u, u * v, u * u])
    mean = torch.einsum("bc,cij->bij", torch.cat([level, shape], 1), surfaces)
    return mean[:, None], z[:, 6:].reshape(-1, 1, 32, 16)


def scattered(seeds: Sequence[int], constants: dict[str, Tensor]) -> Tensor:
    """log10 of the power that one box of limited size would show."""
    mean, scatter = smooth(seeds, constants)
    modes = constants["Nmodes"]
    modes = modes.where(modes > 0, 8)  # empty bins are filled from their neighbours
    return mean + scatter * (0.19 / modes + 0.015**2).sqrt()  # 0.19: 1/sqrt(modes), in log10


def unit(x: Tensor) -> Tensor:
    return (x - x.mean()) / x.std(correction=0)


GRIDS = ("uniform", "quadratic", "edm", "logsnr", "cosine", "vp-uniform")


@torch.inference_mode()
def draw(spectra: Spectra, solver: str, grid: str, steps: int, seeds: Sequence[int]) -> Tensor:
    """One decoded sample per seed."""
    k = ld3.knots(spectra.schedule, ld3.make_grid(grid, spectra.schedule, steps))
    network = ld3.bind_network(spectra, spectra.conditions(seeds))
    table = ld3.compile_table(ld3.make_solver(solver), k, spectra.prediction)
    return spectra.decode(table.run(network, ld3.prior(spectra, seeds)))
