"""Docking: kernels, pose updates and metrics against the originals; exact problems; the adapter."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import ld3
from ld3.errors import ModelError, PlanError, SpecError
from ld3.metrics.docking import success_rate, symmetric_rmsd, top_rmsd
from ld3.problem import Problem, Student
from ld3.schedule_json import schedule_from_json, schedule_to_json
from ld3.schedules import Geometric, Parts
from ld3.solvers.on_space import OnSpace
from ld3.table import TunedSolver, compile_table
from ld3.teacher import Teacher, make_pairs, sample_table
from ld3.zoo.docking import kernels
from ld3.zoo.docking.diffdock import DiffDock, NoiseLevels
from ld3.zoo.docking.exact import ExactDocking, exact_docking
from ld3.zoo.docking.rotations import alignment, matrix, product, quaternion
from ld3.zoo.docking.spaces import Chart, Poses, split

pytest.importorskip("rdkit", reason="rdkit is not there: pip install 'ld3[docking]'")
from ld3.zoo.docking.ligand import Ligand, rotatable
from ld3.zoo.docking.ligands import SMILES, problem

FIXTURES = Path(__file__).parents[2] / "shared" / "fixtures"
SMILES_16 = "CC(=O)Nc1ccc(OCCN(C)C)cc1"
LEVELS = NoiseLevels.of("v1")


@pytest.fixture(scope="module")
def fixture() -> dict[str, Tensor]:
    from safetensors.torch import load_file

    file = FIXTURES / "docking.safetensors"
    if not file.exists():
        pytest.skip(f"{file} is not there: outputs of DiffDock are kept outside of the repository")
    return load_file(file)


@pytest.fixture(scope="module")
def ligand() -> Ligand:
    return Ligand.from_smiles(SMILES_16)


@pytest.fixture(scope="module")
def model(ligand: Ligand) -> ExactDocking:
    return exact_docking(ligand, LEVELS.schedule, modes=3)


def states(model: ExactDocking, count: int, size: float = 0.3, seed: int = 0) -> Tensor:
    """Near the modes."""
    chance = torch.Generator().manual_seed(seed)
    around = torch.arange(count) % len(model.modes)
    tangent = torch.randn(count, len(model.space.parts), generator=chance, dtype=torch.float64)
    return model.space.move(model.modes[around], size * tangent)


# ---- kernels


@pytest.mark.parametrize(("version", "unit"), [("v1", math.sqrt(2)), ("v11", 1.0)])
def test_igso3_is_the_originals(version: str, unit: float, fixture: dict[str, Tensor]) -> None:
    """Where the series is not rounding noise; norms to the error of the original's sum."""
    w, s = fixture["igso3/omega"], unit * fixture[f"igso3/{version}/eps_used"]
    series, score = (fixture[f"igso3/{version}/{name}"] for name in ("expansion", "score"))
    clear = series > 1e-6 * series.amax(1, keepdim=True)
    found = kernels.log_igso3(w, s[:, None]).exp()
    assert ((found - series)[clear].abs() / series[clear]).max() < 1e-9
    mine = kernels.igso3_score(w, s[:, None])
    assert ((mine - score)[clear].abs() / (1 + score[clear].abs())).max() < 1e-9
    rms = kernels.igso3_mean_square(s).sqrt()
    for name, factor in (("score_rms", 1.0), ("score_norm", math.sqrt(math.pi))):
        assert (rms / factor / fixture[f"igso3/{version}/{name}"] - 1).abs().max() < 3e-4
    # the original sums over 2000 points, the last one in full: the same sum of our functions
    grid = torch.linspace(0, math.pi, 2001, dtype=torch.float64)[1:]
    density = kernels.log_igso3(grid, s[:, None]).exp() * (1 - grid.cos())
    square = (density * kernels.igso3_score(grid, s[:, None]) ** 2).sum(1) / density.sum(1)
    assert (square.sqrt() / fixture[f"igso3/{version}/score_rms"] - 1).abs().max() < 1e-8


