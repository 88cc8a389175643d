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
from ld3.diffusers import LD3Scheduler, guide_by_plan  # noqa: E402
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
             return_dict: bool = True, per_token_timesteps: Any = None) -> Any:  # fmt: skip
        self.output = model_output
        found = diffusers.schedulers.scheduling_utils.SchedulerOutput(prev_sample=sample)
        return found if return_dict else (sample,)


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
    with pytest.raises(PlanError, match="expected 0 to"):
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
        ("DDIMScheduler", {**SD, "beta_schedule": "none"}, "beta_schedule 'none'"),
        ("FlowMatchEulerDiscreteScheduler", {}, "rectified flow"),
        ("EDMEulerScheduler", {}, "EDM noise schedule"),
    ],
)
def test_a_plan_for_another_model_is_refused(
    scheduler: str, config: dict[str, Any], said: str
) -> None:
    words = {"_class_name": scheduler, **config}
    if config.get("beta_schedule") != "none":
        words = make_scheduler(scheduler, **config).config
    with pytest.raises(PlanError, match="learned for another model") as error:
        LD3Scheduler.from_config(words, plans=[make_plan()])
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


# ---- starting in the middle, as pipelines do that slice `timesteps`


@pytest.mark.parametrize("begin", [0, 1, 4, 8])
@pytest.mark.parametrize("name", ["euler", "dpmpp", "unipc", "ipndm", "deis", "heun"])
def test_the_first_step_is_found_by_its_timestep(plan: Plan, begin: int, name: str) -> None:
    """Without `set_begin_index`; also where the network is asked twice at the same time."""
    schedule, steps = plan.noise_schedule, 5 if name == "heun" else 10
    plan = make_plan(schedule, name, prediction=plan.model.prediction, steps=steps)
    set_, found = (LD3Scheduler.from_plan(plan) for _ in range(2))
    assert found.step_index is None and found.begin_index is None
    set_.set_begin_index(begin)
    timesteps = found.timesteps[begin:]
    assert len(set(found.timesteps.tolist())) == plan.nfe
    assert [found.index_for_timestep(t) for t in timesteps] == list(range(begin, plan.nfe))
    x = set_.add_noise(torch.full((1, 2, 4), 0.3), torch.ones(1, 2, 4), timesteps[:1])
    one = two = x
    for n, t in enumerate(timesteps):
        assert torch.equal(set_.add_noise(x, x, t[None]), found.add_noise(x, x, t[None]))
        one = set_.step(torch.sin(one), t, one).prev_sample
        two = found.step(torch.sin(two), t, two).prev_sample
        assert found.step_index == begin + n + 1
        assert torch.equal(one, two)


