"""Searches: a contract over the registry, and each method against closed forms or brute force."""

import math
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise

import pytest
import torch
from torch import Tensor

from ld3 import EDM, METHODS, VPLinear, make_grid, make_schedule, make_solver, noise
from ld3.distances import FeatureDistance, l2
from ld3.errors import SpecError
from ld3.grids import TimeGrid, knots
from ld3.known_grids import HANDMADE, tangent_law
from ld3.models import FunctionModel, Model, bind, is_latent
from ld3.problem import Problem, Student
from ld3.sampling import trajectory
from ld3.schedules import Schedule
from ld3.searches.adam import Adam
from ld3.searches.ays import AYS, PATIENCE, Bound, Moments, descent, measure_moments
from ld3.searches.ddss import DDSS, features, kernel_distance
from ld3.searches.dmn import DMN, error_bound, lowest_bound
from ld3.searches.gits import COEFFICIENTS, GITS, cheapest_path, jump_costs
from ld3.searches.gs import GS, StickBreaking
from ld3.searches.oss import OSS
from ld3.searches.registry import SEARCHES, Found, find
from ld3.searches.trajectories import fine_trajectory, some
from ld3.searches.validation import Validation
from ld3.table import TunedSolver
from ld3.zoo.toy import gaussian, image_mixture, mixture
from learning_toys import STD, counted, exact_pairs, solved_pairs


def quiet(done: int, total: int) -> None:
    assert 0 < done <= total


def problem_of(
    model: Model, steps: int, solver: str = "dpmpp", train: int = 6, valid: int = 4
) -> Problem:
    """Pairs by a short teacher."""
    parts = [solved_pairs(model, seeds, 12) for seeds in (range(train), range(100, 100 + valid))]
    return Problem(model, make_solver(solver), steps, l2, parts[0], parts[1])


def modes(schedule: Schedule) -> Model:
    return mixture([[1.0, 0.0], [-1.0, 0.5], [0.3, -1.0]], 0.2, schedule)


@cache
def toy(schedule: str, steps: int) -> Problem:
    return problem_of(modes(make_schedule(schedule)), steps)


def exact_gaussian(steps: int, d: int, count: int) -> Problem:
    """Euler on Gaussian data, taught by the exact solution."""
    model = gaussian([0.1] * d, [STD] * d)
    train, valid = exact_pairs(range(count), d, 0.1), exact_pairs(range(900, 916), d, 0.1)
    return Problem(model, make_solver("euler"), steps, l2, train, valid)


# ---- the contract


@pytest.mark.parametrize("steps", [2, 3, 5, 12])
@pytest.mark.parametrize("name", [*METHODS, *SEARCHES])
def test_every_method_keeps_the_contract(name: str, steps: int) -> None:
    """Ends exact, strictly decreasing, the same for the same seed, any number of steps."""
    problem = toy("edm" if steps % 2 else "vp-linear", steps)
    schedule = problem.model.schedule
    reports: list[tuple[int, int]] = []
    found = find(name, problem, seed=3, progress=lambda *report: reports.append(report))
    assert all(0 < done <= total for done, total in reports)
    assert not reports or reports[-1][0] == reports[-1][1]  # ends at 100 %
    assert bool(reports) == (name in SEARCHES)
    times = found.tuned.grid.checked(schedule, steps).times
    assert times[0] == schedule.t_max
    assert times[-1] == schedule.t_min
    assert times.dtype == torch.float64 and times.device.type == "cpu"
    assert not times.requires_grad
    if found.tuned.corrections is not None:
        assert found.tuned.corrections.shape == (problem.nfe, problem.nfe + 1)
    assert all(math.isfinite(value) for value in found.curve)
    if steps != 3:
        return
    again = find(name, problem, seed=3)
    assert torch.equal(times, again.tuned.grid.times)
    assert torch.equal(found.tuned.grid.net_times, again.tuned.grid.net_times)
    assert found.evaluations == again.evaluations
    added, repeated = found.tuned.corrections, again.tuned.corrections
    assert (added is None) == (repeated is None)
    assert added is None or (repeated is not None and torch.equal(added, repeated))


@pytest.mark.parametrize("name", list(SEARCHES))
def test_needs_and_costs_are_what_is_declared(name: str) -> None:
    """Without the need of a thing its absence changes nothing; evaluations are all counted."""
    search, problem = SEARCHES[name], toy("edm", 4)
    assert search.source
    watched, count = counted(problem)
    found = find(name, watched)
    times = found.tuned.grid.times
    assert ("model" in search.needs) == (count.forward > 0)
    assert found.evaluations == count.cost
    assert found.tuned.solver == problem.solver
    spoilt = [
        replace(pairs, noise=pairs.noise * math.nan, target=pairs.target * math.nan)
        for pairs in (problem.train, problem.valid)
    ]
    if "pairs" not in search.needs:
        blind = replace(problem, train=spoilt[0], valid=spoilt[1])
        assert torch.equal(times, find(name, blind).tuned.grid.times)
    if "solver" not in search.needs:
        other = replace(problem, solver=make_solver("ipndm"))
        assert torch.equal(times, find(name, other).tuned.grid.times)


