"""Our solvers against the schedulers of `diffusers`: same noise levels, same network, same states.

Compared is the arithmetic of the steps: every x the network is asked about, then the sample, for
the solver itself and for its compiled table. Diffusers keeps its noise levels in float32 and allows
few grids, so most tests put ours (`sigmas`, float64) into the scheduler after `set_timesteps`; each
test says what it replaced. The network is always told our times; theirs are often cut to integers.

Two tolerances: EXACT where a scheduler computes in the dtype it is given, FLOAT32 where its `step`
casts x to float32 (DPMSolverMultistep, EulerDiscrete, FlowMatchEulerDiscrete) or its tables are
used as they are.

What cannot be compared:
- the last step to sigma = 0, which diffusers appends and our grids, that end at t_min > 0, do not
  have: `final_sigmas_type="sigma_min"`, or the run stops one step early;
- DPMSolverMultistep of order 2, 3 from 15 steps on: there diffusers keeps its order to the end;
- DEIS with lower orders at the end, which ours does not have: switched off in theirs;
- DEIS `rho`, DEIS of order 4 and iPNDM of order 1 to 3: diffusers has none;
- solver times apart from network times: no scheduler here has them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DEISMultistepScheduler,
    DPMSolverMultistepScheduler,
    DPMSolverSinglestepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    HeunDiscreteScheduler,
    IPNDMScheduler,
    UniPCMultistepScheduler,
)
from torch import Tensor

import ld3
from ld3.predictions import Prediction
from ld3.solvers import Denoise
from ld3.zoo.toy import Mixture, mixture

# numpy 2 finds that torch tensors lack two new arguments when diffusers calls numpy on them
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
]

EXACT = 1e-10
FLOAT32 = 1e-5

TYPES = {"eps": "epsilon", "x0": "sample", "v": "v_prediction", "flow": "flow_prediction"}


@dataclass(frozen=True)
class Problem:
    """A nonlinear network, a grid, and four x to start from."""

    model: Mixture
    grid: ld3.TimeGrid

    @cached_property
    def knots(self) -> ld3.Knots:
        return ld3.knots(self.model.schedule, self.grid)

    @cached_property
    def x(self) -> Tensor:
        return ld3.noise(range(4), (4, 8), torch.float64)

    @property
    def steps(self) -> int:
        return self.grid.steps

    @property
    def alpha(self) -> Tensor:
        return torch.stack(self.knots.alpha)

    @property
    def is_flow(self) -> bool:
        return isinstance(self.model.schedule, ld3.Flow)

    @property
    def sigmas(self) -> Tensor:
        """What diffusers calls sigma: sigma / alpha on VP schedules, sigma on the flow path."""
        return torch.stack(self.knots.sigma if self.is_flow else self.knots.ratio)

    @property
    def config(self) -> dict[str, Any]:
        """The scheduler's settings that describe this network."""
        return {"prediction_type": TYPES[self.model.prediction], "use_flow_sigmas": self.is_flow}


def smooth(schedule: ld3.Schedule, steps: int) -> ld3.TimeGrid:
    return ld3.make_grid("edm", schedule, steps)


def rough(schedule: ld3.Schedule, steps: int) -> ld3.TimeGrid:
    """Random gaps in lam, the largest up to six times the smallest."""
    ends = schedule.lam(torch.tensor([schedule.t_max, schedule.t_min], dtype=torch.float64))
    gaps = 0.2 + torch.rand(steps, generator=torch.Generator().manual_seed(steps)).double()
    inner = ends[0] + (ends[1] - ends[0]) * gaps.cumsum(0)[:-1] / gaps.sum()
    return ld3.TimeGrid.of(schedule.time_at(torch.cat([ends[:1], inner, ends[1:]])))


SETTINGS: dict[str, tuple[str, Prediction, Callable[[ld3.Schedule, int], ld3.TimeGrid]]] = {
    "sd-eps-smooth": ("sd", "eps", smooth),
    "sd-eps-rough": ("sd", "eps", rough),
    "sd-x0-rough": ("sd", "x0", rough),
    "sd-v-smooth": ("sd", "v", smooth),
    "sd-v-rough": ("sd", "v", rough),
    "flow-smooth": ("flow", "flow", smooth),
    "flow-rough": ("flow", "flow", rough),
}
VP = ["sd-eps-smooth", "sd-eps-rough", "sd-x0-rough", "sd-v-smooth"]
FLOW = ["flow-smooth", "flow-rough"]


@cache
def network(schedule: str, prediction: Prediction) -> Mixture:
    means = ld3.noise(range(100, 105), (32,), torch.float64)
    return mixture(means, 0.3, ld3.make_schedule(schedule), prediction=prediction)