def test_torus_is_the_originals(fixture: dict[str, Tensor]) -> None:
    x, s = fixture["torus/x"], fixture["torus/sigma"]
    density, score = fixture["torus/p_unnormalised"], fixture["torus/score"]
    clear = density > 1e-200
    found = kernels.log_wrapped(x, s[:, None].expand(-1, len(x))).exp()
    found = found * s[:, None] * math.sqrt(2 * math.pi)
    assert (found / density - 1)[clear].abs().max() < 1e-12
    mine = kernels.wrapped_score(x, s[:, None].expand(-1, len(x)))
    assert ((mine - score)[clear].abs() / (1 + score[clear].abs())).max() < 1e-12
    exact = fixture["torus/score_norm_exact"]
    assert (kernels.wrapped_mean_square(s) / exact - 1).abs().max() < 1e-10
    assert (fixture["torus/score_norm_mc10000"] / exact - 1).abs().max() > 0.01  # the original's


def test_a_few_numbers_of_the_originals() -> None:
    """RMS of the IGSO(3) score over sqrt(pi) at v1's 0.2002, and E score^2 of the torus."""
    s = torch.tensor([math.sqrt(2) * 0.20016278309063426], dtype=torch.float64)
    assert (kernels.igso3_mean_square(s) / math.pi).sqrt().item() == pytest.approx(3.417457560)
    torus = kernels.wrapped_mean_square(torch.tensor([1.0, 2.4], dtype=torch.float64))
    assert torus.tolist() == pytest.approx([0.94892, 6.3220e-3], rel=1e-4)


@pytest.mark.parametrize("s", [0.03, 0.3, 1.0, 2.2])
def test_igso3_is_smooth_from_no_turn_to_a_half(s: float) -> None:
    """The score is the slope of the log density; both and their slopes are finite at 0 and pi."""
    w = torch.tensor([0, 1e-9, 1e-3, 0.5, 2, math.pi - 1e-6, math.pi], dtype=torch.float64)
    w.requires_grad_()
    width = torch.tensor(s, dtype=torch.float64)
    (slope,) = torch.autograd.grad(kernels.log_igso3(w, width).sum(), w)
    score = kernels.igso3_score(w, width)
    assert (slope - score).abs().max() < 1e-7 * (1 + score.abs().max())
    (bend,) = torch.autograd.grad(score.sum(), w)
    assert bool(torch.isfinite(bend).all())
    assert score[0] == 0 and abs(score[-1].item()) < 1e-9 * (1 + score.abs().max().item())


def test_norms_are_differentiable_in_time() -> None:
    t = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    for part in range(3):
        (slope,) = torch.autograd.grad(LEVELS.norms(t)[part], t)
        h = 1e-5
        with torch.no_grad():
            wanted = (LEVELS.norms(t + h) - LEVELS.norms(t - h))[part] / (2 * h)
        assert slope.item() == pytest.approx(wanted.item(), rel=1e-6)


# ---- ligands


def test_rotatable_bonds_are_the_originals(ligand: Ligand, fixture: dict[str, Tensor]) -> None:
    edges = fixture["mol/edge_index"].T.tolist()
    bonds, masks = rotatable(16, [(u, v) for u, v in edges[::2]])
    assert bonds.tolist() == [edges[i] for i in fixture["mol/edge_mask"].nonzero().flatten()]
    assert torch.equal(masks, fixture["mol/mask_rotate"])
    assert torch.equal(ligand.masks, masks) and torch.equal(ligand.bonds, bonds)
    assert ligand.symmetries.sort(0).values.equal(fixture["rmsd/automorphisms"].sort(0).values)


@pytest.mark.parametrize(
    ("smiles", "atoms", "torsions"), [("c1ccccc1", 6, 0), ("C", 1, 0), ("CC", 2, 0), ("CCCC", 4, 1)]
)
def test_small_molecules_work(smiles: str, atoms: int, torsions: int) -> None:
    """No rotatable bond, one atom: everything goes on without the part that is missing."""
    ligand = Ligand.from_smiles(smiles)
    assert (ligand.atoms, ligand.torsions) == (atoms, torsions)
    model = exact_docking(ligand, LEVELS.schedule, modes=2)
    ld3.check_model(model)
    teacher = Teacher("euler", 0, "", "uniform", 4)
    assert make_pairs(model, range(3), teacher).target.shape == (3, atoms, 3)
    poses = Poses(ligand, 1.0)
    x = poses.start(torch.randn(3, *poses.shape))
    assert poses.move(x, torch.randn(3, len(poses.parts)).double()).shape == x.shape


