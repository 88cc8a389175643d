"""LD3Scheduler in real diffusers pipelines: the sample is ours."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

diffusers = pytest.importorskip("diffusers", reason="pip install 'ld3[diffusers]'")

from ld3 import Discrete, FunctionModel, Plan, RunSpec, bind_network, run_learn  # noqa: E402
from ld3.diffusers import LD3Scheduler  # noqa: E402
from ld3.errors import PlanError  # noqa: E402
from ld3.families import run_family  # noqa: E402

SCHEDULE = Discrete.scaled_linear(0.00085, 0.012)


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    unet = diffusers.UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, block_out_channels=(8, 8), norm_num_groups=4,
        layers_per_block=1, down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    return unet.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def pipe() -> object:
    return diffusers.DDPMPipeline(network(), diffusers.DDPMScheduler())


def model_of(pipe: object) -> FunctionModel:
    unet = pipe.unet  # type: ignore[attr-defined]

    def forward(x: Tensor, t: Tensor, cond: object) -> Tensor:
        return unet(x, SCHEDULE.index(t)).sample

    return FunctionModel(forward, SCHEDULE, "eps", (1, 8, 8))


@pytest.fixture(scope="module")
def plan(pipe: object, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Tuned: times, network times and coefficients."""
    spec = RunSpec(
        nfe=(5,), preset="fast", pairs=8, held_out=4, start="bump:0:3.5", recipe={"epochs": 3},
        out=tmp_path_factory.mktemp("runs"),
    )  # fmt: skip
    (result,) = run_learn(spec, model=model_of(pipe))
    return result.plan


def ours(pipe: object, plan: Plan, x: Tensor) -> Tensor:
    with torch.no_grad():
        return plan.table().run(bind_network(model_of(pipe)), x)


def draw(pipe: object, scheduler: LD3Scheduler, steps: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """What the pipeline draws, in [-1, 1], and the noise it started from."""
    pipe.scheduler = scheduler  # type: ignore[attr-defined]
    pipe.set_progress_bar_config(disable=True)  # type: ignore[attr-defined]
    x = torch.randn((2, 1, 8, 8), generator=torch.Generator().manual_seed(seed))
    found = pipe(  # type: ignore[operator]
        batch_size=2,
        generator=torch.Generator().manual_seed(seed),
        num_inference_steps=steps,
        output_type="np",
    ).images
    return torch.from_numpy(found).permute(0, 3, 1, 2) * 2 - 1, x


def test_a_tuned_plan_in_a_pipeline_gives_our_sample(pipe: object, plan: Plan) -> None:
    assert plan.corrections is not None
    assert plan.times != plan.net_times
    scheduler = LD3Scheduler.from_plan(plan)
    for seed in (0, 1):  # a second call starts anew
        found, x = draw(pipe, scheduler, 5, seed)
        assert (found - ours(pipe, plan, x).clamp(-1, 1)).abs().max() < 1e-4


def test_the_network_sees_the_plans_times(pipe: object, plan: Plan) -> None:
    seen: list[float] = []
    unet = pipe.unet  # type: ignore[attr-defined]
    hook = unet.register_forward_pre_hook(lambda module, args: seen.append(float(args[1])))
    draw(pipe, LD3Scheduler.from_plan(plan), 5)
    hook.remove()
    wanted = SCHEDULE.index(plan.grid.net_times[:-1])
    assert seen == pytest.approx(wanted.tolist(), abs=1e-3)


def test_save_and_load(pipe: object, plan: Plan, tmp_path: Path) -> None:
    LD3Scheduler.from_plan(plan).save_pretrained(tmp_path)
    again = LD3Scheduler.from_pretrained(tmp_path)
    first, _ = draw(pipe, LD3Scheduler.from_plan(plan), 5)
    second, _ = draw(pipe, again, 5)
    assert torch.equal(first, second)
    assert len(again) == 1000


def test_a_family_serves_any_number_of_steps(pipe: object, tmp_path: Path) -> None:
    spec = RunSpec(
        family=(3, 5), preset="fast", pairs=8, held_out=4, recipe={"epochs": 3}, out=tmp_path
    )
    family = run_family(spec, model=model_of(pipe)).plan
    scheduler = LD3Scheduler.from_plan(family)
    for steps in (3, 4, 7):
        found, x = draw(pipe, scheduler, steps)
        assert (found - ours(pipe, family.at(steps), x).clamp(-1, 1)).abs().max() < 1e-4


def test_steps_without_a_plan_are_refused(plan: Plan) -> None:
    with pytest.raises(PlanError, match="got 7 steps"):
        LD3Scheduler.from_plan(plan).set_timesteps(7)
    with pytest.raises(PlanError, match="got no plan"):
        LD3Scheduler()


def test_image_to_image(plan: Plan) -> None:
    """From the middle, a network that always sees the same picture draws it."""
    scheduler = LD3Scheduler.from_plan(plan)
    x, noise = torch.full((2, 1, 8, 8), 0.3).double(), torch.randn(2, 1, 8, 8).double()
    for begin in (0, 2, 4):
        scheduler.set_begin_index(begin)
        state = scheduler.add_noise(x, noise, scheduler.timesteps[begin : begin + 1])
        t = plan.grid.times[begin]
        alpha, sigma = SCHEDULE.log_alpha(t).exp(), SCHEDULE.log_sigma(t).exp()
        assert torch.allclose(state, alpha * x + sigma * noise)
        for n, timestep in enumerate(scheduler.timesteps[begin:]):
            told = plan.grid.net_times[begin + n]
            a, s = SCHEDULE.log_alpha(told).exp(), SCHEDULE.log_sigma(told).exp()
            (state,) = scheduler.step((state - a * x) / s, timestep, state, return_dict=False)
        end = plan.grid.times[-1]
        wanted = SCHEDULE.log_alpha(end).exp() * x + SCHEDULE.log_sigma(end).exp() * noise
        assert (state - wanted).abs().max() < 1e-6


def test_types(plan: Plan) -> None:
    scheduler = LD3Scheduler.from_plan(plan)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        state = torch.randn(1, 1, 8, 8).to(dtype)
        found = scheduler.step(torch.zeros(1, 1, 8, 8), scheduler.timesteps[0], state)
        assert found.prev_sample.dtype == dtype
        scheduler.set_timesteps(5)