@pytest.mark.parametrize("name", list(SEARCHES))
def test_searches_do_not_depend_on_the_batch(name: str) -> None:
    problem = problem_of(modes(EDM()), 4, train=9)
    whole = find(name, problem)
    watched, count = counted(replace(problem, batch=2))
    found = find(name, watched)
    assert torch.allclose(found.tuned.grid.times, whole.tuned.grid.times, rtol=1e-3)
    assert found.curve == pytest.approx(whole.curve, rel=1e-3)
    assert found.evaluations == whole.evaluations
    if name not in ("ddss", "ddss-ggdm", "gs"):  # gradients need a batch of their own
        assert max(count.batches, default=0) <= 2


def test_settings_are_those_of_the_documentation() -> None:
    """docs/grids.md names them, and its numbers were found with them."""
    assert DMN() == DMN(p=None, start="both", iterations=200)
    assert GITS() == GITS(cost="dev", coefficient=1.15, points=61, samples=256)
    assert AYS() == AYS("ode", levels=192, samples=16, start="logsnr", rounds=200, gain=1e-4)
    assert OSS() == OSS(points=61, samples=8)
    assert DDSS() == DDSS(False, "logsnr", 60, batch=8, rate_times=0.05, rate_coefficients=0.005)
    assert SEARCHES["ays-kl"] == AYS("kl")
    assert SEARCHES["ays-early"] == AYS("kl", 192, 16, "edm", 200, 1e-4, early=True)
    assert SEARCHES["gits-tuned"] == GITS("dev", None, points=61, samples=256)
    assert COEFFICIENTS == (0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2)
    assert PATIENCE == 5
    assert SEARCHES["ddss-ggdm"] == DDSS(coefficients=True)
    assert GS() == GS(iterations=300, batch=8, rate=0.005)


def test_unknown_methods_are_one_line() -> None:
    with pytest.raises(SpecError, match="did you mean 'gits'"):
        find("gitss", toy("edm", 4))
    for wrong in (
        lambda: GITS(cost="l3"),  # type: ignore[arg-type]
        lambda: AYS(weight="sde"),  # type: ignore[arg-type]
        lambda: DMN(start="x"),  # type: ignore[arg-type]
    ):
        with pytest.raises(SpecError, match=r"got .*, expected"):
            wrong()


# ---- DMN


def plain_bound(lam: list[float], p: float) -> float:
    """The same sum step by step, with the integrals written out."""
    steps = len(lam) - 1
    w = [(1 + math.exp(2 * v)) ** (-p / 2) * (1 + math.exp(-2 * v)) ** 0.5 for v in lam]
    total, signed = 0.0, [0.0] * steps
    for s in range(steps):
        h, e = lam[s + 1] - lam[s], math.exp(lam[s])
        h0 = math.exp(h) - 1
        h1 = h * math.exp(h) - h0
        h2 = h * h * math.exp(h) - 2 * h1
        if s in (0, steps - 1):
            total += abs(e * h0 * w[s])
            continue
        b = lam[s] - lam[s - 1]
        if s in (1, steps - 2):
            weights = {s - 1: -e * h1 / b, s: e * (h1 + b * h0) / b}
        else:
            a = lam[s - 1] - lam[s - 2]
            weights = {
                s - 2: e * (h2 + b * h1) / (a * (a + b)),
                s - 1: -e * (h2 + (a + b) * h1) / (a * b),
                s: e * (h2 + (2 * b + a) * h1 + b * (a + b) * h0) / (b * (a + b)),
            }
        if s < 3:
            total += math.sqrt(sum((w[n] * j) ** 2 for n, j in weights.items()))
        else:
            for n, j in weights.items():
                signed[n] += w[n] * j
    return total + sum(map(abs, signed))


@pytest.mark.parametrize("p", [1.0, 2.0])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 7, 8, 10, 30])
def test_the_bound_is_the_published_sum(steps: int, p: float) -> None:
    lam = EDM().lam(make_grid("edm", EDM(), steps).times)
    assert error_bound(lam, p).item() == pytest.approx(plain_bound(lam.tolist(), p), rel=1e-7)


@pytest.mark.parametrize("p", [1.0, 2.0])
@pytest.mark.parametrize("schedule", [VPLinear(), EDM()])
def test_dmn_has_a_lower_bound_than_every_known_grid(schedule: Schedule, p: float) -> None:
    problem = problem_of(modes(schedule), 10)
    found = find("dmn", problem) if p == 1 else DMN(p=p)(problem, 0, quiet)

    def bound(grid: TimeGrid) -> float:
        return error_bound(schedule.lam(grid.times), p).item()

    assert bound(found.tuned.grid) == pytest.approx(min(found.curve), rel=1e-6)
    for name in METHODS:
        assert bound(found.tuned.grid) < 0.9 * bound(make_grid(name, schedule, 10)), name


