"""LD3Scheduler in real diffusers pipelines: the sample is ours."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

diffusers = pytest.importorskip("diffusers", reason="pip install 'ld3[diffusers]'")
pytest.importorskip("transformers", reason="pip install 'ld3[diffusers]'")

import ld3  # noqa: E402
from ld3.cli import main  # noqa: E402
from ld3.diffusers import LD3Scheduler  # noqa: E402
from ld3.errors import PlanError  # noqa: E402
from ld3.plan import Plan  # noqa: E402
from ld3.predictions import to_x0  # noqa: E402
from ld3.schedules import Discrete, in_network_units  # noqa: E402
from ld3.zoo.toy import mixture  # noqa: E402
from pipelines import CALLS, SD, TINY, make_scheduler, sd  # noqa: E402
from plans import make_plan  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning"),
]

# family -> noise schedule, what its network predicts, guidance, shape of the state
FAMILIES: dict[str, tuple[str, str, float | None, tuple[int, ...]]] = {
    "ddpm": ("ddpm", "eps", None, (2, 3, 8, 8)),
    "ldm": ("ldm", "eps", None, (2, 3, 8, 8)),
    "dit": ("ddpm", "eps", 3.0, (2, 4, 8, 8)),
    "sd": ("sd", "eps", 3.0, (2, 4, 8, 8)),
    "sd-v": ("sd", "v", 3.0, (2, 4, 8, 8)),
    "sd-flow": ("flow", "flow", 3.0, (2, 4, 8, 8)),
    "sdxl": ("sd", "eps", 3.0, (2, 4, 8, 8)),
    "sd3": ("flow", "flow", 3.0, (2, 4, 8, 8)),
    "flux": ("flow", "flow", 3.5, (2, 16, 16)),
    "sana": ("flow", "flow", 3.0, (2, 4, 16, 16)),
    "wan": ("flow", "flow", 3.0, (2, 16, 2, 8, 8)),
}


class Asked(diffusers.SchedulerMixin, diffusers.ConfigMixin):  # type: ignore[misc, name-defined]
    """A scheduler of one step that only listens: what does the pipeline's network answer at (x, t),
    with its guidance, its scalings, its packing?"""

    config_name = "scheduler_config.json"
    order = 1
    init_noise_sigma = 1.0

    @diffusers.configuration_utils.register_to_config
    def __init__(self, num_train_timesteps: int = 1000) -> None:
        self.x, self.t, self.output = torch.empty(0), torch.empty(0), torch.empty(0)

    def set_timesteps(
        self, num_inference_steps: Any = None, device: Any = None, timesteps: Any = None,
        sigmas: Any = None, mu: Any = None,
    ) -> None:  # fmt: skip
        self.timesteps, self.sigmas = self.t.reshape(1), torch.ones(2)

    def set_begin_index(self, begin_index: int = 0) -> None:
        pass

    def scale_model_input(self, sample: Tensor, timestep: Any) -> Tensor:
        """Not all pipelines take latents; here x comes in, doubled where guidance doubles it."""
        return torch.cat([self.x] * (len(sample) // len(self.x)))

    def step(self, model_output: Tensor, timestep: Any, sample: Tensor, generator: Any = None,
             return_dict: bool = True) -> Any:  # fmt: skip
        self.output = model_output
        return (sample,) if not return_dict else type("Out", (), {"prev_sample": sample})()


class Case:
    """A tiny pipeline, and its network as ours would ask it."""

    def __init__(self, family: str) -> None:
        self.family = family
        schedule, self.prediction, self.guidance, self.shape = FAMILIES[family]
        self.schedule = ld3.make_schedule(schedule)
        self.pipe = TINY[family]()
        self.x = torch.randn(self.shape, generator=torch.Generator().manual_seed(1))

    def plan(self, solver: str = "dpmpp", order: int | None = None, **words: Any) -> Plan:
        return make_plan(self.schedule, solver, order, prediction=self.prediction,
                         shape=self.shape[1:], **words)  # fmt: skip

    def call(self, scheduler: Any, steps: int, x: Tensor) -> Any:
        self.pipe.scheduler = scheduler
        words: dict[str, Any] = {**CALLS[self.family.split("-")[0]], "num_inference_steps": steps}
        words["generator"] = torch.Generator().manual_seed(1)
        if self.family in ("ddpm", "ldm"):
            words |= {"batch_size": 2, "output_type": "np"}
        elif self.family == "dit":
            words |= {"output_type": "np"}
        else:
            words |= {"output_type": "latent", "latents": x}
        if self.guidance is not None:
            words["guidance_scale"] = self.guidance
        return self.pipe(**words)

    def network(self, x: Tensor, t: Tensor) -> Tensor:
        told = in_network_units(self.schedule, t).float()
        if self.family in ("ddpm", "ldm"):  # no guidance, no latents to pass in
            return self.pipe.unet(x.float(), told).sample
        listener = Asked()
        listener.x, listener.t = x.float(), told
        self.call(listener, 1, x.float())
        return listener.output[: len(x), : x.shape[1]]

    def denoise(self, x: Tensor, t: Tensor) -> Tensor:
        alpha, sigma = self.schedule.log_alpha(t).exp(), self.schedule.log_sigma(t).exp()
        return to_x0(self.prediction, self.network(x, t), x, alpha, sigma)

    def ours(self, plan: Plan, x: Tensor) -> Tensor:
        """By the solver itself where it has no corrections, else by its table."""
        with torch.no_grad():
            if plan.corrections is None:
                return ld3.integrate(self.denoise, plan.make_solver(), plan.knots(), x.double())
            return plan.table().run(self.network, x)

    def theirs(self, plan: Plan) -> tuple[Tensor, Tensor]:
        """The state that the pipeline ends in, and the noise it began with."""
        seen: list[Tensor] = []
        scheduler = LD3Scheduler.from_plan(plan)
        step = scheduler.step

        def watched(model_output: Tensor, timestep: Any, sample: Tensor, **words: Any) -> Any:
            found = step(model_output, timestep, sample, **words)
            seen.extend([sample, found[0] if isinstance(found, tuple) else found.prev_sample])
            return found

        scheduler.step = watched
        self.call(scheduler, plan.nfe, self.x)
        count = len(seen[0]) // (2 if self.family == "dit" else 1)  # DiT keeps two equal halves
        return seen[-1][:count], seen[0][:count]


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


@pytest.mark.parametrize(
    ("name", "order", "tuned"), [("dpmpp", 3, True), ("unipc", 2, False), ("ipndm", 4, False)]
)
def test_a_pipeline_draws_our_sample(case: Case, name: str, order: int, tuned: bool) -> None:
    plan = case.plan(name, order, steps=4, corrections=tuned)
    found, x = case.theirs(plan)
    wanted = case.ours(plan, x)
    assert found.shape == wanted.shape == case.x.shape
    assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max().clamp(min=1)


@pytest.fixture(scope="module")
def stable() -> Case:
    return Case("sd")


@pytest.fixture(scope="module")
def flow() -> Case:
    return Case("flux")


@pytest.mark.parametrize("net_times", [True, False], ids=["told", "plain"])
def test_every_solver_in_every_pipeline(case: Case, solver: ld3.Solver, net_times: bool) -> None:
    plan = case.plan(
        solver.name, solver.order, variant=solver.variant or None, steps=3,
        net_times=net_times, corrections=False,
    )  # fmt: skip
    found, x = case.theirs(plan)
    wanted = case.ours(plan, x)
    assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max().clamp(min=1)


# ---- against stock schedulers, on their own grids


def stock_times(scheduler: Any, steps: int) -> list[float]:
    """Trained steps that a stock scheduler visits, as our times; its end at the last of them."""
    scheduler.set_timesteps(steps)
    return [(t + 1) / 1000 for t in [*scheduler.timesteps.tolist(), 0]]


@pytest.mark.parametrize(
    ("scheduler", "config", "method", "order", "variant"),
    [
        ("EulerDiscreteScheduler", {"timestep_spacing": "leading"}, "euler", 1, None),
        ("DDIMScheduler", {"set_alpha_to_one": False, "clip_sample": False}, "euler", 1, None),
        ("DPMSolverMultistepScheduler", {"solver_order": 2}, "dpmpp", 2, None),
        ("DPMSolverMultistepScheduler", {"solver_order": 3}, "dpmpp", 3, None),
        ("UniPCMultistepScheduler", {"solver_order": 2, "solver_type": "bh2"}, "unipc", 2, "bh2"),
        ("UniPCMultistepScheduler", {"solver_order": 3, "solver_type": "bh1"}, "unipc", 3, "bh1"),
        ("DEISMultistepScheduler", {"solver_order": 2, "lower_order_final": False}, "deis", 2,
         "log-rho"),
    ],
)  # fmt: skip
def test_stock_grid_stock_sample(
    stable: Case, scheduler: str, config: dict[str, Any], method: str, order: int, variant: str
) -> None:
    """A whole pipeline run with their scheduler, and with ours on their sigmas.

    Theirs end at the first trained step (`sigma_min`): our grids do not go to zero.
    """
    config = {**SD, "steps_offset": 1, **config}
    if scheduler not in ("DDIMScheduler", "DEISMultistepScheduler"):
        config["final_sigmas_type"] = "sigma_min"
    stock = make_scheduler(scheduler, **config)
    times = stock_times(stock, 6)
    plan = stable.plan(
        method, order, variant=variant, times=times, net_times=False, corrections=False
    )
    if scheduler == "DEISMultistepScheduler":  # always goes to zero: stop its end at sigma_min
        last = torch.exp(-stable.schedule.lam(plan.grid.times[-1:]))
        make = type(stock).set_timesteps

        def to_sigma_min(steps: int, device: Any = None) -> None:
            make(stock, steps, device)
            stock.sigmas = torch.cat([stock.sigmas[:-1], last.float()])

        stock.set_timesteps = to_sigma_min
    theirs = stable.call(stock, 6, stable.x).images
    ours = stable.call(LD3Scheduler.from_plan(plan), 6, stable.x).images
    if scheduler == "EulerDiscreteScheduler":  # keeps x / alpha
        theirs = theirs * stable.schedule.log_alpha(plan.grid.times[-1]).exp().float()
    assert (theirs - ours).abs().max() < 2e-4 * ours.abs().max().clamp(min=1)


def test_stock_flow_grid(flow: Case) -> None:
    """FlowMatchEuler on its own shifted sigmas; its last step, to zero, is left to our t_min."""
    stock = make_scheduler("FlowMatchEulerDiscreteScheduler", shift=3.0)
    stock.set_timesteps(5)
    sigmas = stock.sigmas.double().tolist()
    times = [min(s, 0.999) for s in sigmas[:-1]]
    plan = flow.plan("euler", times=[*times, 0.001], net_times=False, corrections=False)
    network = mixture(torch.randn(5, 16, generator=torch.Generator().manual_seed(0)), 0.3,
                      ld3.Flow(), prediction="flow")  # fmt: skip
    ours, theirs = LD3Scheduler.from_plan(plan), flow.x[:, :, 0].double()
    x = theirs.clone()
    stock.sigmas = torch.tensor([*times, 0.0]).double()
    for i, t in enumerate(ours.timesteps[:-1]):
        now = torch.tensor(times[i]).double()
        theirs = stock.step(network.forward(theirs, now, None), stock.timesteps[i], theirs)[0]
        x = ours.step(network.forward(x, now, None), t, x).prev_sample
        assert (x - theirs).abs().max() < 1e-5


# ---- what diffusers asks of every scheduler


@pytest.fixture(params=[("sd", "eps"), ("flow", "flow"), ("edm", "x0")], ids=lambda p: p[0])
def plan(request: pytest.FixtureRequest) -> Plan:
    return make_plan(request.param[0], prediction=request.param[1])


def loop(scheduler: Any, steps: int = 5, dtype: torch.dtype = torch.float32) -> Tensor:
    """A run with a smooth little network."""
    scheduler.set_timesteps(steps)
    x = torch.linspace(-1, 1, 48).reshape(2, 2, 3, 4).to(dtype) * scheduler.init_noise_sigma
    for t in scheduler.timesteps:
        out = torch.sin(scheduler.scale_model_input(x, t) + 0.001 * t).to(dtype)
        x = scheduler.step(out, t, x).prev_sample
    return x


def test_save_and_load(plan: Plan, tmp_path: Path) -> None:
    first = LD3Scheduler.from_plan(plan, make_plan_of(plan, 7))
    first.save_pretrained(tmp_path)
    again = LD3Scheduler.from_pretrained(tmp_path)
    assert len(again) == 1000
    for steps in (5, 7):
        assert torch.equal(loop(first, steps), loop(again, steps))
    content = json.loads((tmp_path / "scheduler_config.json").read_text())
    assert content["_class_name"] == "LD3Scheduler"
    assert [entry["nfe"] for entry in content["plans"]] == [5, 7]
    assert torch.equal(loop(first), loop(LD3Scheduler.from_config(first.config)))


def make_plan_of(plan: Plan, steps: int) -> Plan:
    schedule = "edm" if plan.schedule == {"name": "edm"} else plan.schedule["name"]
    return make_plan(schedule, prediction=plan.model.prediction, steps=steps)


def test_the_loop_repeats_itself(plan: Plan) -> None:
    scheduler = LD3Scheduler.from_plan(plan)
    assert torch.equal(loop(scheduler), loop(scheduler))
    x = torch.ones(1, 2, 3, 4)
    with pytest.raises(PlanError, match="after the last of 5 steps"):
        scheduler.step(x, scheduler.timesteps[0], x)


def test_outputs_and_shapes(plan: Plan) -> None:
    x, out = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    scheduler = LD3Scheduler.from_plan(plan)
    found = scheduler.step(out, scheduler.timesteps[0], x)
    scheduler.set_timesteps(5)
    (as_tuple,) = scheduler.step(out, scheduler.timesteps[0], x, return_dict=False)
    assert found.prev_sample.shape == x.shape
    assert torch.equal(found.prev_sample, as_tuple)
    scheduler.set_timesteps(5)
    twice = torch.cat([out, torch.randn_like(out)], 1)  # a learned variance is not looked at
    assert torch.equal(scheduler.step(twice, scheduler.timesteps[0], x).prev_sample, as_tuple)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_types(plan: Plan, dtype: torch.dtype) -> None:
    """The state keeps its dtype; what is added up is float32 or better."""
    if plan.schedule == {"name": "edm"} and dtype != torch.float64:
        pytest.skip("EDM states of 80 sigma are too coarse in 16 bits to compare")
    scheduler = LD3Scheduler.from_plan(plan)
    found, wanted = loop(scheduler, dtype=dtype), loop(scheduler)
    assert found.dtype == dtype
    slack = {torch.float16: 1e-2, torch.bfloat16: 6e-2, torch.float64: 1e-5}[dtype]
    assert (found.float() - wanted).abs().max() < slack * wanted.abs().max()


def test_set_timesteps(plan: Plan) -> None:
    scheduler = LD3Scheduler.from_plan(plan)
    scheduler.set_timesteps(5, device="meta")
    assert scheduler.timesteps.device.type == scheduler.sigmas.device.type == "meta"
    for words in ({"sigmas": [1.0] * 5}, {"sigmas": torch.ones(5).numpy(), "mu": 1.2},
                  {"timesteps": [3] * 5}):  # fmt: skip
        scheduler.set_timesteps(device="cpu", **words)
        assert scheduler.timesteps.dtype == torch.float32
        assert scheduler.num_inference_steps == len(scheduler.timesteps) == 5
        assert len(scheduler.sigmas) == 6
    with pytest.raises(PlanError, match="num_inference_steps"):
        scheduler.set_timesteps()


def test_the_network_is_told_fractions() -> None:
    plan = make_plan()
    told = LD3Scheduler.from_plan(plan).timesteps
    wanted = Discrete.scaled_linear(0.00085, 0.012).index(plan.grid.net_times[:-1])
    assert told.tolist() == pytest.approx(wanted.tolist(), abs=1e-3)
    assert (told - told.round()).abs().max() > 0.05
    assert len(set(told.tolist())) == 5


@pytest.mark.parametrize("begin", [0, 2, 4])
@pytest.mark.parametrize("name", ["dpmpp", "unipc", "heun"])
def test_image_to_image(plan: Plan, begin: int, name: str) -> None:
    """From the middle on, a network that always sees the same picture draws it."""
    schedule = plan.noise_schedule
    plan = make_plan(schedule, name, prediction=plan.model.prediction, steps=6, net_times=False)
    scheduler = LD3Scheduler.from_plan(plan)
    x, noise = torch.full((2, 1, 8, 8), 0.3).double(), torch.randn(2, 1, 8, 8).double()
    begin *= plan.nfe // 6
    scheduler.set_begin_index(begin)
    assert scheduler.begin_index == scheduler.step_index == begin
    start = scheduler.timesteps[begin : begin + 1]
    state = scheduler.add_noise(x, noise, start)
    assert torch.equal(state, scheduler.scale_noise(x, start, noise))
    t = plan.state_times[begin]
    alpha, sigma = schedule.log_alpha(t).exp(), schedule.log_sigma(t).exp()
    assert torch.allclose(state, alpha * x + sigma * noise)
    table = plan.table()
    for n, timestep in enumerate(scheduler.timesteps[begin:]):
        if n == 2:  # a pipeline that inpaints puts its own state, with other noise, here
            noise = torch.randn_like(noise)
            state = scheduler.add_noise(x, noise, timestep[None])
        a, s = (
            f(table.net_times[begin + n]).exp() for f in (schedule.log_alpha, schedule.log_sigma)
        )
        out = {"eps": (state - a * x) / s, "x0": x, "flow": (state - a * x) / s - x}
        (state,) = scheduler.step(out[plan.model.prediction], timestep, state, return_dict=False)
    end = plan.grid.times[-1]
    wanted = schedule.log_alpha(end).exp() * x + schedule.log_sigma(end).exp() * noise
    assert (state - wanted).abs().max() < 2e-6
    with pytest.raises(PlanError, match="wanted 0 to"):
        scheduler.set_begin_index(plan.nfe)


def test_noise_at_any_time(plan: Plan) -> None:
    """Training loops add noise at times that no plan has."""
    scheduler, schedule = LD3Scheduler.from_plan(plan), plan.noise_schedule
    t = torch.tensor([0.3, 0.7]).double()
    told = in_network_units(schedule, t)
    x, noise = torch.randn(2, 3).double(), torch.randn(2, 3).double()
    alpha, sigma = (f(t).exp()[:, None] for f in (schedule.log_alpha, schedule.log_sigma))
    assert torch.allclose(scheduler.add_noise(x, noise, told), alpha * x + sigma * noise)


def test_compiles_whole(plan: Plan) -> None:
    """`step` has no branch on the values of tensors."""
    scheduler = LD3Scheduler.from_plan(plan)
    wanted = loop(scheduler)
    torch._dynamo.reset()
    scheduler.step = torch.compile(scheduler.step, backend="eager", fullgraph=True)
    assert torch.allclose(loop(scheduler), wanted)


# ---- any number of evaluations


def test_steps_without_a_plan_are_guessed(plan: Plan) -> None:
    other = make_plan_of(plan, 8)
    scheduler = LD3Scheduler.from_plan(plan, other)
    for steps, near in ((3, plan), (6, plan), (7, other), (12, other)):
        with pytest.warns(UserWarning, match=f"{steps} evaluations were not learned") as said:
            scheduler.set_timesteps(steps)
        assert f"from the plan of {near.nfe}, without its corrections" in str(said[0].message)
        assert said[0].filename == __file__
        levels = torch.log(scheduler.sigmas[:-1].double())
        assert (levels.diff() < 0).all()
        assert scheduler.sigmas[0] == pytest.approx(
            LD3Scheduler.from_plan(near).sigmas[0].item(), rel=1e-6
        )


def test_a_family_serves_its_range_and_warns_outside(tmp_path: Path) -> None:
    means = torch.randn(3, 6, generator=torch.Generator().manual_seed(0)).tolist()
    model = mixture(means, 0.3, ld3.make_schedule("sd"), prediction="eps")
    spec = ld3.RunSpec(
        family=(3, 5), preset="fast", pairs=8, held_out=4, recipe={"epochs": 2}, out=tmp_path
    )
    family = ld3.run_family(spec, model=model).plan
    scheduler = LD3Scheduler.from_plan(family)
    for steps in (3, 4, 5):
        scheduler.set_timesteps(steps)
        told = ld3.Discrete.scaled_linear(0.00085, 0.012).index(
            family.at(steps).grid.net_times[:-1]
        )
        assert scheduler.timesteps.tolist() == pytest.approx(told.tolist(), abs=1e-3)
    with pytest.warns(UserWarning, match="outside of its range"):
        scheduler.set_timesteps(9)


# ---- in place of a stock scheduler


def test_from_the_config_of_a_stock_scheduler() -> None:
    pipe = sd()
    plan = make_plan(net_times=False)
    ours = LD3Scheduler.from_config(pipe.scheduler.config, plans=[plan])
    assert ours.config.beta_schedule == "scaled_linear"  # kept, for the way back
    back = diffusers.PNDMScheduler.from_config(ours.config)
    assert torch.equal(back.alphas_cumprod, pipe.scheduler.alphas_cumprod)
    again = LD3Scheduler.from_config(ours.config)
    assert torch.equal(loop(again), loop(ours))
    flow = make_scheduler("FlowMatchEulerDiscreteScheduler", shift=3.0)
    LD3Scheduler.from_config(flow.config, plans=[make_plan("flow", prediction="flow")])
    edm = make_scheduler("EDMEulerScheduler", sigma_data=0.4)
    assert LD3Scheduler.from_config(
        edm.config, plans=[make_plan("edm", prediction="x0").model_dump()]
    ).config.sigma_data == 0.4  # fmt: skip


@pytest.mark.parametrize(
    ("scheduler", "config", "said"),
    [
        ("DDIMScheduler", {}, "betas 0.0001 to 0.02"),
        ("DDIMScheduler", {**SD, "prediction_type": "v_prediction"}, "v_prediction"),
        ("DDIMScheduler", {**SD, "num_train_timesteps": 500}, "500 trained steps"),
        ("DDIMScheduler", {**SD, "rescale_betas_zero_snr": True}, "rescale_betas_zero_snr"),
        ("FlowMatchEulerDiscreteScheduler", {}, "rectified flow"),
        ("EDMEulerScheduler", {}, "EDM noise schedule"),
    ],
)
def test_a_plan_for_another_model_is_refused(
    scheduler: str, config: dict[str, Any], said: str
) -> None:
    stock = make_scheduler(scheduler, **config)
    with pytest.raises(PlanError, match="learned for another model") as error:
        LD3Scheduler.from_config(stock.config, plans=[make_plan()])
    assert said in str(error.value) and "\n" not in str(error.value)


def test_wrong_input_is_refused_in_one_line(tmp_path: Path) -> None:
    stock = make_scheduler("DDIMScheduler")
    wrong: list[tuple[Any, str]] = [
        (lambda: LD3Scheduler(), "got no plan"),
        (lambda: LD3Scheduler.from_config(stock.config), "plans=[plan]"),
        (lambda: LD3Scheduler.from_config({}), "plans=[plan]"),
        (lambda: LD3Scheduler(plans=[{"format": "other"}]), "scheduler config"),
        (lambda: LD3Scheduler.from_plan(make_plan(), make_plan("flow", steps=6)), "noise schedule"),
        (lambda: LD3Scheduler.from_plan(make_plan(), make_plan()), "one of each"),
        (lambda: LD3Scheduler.from_plan(make_plan(), sigma_data=0.5), "not EDM"),
    ]
    for attempt, said in wrong:
        with pytest.raises(PlanError) as error:
            attempt()
        assert said in str(error.value) and "\n" not in str(error.value)


def test_code_in_a_scheduler_folder_is_never_run(tmp_path: Path) -> None:
    LD3Scheduler.from_plan(make_plan()).save_pretrained(tmp_path)
    trap = f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n"
    for name in ("scheduler.py", "LD3Scheduler.py", "__init__.py", "ld3.py"):
        (tmp_path / name).write_text(trap)
    loop(LD3Scheduler.from_pretrained(tmp_path))
    assert not (tmp_path / "ran").exists()


# ---- whole pipelines


def test_a_pipeline_comes_back_from_disk(stable: Case, tmp_path: Path) -> None:
    plan = stable.plan()
    first = stable.call(LD3Scheduler.from_plan(plan), 5, stable.x).images
    stable.pipe.save_pretrained(tmp_path)
    again = diffusers.StableDiffusionPipeline.from_pretrained(
        tmp_path, safety_checker=None, requires_safety_checker=False
    )
    assert isinstance(again.scheduler, LD3Scheduler)
    again.set_progress_bar_config(disable=True)
    kept, stable.pipe = stable.pipe, again
    assert torch.allclose(stable.call(again.scheduler, 5, stable.x).images, first, atol=1e-6)
    stable.pipe = kept


def test_a_pipeline_in_bfloat16(stable: Case) -> None:
    plan = stable.plan()
    wanted = stable.call(LD3Scheduler.from_plan(plan), 5, stable.x).images
    half = Case("sd")
    half.pipe.to(torch.bfloat16)
    found = half.call(LD3Scheduler.from_plan(plan), 5, half.x.bfloat16()).images
    assert found.dtype == torch.bfloat16
    assert (found.float() - wanted).norm() < 0.1 * wanted.norm()


@pytest.mark.parametrize("family", ["sd", "flux"])
@pytest.mark.parametrize("strength", [1.0, 0.6])
def test_image_to_image_pipelines(family: str, strength: float) -> None:
    """The network is asked int(5 strength) times, at the last times of the plan."""
    here = Case(family)
    kind = {"sd": "StableDiffusionImg2ImgPipeline", "flux": "FluxImg2ImgPipeline"}[family]
    words = {"requires_safety_checker": False} if family == "sd" else {}
    parts = {name: part for name, part in here.pipe.components.items() if name != "image_encoder"}
    pipe = getattr(diffusers, kind)(**parts, **words)
    pipe.set_progress_bar_config(disable=True)
    plan = here.plan()
    pipe.scheduler = LD3Scheduler.from_plan(plan)
    told: list[float] = []
    network = pipe.unet if family == "sd" else pipe.transformer
    scale = 1 if family == "sd" else 1000
    hook = network.register_forward_pre_hook(
        lambda module, args, words: told.append(
            scale * float((args[1] if len(args) > 1 else words["timestep"]).flatten()[0])
        ),
        with_kwargs=True,
    )
    image = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    seed = torch.Generator().manual_seed(0)
    found = pipe(
        **CALLS[family], image=image, strength=strength, num_inference_steps=5,
        output_type="latent", generator=seed,
    ).images  # fmt: skip
    hook.remove()
    assert found.isfinite().all()
    wanted = in_network_units(here.schedule, plan.grid.net_times[:-1]).tolist()
    assert told == pytest.approx(wanted[5 - int(5 * strength) :], abs=2e-3)


def test_inpainting_keeps_what_is_not_masked() -> None:
    here = Case("sd")
    parts = {name: part for name, part in here.pipe.components.items() if name != "image_encoder"}
    pipe = diffusers.StableDiffusionInpaintPipeline(**parts, requires_safety_checker=False)
    pipe.set_progress_bar_config(disable=True)
    pipe.scheduler = LD3Scheduler.from_plan(here.plan())
    image = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(2, 1, 16, 16)
    mask[..., :8] = 1  # to be painted
    seed = torch.Generator().manual_seed(0)
    found = pipe(
        **CALLS["sd"], image=image, mask_image=mask, num_inference_steps=5, strength=1.0,
        output_type="latent", generator=seed,
    ).images  # fmt: skip
    known = pipe._encode_vae_image(2 * image - 1, generator=torch.Generator().manual_seed(0))
    assert found.shape == known.shape
    assert torch.allclose(found[..., 4:], known[..., 4:], atol=1e-5)
    assert not torch.allclose(found[..., :4], known[..., :4], atol=1e-2)


def test_edm_networks_that_diffusers_preconditions() -> None:
    """F(c_in x, log(sigma)/4) as EDMDPMSolver asks it, against our x0 = c_skip x + c_out F."""
    data = 0.5
    plan = make_plan("edm", "dpmpp", 2, prediction="x0", steps=6)
    scheduler = LD3Scheduler.from_plan(plan, sigma_data=data)

    def raw(x: Tensor, noise: Tensor) -> Tensor:
        return torch.tanh(2 * x + noise)

    def x0(x: Tensor, t: Tensor) -> Tensor:
        norm = (t**2 + data**2).sqrt()
        return data**2 / norm**2 * x + t * data / norm * raw(x / norm, 0.25 * t.log())

    start = torch.randn(2, 3).double() * scheduler.init_noise_sigma
    x = start
    for t in scheduler.timesteps:
        x = scheduler.step(raw(scheduler.scale_model_input(x, t), t.double()), t, x).prev_sample
    assert (x - plan.table().run(x0, start)).abs().max() < 1e-4
    noisy = scheduler.add_noise(torch.zeros(1, 3), torch.ones(1, 3), scheduler.timesteps[:1])
    assert noisy[0, 0].item() == pytest.approx(80.0, rel=1e-5)


@pytest.mark.parametrize("target", ["diffusers", "hub"])
def test_without_diffusers_it_says_what_to_install(
    tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_plan().save(tmp_path / "plan.json")
    for name in ("ld3.diffusers", "huggingface_hub"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it now fails
    with pytest.raises(SystemExit) as end:
        main(["export", str(tmp_path / "plan.json"), "--to", target, "--out", str(tmp_path)])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "pip install 'ld3[diffusers]'" in said
    assert len(said.strip().splitlines()) == 1
