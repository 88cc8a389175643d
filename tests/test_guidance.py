"""Guidance in the plan: maths, gradients, passes, plan files, learning, choice of candidates."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import ld3
from ld3.cli import main
from ld3.distances import l2
from ld3.errors import PlanError, SpecError
from ld3.experiment import Value
from ld3.guidance import Guidance
from ld3.learner.course import Course, Task
from ld3.learner.learn import learn_course, learning, solver_parameters
from ld3.learner.least_squares import normal_equations
from ld3.learner.recipes import GaussNewton, PaperRules, PreconditionedAdam
from ld3.models import Cond, FunctionModel, bind_passes
from ld3.plan import Plan
from ld3.predictions import Prediction, from_x0
from ld3.problem import PARTS, Problem, Student
from ld3.runs.experiments.guidance_passes import passes_at
from ld3.runs.passes import direction_products, patterns, ranked, spend
from ld3.runs.spec import RunSpec
from ld3.runs.states import from_tensors, to_tensors
from ld3.schedule_json import schedule_to_json
from ld3.schedules import Schedule
from ld3.table import TunedSolver, compile_table
from ld3.teacher import Pairs
from ld3.zoo.toy import mixture
from learning_toys import counted, solved_pairs

SCALE = 3.0
GROUPS = "times+net+coefficients+guidance"
OURS = PreconditionedAdam(learn=GROUPS, epochs=8, batch=8, validate_every=4, precondition=4)


def two_clusters(
    schedule: str | Schedule = "edm",
    prediction: Prediction = "x0",
) -> FunctionModel:
    """The condition (B, 1) is the share of one of two mixtures; without it, it is a half."""
    made = ld3.make_schedule(schedule) if isinstance(schedule, str) else schedule
    means = 0.6 * torch.randn(2, 2, 6, generator=torch.Generator().manual_seed(3)).double()
    parts = [mixture(some, 0.4, made) for some in means]

    def network(x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        assert isinstance(cond, Tensor)
        alpha, sigma = made.log_alpha(t).exp(), made.log_sigma(t).exp()
        a, b = (part.denoise(x / alpha, sigma / alpha) for part in parts)
        return from_x0(prediction, cond * a + (1 - cond) * b, x, alpha, sigma)

    def conditions(seeds: object) -> Tensor:
        return torch.tensor([[float(s % 3) / 2] for s in seeds]).double()  # type: ignore[attr-defined]

    def null(cond: Cond) -> Tensor:
        assert isinstance(cond, Tensor)
        return torch.full_like(cond, 0.5)

    return FunctionModel(network, made, prediction, (6,), None, conditions, null)


MODEL = two_clusters()


def problem(steps: int = 4, count: int = 16, guided: tuple[int, ...] | None = None) -> Problem:
    train, valid = (wide(solved_pairs(MODEL, range(a, a + count), 60, SCALE)) for a in (0, 1000))
    return Problem(MODEL, ld3.make_solver("dpmpp"), steps, l2, train, valid, SCALE, guided)


def wide(pairs: Pairs) -> Pairs:
    """In float64."""
    return Pairs(pairs.seeds, pairs.noise.double(), pairs.cond, pairs.target.double())


def tuned(
    solver: str, guidance: Guidance | None, steps: int = 4, schedule: str = "edm"
) -> TunedSolver:
    grid = ld3.make_grid("logsnr", ld3.make_schedule(schedule), steps)
    return TunedSolver(ld3.make_solver(solver), grid, None, guidance)


@pytest.mark.parametrize("name", sorted(ld3.SOLVERS))
@pytest.mark.parametrize(
    ("schedule", "prediction"), [("edm", "x0"), ("sd", "eps"), ("sd", "v"), ("flow", "flow")]
)
def test_full_guidance_in_the_table_is_guidance_outside(
    name: str, schedule: str, prediction: Prediction
) -> None:
    model = two_clusters(schedule, prediction)
    made = tuned(name, None, schedule=schedule)
    full = replace(made, guidance=Guidance.full(made.nfe))
    tables = [one.table(model.schedule, prediction) for one in (made, full)]
    x, cond = ld3.prior(model, range(6)).double(), model.conditions(range(6))
    plain, inside = (
        table.run(bind_passes(model, cond, table.guided, table.nfe, guidance=SCALE), x)
        for table in tables
    )
    assert float((plain - inside).abs().max()) < 1e-12 * float(plain.abs().max())
    assert tables[1].before(made.nfe) == 2 * made.nfe


@pytest.mark.parametrize("prediction", ["x0", "eps", "v", "flow", "reverse-flow"])
def test_a_guided_plan_by_hand(prediction: Prediction) -> None:
    """m_j from its definition, in a loop of the solver itself."""
    model = two_clusters("sd", prediction)
    weights = torch.tensor([[0.9, 0.0], [0.7, 0.0], [-0.2, 1.1], [0.3, 0.4]]).double()
    guidance = Guidance((0, 2), weights)
    made = tuned("dpmpp", guidance, schedule="sd")
    cond = model.conditions(range(5))
    with_cond, without = ld3.bind(model, cond), ld3.bind(model, model.null(cond))
    directions: list[Tensor] = []
    asked = 0

    def denoise(x: Tensor, t: Tensor) -> Tensor:
        nonlocal asked
        c = with_cond(x, t)
        if asked in guidance.guided:
            directions.append((SCALE - 1) * (c - without(x, t)))
        own = weights[asked]
        asked += 1
        return c + sum(own[k] * e for k, e in enumerate(directions))

    x = ld3.prior(model, range(5)).double()
    k = ld3.knots(model.schedule, made.grid)
    wanted = ld3.integrate(denoise, made.solver, k, x)
    table = made.table(model.schedule, prediction)
    network = bind_passes(model, cond, table.guided, table.nfe, guidance=SCALE)
    assert torch.allclose(table.run(network, x), wanted, rtol=0, atol=1e-10)
    assert torch.allclose(table.follow(network, x)[0], wanted, rtol=0, atol=1e-10)


def test_passes_are_counted_exactly() -> None:
    own, count = counted(problem(4))
    student = Student(own)
    for guided in ((0, 2), (1,), (), (0, 1, 2, 3)):
        table = tuned("dpmpp", Guidance.last(guided, 4)).table(MODEL.schedule)
        before, asked = student.passes, count.forward
        for part in PARTS:
            student.known(part, guided)
        index = torch.arange(6)
        with torch.no_grad():
            list(student.each_losses("train", index, [table]))
        assert student.passes - before == count.forward - asked
        pairs = len(own.train) + len(own.valid)
        first = (2 if 0 in guided else 1) * pairs * (guided not in ((), (0, 1, 2, 3)))
        assert count.forward - asked == first + 6 * (3 + len(guided) - (0 in guided))


def test_a_plan_draws_with_as_many_passes_as_it_says() -> None:
    asked = []
    model = two_clusters()

    def watched(x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        asked.append(len(x))
        return model.function(x, t, cond)

    plan = a_plan()
    plan.sampler(replace(model, function=watched), force=True)(range(5))
    assert sum(asked) == 5 * plan.passes == 5 * 6


def test_gradients_are_those_of_finite_differences() -> None:
    made = problem(4, guided=(0, 2))
    parameters = solver_parameters(made, replace(OURS, learn="times+net+guidance"))
    start = parameters.start_values(ld3.make_grid("logsnr", MODEL.schedule, 4))
    theta = parameters.flat(start)
    theta = (
        theta + 0.05 * torch.randn(len(theta), generator=torch.Generator().manual_seed(0)).double()
    )
    student, index = Student(made), torch.arange(5)

    def loss(vector: Tensor) -> Tensor:
        table = parameters.table(parameters.unflat(vector, start), 4)
        return student.losses("train", index, table).sum()

    leaf = theta.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(leaf), leaf)
    h = 1e-5
    for i in range(len(theta)):
        step = torch.zeros_like(theta)
        step[i] = h
        with torch.no_grad():
            wanted = float((loss(theta + step) - loss(theta - step)) / (2 * h))
        assert abs(float(slope[i]) - wanted) < 1e-6 * max(1.0, abs(wanted)), i
    assert len(start["guidance"]) == 4 + 2 and float(slope[-6:].abs().min()) > 0


@pytest.mark.parametrize("guided", [(0, 2), (1,)])
def test_the_preconditioner_sees_guidance(guided: tuple[int, ...]) -> None:
    """Rows of the Jacobian are those of a table that is run from its start."""
    made = problem(4, guided=guided)
    parameters = solver_parameters(made, OURS)
    values = parameters.start_values(ld3.make_grid("logsnr", MODEL.schedule, 4))
    student, index = Student(made), torch.arange(3)
    found = normal_equations(
        Task(student, 4), parameters, values, index, lambda x, part: x.flatten(1)
    )
    theta, rows = parameters.flat(values), []
    with torch.no_grad():
        base, _ = student.sample("train", index, parameters.table(values, 4), known=[])
        names = [name for name in parameters.learned for _ in values[name]]
        for i, name in enumerate(names):
            other = theta.clone()
            other[i] += parameters.probe(name)
            table = parameters.table(parameters.unflat(other, values), 4)
            moved, _ = student.sample("train", index, table, known=[])
            rows.append((moved - base).flatten() / parameters.probe(name))
    jacobian = torch.stack(rows)
    wanted = jacobian @ jacobian.T / 3
    assert torch.allclose(found.curvature, wanted, rtol=1e-4, atol=1e-6 * float(wanted.max()))
    assert float(found.curvature.diagonal()[-len(values["guidance"]) :].min()) > 0


def test_a_fit_of_directions() -> None:
    """e_2 = 0.5 e_0 + 0.25 e_1, e_3 = 2 e_1; with e_0 alone, by projection."""
    e0, e1 = torch.eye(2, 5).double()
    e = torch.stack([e0, e1, 0.5 * e0 + 0.25 * e1, 2 * e1])
    gram = e @ e.T
    both = Guidance.fitted((0, 1), gram).weights
    assert torch.allclose(
        both, torch.tensor([[1, 0], [0, 1], [0.5, 0.25], [0, 2]]).double(), atol=3e-3
    )
    one = Guidance.fitted((0,), gram).weights
    assert torch.allclose(one[:, 0], torch.tensor([1, 0, 0.5, 0]).double(), atol=3e-3)
    late = Guidance.fitted((2,), gram).weights[:, 0]
    assert late[:2].tolist() == [0, 0] and late[2] == 1


def test_directions_are_measured_on_guided_trajectories() -> None:
    made = problem(3)
    products = direction_products(Student(made), tuned("dpmpp", None, 3), samples=4)
    cond = made.valid.cond
    assert isinstance(cond, Tensor)
    table = compile_table(made.solver, ld3.knots(MODEL.schedule, tuned("dpmpp", None, 3).grid))
    e: list[Tensor] = []
    with_cond, without = ld3.bind(MODEL, cond[:4]), ld3.bind(MODEL, MODEL.null(cond[:4]))

    def denoise(x: Tensor, t: Tensor) -> Tensor:
        c, u = with_cond(x, t), without(x, t)
        e.append((SCALE - 1) * (c - u))
        return u + SCALE * (c - u)

    table.run(denoise, MODEL.schedule.prior_std * made.valid.noise[:4])
    flat = torch.stack(e).flatten(1)
    assert torch.allclose(products, flat @ flat.T / 4, rtol=1e-9)


@pytest.mark.parametrize("recipe", [OURS, GaussNewton(learn=GROUPS, epochs=4, batch=16)])
def test_learning_gains(recipe: PreconditionedAdam | GaussNewton) -> None:
    made = problem(5, 32, (0, 1, 3))
    first, *_, last = learning(made, recipe, ld3.make_grid("logsnr", MODEL.schedule, 5))
    assert last.best < 0.7 * first.best
    assert last.tuned.guidance is not None and last.tuned.guidance.guided == (0, 1, 3)
    assert last.state.evaluations < last.state.passes < 2 * last.state.evaluations


def test_a_run_goes_on_to_the_bit() -> None:
    made = problem(3, guided=(0, 1))
    start = ld3.make_grid("logsnr", MODEL.schedule, 3)
    whole = list(learning(made, OURS, start))
    state = from_tensors(to_tensors(whole[3].state))
    again = list(learning(made, OURS, state=state))[-1]
    assert torch.equal(again.state.values["guidance"], whole[-1].state.values["guidance"])
    assert again.state.passes == whole[-1].state.passes
    assert not torch.equal(again.state.values["guidance"], whole[0].state.values["guidance"])


def test_a_range_of_scales_shares_its_guidance() -> None:
    """The weights are relative to the scale, so that one plan serves several."""
    pairs = [wide(solved_pairs(MODEL, range(a, a + 16), 60, 2.0)) for a in (0, 1000)]
    problems = (problem(4), replace(problem(4), train=pairs[0], valid=pairs[1], guidance=2.0))
    parameters = solver_parameters(problems[0], OURS)
    values = parameters.start_values(ld3.make_grid("logsnr", MODEL.schedule, 4))
    last = list(learn_course(Course(problems, parameters, values), OURS))[-1]
    assert last.best < 0.9


def test_patterns() -> None:
    assert patterns(4, 4) == [(0, 1, 2, 3)]
    assert patterns(5, 2) == [(0, 1), (0, 2), (1, 3)]
    assert patterns(4, 2) == [(0, 1), (0, 2), (1, 3)]
    assert all(len(p) == k for n in range(2, 12) for k in range(1, n + 1) for p in patterns(n, k))


def test_sets_that_leave_little_out_come_first() -> None:
    """e_1 repeats e_0, e_2 is new, e_3 is small: guide the first and the third."""
    e = torch.eye(4).double()
    e = torch.stack([e[0], 0.9 * e[0], e[1], 0.01 * e[2]])
    even = torch.ones(4).double()
    assert ranked(e @ e.T, even, 2)[0] == (0, 2)
    assert ranked(e @ e.T, torch.tensor([1.0, 1, 0, 1e6]).double(), 2)[0] == (0, 3)
    assert ranked(torch.eye(30).double(), torch.ones(30).double(), 15) == []


def test_candidates_cost_what_was_asked_for() -> None:
    found = spend(problem(4), (3, 4), 6)
    tried = {(one.nfe, one.guided) for one in found.candidates}
    assert tried >= {(3, (0, 1, 2)), *((4, guided) for guided in patterns(4, 2))}
    assert all(one.nfe + len(one.guided) == 6 for one in found.candidates)
    last = [one for one in found.candidates if one.pairs == 16]
    assert len(last) >= 2 and last == sorted(last, key=lambda one: one.loss)
    assert found.candidates[: len(last)] == tuple(last)
    assert found.evaluations < found.passes < 2 * found.evaluations


def a_plan(guided: tuple[int, ...] = (0, 2)) -> Plan:
    made = tuned("dpmpp", Guidance.last(guided, 4))
    content = {
        "format": "ld3-plan-2",
        "nfe": 4,
        "solver": {"name": "dpmpp", "order": made.solver.order},
        "times": made.grid.times.tolist(),
        "net_times": made.grid.net_times.tolist(),
        "guidance": {"guided": list(guided), "rows": [[1.0], [1.0], [0.0, 1.0], [0.1, 0.9]]},
        "schedule": schedule_to_json(MODEL.schedule),
        "model": {"name": "toy", "digest": "0", "shape": [6], "prediction": "x0", "guidance": 3.0},
    }
    return Plan.checked(content)


def test_a_plan_keeps_guidance(tmp_path: Path) -> None:
    plan = a_plan()
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == plan and again.passes == 6
    assert plan.tuned.guidance is not None
    assert plan.tuned.guidance.weights.tolist() == [[1, 0], [1, 0], [0, 1], [0.1, 0.9]]
    assert plan.without_guidance().passes == 8
    assert "guidance" not in plan.without_guidance().model_dump(mode="json")


def test_the_scale_can_be_changed() -> None:
    """At scale 1 there is no guidance, and no second pass."""
    plan = a_plan()
    sample = plan.sampler(MODEL, force=True)
    alone = plan.without_guidance().sampler(MODEL, force=True)
    assert torch.allclose(sample(range(4), guidance=1.0), alone(range(4), guidance=1.0), atol=1e-12)
    assert not torch.allclose(sample(range(4)), sample(range(4), guidance=2.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "ld3-plan-1"}, "expected ld3-plan-1 without and ld3-plan-2 with it"),
        ({"guidance": None}, "without guidance"),
        (
            {"guidance": {"guided": [2, 0], "rows": [[1.0]] * 4}},
            "expected rising numbers",
        ),
        ({"guidance": {"guided": [4], "rows": [[1.0]] * 4}}, "expected rising numbers"),
        ({"guidance": {"guided": [0], "rows": [[1.0]] * 3}}, "expected [1, 1, 1, 1]"),
        ({"guidance": {"guided": [0], "rows": [[float("nan")]] * 4}}, "guidance"),
    ],
)
def test_wrong_guidance_is_refused(change: dict[str, object], message: str) -> None:
    content = {**a_plan().model_dump(mode="json"), **change}
    with pytest.raises(PlanError) as error:
        Plan.checked(content)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_start_with_guidance_needs_it_learned() -> None:
    made = problem(4, guided=(0, 2))
    start = a_plan().tuned
    with pytest.raises(PlanError, match="expected --learn with \\+guidance"):
        solver_parameters(made, replace(OURS, learn="times+net")).start_values(start)
    with pytest.raises(PlanError, match="expected 0, 1; give another --passes"):
        solver_parameters(replace(made, guided=(0, 1)), OURS).start_values(start)
    values = solver_parameters(made, OURS).start_values(start)
    assert values["guidance"].tolist() == [1, 1, 0, 1, 0.1, 0.9]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"passes": 6}, "guidance: got 1"),
        ({"learn": GROUPS}, "guidance: got 1"),
        ({"learn": GROUPS, "guidance": 3, "nfe": "4-6"}, "nfe: got the range 4-6"),
        ({"passes": 9, "nfe": "4", "guidance": 3}, "expected 5 to 8"),
        ({"passes": 4, "nfe": "4", "guidance": 3}, "expected 5 to 8"),
        ({"passes": 6, "preset": "paper-pixel", "guidance": 3}, "expected one of standard"),
        ({"passes": 10**20, "guidance": 3}, "passes: got"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError) as error:
        RunSpec.read(options)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_budget_tries_all_numbers_of_evaluations() -> None:
    spec = RunSpec.read({"passes": 7, "guidance": 2})
    assert spec.nfe == (4, 5, 6) and spec.learns_guidance
    assert RunSpec.read({"passes": 8, "guidance": 2, "solver": "heun"}).nfe == (4, 6)
    assert RunSpec.read({"passes": 200, "guidance": 2}).nfe == (100,)
    assert not RunSpec.read({"guidance": 2}).learns_guidance
    with pytest.raises(SpecError, match="paper"):
        PaperRules(learn=GROUPS)


def test_passes_from_python(tmp_path: Path) -> None:
    """As `--passes`; with a solver object, too, of which a step costs two evaluations."""
    quick = {"preset": "fast", "pairs": 4, "recipe": {"epochs": 1}, "progress": False}
    plan = ld3.learn(MODEL, passes=6, guidance=3.0, held_out=0, **quick)
    assert plan.passes == 6 and plan.nfe in (3, 4, 5)
    stored = ld3.learn(MODEL, passes=6, guidance=3.0, held_out=0, out=tmp_path, **quick)
    assert stored.times == plan.times and Plan.load(*tmp_path.glob("*/plan.json")) == stored
    heun = ld3.learn(MODEL, solver=ld3.make_solver("heun"), passes=6, guidance=3.0, **quick)
    assert (heun.nfe, heun.passes) == (4, 6)
    one = ld3.learn(MODEL, nfe=5, passes=6, guidance=3.0, held_out=0, **quick)
    assert (one.nfe, one.passes) == (5, 6)
    with pytest.raises(SpecError, match="guidance: got 1"):
        ld3.learn(MODEL, passes=6, **quick)
    own = ld3.PreconditionedAdam(learn="times")
    with pytest.raises(SpecError, match="ends in \\+guidance"):
        ld3.learn(MODEL, passes=6, guidance=3.0, **{**quick, "recipe": own})


def ld3_says(capsys: pytest.CaptureFixture[str], words: str, code: int = 0) -> str:
    """What a command prints, on the channel that goes with its exit code."""
    with pytest.raises(SystemExit) as end:
        main(words.split())
    said = capsys.readouterr()
    assert end.value.code == code, said
    return said.err if code else said.out


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """learn --passes, show, score, sample; exports that cannot hold guidance say so."""
    words = (
        "learn --model fashion-latent --guidance 4 --passes 4 --preset fast --pairs 4 --valid 4 "
        "--held-out 4 --samples 0 --recipe epochs=1 --teacher-steps 6 --distance l2 "
        f"--out {tmp_path}/runs"
    )
    learned = ld3_says(capsys, words)
    assert "in 4 passes" in learned and "Ways to spend 4 passes" in learned
    assert "in passes" in learned
    (file,) = (tmp_path / "runs").glob("fashion*/plan.json")
    plan = Plan.load(file)
    assert plan.passes == 4 and plan.guidance is not None
    tried = [one for one in plan.learned.candidates if one.learned is not None]
    best = min(tried, key=lambda one: one.learned or 0)
    assert len(tried) == 2 and (best.nfe, best.guided) == (plan.nfe, plan.guidance.guided)
    assert any(len(one.guided) == one.nfe for one in tried)  # one is guided throughout
    ld3_says(capsys, words)
    assert Plan.load(file) == plan  # nothing is learned again
    assert "* runs both passes" in ld3_says(capsys, f"show {file}")
    scored = ld3_says(capsys, f"score {file} --held-out 4 --guidance 2,4 --out {tmp_path}/runs")
    assert "guidance" in scored
    ld3_says(capsys, f"sample --plan {file} --seeds 0-1 --out {tmp_path}/samples")
    for target in ("a1111", "a1111-pack", "kdiffusion", "sigmas", "text"):
        said = ld3_says(capsys, f"export {file} --to {target} --out {tmp_path}/x", code=2)
        assert "guidance" in said and said.count("\n") == 1, said


@pytest.mark.parametrize(
    ("distance", "passes"), [(1.0, 8), (0.1, 9), (0.01, 10), (0.001, 11), (0.0001, 12), (10, 7)]
)
def test_passes_of_equal_quality(distance: float, passes: float) -> None:
    """Along lines in the logarithm, also beyond both ends; a flat piece has no inside."""
    curve = {8: Value(value=1.0), 10: Value(value=0.01), 12: Value(value=0.0001)}
    assert passes_at(curve, distance) == pytest.approx(passes)
    assert passes_at({8: Value(value=1.0), 10: Value(value=1.0)}, 1.0) == 10