@pytest.mark.parametrize("start", ["logsnr", "uniform"])
def test_dmn_from_both_starts_for_2_to_30_steps(start: str) -> None:
    for steps in (2, 4, 7, 30):
        begin = make_grid(start, VPLinear(), steps)
        grid, curve = lowest_bound(VPLinear(), steps, begin, 2.0, iterations=60)
        gaps = VPLinear().lam(grid.checked(VPLinear(), steps).times).diff()
        assert gaps.min() > 0.009 * gaps.mean()  # the floor: nothing is divided by zero
        assert min(curve) <= curve[0]
        assert all(map(math.isfinite, curve))


def test_dmn_takes_the_start_with_the_lowest_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the lowest value on the way, not by the highest or the last."""
    curves = iter([(9.0, 1.0, 6.0), (5.0, 2.0, 4.0)])

    def descend(schedule: Schedule, steps: int, start: TimeGrid, *_: object) -> object:
        return start, next(curves)

    monkeypatch.setattr("ld3.searches.dmn.lowest_bound", descend)
    problem = toy("edm", 5)
    found = DMN()(problem, 0, quiet)
    assert found.curve == (9.0, 1.0, 6.0)
    assert torch.equal(found.tuned.grid.times, HANDMADE["logsnr"](EDM(), 5).times)


def test_the_curve_of_dmn_begins_with_its_start() -> None:
    start = make_grid("logsnr", EDM(), 5)
    _, curve = lowest_bound(EDM(), 5, start, 1.0, iterations=4)
    assert len(curve) == 5
    assert curve[0] == pytest.approx(float(error_bound(EDM().lam(start.times), 1.0)), rel=1e-9)


def test_dmn_takes_p_from_the_kind_of_model() -> None:
    plain = problem_of(modes(EDM()), 5)
    own = FunctionModel(plain.model.forward, EDM(), "x0", (2,), dtype=None, decoder=lambda x: 3 * x)
    latent = problem_of(own, 5)
    assert is_latent(latent.model) and not is_latent(plain.model)
    quick = DMN(iterations=20)
    for problem, p in ((plain, 1.0), (latent, 2.0)):
        times = quick(problem, 0, quiet).tuned.grid.times
        assert torch.equal(times, replace(quick, p=p)(problem, 0, quiet).tuned.grid.times)
        assert not torch.equal(times, replace(quick, p=3 - p)(problem, 0, quiet).tuned.grid.times)


# ---- GITS


@pytest.mark.parametrize("coefficient", [0.8, 1.0, 1.15])
def test_dynamic_programming_is_brute_force(coefficient: float) -> None:
    """On 8 points, any number of jumps; costs of any sign."""
    for seed in range(5):
        costs = noise([seed], (8, 8), torch.float64)[0]
        costs[torch.ones(8, 8).tril().bool()] = math.inf
        for jumps in range(1, 8):
            values = {}
            for inner in combinations(range(1, 7), jumps - 1):
                path = [0, *inner, 7]
                values[tuple(path)] = sum(
                    coefficient**k * costs[path[k], path[k + 1]].item() for k in range(jumps)
                )
            best = min(values, key=lambda path: values[path])
            path, least = cheapest_path(costs, jumps, coefficient)
            assert tuple(path) == best
            assert least == pytest.approx(values[best], rel=1e-12)


@pytest.mark.parametrize("kind", ["dev", "l1", "l2"])
def test_costs_of_jumps_are_those_of_single_steps(kind: str) -> None:
    """Entry (i, j) is a step of the Euler solver from the teacher's state i."""
    problem = problem_of(modes(VPLinear()), 3)
    walk = fine_trajectory(problem, some(problem, 4), make_solver("ipndm", 4), "edm", 6)
    costs = jump_costs(walk, kind)  # type: ignore[arg-type]
    k = knots(VPLinear(), walk.grid)
    for i, j in combinations(range(7), 2):
        two = knots(VPLinear(), TimeGrid.of(walk.grid.times[[i, j]]))
        x = walk.states[i] * k.alpha[i]
        *_, landed = trajectory(bind(problem.model), make_solver("euler"), two, x)
        landed = landed / k.alpha[j]
        if kind == "dev":
            chord = walk.states[-1] - walk.states[0]
            area = [  # of the parallelogram, over its base: the height
                abs(
                    chord[:, 0] * (p - walk.states[0])[:, 1]
                    - chord[:, 1] * (p - walk.states[0])[:, 0]
                )
                for p in (landed, walk.states[j])
            ]
            wanted = ((area[0] - area[1]) / torch.linalg.vector_norm(chord, dim=1)).sum()
        else:
            wanted = torch.linalg.vector_norm(
                landed - walk.states[j], ord=int(kind[1]), dim=1
            ).sum()
        assert costs[i, j].item() == pytest.approx(wanted.item(), rel=2e-4, abs=2e-4)
    assert bool(torch.isinf(costs[torch.ones(7, 7).tril().bool()]).all())


