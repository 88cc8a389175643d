"""Plans: readable, checked on load, refused where they do not fit."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ld3 import (
    EDM,
    Discrete,
    FunctionModel,
    Schedule,
    VPLinear,
    bind,
    integrate,
    knots,
    make_grid,
    make_schedule,
    make_solver,
    prior,
)
from ld3.density import DENSITY, SHIFTS
from ld3.errors import Ld3Error, PlanError, SpecError
from ld3.interpolate import guess as guess_plan
from ld3.known_grids import BUMPS
from ld3.plan import Plan, rows_of
from ld3.schedule_json import schedule_from_json, schedule_to_json
from ld3.schedules import SCHEDULES
from ld3.teacher import sample_table
from ld3.zoo.toy import mixture
from plans import make_plan

GOOD: dict[str, Any] = {
    "format": "ld3-plan-1",
    "nfe": 3,
    "solver": {"name": "dpmpp", "order": 2, "variant": ""},
    "times": [80.0, 5.0, 0.5, 0.002],
    "net_times": [80.0, 4.5, 0.55, 0.002],
    "schedule": {"name": "edm"},
    "model": {"name": "toy", "digest": "d", "shape": [2], "prediction": "x0"},
}


def test_a_plan_survives_the_disk_and_samples(tmp_path: Path) -> None:
    plan = Plan.checked(GOOD)
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == plan
    model = mixture([[-0.6, 0.1], [0.6, 0.2]], 0.3)
    x = prior(model, range(4)).double()
    by_table = again.table().run(bind(model), x)
    by_solver = integrate(bind(model), again.make_solver(), again.knots(), x)
    assert (by_table - by_solver).abs().max() < 1e-10
    again.check_fits(model, "d")


def changed(path: str, value: object) -> dict[str, Any]:
    content = copy.deepcopy(GOOD)
    place: Any = content
    *outer, last = path.split(".")
    for key in outer:
        place = place[key]
    place[last] = value
    return content


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("times", [80.0, 5.0, 6.0, 0.002], "strictly decreasing"),
        ("times", [80.0, 5.0, 0.002], "one per time"),
        ("times", [90.0, 5.0, 0.5, 0.002], "range"),
        ("times", [80.0, "5", 0.5, 0.002], "times.1"),
        ("times", [80.0, math.nan, 0.5, 0.002], "times.1"),
        ("times", [math.inf, 5.0, 0.5, 0.002], "times.0"),
        ("times", [80.0] * 5000, "at most 1001"),
        ("times", None, "times"),
        ("net_times", [80.0, 500.0, 0.5, 0.002], "range"),
        ("nfe", 4, "expected 3"),
        ("nfe", 10**9, "nfe"),
        ("solver.name", "dpmp", "did you mean 'dpmpp'"),
        ("solver.order", 7, "expected one of [1, 2, 3]"),
        ("solver.variant", "x", "expected one of"),
        ("schedule", {"name": "edn"}, "did you mean 'edm'"),
        ("schedule", {"kind": "EDM", "t_min": -1.0, "t_max": 80.0}, "expected"),
        ("schedule", {"kind": "EDM", "nonsense": 1}, "nonsense"),
        ("schedule", {"kind": "os.system"}, "unknown kind"),
        ("format", "ld3-plan-9", "format"),
        ("model.prediction", "epsilon", "prediction"),
        ("surprise", 1, "surprise"),
    ],
)
def test_bad_plans_are_one_line(path: str, value: object, reason: str) -> None:
    with pytest.raises(PlanError) as error:
        Plan.checked(changed(path, value))
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(key=st.sampled_from(sorted(GOOD)), value=JSON)
def test_hostile_plans_never_crash(key: str, value: object) -> None:
    """Any JSON in any place is a plan or one clear error."""
    content = copy.deepcopy(GOOD)
    content[key] = value
    try:
        Plan.checked(content)
    except Ld3Error as error:
        assert "\n" not in str(error)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(JSON)
def test_hostile_schedules_never_crash(value: object) -> None:
    for kind in ("EDM", "VPLinear", "VPCosine", "Discrete", "Flow"):
        try:
            schedule_from_json({"kind": kind, "t_min": value, "log_alphas": value, "steps": value})
        except Ld3Error as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    "schedule",
    [
        *(make_schedule(name) for name in SCHEDULES),
        EDM(0.01, 50.0),
        VPLinear(beta_max=15.0),
        Discrete.from_betas([0.01, 0.02, 0.05]),
    ],
)
def test_schedules_survive_json(schedule: Schedule) -> None:
    text = json.dumps(schedule_to_json(schedule))
    assert schedule_from_json(json.loads(text)) == schedule


class Sine(EDM):
    """A schedule of one's own: sigma = tan(t), written without our names."""

    def log_sigma(self, t: torch.Tensor) -> torch.Tensor:
        return t.tan().log()

    def lam(self, t: torch.Tensor) -> torch.Tensor:
        return -self.log_sigma(t)

    def time_at(self, lam: torch.Tensor) -> torch.Tensor:
        return torch.atan(torch.exp(-lam))


