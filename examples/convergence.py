"""How fast does each solver converge, and how much does the grid matter when steps are few?

Samples a two-dimensional mixture of Gaussians, whose score is known exactly, with every solver and
several grids; prints the errors against an accurate solution and draws the curves.

    python examples/convergence.py --out demo
"""

import argparse
import math
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import ld3
from ld3.zoo.toy import Mixture, mixture

FEW = (4, 6, 8, 10)
MANY = (5, 10, 20, 40, 80, 160)
GRIDS = ("uniform", "quadratic", "edm", "logsnr", "cosine")
SOLVERS = (
    ("euler", 1),
    ("heun", 2),
    ("dpm-single", 2),
    ("dpmpp", 2),
    ("dpmpp", 3),
    ("ipndm", 3),
    ("deis", 3),
    ("unipc", 3),
)


def error(model: Mixture, solver: ld3.Solver, grid: str, steps: int, exact: torch.Tensor) -> float:
    """Root mean square distance to the accurate solution over 256 samples."""
    k = ld3.knots(model.schedule, ld3.make_grid(grid, model.schedule, steps))
    x = ld3.prior(model, range(len(exact))).double()
    found = ld3.integrate(ld3.bind(model), solver, k, x)
    return (found - exact).square().sum(1).mean().sqrt().item()


def slope(errors: list[float], sizes: tuple[int, ...]) -> float:
    """The observed order between the last two sizes."""
    return math.log(errors[-2] / errors[-1]) / math.log(sizes[-1] / sizes[-2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the image")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    angles = torch.arange(6, dtype=torch.float64) * math.pi / 3
    model = mixture(torch.stack([angles.cos(), angles.sin()], dim=1), std=0.15)
    x = ld3.prior(model, range(256)).double()
    fine = ld3.knots(model.schedule, ld3.make_grid("logsnr", model.schedule, 600))
    exact = ld3.integrate(ld3.bind(model), ld3.make_solver("deis", 4, "log-rho"), fine, x)

    print("Error at few network evaluations (NFE), six Gaussians on a circle, noise 80 to 0.002")
    print(f"{'solver':<14}{'grid':<12}" + "".join(f"{f'NFE {n}':>10}" for n in FEW))
    for name, order in (("euler", 1), ("dpmpp", 3), ("ipndm", 3), ("unipc", 3)):
        solver = ld3.make_solver(name, order)
        rows = {g: [error(model, solver, g, n, exact) for n in FEW] for g in GRIDS}
        best = [min(row[c] for row in rows.values()) for c in range(len(FEW))]
        for grid, row in rows.items():
            cells = "".join(
                f"{value:>9.4f}{'*' if value == low else ' '}"
                for value, low in zip(row, best, strict=True)
            )
            print(f"{f'{name}-{order}':<14}{grid:<12}{cells}")
    print("* the best grid of that solver: it changes with the solver and the number of steps")

    print("\nObserved order on the logSNR grid (80 to 160 steps)")
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for name, order in SOLVERS:
        solver = ld3.make_solver(name, order)
        errors = [error(model, solver, "logsnr", n, exact) for n in MANY]
        print(f"{f'{name}-{order}':<14}{slope(errors, MANY):>6.2f}")
        left.loglog([solver.nfe(n) for n in MANY], errors, "o-", ms=3, label=f"{name}-{order}")
    left.set(xlabel="network evaluations", ylabel="error", title="Every solver, one grid (logSNR)")
    left.legend(fontsize=8)

    steps = range(3, 21)
    for grid in GRIDS:
        errors = [error(model, ld3.make_solver("dpmpp"), grid, n, exact) for n in steps]
        right.semilogy(list(steps), errors, "o-", ms=3, label=grid)
    right.set(
        xlabel="network evaluations", ylabel="error", title="One solver (DPM++ 3M), every grid"
    )
    right.legend(fontsize=8)
    for axis in (left, right):
        axis.grid(alpha=0.3)
    image = out / "convergence.png"
    figure.savefig(image, dpi=130)
    print(f"\nImage: {image}")


if __name__ == "__main__":
    main()