@pytest.mark.parametrize("method", ["dpmpp", "ipndm"])
def test_gits_without_a_coefficient_takes_the_best_of_all(method: str) -> None:
    """Each coefficient by itself, scored on the validation pairs with the solver; costs add up."""
    problem = problem_of(modes(EDM()), 4, method, train=9, valid=7)
    student, losses = Student(problem), {}
    for g in COEFFICIENTS:
        grid = GITS(coefficient=g)(problem, 0, quiet).tuned
        times = tuple(grid.grid.times.tolist())
        if times not in losses:
            losses[times] = student.mean_loss(grid.table(EDM()))
    found = find("gits-tuned", problem)
    assert len(losses) > 2
    assert tuple(found.tuned.grid.times.tolist()) == min(losses, key=lambda times: losses[times])
    assert found.curve == pytest.approx(list(losses.values()))
    assert found.evaluations == 60 * 9 + student.evaluations


def test_the_coefficient_of_gits_on_a_matrix_by_hand() -> None:
    """Five points and three jumps, where g = 1 and g = 2 disagree.

    Paths 0-1-2-4, 0-1-3-4, 0-2-3-4 cost 1 + 5g + 4g^2, 1 + 6.5g + 3g^2 and 7 + 2g + 3g^2: that is
    10, 10.5, 12 at g = 1 and 27, 26, 23 at g = 2.
    """
    inf = math.inf
    costs = torch.tensor(
        [
            [inf, 1.0, 7.0, 9.0, 99.0],
            [inf, inf, 5.0, 6.5, 99.0],
            [inf, inf, inf, 2.0, 4.0],
            [inf, inf, inf, inf, 3.0],
            [inf, inf, inf, inf, inf],
        ],
        dtype=torch.float64,
    )
    assert cheapest_path(costs, 3, 1.0) == ([0, 1, 2, 4], 10.0)
    assert cheapest_path(costs, 3, 2.0) == ([0, 2, 3, 4], 23.0)


def test_trials_end_when_grids_get_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    """With patience, after so many in a row that are not better than the best so far."""
    problem = toy("edm", 4)
    grid = make_grid("edm", EDM(), 4)
    for patience, tried, best in ((0, 7, 6), (1, 3, 1), (2, 6, 3), (9, 7, 6)):
        values = iter([5.0, 4.0, 4.5, 3.0, 3.1, 3.0, 1.0])
        monkeypatch.setattr(Student, "mean_loss", lambda *_, values=values: next(values))
        validation = Validation(problem)
        assert validation.best([grid] * 7, patience) == best
        assert len(validation.losses) == tried


def test_grids_with_samples_that_are_not_finite_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter([math.nan, 2.0, math.inf])
    monkeypatch.setattr(Student, "mean_loss", lambda *_: next(values))
    validation, grid = Validation(toy("edm", 4)), make_grid("edm", EDM(), 4)
    assert validation.best([grid] * 3) == 1
    assert validation.found(grid, 3).curve == (2.0,)


@pytest.mark.parametrize("method", ["euler", "dpmpp"])
def test_searches_beat_even_steps_on_pictures(method: str) -> None:
    """Gaussians have straight paths and no use for GITS; mixtures in many dimensions do."""
    problem = problem_of(image_mixture(shape=(1, 16, 16), rank=6), 5, method, train=32, valid=32)
    student = Student(problem)

    def loss(found: Found) -> float:
        return student.mean_loss(found.tuned.table(EDM()))

    even = min(loss(find(name, problem)) for name in ("edm", "logsnr", "uniform"))
    for search in (GITS(), GITS(cost="l2"), GITS(cost="l1"), AYS(), OSS()):
        assert loss(search(problem, 0, quiet)) < 0.8 * even, search


# ---- AYS


def test_the_moments_are_those_of_gaussian_data() -> None:
    """E (D_a - D_b)^2 = c^2 sin(b - a) sin(b + a) in angles, s = c tan(angle)."""
    problem = exact_gaussian(10, 256, 64)
    times = HANDMADE["logsnr"](EDM(), 40).times
    moments = measure_moments(problem, times, 64, 0, quiet)
    angle = torch.atan(times / STD)
    wanted = STD**2 * torch.sin((angle[:, None] - angle).abs()) * torch.sin(angle[:, None] + angle)
    assert (moments.apart - wanted).abs().max() < 0.02 * wanted.max()
    assert moments.variance == pytest.approx(STD**2, rel=0.03)
    assert moments.evaluations == 41 * 64