@pytest.mark.parametrize(
    ("smiles", "said"),
    [
        ("", "expected the SMILES"), ("C1CC", "expected the SMILES"), ("xyz", "got 'xyz'"),
        ("C.C", "several pieces"), ("C" * 501, "at most 500"),
    ],
)  # fmt: skip
def test_broken_smiles_are_one_line(smiles: str, said: str) -> None:
    with pytest.raises(ModelError, match=said) as error:
        Ligand.from_smiles(smiles)
    assert "\n" not in str(error.value)


def test_files(tmp_path: Path, ligand: Ligand) -> None:
    from rdkit import Chem

    file = tmp_path / "ligand.sdf"
    file.write_text(Chem.MolToMolBlock(ligand.molecule) + "$$$$\n")
    read = Ligand.from_file(file)
    assert (read.positions - ligand.positions).abs().max() < 1e-3
    assert torch.equal(read.masks, ligand.masks)
    file.write_text("not a molecule\n\n\nfoo")
    flat = tmp_path / "flat.mol"
    flat.write_text(Chem.MolToMolBlock(Chem.MolFromSmiles("CCO")))
    for path, said in (
        (file, "RDKit cannot read"), (tmp_path / "none.sdf", "expected a file"),
        (flat, "three dimensions"),
    ):  # fmt: skip
        with pytest.raises(ModelError, match=said) as error:
            Ligand.from_file(path)
        assert "\n" not in str(error.value)


def test_the_drugs() -> None:
    """At least eight, each with other poses; unknown names are said."""
    assert len(SMILES) >= 8
    made = [Ligand.from_smiles(smiles) for smiles in SMILES.values()]
    assert min(one.atoms for one in made) >= 13 and min(one.torsions for one in made) >= 3
    assert problem("aspirin").identity != problem("ibuprofen").identity
    with pytest.raises(SpecError, match="did you mean 'aspirin'"):
        problem("asprin")


# ---- rotations and moves


def test_quaternions() -> None:
    chance = torch.Generator().manual_seed(0)
    u, v = torch.randn(2, 5, 3, generator=chance, dtype=torch.float64)
    cross = torch.linalg.matrix_exp(torch.stack([_cross(one) for one in u]))
    assert (matrix(quaternion(u)) - cross).abs().max() < 1e-12
    both = matrix(product(quaternion(u), quaternion(v)))
    assert (both - matrix(quaternion(u)) @ matrix(quaternion(v))).abs().max() < 1e-12


def _cross(v: Tensor) -> Tensor:
    x, y, z = v.tolist()
    return torch.tensor([[0, -z, y], [z, 0, -x], [-y, x, 0]], dtype=torch.float64)


def test_alignment_and_its_slope() -> None:
    """Against a brute-force minimum, and against finite differences; also for planar points."""
    chance = torch.Generator().manual_seed(0)
    points, onto = torch.randn(2, 2, 7, 3, generator=chance, dtype=torch.float64)
    points[1, :, 2] = 0  # a plane
    points, onto = points - points.mean(1, keepdim=True), onto - onto.mean(1, keepdim=True)
    best = ((points @ alignment(points, onto).mT - onto) ** 2).sum((1, 2))
    for _ in range(20):
        turned = points @ matrix(quaternion(3 * torch.randn(3, generator=chance).double())).mT
        assert bool(((turned - onto).square().sum((1, 2)) >= best - 1e-9).all())
    probe = torch.randn(2, 3, 3, generator=chance, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda p: (alignment(p, onto) * probe).sum(), points.requires_grad_(), atol=1e-6
    )


def test_pose_updates_are_the_originals(ligand: Ligand, fixture: dict[str, Tensor]) -> None:
    poses = Poses(ligand, 19.0)
    x = fixture["mol/pos"].double().expand(3, -1, -1)
    tangent = torch.cat([fixture[f"update/{name}"].double() for name in ("tr", "rot", "tor")], 1)
    assert (poses.move(x, tangent) - fixture["update/out_f64"]).abs().max() < 1e-12
    rigid = tangent.clone()
    rigid[:, 6:] = 0
    assert (poses.move(x, rigid) - fixture["update/rigid_f64"]).abs().max() < 1e-12
    turned = matrix(quaternion(tangent[:, 3:6]))
    assert (turned - fixture["update/rotmat_f64"]).abs().max() < 1e-12