@pytest.fixture(params=[*VP, "flow-rough"])
def setting(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[3, 4, 6, 10])
def problem(request: pytest.FixtureRequest, setting: str) -> Problem:
    schedule, prediction, place = SETTINGS[setting]
    model = network(schedule, prediction)
    return Problem(model, place(model.schedule, request.param).checked(model.schedule))


def only(settings: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("setting", settings, indirect=True)


def watched(problem: Problem, run: Callable[[Denoise], Tensor]) -> Tensor:
    """Every x at which our network was asked, then the sample."""
    denoise, seen = ld3.bind(problem.model), []

    def watch(x: Tensor, t: Tensor) -> Tensor:
        seen.append(x)
        return denoise(x, t)

    sample = run(watch)
    return torch.stack([*seen, sample])


def drive(scheduler: Any, problem: Problem, told: Tensor, start: Tensor) -> list[Tensor]:
    """The loop of a pipeline: every x at which the network was asked, then the last state."""
    scale = getattr(scheduler, "scale_model_input", lambda x, t: x)
    x, seen = start, []
    for t, timestep in zip(told, scheduler.timesteps, strict=False):
        seen.append(scale(x, timestep))
        out = problem.model.forward(seen[-1], t, None)
        x = scheduler.step(out, timestep, x).prev_sample
    assert len(seen) == len(told)
    return [*seen, x]


def check(
    problem: Problem,
    solver: ld3.Solver,
    scheduler: Any,
    tolerance: float,
    *,
    told: Tensor | None = None,
    exploding: bool = False,
) -> None:
    """`scheduler` is set up; `exploding`: it keeps x / alpha."""
    told = problem.grid.times[:-1] if told is None else told
    alpha = problem.alpha if exploding else torch.ones_like(problem.alpha)
    *seen, last = drive(scheduler, problem, told, problem.x / alpha[0])
    theirs = torch.stack([*seen, last * alpha[-1]])
    table = ld3.compile_table(solver, problem.knots)
    ours = watched(problem, lambda d: ld3.integrate(d, solver, problem.knots, problem.x))
    tabled = watched(problem, lambda d: table.run(d, problem.x))
    assert (ours - theirs).abs().max() <= tolerance
    assert (tabled - theirs).abs().max() <= tolerance


# ---- multistep and single-step methods, on VP schedules and on the flow path


@pytest.mark.parametrize("order", [1, 2, 3])
def test_dpm_solver_multistep(problem: Problem, order: int) -> None:
    """Replaced: `sigmas`. The scheduler casts x to float32 in each step."""
    scheduler = DPMSolverMultistepScheduler(
        algorithm_type="dpmsolver++",
        solver_type="midpoint",
        solver_order=order,
        final_sigmas_type="sigma_min",
        **problem.config,
    )
    scheduler.set_timesteps(problem.steps)
    scheduler.sigmas = problem.sigmas
    check(problem, ld3.make_solver("dpmpp", order), scheduler, FLOAT32)


@pytest.mark.parametrize(
    ("order", "form"),
    [
        (2, "midpoint"),
        (3, "heun"),
    ],
)
def test_dpm_solver_singlestep(problem: Problem, order: int, form: str) -> None:
    """Replaced: `sigmas`.

    2S is the form diffusers calls midpoint. 3S is the one it calls heun (the authors' taylor), with
    the answers at both inner points in the last step; its midpoint form leaves the first one out.
    A last group that is not full needs `lower_order_final`; a full one must be without.
    """
    scheduler = DPMSolverSinglestepScheduler(
        algorithm_type="dpmsolver++",
        solver_type=form,
        solver_order=order,
        final_sigmas_type="sigma_min",
        lower_order_final=problem.steps % order != 0,
        **problem.config,
    )
    scheduler.set_timesteps(problem.steps)
    scheduler.sigmas = problem.sigmas
    check(problem, ld3.make_solver("dpm-single", order), scheduler, EXACT)


@pytest.mark.parametrize("variant", ["bh1", "bh2"])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_unipc(problem: Problem, order: int, variant: str) -> None:
    """Replaced: `sigmas`. The states of both sides are the predicted ones, before correction."""
    scheduler = UniPCMultistepScheduler(
        solver_order=order, solver_type=variant, final_sigmas_type="sigma_min", **problem.config
    )
    scheduler.set_timesteps(problem.steps)
    scheduler.sigmas = problem.sigmas
    check(problem, ld3.make_solver("unipc", order, variant), scheduler, EXACT)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_deis(problem: Problem, order: int) -> None:
    """Replaced: `sigmas`. Without the lower orders at the end, which ours does not have."""
    scheduler = DEISMultistepScheduler(
        solver_order=order, lower_order_final=False, **problem.config
    )
    scheduler.set_timesteps(problem.steps)
    scheduler.sigmas = problem.sigmas
    check(problem, ld3.make_solver("deis", order, "log-rho"), scheduler, EXACT)


@only(["sd-v-smooth", "sd-v-rough"])
def test_ipndm(problem: Problem) -> None:
    """Replaced: `alphas` and `betas`, its own trigonometric schedule, by our alpha and sigma.

    The scheduler is of order 4 and wants v: its sigma x + alpha out is the noise behind v.
    """
    scheduler = IPNDMScheduler()
    scheduler.set_timesteps(problem.steps)
    scheduler.alphas = problem.alpha
    scheduler.betas = torch.stack(problem.knots.sigma)
    check(problem, ld3.make_solver("ipndm", 4), scheduler, EXACT)


# ---- Euler in its several dresses, and Heun


@only(VP)
def test_ddim(problem: Problem) -> None:
    """Replaced: `alphas_cumprod`, by the alpha^2 of our N + 1 knots, as if trained on those alone.

    DDIM takes its levels from that table by integer steps, so a scheduler trained on N + 1 steps
    visits our knots N, N-1, ... 0.
    """
    scheduler = DDIMScheduler(
        num_train_timesteps=problem.steps + 1,
        steps_offset=1,
        clip_sample=False,
        prediction_type=TYPES[problem.model.prediction],
    )
    scheduler.set_timesteps(problem.steps)
    scheduler.alphas_cumprod = problem.alpha.square().flip(0)
    check(problem, ld3.make_solver("euler"), scheduler, EXACT)


@only(VP)
def test_euler(problem: Problem) -> None:
    """Replaced: nothing, `set_timesteps` takes our sigmas. Rounds them, and x, to float32."""
    scheduler = EulerDiscreteScheduler(prediction_type=TYPES[problem.model.prediction])
    scheduler.set_timesteps(sigmas=problem.sigmas.tolist())
    check(problem, ld3.make_solver("euler"), scheduler, FLOAT32, exploding=True)


@only(VP)
def test_heun(problem: Problem) -> None:
    """Replaced: `sigmas`, in the scheduler's own doubled layout; the step to 0 is not taken.

    Compared are the Euler predictions too.
    """
    scheduler = HeunDiscreteScheduler(prediction_type=TYPES[problem.model.prediction])
    scheduler.set_timesteps(problem.steps + 1)
    first, rest = problem.sigmas[:1], problem.sigmas[1:].repeat_interleave(2)
    scheduler.sigmas = torch.cat([first, rest, torch.zeros_like(first)])
    told = problem.grid.times.repeat_interleave(2)[1:-1]
    check(problem, ld3.make_solver("heun"), scheduler, EXACT, told=told, exploding=True)


@only(FLOW)
def test_flow_match_euler(problem: Problem) -> None:
    """Replaced: nothing, `set_timesteps` takes our sigmas; the step to the 0 it adds is not taken.

    Theirs is Euler in t, ours Euler in sigma / alpha. On the flow path they are the same method:
    x0 and eps are both constant on a straight line, so both give (1 - t_+) x0 + t_+ eps.
    """
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(sigmas=problem.sigmas.tolist())
    check(problem, ld3.make_solver("euler"), scheduler, FLOAT32)


# ---- schedules as diffusers ships them


SD = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("ddpm", {"beta_schedule": "linear"}),
        ("ldm", {"beta_schedule": "scaled_linear", "beta_start": 0.0015, "beta_end": 0.0195}),
        ("sd", SD),
        ("iddpm", {"beta_schedule": "squaredcos_cap_v2"}),
        ("point-cloud", {"beta_schedule": "linear", "num_train_timesteps": 100}),
    ],
)
def test_noise_tables(name: str, config: dict[str, Any]) -> None:
    """Replaced: nothing. Ours in float64 against a product in float32."""
    schedule = ld3.make_schedule(name)
    assert isinstance(schedule, ld3.Discrete)
    theirs = DDIMScheduler(**config).alphas_cumprod
    ours = torch.tensor(schedule.log_alphas, dtype=torch.float64).mul(2).exp()
    assert schedule.steps == len(theirs)
    torch.testing.assert_close(ours.float(), theirs[: len(ours)], rtol=FLOAT32, atol=0)


@pytest.mark.parametrize("prediction", ["eps", "x0", "v"])
@pytest.mark.parametrize("steps", [4, 10, 50])
def test_ddim_as_in_a_stable_diffusion_pipeline(prediction: Prediction, steps: int) -> None:
    """Replaced: nothing. Its integer step n is our t = (n + 1)/1000, and it ends at n = 0."""
    scheduler = DDIMScheduler(
        **SD,
        steps_offset=1,
        clip_sample=False,
        set_alpha_to_one=False,
        prediction_type=TYPES[prediction],
    )
    scheduler.set_timesteps(steps)
    visited = [*scheduler.timesteps.tolist(), 0]
    problem = Problem(network("sd", prediction), ld3.TimeGrid.of([(n + 1) / 1000 for n in visited]))
    check(problem, ld3.make_solver("euler"), scheduler, FLOAT32)