def test_the_bound_of_the_ode_is_the_error_of_euler() -> None:
    """F = 2 c^2 (1 - cos), from exact moments; also between the levels."""
    times = HANDMADE["logsnr"](EDM(), 192).times
    angle = torch.atan(times / STD)
    apart = STD**2 * torch.sin((angle[:, None] - angle).abs()) * torch.sin(angle[:, None] + angle)
    bound = Bound.of(EDM().lam(times), Moments(apart, STD**2, 0), "ode")
    points = torch.tensor([60.0, 5.1, 1.33, 0.5, 0.0123], dtype=torch.float64)
    for b, a in combinations(points, 2):
        turn = torch.atan(b / STD) - torch.atan(a / STD)
        wanted = 2 * STD**2 * (1 - torch.cos(turn))
        got = bound(EDM().lam(b), EDM().lam(a))
        assert got.item() == pytest.approx(wanted.item(), rel=5e-3)


def test_each_round_of_ays_lowers_the_bound() -> None:
    """One time at a time, to the best place between its neighbours; ends stay."""
    times = HANDMADE["logsnr"](EDM(), 96).times
    angle = torch.atan(times / STD)
    apart = STD**2 * torch.sin((angle[:, None] - angle).abs()) * torch.sin(angle[:, None] + angle)
    bound = Bound.of(EDM().lam(times), Moments(apart, STD**2, 0), "ode")
    start = EDM().lam(HANDMADE["uniform"](EDM(), 5).times)
    rounds = descent(bound, start, 30, 1e-4)
    sums = [float(bound(lam[:-1], lam[1:]).sum()) for lam in rounds]
    assert all(after <= before for before, after in pairwise(sums))
    assert sums[-1] < 0.5 * sums[0]
    assert torch.equal(rounds[0], start)
    assert len(descent(bound, start, 3, 0.0)) == 4
    for lam in rounds:
        assert lam[0] == start[0] and lam[-1] == start[-1]
        assert bool((lam.diff() > 0).all())
    last = rounds[-1]
    for i in range(1, 5):
        for step in (-0.1, 0.1):
            other = last.clone()
            other[i] += step
            assert float(bound(other[:-1], other[1:]).sum()) > sums[-1]


@pytest.mark.parametrize("weight", ["ode", "kl"])
def test_the_bound_of_ays_is_the_integral(weight: str) -> None:
    """F of one step between two levels by trapezoids over log s, written out."""
    times = HANDMADE["logsnr"](EDM(), 12).times
    lam, s = EDM().lam(times), times
    apart = noise([3], (13, 13), torch.float64)[0].square()
    apart = (apart + apart.T) * (1 - torch.eye(13))
    bound = Bound.of(lam, Moments(apart, 0.3, 0), weight)  # type: ignore[arg-type]
    for b, a in ((0, 5), (3, 4), (7, 12)):
        size = (0.3 + s**2).sqrt()
        if weight == "kl":
            inside = [float(s[i] ** -2 * apart[b, i]) for i in range(b, a + 1)]
        else:
            inside = [
                float(2 * s[i] / (s[i] + s[b]) * size[b] / size[i] * apart[b, i])
                for i in range(b, a + 1)
            ]
        gap = float(lam[1] - lam[0])
        wanted = sum(gap * (x + y) / 2 for x, y in pairwise(inside))
        assert float(bound(lam[b], lam[a])) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("steps", [5, 10, 20])
def test_ays_finds_the_tangent_law(steps: int) -> None:
    problem = exact_gaussian(steps, 784, 64)
    found = AYS(samples=64, gain=1e-6, rounds=500)(problem, 0, quiet)
    law = tangent_law(EDM(), steps, STD).times
    turn = torch.atan(found.tuned.grid.times / STD) - torch.atan(law / STD)
    assert turn.abs().max() < 0.1 * math.pi / 2 / steps  # a tenth of a step
    assert found.curve[-1] < found.curve[0]


def test_the_published_bound_of_ays_is_minimal_too() -> None:
    """No grid near the one found has a lower KL bound in closed form, nor has the tangent law.

    F(a, b) = integral of s^-3 c^4 (b^2 - s^2) / ((c^2 + s^2)(c^2 + b^2)) ds.
    """

    def klub(times: Tensor) -> float:
        total = 0.0
        for b, a in pairwise(times):
            s = torch.logspace(math.log10(a), math.log10(b), 4001, dtype=torch.float64)
            inside = s**-3 * STD**4 * (b**2 - s**2) / ((STD**2 + s**2) * (STD**2 + b**2))
            total += torch.trapezoid(inside, s).item()
        return total

    problem = exact_gaussian(10, 784, 32)
    found = AYS(weight="kl", samples=32, gain=1e-6, rounds=500)(problem, 0, quiet)
    times = found.tuned.grid.times
    assert klub(times) == pytest.approx(found.curve[-1], rel=0.05)
    assert klub(times) < 0.5 * klub(tangent_law(EDM(), 10, STD).times)
    for i in range(1, 10):
        for factor in (0.7, 1.4):
            other = times.clone()
            other[i] *= factor
            if bool((other.diff() < 0).all()):
                assert klub(times) < klub(other)