def test_schedules_of_ones_own_are_written_as_a_table() -> None:
    own = Sine(0.01, 1.5)
    read = schedule_from_json(json.loads(json.dumps(schedule_to_json(own))))
    assert (read.t_min, read.t_max, read.prior_std) == (own.t_min, own.t_max, own.prior_std)
    t = torch.linspace(0.01, 1.5, 333, dtype=torch.float64, requires_grad=True)
    for name in ("lam", "log_alpha", "log_sigma"):
        wanted, got = (getattr(schedule, name)(t) for schedule in (own, read))
        assert (got - wanted).abs().max() < 1e-9, name
    assert (read.time_at(own.lam(t)) - t).abs().max() < 1e-9
    slopes = [torch.autograd.grad(s.lam(t).sum(), t)[0] for s in (own, read)]
    assert (slopes[1] / slopes[0] - 1).abs().max() < 1e-6
    with pytest.raises(SpecError, match="falling times"):
        schedule_from_json(schedule_to_json(own) | {"times": [1.0, 2.0]})


def test_another_model_is_refused() -> None:
    plan = Plan.checked(GOOD)
    for model, digest, reason in (
        (mixture([[0.0, 0.0]], 0.3, VPLinear()), "d", "noise schedule"),
        (mixture([[0.0, 0.0]], 0.3, prediction="eps"), "d", "prediction"),
        (mixture([[0.0, 0.0, 0.0]], 0.3), "d", "shape"),
        (mixture([[0.0, 0.0]], 0.3), "e", "weights"),
    ):
        with pytest.raises(PlanError, match=f"with {reason} .* for which the plan was learned"):
            plan.check_fits(model, digest)


def test_plans_are_frozen_and_texts_are_short() -> None:
    plan = Plan.checked(changed("model.name", "x" * 500))
    with pytest.raises(ValidationError, match="frozen"):
        plan.nfe = 4  # type: ignore[misc]
    with pytest.raises(PlanError, match=r"model\.name: .* at most 500"):
        Plan.checked(changed("model.name", "x" * 501))
    with pytest.raises(PlanError, match="plan: the whole file: "):
        Plan.checked([])
    numbers = Plan.checked(GOOD).learned
    assert (numbers.evaluations, numbers.teacher_evaluations, numbers.skipped) == (0, 0, 0)
    assert (numbers.secant, numbers.validation, numbers.start) == (0.0, None, "")


def own_table() -> dict[str, Any]:
    """The table of GOOD as that of a solver that is not in the registry."""
    table = Plan.checked(GOOD).table_for(EDM(), "x0")
    part = {"rows": rows_of(table.weights[1:]), "net_times": table.net_times.tolist()}
    return changed("solver", {"name": "mine", "order": 2, "table": part})