@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_wan_video_to_video(strength: float) -> None:
    """This pipeline slices `timesteps` and never says where it begins."""
    here = Case("wan")
    pipe = diffusers.WanVideoToVideoPipeline(
        **{name: here.pipe.components[name]
           for name in ("tokenizer", "text_encoder", "transformer", "vae", "scheduler")}
    )  # fmt: skip
    pipe.set_progress_bar_config(disable=True)
    plan = here.plan("dpmpp", 2, steps=6)
    scheduler = LD3Scheduler.from_plan(plan, like=pipe)
    pipe.scheduler = scheduler
    states: list[Tensor] = []
    step = scheduler.step

    def watched(output: Tensor, t: Any, sample: Tensor, **words: Any) -> Any:
        states.append(sample)
        return step(output, t, sample, **words)

    scheduler.step = watched
    video = torch.rand(2, 5, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    call = CALLS["wan"]
    text, null = here.pipe.encode_prompt(  # without ftfy the pipeline itself cannot
        call["prompt"], max_sequence_length=call["max_sequence_length"]
    )
    found = pipe(
        video=list(video), height=64, width=64, prompt_embeds=text, negative_prompt_embeds=null,
        guidance_scale=3.0, strength=strength, num_inference_steps=6, output_type="latent",
        generator=torch.Generator().manual_seed(0),
    ).frames  # fmt: skip
    begin = 6 - int(6 * strength)
    assert len(states) == 6 - begin
    with torch.no_grad():
        wanted = plan.table_for(here.schedule, "x0").tail(begin).run(here.denoise, states[0])
    assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max().clamp(min=1)


@pytest.mark.parametrize("strength", [1.0, 0.7])
def test_ltx_with_an_image(strength: float) -> None:
    """Tokens of the given image are held, the others step as with the stock scheduler."""
    from diffusers.pipelines.ltx.pipeline_ltx_condition import LTXVideoCondition

    image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    plan = make_plan(ld3.Flow(), "euler", prediction="flow", steps=4, net_times=False,
                     corrections=False, shape=(32, 8))  # fmt: skip

    def run(scheduler: Any) -> list[Tensor]:
        pipe = diffusers.LTXConditionPipeline(**(base.components | {"scheduler": scheduler}))
        pipe.set_progress_bar_config(disable=True)
        states: list[Tensor] = []

        def keep(pipe: Any, i: int, t: Any, words: dict[str, Any]) -> dict[str, Any]:
            states.append(words["latents"])
            return {}

        call = {**CALLS["ltx"], "prompt": ["a dog"]}
        given = [LTXVideoCondition(video=image[None], strength=strength)]
        pipe(**call, conditions=given, timesteps=told, guidance_scale=3.0, output_type="latent",
             image_cond_noise_scale=0.0, callback_on_step_end=keep,
             generator=torch.Generator().manual_seed(1))  # fmt: skip
        return states

    base = TINY["ltx"]()
    told = (1000 * plan.grid.times[:-1]).tolist()
    ours = run(LD3Scheduler.from_plan(plan))
    stock = run(make_scheduler("FlowMatchEulerDiscreteScheduler"))
    assert len(ours) == len(stock) == 4
    for a, b in zip(ours[:-1], stock[:-1], strict=True):  # the stock's last step goes to zero
        assert (a - b).abs().max() < 1e-4 * b.abs().max()


@pytest.mark.parametrize("name", ["dpmpp", "ipndm"])  # on x0, and on velocities
def test_tokens_that_wait_have_their_own_time(name: str) -> None:
    """A network that always sees the same x0 draws it, also where a token starts later."""
    plan = make_plan(ld3.Flow(), name, prediction="flow", steps=6, net_times=False,
                     corrections=False)  # fmt: skip
    scheduler = LD3Scheduler.from_plan(plan)
    x0, noise = torch.full((1, 2, 3), 0.4).double(), torch.randn(1, 2, 3).double()
    begins = torch.tensor([[plan.times[0], plan.times[3]]]).double()
    x = (1 - begins[..., None]) * x0 + begins[..., None] * noise
    for t in scheduler.timesteps:
        own = torch.minimum(t.double() / 1000, begins)
        velocity = (x - x0) / own[..., None]
        (moved,) = scheduler.step(-velocity, t, x, return_dict=False,
                                  per_token_timesteps=1000 * own)  # fmt: skip
        x = torch.where((t.double() / 1000 - 1e-6 < begins)[..., None], moved, x)
    end = plan.times[-1]
    assert (x - ((1 - end) * x0 + end * noise)).abs().max() < 1e-5


def test_tokens_of_their_own_times_want_a_flow() -> None:
    scheduler, x = LD3Scheduler.from_plan(make_plan()), torch.ones(1, 4, 2)
    with pytest.raises(PlanError, match="a plan that is no flow"):
        scheduler.step(x, scheduler.timesteps[0], x, per_token_timesteps=torch.ones(1, 4))


# ---- the way back to stock schedulers


@pytest.mark.parametrize(
    ("noise", "prediction"),
    [("sd", "eps"), ("sd", "v"), ("ddpm", "x0"), ("ldm", "eps"), ("iddpm", "eps"),
     ("point-cloud", "eps")],
)  # fmt: skip
def test_stock_schedulers_have_the_betas_of_the_plan(
    noise: str, prediction: str, tmp_path: Path
) -> None:
    """By `from_config`, and from a folder of ours."""
    ours = LD3Scheduler.from_plan(make_plan(noise, prediction=prediction))
    ours.save_pretrained(tmp_path)
    schedule = ld3.make_schedule(noise)
    assert isinstance(schedule, Discrete)
    alphas = torch.tensor(schedule.log_alphas).mul(2).exp()
    for name in ("DDIMScheduler", "DPMSolverMultistepScheduler", "EulerDiscreteScheduler"):
        kind = getattr(diffusers, name)
        for stock in (kind.from_config(ours.config), kind.from_pretrained(tmp_path)):
            assert len(stock.alphas_cumprod) == schedule.steps
            assert torch.allclose(stock.alphas_cumprod[: len(alphas)], alphas, rtol=2e-4)
            words = {"eps": "epsilon", "v": "v_prediction", "x0": "sample"}
            assert stock.config.prediction_type == words[prediction]
    named = {"sd": ("scaled_linear", 0.00085, 0.012), "ddpm": ("linear", 0.0001, 0.02)}
    if noise in named:
        config = ours.config
        assert (config.beta_schedule, config.beta_start, config.beta_end) == named[noise]


def test_stock_schedulers_have_betas_of_ones_own() -> None:
    betas = torch.linspace(0.01, 0.3, 20).double().square().tolist()
    plan = make_plan(Discrete.from_betas(betas))
    stock = diffusers.DDIMScheduler.from_config(LD3Scheduler.from_plan(plan).config)
    assert stock.betas.tolist() == pytest.approx(betas, rel=1e-6)


def test_stock_flow_schedulers_have_the_shift_of_the_plan() -> None:
    first = 3 * 0.999 / (1 + 2 * 0.999)
    ours = LD3Scheduler.from_plan(make_plan(ld3.Flow(0.001, first), prediction="flow"))
    for kind in (diffusers.FlowMatchEulerDiscreteScheduler, diffusers.UniPCMultistepScheduler):
        stock = kind.from_config(ours.config)
        shift = stock.config.get("flow_shift" if "UniPC" in kind.__name__ else "shift")
        assert shift == pytest.approx(3.0, rel=1e-6)
        assert stock.config.get("prediction_type") == "flow_prediction"
        assert kind in ours.compatibles
    wrong = diffusers.EulerDiscreteScheduler.from_config(ours.config)
    wrong.set_timesteps(4)
    assert type(wrong) not in ours.compatibles
    with pytest.raises(ValueError, match="prediction_type"):
        wrong.step(torch.ones(1, 2), wrong.timesteps[0], torch.ones(1, 2))


@pytest.mark.parametrize("noise", ["edm", "vp-linear", "zero snr"])
def test_stock_schedulers_refuse_what_they_cannot_be(noise: str, tmp_path: Path) -> None:
    logs = Discrete.linear().log_alphas[:990]  # of 1000: the rest is unknown
    schedule = Discrete(logs, 1000) if noise == "zero snr" else ld3.make_schedule(noise)
    LD3Scheduler.from_plan(make_plan(schedule, prediction="x0")).save_pretrained(tmp_path)
    for name in ("DDIMScheduler", "DPMSolverMultistepScheduler", "EulerDiscreteScheduler"):
        with pytest.raises(NotImplementedError, match="none of diffusers"):
            getattr(diffusers, name).from_pretrained(tmp_path)


def test_preconditioned_networks_find_their_way_back() -> None:
    ours = LD3Scheduler.from_plan(make_plan("edm", prediction="x0"), sigma_data=0.4)
    assert len(ours.compatibles) == 2
    for kind in ours.compatibles:
        config = kind.from_config(ours.config).config
        assert (config.sigma_data, config.sigma_max, config.prediction_type) == (
            0.4, 80.0, "epsilon",
        )  # fmt: skip
    assert LD3Scheduler.from_plan(make_plan("edm", prediction="x0")).compatibles == []


def test_zero_terminal_snr_is_its_own_noise() -> None:
    """A plan that was learned for it fits it, and no other table."""
    from ld3.zoo.pipelines.noise import read_noise

    words = SD | {"prediction_type": "v_prediction"}
    zero = make_scheduler("DDIMScheduler", **words, rescale_betas_zero_snr=True)
    plain = make_scheduler("DDIMScheduler", **words)
    schedules = {name: read_noise(one)[0] for name, one in (("zero", zero), ("plain", plain))}
    plans = {name: make_plan(one, prediction="v") for name, one in schedules.items()}
    back = LD3Scheduler.from_config(zero.config, plans=[plans["zero"]])
    assert diffusers.DDIMScheduler.from_config(back.config).config.rescale_betas_zero_snr
    LD3Scheduler.from_config(plain.config, plans=[plans["plain"]])
    for one, name in ((zero, "plain"), (plain, "zero")):
        with pytest.raises(PlanError, match=r"betas 0\.00085 to 0\.012"):
            LD3Scheduler.from_config(one.config, plans=[plans[name]])


# ---- a plan knows its model


@pytest.mark.parametrize(
    ("noise", "prediction", "said"),
    [
        ("flow", "flow", "a discrete noise schedule, expected rectified flow"),
        ("ldm", "eps", "betas 0.00085 to 0.012"),
        ("sd", "v", "prediction_type 'epsilon', expected 'v'"),
        ("edm", "x0", "a discrete noise schedule, expected EDM"),
    ],
)
def test_a_pipeline_refuses_plans_of_another_model(
    stable: Case, noise: str, prediction: str, said: str, tmp_path: Path
) -> None:
    stable.pipe.scheduler = sd().scheduler
    wrong = make_plan(noise, prediction=prediction)
    LD3Scheduler.from_plan(wrong).save_pretrained(tmp_path / "scheduler")
    for like in (stable.pipe, stable.pipe.scheduler):
        for attempt in (
            lambda like=like: LD3Scheduler.from_plan(wrong, like=like),
            lambda like=like: LD3Scheduler.from_pretrained(tmp_path / "scheduler", like=like),
            lambda like=like: LD3Scheduler.from_pretrained(
                tmp_path, subfolder="scheduler", like=like
            ),
        ):
            with pytest.raises(PlanError, match="learned for another model") as error:
                attempt()
            assert said in str(error.value) and "\n" not in str(error.value)
    right = stable.plan()
    stable.pipe.scheduler = LD3Scheduler.from_plan(right, like=stable.pipe)
    again = LD3Scheduler.from_plan(right, like=stable.pipe)  # over a scheduler of ours
    assert torch.equal(again.timesteps, stable.pipe.scheduler.timesteps)
    for attempt in (
        lambda: LD3Scheduler.from_plan(wrong, like=stable.pipe),
        lambda: LD3Scheduler.from_config(stable.pipe.scheduler.config, plans=[wrong]),
    ):
        with pytest.raises(PlanError, match="got LD3Scheduler with plans for sd noise and 'eps'"):
            attempt()
    with pytest.raises(PlanError, match="like: got int"):
        LD3Scheduler.from_plan(right, like=3)


GUIDED = ("sd", "sd-v", "sd-flow", "sdxl", "sd3", "sana", "dit")


def with_guidance(plan: Plan, guided: tuple[int, ...] = (0, 2), scale: float = 3.0) -> Plan:
    rows = [[0.9], [0.6], [-0.2, 1.1], [0.1, 0.5]]
    if guided == (1,):
        rows = [[], [1.2], [0.8], [0.5]]
    content = plan.model_dump(mode="json")
    content["model"]["guidance"] = scale
    part = {"guided": list(guided), "rows": rows}
    return Plan.checked({**content, "format": "ld3-plan-2", "guidance": part})


def counting(case: Case) -> tuple[list[int], Any]:
    """Batch sizes of the network's calls."""
    network = case.pipe.transformer if hasattr(case.pipe, "transformer") else case.pipe.unet
    sizes: list[int] = []

    def count(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        first = next(v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.ndim > 2)
        sizes.append(len(first))

    return sizes, network.register_forward_hook(count, with_kwargs=True)


@pytest.mark.parametrize("family", GUIDED)
@pytest.mark.parametrize("guided", [(0, 2), (1,)])
def test_a_plan_with_guidance_in_a_pipeline(family: str, guided: tuple[int, ...]) -> None:
    """The sample is that of the plan's table, at any guidance_scale of the pipeline; the network
    runs as often as the plan says."""
    case = Case(family)
    plan = with_guidance(case.plan(steps=4, corrections=False), guided)

    def passes(x: Tensor, t: Tensor) -> Tensor:
        case.guidance = 3.0
        three = case.network(x, t)
        case.guidance = 2.0
        two = case.network(x, t)
        return torch.stack([2 * two - three, 2 * (three - two)])  # c, and 2 (c - u)

    table = plan.table()
    networks = [passes if n in guided else (lambda x, t: passes(x, t)[0]) for n in range(table.nfe)]
    with torch.no_grad():
        wanted = table.run(networks, case.x) if family != "dit" else None
    hook = guide_by_plan(case.pipe)
    sizes, counter = counting(case)
    for scale in (3.0, 5.0):
        case.guidance = scale
        found, x = case.theirs(plan)
        if wanted is None:  # DiT takes no latents
            hook.remove()
            counter.remove()
            with torch.no_grad():
                wanted = table.run(networks, x)
            hook, (sizes, counter) = guide_by_plan(case.pipe), counting(case)
            case.guidance = scale
            found, _ = case.theirs(plan)
        assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max().clamp(min=1)
        assert sum(sizes) == 2 * plan.passes  # two samples
        sizes.clear()
    hook.remove()
    counter.remove()
    with pytest.raises(PlanError, match="without its hook"):
        case.theirs(plan)


def test_guidance_from_the_middle(stable: Case) -> None:
    """A run that begins at its third evaluation has one direction, which stands for all before."""
    content = with_guidance(stable.plan(steps=4, corrections=False)).model_dump(mode="json")
    part = {"guided": [0, 1], "rows": [[0.9], [0.2, 1.1], [0.3, 0.6], [0.1, 0.5]]}
    plan = Plan.checked({**content, "guidance": part})
    scheduler = LD3Scheduler.from_plan(plan)
    assert scheduler.mix is not None
    b = scheduler.mix.slopes
    weights = plan.tuned.guidance.weights  # type: ignore[union-attr]
    assert scheduler.mix.asks_both(2, 2) and not scheduler.mix.asks_both(3, 2)
    assert scheduler.mix.weights(2, 2) == pytest.approx({2: float(weights[2].sum())})
    assert scheduler.mix.weights(3, 2) == pytest.approx({2: float(weights[3].sum()) * b[2] / b[3]})
    assert scheduler.mix.weights(1, 0) == pytest.approx(
        {0: float(weights[1, 0]) * b[0] / b[1], 1: float(weights[1, 1])}
    )


def test_pipelines_that_cannot_leave_a_pass_out() -> None:
    """Two calls a step, or no guidance at all: one line says so."""
    case = Case("wan")
    plan = with_guidance(case.plan(steps=4, corrections=False))
    hook = guide_by_plan(case.pipe)
    with pytest.raises(PlanError, match="two calls of the network at one step"):
        case.theirs(plan)
    hook.remove()
    case = Case("sd")
    hook = guide_by_plan(case.pipe)
    case.guidance = 1.0
    with pytest.raises(PlanError, match="guidance switched off"):
        case.theirs(with_guidance(case.plan(steps=4, corrections=False)))
    case.guidance = 3.0
    plain = case.plan(steps=4)
    found, x = case.theirs(plain)  # a plan without guidance goes on as before
    hook.remove()
    assert torch.allclose(found, case.theirs(plain)[0], atol=1e-6) and x.shape == case.x.shape
    with pytest.raises(PlanError, match="without a network"):
        guide_by_plan(object())