@pytest.mark.parametrize("steps", [4, 10])
def test_early_stopping_takes_the_round_with_the_best_samples(steps: int) -> None:
    """Rounds of the published bound from the `edm` grid, interpolated and scored one by one."""
    problem = problem_of(modes(EDM()), steps, "unipc", train=8, valid=6)
    times = HANDMADE["logsnr"](EDM(), 192).times
    moments = measure_moments(problem, times, 16, 0, quiet)
    bound = Bound.of(EDM().lam(times), moments, "kl")
    rounds = descent(bound, EDM().lam(HANDMADE["edm"](EDM(), 10).times), 200, 1e-4)
    student, losses, tried = Student(problem), [], []
    share = torch.linspace(0, 10, steps + 1).double()
    for lam in rounds:
        below = share.floor().long().clamp(max=9)
        inner = torch.exp(-torch.lerp(lam[below], lam[below + 1], share - below))
        tried.append(torch.cat([times[:1], inner[1:-1], times[-1:]]))
        tuned = TunedSolver(problem.solver, TimeGrid.of(tried[-1]))
        losses.append(student.mean_loss(tuned.table(EDM())))
        if len(losses) - losses.index(min(losses)) > PATIENCE:
            break
    found = find("ays-early", problem)
    assert len(losses) < len(rounds)  # it did stop early
    assert found.curve == pytest.approx(losses)
    assert torch.allclose(found.tuned.grid.times, tried[losses.index(min(losses))])
    assert found.evaluations == moments.evaluations + student.evaluations
    start = make_grid("edm", EDM(), 10).times if steps == 10 else None
    assert start is None or torch.allclose(tried[0], start)


def test_early_stopping_moves_new_midpoints_only() -> None:
    """20 steps are those of the round that was taken and the best points between them."""
    problem = problem_of(modes(EDM()), 20, train=8, valid=6)
    times = HANDMADE["logsnr"](EDM(), 192).times
    moments = measure_moments(problem, times, 16, 0, quiet)
    bound = Bound.of(EDM().lam(times), moments, "kl")
    rounds = descent(bound, EDM().lam(HANDMADE["edm"](EDM(), 10).times), 200, 1e-4)
    lam = EDM().lam(find("ays-early", problem).tuned.grid.times)
    gaps = [float((lam[::2] - grid).abs().max()) for grid in rounds]
    assert min(gaps) < 1e-9
    for i in range(1, 20, 2):
        here = bound(lam[i - 1], lam[i]) + bound(lam[i], lam[i + 1])
        for part in (0.25, 0.5, 0.75):
            other = torch.lerp(lam[i - 1], lam[i + 1], part)
            assert here <= bound(lam[i - 1], other) + bound(other, lam[i + 1]) + 1e-12


def test_ays_takes_latents_from_the_teacher() -> None:
    """What is decoded by another scale is found at the same times."""
    model = gaussian([0.0] * 64, [STD] * 64)
    own = FunctionModel(model.forward, EDM(), "x0", (64,), dtype=None, decoder=lambda x: 3 * x)
    plain, latent = (find("ays", problem_of(m, 5, train=16)) for m in (model, own))
    assert torch.allclose(plain.tuned.grid.times, latent.tuned.grid.times, rtol=0.02)
    assert latent.evaluations == plain.evaluations + 20 * 16


# ---- OSS


def test_oss_is_brute_force_where_all_paths_can_be_tried() -> None:
    """With two steps the only choice is where to stop, and the best stop is the sample's own."""
    problem = problem_of(modes(EDM()), 2, "euler", train=1)
    search = OSS(points=13, samples=1)
    found = search(problem, 0, quiet)
    walk = fine_trajectory(problem, some(problem, 1), make_solver("ipndm", 4), "edm", 12)
    ends = []
    for j in range(1, 12):
        k = knots(EDM(), TimeGrid.of(walk.grid.times[[0, j, 12]]))
        *_, end = trajectory(bind(problem.model), problem.solver, k, 80 * problem.train.noise)
        ends.append((end - walk.states[-1]).square().mean().item())
    best = 1 + ends.index(min(ends))
    assert found.tuned.grid.times.tolist() == walk.grid.times[[0, best, 12]].tolist()
    assert found.curve[-1] == pytest.approx(min(ends), rel=1e-3)
    assert found.evaluations == 12 + 11


def test_oss_of_one_step_is_the_whole_range_and_reports_its_end() -> None:
    reports: list[tuple[int, int]] = []
    found = OSS()(toy("edm", 1), 0, lambda *report: reports.append(report))
    assert found.tuned.grid.times.tolist() == [80.0, 0.002]
    assert reports[-1] == (60, 60)