def test_a_table_of_its_own_is_used_as_it_is() -> None:
    known, own = Plan.checked(GOOD), Plan.checked(own_table())
    for prediction in ("x0", "eps"):
        wanted, found = (plan.table_for(EDM(), prediction) for plan in (known, own))
        assert torch.allclose(found.weights, wanted.weights, rtol=1e-12, atol=1e-12)
        assert torch.equal(found.net_times, wanted.net_times)
    assert own.increments().weights == known.increments().weights
    assert own.increments().form == "x0"


def test_a_table_of_its_own_is_checked() -> None:
    rows = [[0.0] * (n + 2) for n in range(3)]
    with pytest.raises(PlanError, match="corrections beside a table of its own"):
        Plan.checked(own_table() | {"corrections": rows})
    family = {"low": 3, "high": 3, "density": [0.0] * 2 * DENSITY, "shifts": [0.0] * 2 * SHIFTS}
    member = {key: GOOD[key] for key in ("nfe", "times", "net_times")}
    for more in ({"family": family}, {"members": [member]}):
        with pytest.raises(PlanError, match="for one number of evaluations"):
            Plan.checked(own_table() | more)
    with pytest.raises(PlanError, match="got low 4 above 3"):
        Plan.checked(GOOD | {"family": family | {"low": 4}})
    wrong = own_table()
    wrong["solver"]["table"]["net_times"][1] = 90.0
    with pytest.raises(PlanError, match="network times outside of the schedule"):
        Plan.checked(wrong)
    wrong = own_table()
    wrong["solver"]["table"]["rows"][1].append(0.0)
    with pytest.raises(PlanError, match=r"solver\.table: got rows of \[2, 4, 4\] numbers"):
        Plan.checked(wrong)


@pytest.mark.parametrize(
    ("schedule", "method", "form"),
    [
        ("edm", "dpmpp", "x0"),
        ("edm", "ipndm", "eps"),
        ("flow", "ipndm", "flow"),
        ("sd", "heun", "eps"),
    ],
)
def test_the_form_of_increments(schedule: str, method: str, form: str) -> None:
    plan = make_plan(schedule, method, prediction="flow" if schedule == "flow" else "eps")
    assert plan.increments().form == form
    each = 2 if method == "heun" else 1
    assert plan.nfe_per_step == each
    assert len(plan.state_times) == plan.nfe + 1
    assert plan.state_times.tolist()[::each] == plan.times


def test_samples_of_a_plan_for_seeds_conditions_and_guidance() -> None:
    toy = mixture([[-0.6, 0.1], [0.6, 0.2]], 0.3)

    def forward(x: torch.Tensor, t: torch.Tensor, cond: torch.Tensor) -> torch.Tensor:
        return toy.forward(x, t, None) + 0.1 * cond

    model = FunctionModel(
        forward, EDM(), "x0", (2,), None, lambda seeds: torch.tensor([[float(s)] for s in seeds]),
        torch.zeros_like,
    )  # fmt: skip
    plan = Plan.checked(changed("model", GOOD["model"] | {"guidance": 3.0}))
    with pytest.raises(PlanError, match="got a model with weights"):
        plan.sampler(model)
    sample = plan.sampler(model, batch=3, force=True)
    cond = torch.arange(7.0)[:, None]
    wanted = sample_table(model, plan.table(), range(7), guidance=3.0)
    assert torch.allclose(sample(range(7)), wanted, atol=1e-6)
    assert torch.allclose(sample(range(7), cond), wanted, atol=1e-6)
    assert torch.allclose(sample(range(2, 7))[0], wanted[2], atol=1e-6)
    other = sample_table(model, plan.table(), range(7), guidance=1.0)
    assert torch.allclose(sample(range(7), guidance=1.0), other, atol=1e-6)
    assert not torch.allclose(other, wanted, atol=1e-2)
    with pytest.raises(SpecError, match="got 6 rows for 7 seeds"):
        sample(range(7), cond[:6])
    with pytest.raises(SpecError, match="got 6 rows for 7 seeds"):
        sample(range(7), {"label": cond[:6]})


