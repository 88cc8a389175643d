"""Observed orders of convergence of every solver on three kinds of grids.

A one-dimensional mixture with two modes (+-0.6, width 0.2), noise from 80 to 0.002, 64 samples in
float64. The table shows the slope of log error against log N, by least squares over N = 40, 80, ..,
640. It also shows the error at N = 5 and 10 on the logSNR grid.

    python benchmarks/orders.py > docs/orders.md
"""

import math

import torch
from torch import Tensor

import ld3
from ld3.zoo.toy import mixture

SIZES = (40, 80, 160, 320, 640)


def random_grid(schedule: ld3.Schedule, steps: int) -> ld3.TimeGrid:
    """Gaps in lam that vary at random between half and one and a half of their mean."""
    generator = torch.Generator().manual_seed(steps)
    gaps = 0.5 + torch.rand(steps, generator=generator, dtype=torch.float64)
    u = torch.cat([torch.zeros(1, dtype=torch.float64), gaps.cumsum(0)])
    ends = schedule.lam(torch.tensor([schedule.t_max, schedule.t_min], dtype=torch.float64))
    times = schedule.time_at(ends[0] + (ends[1] - ends[0]) * u / u[-1])
    times[0], times[-1] = schedule.t_max, schedule.t_min
    return ld3.TimeGrid.of(times)


@torch.inference_mode()
def main() -> None:
    torch.set_num_threads(1)
    model = mixture([[-0.6], [0.6]], 0.2)
    schedule = model.schedule
    generator = torch.Generator().manual_seed(0)
    x = 80 * torch.randn(64, 1, generator=generator, dtype=torch.float64)

    def sample(solver: ld3.Solver, grid: ld3.TimeGrid) -> Tensor:
        return ld3.integrate(ld3.bind(model), solver, ld3.knots(schedule, grid), x)

    exact = sample(ld3.make_solver("deis", 4, "log-rho"), ld3.make_grid("logsnr", schedule, 6000))

    def error(solver: ld3.Solver, grid: ld3.TimeGrid) -> float:
        return (sample(solver, grid) - exact).square().mean().sqrt().item()

    def order(errors: list[float]) -> float:
        logs = [math.log(n) for n in SIZES]
        middle = sum(logs) / len(logs)
        rise = sum((a - middle) * math.log(e) for a, e in zip(logs, errors, strict=True))
        return -rise / sum((a - middle) ** 2 for a in logs)

    print("# Observed orders of convergence\n")
    print(__doc__.split("\n\n")[1].replace("\n", " ") + "\n")
    print("Made by `python benchmarks/orders.py`.\n")
    print("| solver | logSNR grid | EDM grid | random gaps | error, N = 5 | error, N = 10 |")
    print("|---|---|---|---|---|---|")
    for name, kind in ld3.SOLVERS.items():
        for number in kind.orders:
            for variant in kind.variants or (None,):
                solver = ld3.make_solver(name, number, variant)
                cells = [
                    f"{order([error(solver, make(n)) for n in SIZES]):.2f}"
                    for make in (
                        lambda n: ld3.make_grid("logsnr", schedule, n),
                        lambda n: ld3.make_grid("edm", schedule, n),
                        lambda n: random_grid(schedule, n),
                    )
                ]
                cells += [
                    f"{error(solver, ld3.make_grid('logsnr', schedule, n)):.4f}" for n in (5, 10)
                ]
                print(
                    f"| {name}-{number}{' ' + variant if variant else ''} | {' | '.join(cells)} |"
                )
    print("\n## Solvers and grids in two dimensions\n")
    print(
        "Six Gaussians on a circle, by `python examples/convergence.py`: every solver on one grid,"
    )
    print("and one solver on every grid. With few steps the best grid changes with their number.\n")
    print("![Error against the number of network evaluations](images/convergence.png)")


if __name__ == "__main__":
    main()