def test_oss_keeps_the_nearest_state_of_each_sample_and_takes_medians() -> None:
    """Written out with loops, for three steps and three samples."""
    problem = problem_of(modes(EDM()), 3, "euler", train=3)
    walk = fine_trajectory(problem, some(problem, 3), make_solver("ipndm", 4), "edm", 9)
    denoise = bind(problem.model)
    paths = []
    for b in range(3):
        states = {0: (walk.states[0, b], [0])}
        for k in range(3):
            reached: dict[int, tuple[float, Tensor, list[int]]] = {}
            for i, (state, path) in states.items():
                x0 = denoise(state[None], walk.grid.times[i])[0]
                eps = (state - x0) / walk.s[i]
                for j in [9] if k == 2 else range(i + 1, 9):
                    landed = state + (walk.s[j] - walk.s[i]) * eps
                    apart = float((landed - walk.states[j, b]).double().square().mean())
                    if 9 - j >= 2 - k and (j not in reached or apart < reached[j][0]):
                        reached[j] = (apart, landed, [*path, j])
            states = {j: (landed, path) for j, (_, landed, path) in reached.items()}
        paths.append(states[9][1])
    middle = torch.tensor(paths).median(dim=0).values
    found = OSS(points=10, samples=3)(problem, 0, quiet)
    assert found.tuned.grid.times.tolist() == walk.grid.times[middle].tolist()


# ---- DDSS


def test_kernel_distance_is_unbiased_and_sees_a_difference() -> None:
    draws = [noise(range(60 * i, 60 * i + 60), (4,), torch.float64) for i in range(40)]
    same = [kernel_distance(a, b).item() for a, b in zip(draws[::2], draws[1::2], strict=True)]
    spread = torch.tensor(same).std().item() / len(same) ** 0.5
    assert abs(sum(same) / len(same)) < 3 * spread
    assert min(same) < 0 < max(same)
    assert kernel_distance(draws[0] + 1, draws[1]) > 5 * max(same)


def test_kernel_distance_is_the_sum_over_pairs() -> None:
    """k(f, g) = (f.g / d + 1)^3; no sample is compared with itself."""
    f, g = noise(range(3), (4,), torch.float64), noise(range(10, 15), (4,), torch.float64)

    def k(a: Tensor, b: Tensor) -> float:
        return (float(a @ b) / 4 + 1) ** 3

    same = sum(k(f[i], f[j]) for i in range(3) for j in range(3) if i != j) / 6
    given = sum(k(g[i], g[j]) for i in range(5) for j in range(5) if i != j) / 20
    between = sum(k(a, b) for a in f for b in g) / 15
    assert kernel_distance(f, g).item() == pytest.approx(same + given - 2 * between, rel=1e-12)


def test_the_first_step_of_ddss_by_hand() -> None:
    """Adam moves every logit up or down by the rate; corrections by a rate of their own."""
    problem = problem_of(gaussian([1.0, -1.0], [0.5, 0.2]), 4, "euler", train=12)
    found = DDSS(iterations=1, batch=12, coefficients=True)(problem, 0, quiet).tuned
    gaps = EDM().lam(found.grid.times).diff()
    logits = ((gaps / gaps.sum() - 0.01 / 4) / 0.99).log()
    moves = logits - logits.min()
    assert torch.allclose(moves.max(), torch.tensor(0.1).double(), atol=1e-6)
    assert bool(((moves < 1e-6) | (moves > 0.1 - 1e-6)).all())
    assert found.corrections is not None
    last = found.corrections[-1, 1:] / EDM().log_alpha(found.grid.times[-1]).exp()
    assert torch.allclose(last.abs(), torch.full((4,), 0.005).double(), rtol=1e-4)
    small = DDSS(True, iterations=2, batch=12, rate_times=1e-6, rate_coefficients=1e-5)
    second = small(problem, 0, quiet).tuned.corrections
    assert second is not None  # the slopes hardly change; the second rate is half the first
    later = second[-1, 1:] / EDM().log_alpha(found.grid.times[-1]).exp()
    assert torch.allclose(later.abs(), torch.full((4,), 1.5e-5).double(), rtol=0.01)


def test_features_are_those_of_the_distance() -> None:
    x = noise(range(3), (1, 4, 4))
    maps = FeatureDistance(lambda y: (torch.cat([y, -y], 1), y.mean((2, 3))))
    got = features(maps, x)
    assert got.shape == (3, 3)
    assert torch.allclose(got[:, 0], x.mean((1, 2, 3)).double())
    assert torch.equal(features(l2, x), x.flatten(1).double())


def test_ddss_does_not_depend_on_the_unit_of_features() -> None:
    problem = problem_of(gaussian([1.0, -1.0], [0.5, 0.2]), 4, "euler", train=12)
    curves = [
        DDSS(iterations=3, batch=6)(replace(problem, distance=distance), 0, quiet).curve
        for distance in (FeatureDistance(lambda x: (x,)), FeatureDistance(lambda x: (1e-4 * x,)))
    ]
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)