def test_gradients_do_not_leak_into_plans() -> None:
    assert not Plan.checked(GOOD).grid.times.requires_grad
    assert Plan.checked(GOOD).grid.times.dtype == torch.float64


# ---- numbers of evaluations that were not learned


def test_a_guess_for_its_own_number_is_the_plan_itself() -> None:
    for schedule in ("edm", "sd", "flow", "vp-cosine"):
        plan = make_plan(schedule, prediction="flow" if schedule == "flow" else "eps")
        guess = guess_plan(plan, plan.nfe)
        assert guess.times == pytest.approx(plan.times, rel=1e-6, abs=1e-9)
        assert guess.net_times == pytest.approx(plan.net_times, rel=1e-6, abs=1e-9)
        assert guess.corrections is None


@pytest.mark.parametrize("nfe", [2, 1, 10, 25])
def test_far_away_a_guess_is_a_bump(nfe: int) -> None:
    plan = make_plan("edm", steps=5)
    guess = guess_plan(plan, nfe)
    grids = [make_grid(name, plan.noise_schedule, nfe).times.tolist() for name in BUMPS]
    assert any(guess.times == pytest.approx(times, rel=1e-9) for times in grids)
    assert guess.net_times == pytest.approx(guess.times, rel=1e-9)


@given(
    st.lists(st.floats(0.001, 1.0), min_size=1, max_size=12),
    st.floats(-0.5, 0.5),
    st.integers(1, 40),
)
def test_any_guess_is_a_valid_plan(gaps: list[float], shift: float, nfe: int) -> None:
    """Also of a plan that begins and ends inside the range."""
    at = torch.tensor([0.02, *gaps], dtype=torch.float64).cumsum(0)
    lam = -4.0 + 8.0 * at / at[-1]
    times = EDM().time_at(lam).clamp(0.002, 80.0)
    told = EDM().time_at(lam + shift).clamp(0.002, 80.0)
    own = {"nfe": len(gaps), "times": times.tolist(), "net_times": told.tolist()}
    plan = Plan.checked(GOOD | own)
    guess = Plan.checked(guess_plan(plan, nfe).model_dump(mode="json"))
    assert guess.nfe == nfe
    assert (guess.times[0], guess.times[-1]) == (plan.times[0], plan.times[-1])


def test_a_guess_does_not_ruin_a_plan() -> None:
    """Uneven steps and large shifts, with which few steps live, must not carry over to more."""
    model = mixture([[-1.0, 0.0], [1.0, 0.5]], 0.4)
    noise = prior(model, range(64)).double()
    fine = make_grid("logsnr", model.schedule, 200)
    exact = integrate(bind(model), make_solver("unipc"), knots(model.schedule, fine), noise)
    own = {"solver": {"name": "unipc", "order": 3, "variant": "bh1"}, "nfe": 4}
    times = {"times": [80.0, 5.1, 1.2, 0.43, 0.002], "net_times": [80.0, 3.8, 1.0, 0.43, 0.002]}
    plan = Plan.checked(GOOD | own | times)
    errors = {}
    for nfe in (4, 5, 6, 8, 16):
        guess = guess_plan(plan, nfe)
        sample = integrate(bind(model), guess.make_solver(), guess.knots(), noise)
        errors[nfe] = float((sample - exact).square().mean().sqrt())
    assert max(errors.values()) < 1.5 * errors[4]
    assert errors[16] < 0.5 * errors[4]


def test_numbers_that_cannot_be_guessed_are_said() -> None:
    with pytest.raises(PlanError, match="multiple of 2"):
        guess_plan(make_plan("sd", "heun"), 7)
    with pytest.raises(PlanError, match="from 1 to 1000"):
        guess_plan(Plan.checked(GOOD), 0)
