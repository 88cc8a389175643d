"""AYS: the grid with the lowest bound on the distance between path distributions.

Sabour et al. 2024, arXiv 2404.14507. In variance exploding form, let a solver keep the denoiser's
answer D_b = D(x_b, b) from noise level b down to a. Its distance from the exact solution is bounded
by the sum over steps of

    F(a, b) = integral from a to b of w(s, b) E |D(x_s, s) - D_b|^2 ds

    kl    w = s^-3                          as published: a bound on the KL divergence of the SDE
    ode   w = 2 / (s + b) |x_b| / |x_s|     ours: |x_s|^2 = c^2 + s^2 with c^2 the data's variance

For Gaussian data and s = c tan(angle), `ode` gives F = 2 c^2 (1 - cos(angle between a and b)), the
error of a step of Euler. Its best grid is then even in the angle, which the paper derives for the
ODE. The best grid of `kl` differs: for many steps it is even in log sin(angle), so that it keeps
halving s down to the end. ODE solvers are poor on it.

E is over data and noise. Noise is added to samples of the teacher level by level, and the network
is evaluated once per level; the search needs no more evaluations. It moves one time at a time to
the best place between its neighbours, until a round over all times lowers the bound by less than
`gain`. It starts with 10 steps and inserts midpoints in log s for 20 and 40. Other step counts are
interpolated.

The lowest bound is not the best grid, and the paper says so: its first stage, from the `edm` grid,
ends when samples get worse, and later stages move the new midpoints only. `early` does this: the
round of the first stage is taken whose samples are nearest to the teacher's on the validation
pairs, with the solver and the steps of the problem.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ld3.density import linear
from ld3.errors import SpecError
from ld3.grids import TimeGrid
from ld3.known_grids.handmade import HANDMADE
from ld3.models import bind, is_latent, take
from ld3.problem import Problem, chunks
from ld3.searches.protocol import Found, Need, Report
from ld3.searches.trajectories import fine_trajectory, some
from ld3.searches.validation import Validation
from ld3.solvers import make_solver
from ld3.table import TunedSolver

LOOKS: frozenset[Need] = frozenset({"model", "pairs"})
STAGES = (10, 20, 40)
TEACHER = 20  # steps of UniPC-3 for the data of latent models
PATIENCE = 5  # rounds without a better sample, after which `early` stops
PLACES = 64  # tried for a time between its neighbours, and again around the best of them


@dataclass(frozen=True)
class AYS:
    """The bound of a frozen denoiser, one time at a time."""

    weight: Literal["ode", "kl"] = "ode"
    levels: int = 192  # at which the network is evaluated
    samples: int = 16
    start: str = "logsnr"
    rounds: int = 200  # at most, a stage
    gain: float = 1e-4  # stop when a round lowers the bound by less than this share
    early: bool = False  # stop at the round with the best samples

    def __post_init__(self) -> None:
        if self.weight not in ("kl", "ode"):
            raise SpecError(f"weight: got {self.weight!r}, expected kl or ode")

    @property
    def source(self) -> str:
        name = "AYS (Sabour et al. 2024), weighted for the ODE"
        if self.weight == "kl":
            name = "AYS (Sabour et al. 2024): the KL bound of the SDE as published"
        return f"{name}, with early stopping" if self.early else name

    @property
    def needs(self) -> frozenset[Need]:
        return LOOKS | {"solver"} if self.early else LOOKS

    def __call__(self, problem: Problem, seed: int, progress: Report) -> Found:
        schedule, steps = problem.model.schedule, problem.steps
        times = HANDMADE["logsnr"](schedule, max(self.levels, 4 * steps)).times
        moments = measure_moments(problem, times, self.samples, seed, progress)
        bound = Bound.of(schedule.lam(times), moments, self.weight)
        lam = schedule.lam(HANDMADE[self.start](schedule, STAGES[0]).times)
        u = torch.linspace(0, 1, steps + 1, dtype=torch.float64, device="cpu")[1:-1]

        def grid_of(lam: Tensor) -> TimeGrid:
            inner = schedule.time_at(linear(lam, u))
            return TimeGrid.of(torch.cat([times[:1], inner, times[-1:]]))

        if self.early:
            rounds = descent(bound, lam, self.rounds, self.gain)
            validation = Validation(problem)
            lam = rounds[validation.best(map(grid_of, rounds), PATIENCE)]
            for stage in _stages(steps)[1:]:
                lam = descent(bound, _refined(lam, stage), self.rounds, self.gain, every=2)[-1]
            return validation.found(grid_of(lam), moments.evaluations)
        curve: list[float] = []
        for stage in _stages(steps):
            grids = descent(bound, _refined(lam, stage), self.rounds, self.gain)
            curve += [float(bound(grid[:-1], grid[1:]).sum()) for grid in grids]
            lam = grids[-1]
        tuned = TunedSolver(problem.solver, grid_of(lam))
        return Found(tuned, moments.evaluations, tuple(curve))


def _stages(steps: int) -> tuple[int, ...]:
    """Those that a number of steps needs."""
    enough = [stage for stage in STAGES if stage >= steps]
    return tuple(stage for stage in STAGES if not enough or stage <= enough[0])


def _refined(lam: Tensor, stage: int) -> Tensor:
    """The same grid with that many steps: midpoints are added."""
    return linear(lam, torch.linspace(0, 1, stage + 1, dtype=torch.float64, device="cpu"))


@dataclass(frozen=True)
class Moments:
    """Second moments of the denoiser along paths of growing noise; levels from noise to data."""

    apart: Tensor  # (K, K): mean over samples and values of (D_i - D_j)^2
    variance: float  # of the data
    evaluations: int


@torch.no_grad()
def measure_moments(
    problem: Problem, times: Tensor, samples: int, seed: int, progress: Report
) -> Moments:
    """Evaluate the network at all times, on data whose noise grows level by level."""
    model, index = problem.model, some(problem, samples)
    data, spent = _data(problem, index)
    s = torch.exp(-model.schedule.lam(times)).tolist()
    alpha = model.schedule.log_alpha(times).exp().tolist()
    products = torch.zeros(len(s), len(s), dtype=torch.float64, device="cpu")
    for part in chunks(len(index), problem.batch):
        denoise = bind(model, take(problem.train.cond, part), guidance=problem.guidance)
        generator = torch.Generator(device="cpu").manual_seed(seed)  # the same noise in any batch
        answers: list[Tensor] = []
        xbar, below = data[part], 0.0
        for k in reversed(range(len(s))):
            z = torch.randn(data.shape, generator=generator, dtype=torch.float32, device="cpu")
            xbar = xbar + (s[k] ** 2 - below**2) ** 0.5 * z[part].to(xbar)
            below = s[k]
            answers.insert(0, denoise(alpha[k] * xbar, times[k]).double().flatten())
            progress(int(part[0]) * len(s) + (len(s) - k) * len(part), len(index) * len(s))
        rows = torch.stack(answers)  # (K, B d)
        products += (rows @ rows.T).cpu()
    own = products.diagonal()
    apart = (own[:, None] + own - 2 * products).clamp_min(0) / data.numel()
    variance = data.double().var(0).mean() if len(data) > 1 else data.double().var()
    return Moments(apart, float(variance), spent + len(s) * len(index))


def _data(problem: Problem, index: Tensor) -> tuple[Tensor, int]:
    """Samples xbar of the teacher and their cost; for a latent model they are solved again."""
    if is_latent(problem.model, problem.train.noise.device):
        walk = fine_trajectory(problem, index, make_solver("unipc", 3), "logsnr", TEACHER)
        return walk.states[-1], walk.evaluations
    schedule = problem.model.schedule
    end = torch.tensor(schedule.t_min, dtype=torch.float64, device="cpu")
    return problem.train.target[index] / schedule.log_alpha(end).exp().item(), 0


@dataclass(frozen=True)
class Bound:
    """F of a step from lam_b up to lam_a, at any two values between the levels.

    sqrt(F) / (lam_a - lam_b) hardly changes from level to level: that is what is interpolated.
    """

    first: float  # lam of the first level
    gap: float  # between levels
    slope: Tensor  # (K, K) symmetric

    @classmethod
    def of(cls, lam: Tensor, moments: Moments, weight: Literal["kl", "ode"]) -> "Bound":
        """lam (K,) even and rising; the integral over log s by trapezoids."""
        s = torch.exp(-lam)
        if weight == "kl":
            factor = (s**-2).expand(len(s), -1)  # (b, s): w(s, b) s
        else:
            size = (moments.variance + s**2).sqrt()
            factor = 2 * s / (s + s[:, None]) * size[:, None] / size
        inside = factor * moments.apart
        gap = float(lam[1] - lam[0])
        total = torch.cumulative_trapezoid(inside.triu(), dx=gap)  # from level 0 instead of b: 0
        cost = torch.cat([torch.zeros_like(total[:, :1]), total], 1).triu()
        number = torch.arange(len(s), dtype=torch.float64, device="cpu")
        away = gap * (number - number[:, None])
        slope = torch.where(away > 0, cost.sqrt() / away.clamp_min(gap), torch.zeros_like(cost))
        slope = slope + slope.T
        beside = slope.diagonal(1)
        near = torch.cat([beside[:1], 0.5 * (beside[1:] + beside[:-1]), beside[-1:]])
        return cls(float(lam[0]), gap, slope + torch.diag(near))

    def __call__(self, b: Tensor, a: Tensor) -> Tensor:
        """F for steps from lam b to lam a > b, elementwise."""
        count = len(self.slope)
        (i, u), (j, v) = (self._place(lam, count) for lam in (b, a))
        low = torch.lerp(self.slope[i, j], self.slope[i, j + 1], v)
        high = torch.lerp(self.slope[i + 1, j], self.slope[i + 1, j + 1], v)
        return (torch.lerp(low, high, u) * (a - b)).square()

    def _place(self, lam: Tensor, count: int) -> tuple[Tensor, Tensor]:
        x = (lam - self.first) / self.gap
        left = x.floor().long().clamp(0, count - 2)
        return left, x - left


def descent(bound: Bound, lam: Tensor, rounds: int, gain: float, every: int = 1) -> list[Tensor]:
    """The grid after each round of moving one time at a time; only its two steps change.

    With `every` 2, the first, third, .. inner times move and the others stay.
    """
    after = [lam]
    share = torch.linspace(0, 1, PLACES + 1, dtype=torch.float64, device="cpu")
    last = float(bound(lam[:-1], lam[1:]).sum())
    for _ in range(rounds):
        lam = after[-1].clone()
        for i in range(1, len(lam) - 1, every):
            low, high = lam[i - 1], lam[i + 1]
            margin = (high - low) / PLACES
            low, high = low + margin, high - margin
            for _ in range(2):
                places = torch.cat([lam[i : i + 1], torch.lerp(low, high, share)])
                both = bound(lam[i - 1], places) + bound(places, lam[i + 1])
                lam[i] = places[both.argmin()]
                width = (high - low) / PLACES
                low, high = torch.maximum(low, lam[i] - width), torch.minimum(high, lam[i] + width)
        after.append(lam)
        now = float(bound(lam[:-1], lam[1:]).sum())
        if not now < (1 - gain) * last:
            break
        last = now
    return after