@pytest.mark.parametrize("coefficients", [False, True])
def test_ddss_brings_the_sets_together(coefficients: bool) -> None:
    problem = problem_of(gaussian([1.0, -1.0], [0.5, 0.2]), 4, "euler", train=48)
    search = DDSS(coefficients=coefficients, iterations=80, batch=48)
    found = search(problem, 0, quiet)
    assert sum(found.curve[-5:]) < 0.5 * sum(found.curve[:5])
    assert (found.tuned.corrections is not None) == coefficients


def test_stick_breaking_by_hand() -> None:
    """lam from -4 to 4: three quarters, then half of them, then a third are left."""
    schedule = EDM(math.exp(-4), math.exp(4))
    sticks = StickBreaking(schedule, 4, window=math.inf)
    theta = torch.logit(torch.tensor([0.75, 0.5, 1 / 3, 0.9]).double())
    lam = schedule.lam(sticks.grid(theta, torch.zeros(3).double()).times)
    assert torch.allclose(lam, torch.tensor([-4.0, -2.0, 1.0, 3.0, 4.0]).double())
    back = sticks.logits(sticks.grid(theta, torch.zeros(3).double()))
    assert torch.allclose(back[:3], theta[:3])
    far = sticks.grid(theta, torch.tensor([0.0, 2.5, 0.0]).double())  # no bound on network times
    assert float(schedule.lam(far.net_times[2])) == pytest.approx(3.5)


def test_the_first_step_of_gs_by_hand() -> None:
    """From even steps in the time of a VP schedule, Adam moves each number by the rate."""
    problem = problem_of(gaussian([1.0, -1.0], [0.5, 0.2]), 3, "euler", train=12)
    found = GS(iterations=1, batch=12, rate=1e-4)(problem, 0, quiet)
    start = make_grid("vp-uniform", EDM(), 3)
    sticks = StickBreaking(EDM(), 3, window=math.inf)
    moved = sticks.logits(found.tuned.grid) - sticks.logits(start)
    kept = 1 / 10  # of the start, in the moving average after one step
    assert torch.allclose(moved[:2].abs(), torch.full((2,), (1 - kept) * 1e-4).double(), rtol=1e-3)
    assert found.tuned.corrections is not None
    noise_column = found.tuned.corrections[:, 0]
    assert bool((noise_column.abs() > 0).all())  # the noise's weights are free, too
    student = Student(problem)
    before = TunedSolver(problem.solver, start).table(EDM())
    losses = student.losses("train", torch.arange(12), before)
    assert found.curve[0] == pytest.approx(float(losses.mean()), rel=1e-6)


def test_gs_learns() -> None:
    problem = problem_of(gaussian([1.0, -1.0], [0.5, 0.2]), 4, "euler", train=24)
    found = GS(iterations=150, batch=12, rate=0.02)(problem, 0, quiet)
    assert sum(found.curve[-5:]) < 0.3 * sum(found.curve[:5])


class Vectors:
    """Parameters whose table is the vector itself."""

    def table(self, values: dict[str, Tensor], steps: int) -> Tensor:
        return values["a"]

    def tuned(self, values: dict[str, Tensor], steps: int) -> Tensor:
        return values["a"]


def test_adam_of_the_searches_by_hand() -> None:
    """Three steps written out: moments 0.9 and 0.99, slopes cut at a norm of 1, rates along half a
    cosine, and a moving average that follows quickly at first."""
    slopes = torch.tensor([[3.0, 4.0], [0.0, 0.5], [-0.6, 0.0]]).double()
    left = iter(slopes)

    def loss(student: Student, index: Tensor, table: Tensor) -> Tensor:
        return (table * next(left)).sum()

    start = {"a": torch.zeros(2).double()}
    adam = Adam("test", {"a": 0.1}, iterations=3, batch=2, clip=1.0, average=0.98)
    found = adam(toy("edm", 4), Vectors(), start, loss, 0, quiet)  # type: ignore[arg-type]
    theta, mean, m, v = (torch.zeros(2).double() for _ in range(4))
    for n, slope in enumerate([slopes[0] / 5, slopes[1], slopes[2]]):
        m, v = 0.9 * m + 0.1 * slope, 0.99 * v + 0.01 * slope**2
        move = (m / (1 - 0.9 ** (n + 1))) / ((v / (1 - 0.99 ** (n + 1))).sqrt() + 1e-8)
        theta = theta - 0.1 * (1 + math.cos(math.pi * n / 3)) / 2 * move
        kept = (n + 1) / (n + 10)
        mean = kept * mean + (1 - kept) * theta
    assert torch.allclose(found.tuned, mean, rtol=1e-5)  # type: ignore[arg-type]
    assert bool((start["a"] == 0).all())


def test_gs_asks_for_clipped_slopes_and_an_average(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Adam] = []

    def record(self: Adam, *_: object) -> None:
        asked.append(self)

    monkeypatch.setattr(Adam, "__call__", record)
    GS()(toy("edm", 4), 0, quiet)
    rates = dict.fromkeys(("times", "net", "coefficients"), 0.005)
    assert asked == [Adam("gs", rates, 300, 8, clip=1.0, average=0.98)]