@pytest.mark.parametrize(("name", "executed"), [("ode_uniform6", 6), ("ode_first18of20", 18)])
def test_ode_runs_are_the_originals(
    name: str, executed: int, ligand: Ligand, fixture: dict[str, Tensor]
) -> None:
    """With the scores that the original was given; by the loop and by the table."""
    times = torch.cat([fixture[f"{name}/t"][:executed], torch.zeros(1, dtype=torch.float64)])
    scores = [fixture[f"{name}/{part}_score"] for part in ("tr", "rot", "tor")]
    calls = []

    def score(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        calls.append((x, float(t)))
        tr, rot, tor = (one[(len(calls) - 1) % executed] for one in scores)
        return tr, rot, tor

    model = DiffDock(score, ligand, LEVELS, name="given")
    x = fixture[f"{name}/pos"][0]
    k = ld3.knots(model.schedule, ld3.TimeGrid.of(times))
    solver = ld3.make_solver("euler-log")
    path = list(ld3.trajectory(ld3.bind(model), solver, k, x, model.space))
    assert (torch.stack(path) - fixture[f"{name}/pos"]).abs().max() < 1e-10
    end = compile_table(solver, k).run(ld3.bind_network(model), x, model.space)
    assert (end - path[-1]).abs().max() < 1e-10


def test_schedules_are_the_originals(fixture: dict[str, Tensor]) -> None:
    t = fixture["schedule/t"]
    g_squared = LEVELS.g_squared(t)
    for part, name in enumerate(("tr", "rot", "tor")):
        unit = math.sqrt(2) if name == "rot" else 1.0
        sigma = LEVELS.schedule.parts[part].log_sigma(t).exp() / unit
        assert (sigma / fixture[f"schedule/sigma_{name}"] - 1).abs().max() < 1e-12
        assert (g_squared[:, part] / fixture[f"schedule/g2_{name}"] - 1).abs().max() < 1e-12


# ---- exact problems


def test_the_score_is_the_slope_of_the_density(model: ExactDocking) -> None:
    for share in (0.0, 0.3, 1.0):
        t = torch.tensor(share, dtype=torch.float64)
        x = states(model, 4)
        tangent = torch.zeros(4, len(model.space.parts), dtype=torch.float64, requires_grad=True)
        density = model.log_density(model.space.move(x, tangent), t)
        (slope,) = torch.autograd.grad(density.sum(), tangent)
        score = model.score(x, t)
        assert (slope - score).abs().max() < 1e-9 * score.abs().max()


def test_densities_integrate_to_one() -> None:
    """Rotations with respect to the uniform measure (1 - cos w) / pi dw, angles on the circle."""
    nodes, weights = np.polynomial.legendre.leggauss(400)
    u, du = torch.tensor((nodes + 1) / 2), torch.tensor(weights / 2)
    for s in (0.1, 1.0, 2.2):
        width = torch.tensor(s, dtype=torch.float64)
        w = math.pi * u
        total = (kernels.log_igso3(w, width).exp() * (1 - w.cos()) * du).sum()
        assert total.item() == pytest.approx(1, rel=1e-10)
        x = math.pi * (2 * u - 1)
        circle = (kernels.log_wrapped(x, width.expand_as(x)).exp() * 2 * math.pi * du).sum()
        assert circle.item() == pytest.approx(1, rel=1e-10)


@pytest.mark.parametrize("version", ["v1", "v1.1"])
def test_equivariance(ligand: Ligand, version: str) -> None:
    """Turn the modes and the noise about the origin, and the samples turn with them."""
    levels = NoiseLevels.of(version, vars(NoiseLevels.of("v1")) | _parameters())
    model = exact_docking(ligand, levels.schedule, modes=3)
    q = quaternion(torch.tensor([0.3, -1.2, 0.7], dtype=torch.float64))

    def turned(x: Tensor) -> Tensor:
        centre, own, angles = split(x)
        return torch.cat([centre @ matrix(q).mT, product(q.expand_as(own), own), angles], 1)

    other = ExactDocking(ligand, turned(model.modes), model.schedule, model.weights)
    table = TunedSolver(ld3.make_solver("ipndm"), ld3.make_grid("edm", model.schedule, 5)).table(
        model.schedule
    )
    x = ld3.prior(model, range(4))
    plain = model.decode(table.run(ld3.bind(model), x, model.space))
    moved = other.decode(table.run(ld3.bind(other), turned(x), other.space))
    assert (moved - plain @ matrix(q).mT).abs().max() < 1e-8


def _parameters() -> dict[str, float]:
    return {
        "tr_sigma_min": 0.1, "tr_sigma_max": 19.0, "rot_sigma_min": 0.03, "rot_sigma_max": 1.55,
        "tor_sigma_min": 0.0314, "tor_sigma_max": 3.14,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["euler", "euler-log"])
def test_one_mode_contracts_by_the_known_factor(ligand: Ligand, name: str) -> None:
    """Per step sigma_+/sigma for DDIM and 1 - h for Euler in t, where kernels are normal.

    For rotations that holds up to the curvature of the group, which is w^2 / 12 of the slope.
    """
    schedule = Parts((0.1, 0.004, 0.02), (0.5, 0.02, 0.1))
    mode = torch.cat([torch.tensor([1.0, 2, 3, 1, 0, 0, 0]), torch.full((6,), 0.4)]).double()[None]
    model = ExactDocking(ligand, mode, schedule, torch.ones(1).double(), (0.0, 0.0, 0.0))
    x = states(model, 3, 0.02)
    grid = ld3.make_grid("quadratic", schedule, 5)
    made = ld3.make_solver(name)
    end = TunedSolver(made, grid).table(schedule).run(ld3.bind(model), x, model.space)
    factors = []
    for part in schedule.parts:
        sigma = part.log_sigma(grid.times).exp()
        h = (sigma[:-1] / sigma[1:]).log()
        factors.append((sigma[1:] / sigma[:-1]).prod() if name == "euler" else (1 - h).prod())
    before, after = split(x), split(end)
    assert (after[0] - mode[:, :3] - factors[0] * (before[0] - mode[:, :3])).abs().max() < 1e-12
    assert (after[2] - mode[:, 7:] - factors[2] * (before[2] - mode[:, 7:])).abs().max() < 1e-12
    small, large = after[1][:, 1:] * after[1][:, :1].sign(), before[1][:, 1:]
    assert (small - factors[1] * large).abs().max() < 1e-3 * large.abs().max()


def test_many_steps_of_one_mode_with_a_spread_meet_the_closed_form(ligand: Ligand) -> None:
    """N -> infinity: a centre contracts by sqrt((s^2 + min^2) / (s^2 + max^2))."""
    model = exact_docking(ligand, LEVELS.schedule, modes=1)
    z = torch.randn(2, 13, generator=torch.Generator().manual_seed(0)).double()
    x = model.space.start(z)
    s, part = model.spread[0], model.schedule.parts[0]
    grid = ld3.make_grid("uniform", model.schedule, 120)
    table = TunedSolver(ld3.make_solver("deis", 2), grid).table(model.schedule)
    end = table.run(ld3.bind(model), x, model.space)
    factor = math.sqrt((s**2 + part.low**2) / (s**2 + part.high**2))
    wanted = model.modes[:, :3] + factor * (x[:, :3] - model.modes[:, :3])
    assert (end[:, :3] - wanted).abs().max() < 5e-3


@pytest.mark.parametrize(
    ("name", "order", "low", "high"),
    [("euler", 1, 0.8, 1.2), ("euler-log", 1, 0.8, 1.2), ("deis", 2, 1.7, 2.3)],
)
@pytest.mark.parametrize("space", ["chart", "poses"])
def test_order_of_convergence(
    name: str, order: int, low: float, high: float, space: str, ligand: Ligand, model: ExactDocking
) -> None:
    """On the chart with the exact score, on poses with a smooth field; errors halve as they should.

    Orders above 2 would need commutators of rotations.
    """
    schedule = Parts((0.5, 0.2, 0.2), (2.0, 1.0, 1.0))
    exact = ExactDocking(ligand, model.modes, schedule, model.weights)
    if space == "chart":
        eps, where, x = ld3.bind(exact), exact.space, states(exact, 3)
    else:
        where, x = Poses(ligand, 1.0), exact.decode(states(exact, 3))

        def eps(x: Tensor, t: Tensor) -> Tensor:
            centre = x.mean(1)
            bent = x[:, ligand.bonds[:, 0]] - x[:, ligand.bonds[:, 1]]
            return torch.cat([0.1 * centre, torch.sin(centre + t), torch.cos(bent.sum(-1))], 1)

    ends = []
    for steps in (16, 32, 64):
        table = TunedSolver(ld3.make_solver(name, order), ld3.make_grid("uniform", schedule, steps))
        end = table.table(schedule).run(eps, x, where)
        ends.append(exact.decode(end) if space == "chart" else end)
    near, far = ((b - a).square().mean().sqrt() for a, b in pairwise(ends))
    assert low < math.log2(near / far) < high


@pytest.mark.parametrize("name", ["euler", "euler-log", "ipndm", "deis"])
def test_loop_and_table_agree(name: str, model: ExactDocking) -> None:
    grid = ld3.make_grid("edm", model.schedule, 6)
    net = grid.times - torch.tensor([0, 0.01, -0.02, 0.01, 0, 0.01, 0])
    k = ld3.knots(model.schedule, ld3.TimeGrid.of(grid.times, net))
    x, solver = ld3.prior(model, range(3)), ld3.make_solver(name)
    loop = ld3.integrate(ld3.bind(model), solver, k, x, model.space)
    table = compile_table(solver, k)
    assert table.weights.shape == (7, 7, 3)
    assert (table.run(ld3.bind(model), x, model.space) - loop).abs().max() < 1e-12


def test_every_solver_has_a_table(solver: ld3.Solver, model: ExactDocking) -> None:
    """Fine steps of each end at the same poses; dpm-single looks times up inside a step."""
    x, schedule = ld3.prior(model, range(2)), model.schedule
    ends = []
    for made, steps in ((solver, 48 // solver.nfe(1)), (ld3.make_solver("unipc"), 48)):
        table_of = TunedSolver(made, ld3.make_grid("uniform", schedule, steps)).table
        if made.name == "dpm-single":
            with pytest.raises(SpecError, match="times of its own"):
                table_of(schedule)
            return
        table = table_of(schedule)
        ends.append(model.decode(table.run(ld3.bind(model), x, model.space)))
    assert (ends[0] - ends[1]).abs().max() < (0.5 if solver.order == 1 else 0.1)


def test_solvers_that_extrapolate_x0_have_no_loop(model: ExactDocking) -> None:
    for name in ("dpmpp", "heun", "unipc"):
        with pytest.raises(SpecError, match="expected one that extrapolates eps") as error:
            OnSpace(ld3.make_solver(name), model.space)
        assert "\n" not in str(error.value)


def test_gradients_against_finite_differences(ligand: Ligand, model: ExactDocking) -> None:
    """In times, network times and corrections, on the chart and through the alignment of poses."""
    schedule = Parts((0.5, 0.2, 0.2), (2.0, 1.0, 1.0))
    exact = ExactDocking(ligand, model.modes, schedule, model.weights)
    adapted = DiffDock(_toward_zero, ligand, NoiseLevels("v1.1", (0.5, 2), (0.2, 1), (0.2, 1)))
    times = ld3.make_grid("uniform", schedule, 3).times
    net = times + torch.tensor([0, 0.02, -0.02, 0])
    free = torch.tensor([[0, 0, 0, 0], [0, 0.1, -0.1, 0], [0, 0.05, 0.05, -0.1]]).double()
    solver = ld3.make_solver("ipndm", 2)
    for one, x in ((exact, states(exact, 2)), (adapted, exact.decode(states(exact, 2)))):
        probe = torch.randn(2, 16, 3, generator=torch.Generator().manual_seed(1)).double()

        def end(t: Tensor, tc: Tensor, c: Tensor, one=one, x=x, probe=probe) -> Tensor:  # type: ignore[no-untyped-def]
            table = TunedSolver(solver, ld3.TimeGrid.of(t, tc), c).table(schedule)
            sample, _ = table.follow(ld3.bind(one), x, space=one.space)
            return (one.decode(sample) * probe).sum()

        leaves = [v.clone().double().requires_grad_() for v in (times, net, free)]
        found = torch.autograd.grad(end(*leaves), leaves)
        for n, (leaf, slope) in enumerate(zip(leaves, found, strict=True)):
            direction = torch.randn(leaf.shape, generator=torch.Generator().manual_seed(n)).double()
            if n == 2:  # rows of corrections have the sum 0
                direction = direction.tril(0) * (free != 0)
                direction = direction - direction.sum(1, keepdim=True) / 4 * (free != 0)
                direction = direction - direction.sum(1, keepdim=True) * (free != 0) / (
                    (free != 0).sum(1, keepdim=True).clamp_min(1)
                )
            h = 1e-5
            ends = []
            with torch.no_grad():
                for sign in (1, -1):
                    moved = [leaf.detach() for leaf in leaves]
                    moved[n] = moved[n] + sign * h * direction
                    ends.append(end(*moved))
            wanted = float(ends[0] - ends[1]) / (2 * h)
            assert float((slope * direction).sum()) == pytest.approx(wanted, rel=1e-5, abs=1e-6)


def _toward_zero(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of some smooth field."""
    centre = x.mean(1)
    return -centre / (1 + t), torch.sin(centre) * t, torch.cos(x[:, :6].sum(-1))


def test_gradients_at_half_turns_are_finite(model: ExactDocking) -> None:
    """States half a turn away from every mode."""
    half = torch.zeros(3, len(model.space.parts), dtype=torch.float64)
    half[range(3), 3 + torch.arange(3)] = math.pi
    x = model.space.move(model.modes, half).requires_grad_()
    for share in (0.02, 0.5, 1.0):
        t = torch.tensor(share, dtype=torch.float64, requires_grad=True)
        slopes = torch.autograd.grad(model.score(x, t).sum(), (x, t))
        assert all(bool(torch.isfinite(slope).all()) for slope in slopes)


def test_corrections_that_change_the_start_are_refused(model: ExactDocking) -> None:
    grid = ld3.make_grid("uniform", model.schedule, 2)
    wrong = torch.tensor([[0.1, 0, 0], [0, 0.2, 0]]).double()
    with pytest.raises(PlanError, match="exact = true"):
        TunedSolver(ld3.make_solver("euler"), grid, wrong).table(model.schedule)


# ---- learning, plans, metrics


def test_learning_lowers_the_loss_and_a_plan_serves_other_molecules(
    model: ExactDocking, tmp_path: Path
) -> None:
    teacher = Teacher("euler", 0, "", "uniform", 12)
    pairs = [make_pairs(model, seeds, teacher) for seeds in (range(4), range(10, 14))]
    problem_ = Problem(model, ld3.make_solver("euler"), 3, ld3.distances.l2, *pairs)
    recipe = ld3.PreconditionedAdam(
        learn="times+net+coefficients",
        epochs=3,
        batch=4,
        precondition=2,
        validate_every=1,
        rate=0.02,
        power=0.5,
    )
    start = ld3.make_grid("uniform", model.schedule, 3)
    *_, last = ld3.learning(problem_, recipe, start)
    student = Student(problem_)
    plain = student.mean_loss(TunedSolver(problem_.solver, start).table(model.schedule), power=0.5)
    assert last.best < 0.9 * plain
    parts = schedule_from_json(schedule_to_json(model.schedule))
    assert parts == model.schedule and isinstance(parts, Parts)


def test_searches_on_trajectories_are_refused(model: ExactDocking) -> None:
    from ld3.searches.dmn import DMN
    from ld3.searches.registry import find

    teacher = Teacher("euler", 0, "", "uniform", 2)
    pairs = make_pairs(model, range(2), teacher)
    given = Problem(model, ld3.make_solver("euler"), 3, ld3.distances.l2, pairs, pairs)
    grid = DMN(iterations=2)(given, 0, lambda done, total: None).tuned.grid
    assert grid.checked(model.schedule, 3).steps == 3
    with pytest.raises(SpecError, match="not vectors"):
        find("gits", given)


def test_rmsd_is_the_originals(ligand: Ligand, fixture: dict[str, Tensor]) -> None:
    poses, plain = fixture["rmsd/poses"], torch.arange(16)[None]
    reference = fixture["mol/pos"].double()
    found = symmetric_rmsd(poses, reference, ligand.symmetries)
    assert (found - fixture["rmsd/symmetric"]).abs().max() < 1e-12
    assert (symmetric_rmsd(poses, reference, plain) - fixture["rmsd/plain"]).abs().max() < 1e-12


def test_ranked_poses() -> None:
    rmsd = torch.tensor([[3.0, 1.0, 5.0], [1.5, 4.0, 2.5]])
    rank = torch.tensor([[0.9, 0.1, 0.5], [0.3, 0.2, 0.1]])
    assert top_rmsd(rmsd, rank, 1).tolist() == [3.0, 1.5]
    assert top_rmsd(rmsd, rank, 3).tolist() == [1.0, 1.5]
    assert success_rate(top_rmsd(rmsd, rank, 2)) == 0.5
    with pytest.raises(SpecError, match="top-4"):
        top_rmsd(rmsd, rank, 4)
    with pytest.raises(SpecError, match="expected \\(B, 3, 3\\)"):
        symmetric_rmsd(torch.zeros(2, 4, 3), torch.zeros(4, 3), torch.arange(3)[None])


# ---- the adapter


def test_versions_are_never_mixed(ligand: Ligand) -> None:
    """Rotations of v1 are sqrt(2) wider, g^2 twice; noise levels of the two are never equal."""
    v1, other = NoiseLevels.of("v1"), NoiseLevels.of("v1.1", _parameters())
    t = torch.tensor(0.3, dtype=torch.float64)
    assert (v1.g_squared(t) / other.g_squared(t)).tolist() == pytest.approx([1, 2, 1])
    assert v1.schedule != other.schedule
    models = [DiffDock(_toward_zero, ligand, levels, name="same") for levels in (v1, other)]
    assert models[0].shape == models[1].shape
    with pytest.raises(SpecError, match="without parameters"):
        NoiseLevels.of("v1.1")
    with pytest.raises(SpecError, match="did you mean 'v1"):
        NoiseLevels.of("v1.2")
    with pytest.raises(SpecError, match="tor_sigma_min"):
        NoiseLevels.of("v1", {"tr_sigma_min": 1, "tr_sigma_max": 2, "rot_sigma_min": 1,
                              "rot_sigma_max": 2})  # fmt: skip


def test_heads_are_scaled_by_the_norms(ligand: Ligand) -> None:
    t, x = torch.tensor(0.5, dtype=torch.float64), ligand.positions[None] + 1
    raw = DiffDock(_toward_zero, ligand, LEVELS, "heads").forward(x, t, None)
    done = DiffDock(_toward_zero, ligand, LEVELS, "scores").forward(x, t, None)
    ratio = (raw / done)[0]
    assert ratio[[0, 3, 6]].tolist() == pytest.approx(LEVELS.norms(t).tolist())


def test_wrong_shapes_are_one_line(ligand: Ligand) -> None:
    def wrong(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x[:, 0], x[:, 0], x[:, :4, 0]

    model = DiffDock(wrong, ligand, LEVELS)
    with pytest.raises(ModelError, match="one torsion for each rotatable bond") as error:
        model.forward(ligand.positions[None], torch.tensor(0.5), None)
    assert "\n" not in str(error.value)
    with pytest.raises(SpecError, match="scores or heads"):
        DiffDock(_toward_zero, ligand, LEVELS, "both")  # type: ignore[arg-type]


def test_the_adapter_learns(ligand: Ligand) -> None:
    """Gradients pass pose updates and alignment; samples are finite."""
    model = DiffDock(_toward_zero, ligand, LEVELS, name="field")
    ld3.check_model(model)
    pairs = make_pairs(model, range(2), Teacher("euler-log", 0, "", "uniform", 6))
    given = Problem(model, ld3.make_solver("euler-log"), 3, ld3.distances.l2, pairs, pairs)
    recipe = ld3.PreconditionedAdam(epochs=2, batch=2, validate_every=1, rate=0.01)
    *_, last = ld3.learning(given, recipe, ld3.make_grid("uniform", model.schedule, 3))
    assert math.isfinite(last.best) and last.state.skipped == 0
    table = last.tuned.table(model.schedule)
    assert sample_table(model, table, range(3)).shape == (3, 16, 3)


def test_geometric_levels() -> None:
    schedule = Geometric(0.1, 19.0)
    t = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    assert schedule.log_sigma(t).exp().tolist() == pytest.approx([0.1, math.sqrt(1.9), 19.0])
    assert (schedule.time_at(schedule.lam(t)) - t).abs().max() < 1e-15
    with pytest.raises(SpecError, match="0 < low < high"):
        Geometric(1.0, 0.5)
    with pytest.raises(SpecError, match="for each part"):
        Parts((0.1,), (1.0, 2.0))


def test_the_start_is_uniform() -> None:
    """Angles and rotations of many noises; the centre has the spread of the schedule."""
    chart = Chart(Ligand.from_smiles("CCCC"), 19.0)
    x = chart.start(ld3.noise(range(400), chart.shape))
    centre, q, angles = split(x)
    assert centre.std().item() == pytest.approx(19, rel=0.1)
    assert (q.square().sum(1) - 1).abs().max() < 1e-12
    assert q.mean(0).abs().max() < 0.1
    assert angles.abs().max() <= math.pi and abs(angles.std().item() - math.pi / 3**0.5) < 0.2
