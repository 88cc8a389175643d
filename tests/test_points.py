"""Point clouds: the network against the original, its files as models, metrics of sets."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import ld3
from checkpoint_files import POINT_ARGS, POINTS, point_cloud, point_state, saved, weight, write
from ld3 import zoo
from ld3.cli import main
from ld3.errors import Ld3Error, ModelError, SpecError
from ld3.images import as_images
from ld3.metrics import points as metrics
from ld3.metrics.assignment import assign
from ld3.options import PipelineOptions
from ld3.runs.experiments.context import Context
from ld3.runs.experiments.points import PointsOptions, run_points
from ld3.runs.progress import silent
from ld3.zoo.checkpoints.load import convert_checkpoint, inspect_checkpoint, load_checkpoint
from ld3.zoo.checkpoints.reader import read_checkpoint
from ld3.zoo.loading import load_model, make_measure
from ld3.zoo.points import PointConfig, PointModel, PointNetwork

FIXTURES = Path(__file__).parents[2] / "shared" / "fixtures"
needs_fixtures = pytest.mark.skipif(not FIXTURES.exists(), reason="needs ../shared/fixtures")


def g(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def loaded(path: Path, **more: Any) -> PointModel:
    model = load_checkpoint(path, **more)
    assert isinstance(model, PointModel)
    return model


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "GEN_small.pt", point_cloud())


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


# The network


def test_numbers_of_the_original(file: Path) -> None:
    """One shape and one point of ../shared/fixtures, for where that folder is not."""
    model = loaded(file, dtype=torch.float64)
    w = torch.tensor(
        [
            [
                0.530839384,
                -0.62832135,
                0.903138936,
                -0.460201383,
                -1.2691288,
                -1.27102637,
                0.348608643,
                0.974529982,
                0.0920766219,
                -1.52684522,
                -1.35938036,
                -0.226156741,
                1.69910717,
                -0.708325207,
                1.26019561,
                1.31608665,
            ]
        ],
        dtype=torch.float32,
    ).double()
    z = model.network.flow.inverse(w)
    assert z[0, [0, 7, 15]].tolist() == pytest.approx(
        [0.6558213086396134, 1.934373757344552, 1.6028073704666654], rel=1e-6
    )
    x = torch.tensor([[[-1.01351202, -1.68130136, 0.341408432]]], dtype=torch.float64)
    eps = model.network.eps(x, torch.tensor([0.00749999983]), z)
    assert eps.flatten().tolist() == pytest.approx(
        [-0.8070111642299724, -2.3531021708209447, 0.17308978384315424], rel=1e-6
    )


def test_the_flow_is_invertible_with_its_determinant(file: Path) -> None:
    flow = loaded(file, dtype=torch.float64).network.flow
    w = torch.randn(1, 16, generator=g(0), dtype=torch.float64)
    z = flow.inverse(w)
    back, log_det = flow(z)
    torch.testing.assert_close(back, w, rtol=1e-12, atol=1e-12)
    jacobian = torch.autograd.functional.jacobian(lambda v: flow(v)[0], z)
    wanted = torch.linalg.slogdet(jacobian[0, :, 0]).logabsdet  # type: ignore[index]
    torch.testing.assert_close(log_det[0], wanted)


@needs_fixtures
def test_fixtures_of_the_network(file: Path) -> None:
    data = load_file(FIXTURES / "pointcloud_net.safetensors")
    told = json.loads((FIXTURES / "pointcloud_net.json").read_text())
    model, narrow = loaded(file, dtype=torch.float64), loaded(file)
    z = model.network.flow.inverse(data["w"].double())
    assert apart(z, data["z_f64"]) < 1e-12
    assert apart(narrow.network.flow.inverse(data["w"]), data["z_f32"]) < 1e-5
    back, log_det = model.network.flow(z)
    assert apart(back, data["w_back_f64"]) < 1e-12
    assert (
        apart(-log_det[:, None], data["delta_logp_f64"]) < 1e-12
    )  # the original has the sign of -
    x, beta = data["x_T"], data["beta"]
    eps = model.network.eps(x.double(), beta.double(), z)
    assert apart(eps, data["eps_f64"]) < 1e-12
    assert apart(narrow.network.eps(x, beta, data["z_f32"]), data["eps_f32"]) < 1e-5
    empty = model.network.eps(x.double(), beta.double(), torch.zeros_like(z))
    assert apart(empty, data["zeros_context_eps_f64"]) < 1e-12
    schedule = model.schedule
    at = torch.arange(1, 101, dtype=torch.float64) / 100
    torch.testing.assert_close(
        (2 * schedule.log_alpha(at)).exp(), data["schedule/alpha_bars_f64"][1:]
    )
    torch.testing.assert_close(model.config.beta(at).float(), data["schedule/betas"][1:])
    for steps in (4, 8, 100):
        times = (100 - 100 / steps * torch.arange(steps, dtype=torch.float64)).round() / 100
        denoise = ld3.bind(model, z)
        knots = ld3.knots(schedule, ld3.TimeGrid(times, times))
        last = ld3.integrate(denoise, ld3.make_solver("euler"), knots, x.double())
        assert apart(denoise(last, times[-1]), data[f"ddim{steps}_f64"]) < 1e-10
    names = {name: shape for name, shape, *_ in told["state"]}
    sampled = PointNetwork(POINTS).state_dict()
    assert {name: list(value.shape) for name, value in sampled.items()}.items() <= names.items()


@needs_fixtures
def test_full_layout() -> None:
    told = json.loads((FIXTURES / "layouts" / "GEN_airplane.json").read_text())
    with torch.device("meta"):
        network = PointNetwork(PointConfig(256, 14, 256))
    own = {name: list(value.shape) for name, value in network.state_dict().items()}
    wanted = {
        row[0]: row[1]
        for row in told["state"]
        if not row[0].startswith(("encoder.", "diffusion.var_sched."))
    }
    assert own == wanted
    sizes = [
        sum(p.numel() for p in part.parameters()) for part in (network.flow, network.diffusion)
    ]
    assert sizes == [2_304_512, 995_608]


def test_gradient_in_time_by_finite_differences(file: Path) -> None:
    model = loaded(file, dtype=torch.float64)
    x, z = ld3.prior(model, [0, 1]).double(), model.conditions([0, 1])
    t = torch.tensor(0.437, dtype=torch.float64, requires_grad=True)
    probe = torch.randn(x.shape, generator=g(0), dtype=torch.float64)

    def value(time: Tensor) -> Tensor:
        return (model.forward(x, time, z) * probe).sum()

    (slope,) = torch.autograd.grad(value(t), t)
    h = 1e-5
    found = (value(t.detach() + h) - value(t.detach() - h)) / (2 * h)
    assert float(slope) == pytest.approx(float(found), rel=1e-6)


def test_points_do_not_see_each_other(file: Path) -> None:
    model = loaded(file, dtype=torch.float64)
    x, z = ld3.prior(model, [3]).double(), model.conditions([3])
    t = torch.tensor(0.5, dtype=torch.float64)
    order = torch.randperm(32, generator=g(1))
    torch.testing.assert_close(model.forward(x[:, order], t, z), model.forward(x, t, z)[:, order])


# Files


def test_a_file_is_a_model(file: Path) -> None:
    model = loaded(file)
    ld3.check_model(model)
    assert model.shape == (32, 3) and model.config == POINTS
    assert model.schedule == ld3.make_schedule("point-cloud")
    seeds = [5, 2_000_000_123, 9]
    z = model.conditions(seeds)
    assert z.shape == (3, 16) and not torch.equal(z[0], z[1])
    for row, seed in enumerate(seeds):  # the shape of a seed is the same in any batch
        assert torch.equal(model.conditions([seed])[0], z[row])
    with pytest.raises(ModelError, match="guidance"):
        model.null(z)
    with pytest.raises(ModelError, match="condition: got none"):
        model.forward(ld3.prior(model, [0]), torch.tensor(0.5), None)
    x, t = ld3.prior(model, seeds), torch.tensor(0.5, dtype=torch.float64)
    whole = ld3.bind(model, z)(x, t)
    for dtype, near in ((torch.float64, 1e-5), (torch.bfloat16, 0.2), (torch.float16, 0.05)):
        other = loaded(file, dtype=dtype)
        out = ld3.bind(other, other.conditions(seeds))(x, t)
        assert out.dtype == torch.float32 and apart(out, whole) < near
        assert other.digest == model.digest and other.identity != model.identity


def test_inspect_and_convert(file: Path, tmp_path: Path) -> None:
    out = convert_checkpoint(file, tmp_path / "out.safetensors")
    before, after = inspect_checkpoint(file), inspect_checkpoint(out)
    for name in ("network", "parameters", "shape", "schedule", "prediction", "conditions"):
        assert before[name] == after[name]
    assert before["format"] == "point-cloud" and "MIT" in before["licence"]
    one, two = loaded(file), loaded(out)
    assert (one.digest, one.identity) == (two.digest, two.identity)
    assert load_file(out).keys() == read_checkpoint(file).tensors.keys()
    with pytest.raises(SpecError, match="a file of DMPG does not take, expected none"):
        load_checkpoint(file, options=PipelineOptions(clamp=True))


def test_an_encoder_that_is_not_needed_is_not_read(tmp_path: Path, file: Path) -> None:
    state = {n: v for n, v in point_state().items() if not n.startswith("encoder.")}
    other = loaded(write(tmp_path / "b.pt", point_cloud(state)))
    assert other.digest == loaded(file).digest


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "autoencoder": ({"drop": "flow."}, "without flow.chain.0.net_s_t.0.weight.*GEN_"),
    "lost layer": ({"drop": "diffusion.net.layers.3._hyper_gate.bias"}, "1 names missing"),
    "extra name": ({"add": {"flow.more": (3,)}}, "1 names too many"),
    "shape": ({"add": {"flow.chain.1.net_s_t.2.bias": (25,)}}, r"of shape \[25\], expected \[24\]"),
    "betas": ({"add": {"diffusion.var_sched.betas": (101,)}}, "other values than 100 steps"),
    "steps": ({"num_steps": -3}, "num_steps -3"),
    "steps as text": ({"num_steps": "100"}, "num_steps '100'"),
    "range": ({"beta_T": float("nan")}, "got betas"),
    "points": ({"sample_num_points": 10**9}, "sample_num_points 1000000000"),
    "latent": ({"latent_dim": 17}, "latent_dim 17, but the network takes 16"),
    "mode": ({"sched_mode": "cosine"}, "sched_mode 'cosine', expected linear"),
    "residual": ({"residual": "yes"}, "got residual 'yes'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_files_that_do_not_fit_are_refused_in_one_line(case: str, tmp_path: Path) -> None:
    changes, message = WRONG[case]
    words = {name: value for name, value in changes.items() if name not in ("drop", "add")}
    state = point_state()
    for name in [name for name in state if name.startswith(changes.get("drop", "nothing"))]:
        del state[name]
    state |= {name: weight(name, shape) for name, shape in changes.get("add", {}).items()}
    path = write(tmp_path / "a.pt", point_cloud(state, **words))
    with pytest.raises(ModelError, match=message) as error:
        load_checkpoint(path)
    assert "\n" not in str(error.value)


def test_a_converted_file_that_was_changed_is_refused(file: Path, tmp_path: Path) -> None:
    out = convert_checkpoint(file, tmp_path / "out.safetensors")
    whole = out.read_bytes()
    assert whole.count(b'\\"latent\\": 16') == 1
    out.write_bytes(whole.replace(b'\\"latent\\": 16', b'\\"latent\\": 18'))
    with pytest.raises(ModelError, match="got latent 18 for tensors of 16"):
        load_checkpoint(out)
    out.write_bytes(whole.replace(b'\\"points\\": 32', b'\\"pointz\\": 32'))
    with pytest.raises(ModelError, match="not whole"):
        load_checkpoint(out)


def test_hostile_arguments_run_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Call:
        def __reduce__(self) -> tuple[Any, ...]:
            return __import__("os").system, (f"touch {tmp_path / 'mark'}",)

    content = saved({"args": Call(), "state_dict": point_state()})
    path = write(tmp_path / "a.pt", content)
    for words in (["inspect", str(path)], ["learn", "--model", str(path)]):
        with pytest.raises(SystemExit) as stop:
            main(words)
        said = capsys.readouterr().err
        assert stop.value.code == 2 and said.count("\n") == 1 and "system" in said
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.pt"]


def run(*words: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 0


SMALL = ["--pairs", "2", "--held-out", "2", "--teacher-steps", "4", "--reference-steps", "4",
         "--preset", "fast", "--recipe", "epochs=1", "--start", "uniform"]  # fmt: skip


def test_learn_sample_and_compare_by_the_command_line(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, model = tmp_path / "runs", ["--model", str(file)]
    run("learn", *model, "--nfe", "2", "--solver", "euler", "--distance", "chamfer", *SMALL,
        "--out", str(runs))  # fmt: skip
    (plan,) = runs.glob("*/plan.json")
    told = json.loads(plan.read_text())
    assert told["model"]["name"] == str(file) and (plan.parent / "samples.png").is_file()
    run("sample", "--plan", str(plan), "--seeds", "0-2", "--out", str(tmp_path / "samples"))
    samples = load_file(tmp_path / "samples" / "samples.safetensors")["samples"]
    assert samples.shape == (3, 32, 3)
    made = {entry.name for entry in (tmp_path / "samples").iterdir()}
    assert {"0.png", "1.png", "2.png", "sheet.png"} <= made
    real = tmp_path / "real.safetensors"
    save_file({"clouds": clouds(6, 32, 0)}, real)
    compare = [
        "compare", *model, "--methods", "uniform,ld3", "--nfe", "2", "--solvers", "euler",
        "--valid", "2", *SMALL, "--full", "--samples", "40", "--out", str(tmp_path / "c"),
    ]  # fmt: skip
    run(*compare, "--features", str(real))
    found = json.loads((tmp_path / "c" / "compare.json").read_text())
    keys = {metric["key"] for metric in found["metrics"]}
    assert {"mmd", "coverage", "nna", "jsd", "jsd_half"} <= keys and "frechet" not in keys
    scores = found["blocks"][0]["rows"][0]["scores"]
    assert 0 < scores["mmd"]["low"] <= scores["mmd"]["value"] and scores["coverage"]["high"] <= 100
    assert found["pictures"]["teacher"]  # drawn clouds
    capsys.readouterr()
    save_file({"clouds": clouds(6, 30, 0)}, real)
    save_file({"points": clouds(6, 32, 0)}, tmp_path / "other.safetensors")
    for name, message in (("real", "32 points against 30"), ("other", "a tensor `clouds`")):
        with pytest.raises(SystemExit) as stop:
            main([*compare, "--features", str(tmp_path / f"{name}.safetensors")])
        said = capsys.readouterr().err
        assert stop.value.code == 2 and message in said and said.count("\n") == 1
    with pytest.raises(SystemExit) as stop:
        main(compare)
    assert "no real clouds" in capsys.readouterr().err


def test_chamfer_is_for_clouds_and_perceptual_for_images(file: Path) -> None:
    fashion, points = load_model("fashion"), load_model("fashion-points")
    for own in (points, load_model(str(file))):
        assert make_measure("auto", own).name == "l2"
    assert make_measure("auto", fashion).name == "perceptual"
    assert make_measure("chamfer", points).distance is ld3.DISTANCES["chamfer"]
    with pytest.raises(SpecError, match=r"chamfer for fashion of shape \[1, 28, 28\]"):
        make_measure("chamfer", fashion)
    with pytest.raises(SpecError, match=r"perceptual for fashion-points of shape \[512, 3\]"):
        make_measure("perceptual", points)


# The shipped model


def test_the_shipped_model() -> None:
    model = zoo.load("fashion-points")
    assert isinstance(model, PointModel) and model.shape == (512, 3)
    ld3.check_model(model)
    seeds, real = range(40), zoo.real_clouds()
    k = ld3.knots(model.schedule, ld3.make_grid("uniform", model.schedule, 10))
    with torch.no_grad():
        denoise = ld3.bind(model, model.conditions(seeds))
        drawn = ld3.integrate(denoise, ld3.make_solver("ipndm"), k, ld3.prior(model, seeds))
    assert real.shape == (100, 512, 3) and real.std() == pytest.approx(1, abs=0.01)
    own, noisy = (metrics.to_box(x)[:, ::4] for x in (drawn, ld3.prior(model, seeds)))
    data = metrics.to_box(real)[:40, ::4]
    far = metrics.chamfer_matrix(noisy, data).amin(0).mean()
    near = metrics.chamfer_matrix(own, data).amin(0).mean()
    assert near < 0.5 * far  # samples are nearer to shoes than noise is


# The experiment


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learned": "ld3-paper"}, "unknown learned method 'ld3-paper'"),
        ({"learn_with": ["l2", "chamfr"]}, "did you mean 'chamfer'"),
        ({"clouds": 9}, "clouds: got 9, expected 1 to held_out = 4"),
    ],
)
def test_options_of_the_experiment(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    compare = {"methods": ["uniform", "ld3"], "solvers": ["euler"], "nfe": [2], "held_out": 4}
    options = {"compare": compare, "show": ["distance"], "clouds": 2, **changes}
    context = Context("fashion-points", tmp_path, tmp_path, silent)
    with pytest.raises(SpecError, match=message):
        PointsOptions(**options).checked(context)


def test_the_experiment_wants_clouds(tmp_path: Path) -> None:
    compare = {
        "methods": ["uniform", "ld3"], "nfe": [2], "held_out": 2, "teacher_steps": 2, "pairs": 2,
    }  # fmt: skip
    options = PointsOptions(compare=compare, show=("distance",), clouds=2)
    with pytest.raises(SpecError, match="points: got fashion, expected a model of point clouds"):
        run_points(options, Context("fashion", tmp_path, tmp_path, silent))


# Drawings


def test_clouds_are_drawn_from_one_side() -> None:
    ball = clouds(2, 400, 0)
    images = as_images(ball, 40)
    assert images is not None and images.shape == (2, 3, 40, 40)
    assert float(images.min()) >= -1 and float(images.max()) == 1  # white around it
    moved = as_images(3 * ball + 7, 40)  # place and size do not matter
    assert moved is not None and (moved - images).abs().mean() < 1e-3
    front, behind = torch.zeros(1, 60, 3), torch.zeros(1, 60, 3)
    front[0, :30], behind[0, :30] = clouds(1, 30, 1)[0], clouds(1, 30, 1)[0]
    front[0, 30:, 2], behind[0, 30:, 2] = 3.0, -3.0
    assert not torch.equal(as_images(front, 40), as_images(behind, 40))
    assert as_images(torch.zeros(2, 5)) is None
    picture = torch.zeros(2, 1, 8, 8)
    assert as_images(picture) is picture
    broken = as_images(torch.full((1, 9, 3), torch.nan), 20)
    assert broken is not None and bool((broken == 1).all())


# Metrics


@needs_fixtures
def test_fixtures_of_the_metrics() -> None:
    data = load_file(FIXTURES / "pointcloud_metrics.safetensors")
    told = json.loads((FIXTURES / "pointcloud_metrics.json").read_text())["metrics"]
    s, r = metrics.to_box(data["sample_raw"]), metrics.to_box(data["ref_raw"])
    torch.testing.assert_close(s, data["sample_bbox"])
    torch.testing.assert_close(r, data["ref_bbox"])
    torch.testing.assert_close(metrics.chamfer_matrix(s, r), data["cd_bbox"])
    torch.testing.assert_close(metrics.chamfer_matrix(s / 2, r / 2), data["cd_half"])
    found = metrics.cloud_scores(data["sample_raw"], data["ref_raw"])
    wanted = told["bbox"]
    assert found.mmd == pytest.approx(wanted["lgan_mmd-CD"], rel=1e-6)
    assert found.coverage == pytest.approx(wanted["lgan_cov-CD"])
    assert found.nna == pytest.approx(wanted["1-NN-CD-acc"])
    assert found.jsd == pytest.approx(wanted["jsd"], rel=1e-10)
    assert found.jsd_half == pytest.approx(told["half"]["jsd"], rel=1e-10)
    for shrink, part in ((1, wanted), (2, told["half"])):
        cells = metrics.occupancy(s, shrink)
        assert cells.shape == (12, part["grid_cells"]) and bool((cells.sum(1) == 96).all())
        assert int((cells.sum(0) > 0).sum()) == part["occupied_cells_sample"]
    few = metrics.emd_matrix(s[:3], r[:2])
    torch.testing.assert_close(few, data["emd_exact_bbox"][:3, :2], rtol=1e-12, atol=1e-12)


def clouds(count: int, points: int, seed: int) -> Tensor:
    return torch.randn(count, points, 3, generator=g(seed))


def test_chamfer_of_all_pairs_is_the_distance_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = clouds(4, 30, 0), clouds(5, 30, 1)
    found = metrics.chamfer_matrix(a, b)
    wanted = torch.stack([ld3.DISTANCES["chamfer"](a[[i]].expand_as(b), b) for i in range(4)])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(metrics, "PAIRS", 2 * 30**2)  # two clouds at a time
    torch.testing.assert_close(metrics.chamfer_matrix(a, b), found)
    torch.testing.assert_close(metrics.chamfer_within(a), metrics.chamfer_matrix(a, a))


def test_matching_and_neighbours_by_hand() -> None:
    across = torch.tensor([[1.0, 4.0, 9.0], [2.0, 3.0, 5.0]])  # 2 samples, 3 references
    assert metrics.matching(across) == (pytest.approx((1 + 3 + 5) / 3), pytest.approx(1 / 3))
    inside = torch.tensor([[0.0, 0.5], [0.5, 0.0]])  # samples are near to each other
    far = torch.tensor([[0.0, 7.0, 7.0], [7.0, 0.0, 4.0], [7.0, 4.0, 0.0]])
    # both samples right; references: 7 > 1 wrong, 4 > 3 wrong, 4 <= 5 right
    assert metrics.neighbour_accuracy(inside, far, across) == pytest.approx(3 / 5)


def test_sets_that_are_alike_and_sets_that_are_not() -> None:
    a = clouds(24, 40, 0)
    same = metrics.cloud_scores(a, a)
    assert same.mmd == pytest.approx(0, abs=1e-5) and same.coverage == 1
    assert same.jsd == same.jsd_half == 0
    flat = clouds(24, 40, 1) * torch.tensor([1.0, 1.0, 0.01])
    other = metrics.cloud_scores(flat, a)
    assert other.nna > 0.9 and other.mmd > 0.05 and other.jsd_half > 0.3 and other.coverage < 1


def test_divergence_in_bits() -> None:
    a = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    assert metrics.divergence(a, a.flip(0)) == pytest.approx(1)
    assert metrics.divergence(a, 3 * a) == 0
    b = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    assert metrics.divergence(a, b) == pytest.approx(0.5)


def test_occupancy_is_the_nearest_grid_point_in_the_ball() -> None:
    cloud = torch.tensor(
        [[[0.02, 0.01, 0.03], [0.9, 0.01, 0.0], [-0.5, 0.52, 0.5], [0.49, 0.0, 0.11]]]
    )
    _, centres = metrics._grid(cloud.device)
    found = metrics.occupancy(cloud)[0]
    wanted = torch.zeros(len(centres), dtype=torch.float64)
    for point in cloud[0].double():
        wanted[(centres - point).square().sum(1).argmin()] += 1
    assert torch.equal(found, wanted) and len(centres) == 10144


def test_assignment_is_the_cheapest() -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 5, 6):
        cost = rng.normal(size=(n, n))
        best = min(
            sum(cost[i, j] for i, j in enumerate(order))
            for order in itertools.permutations(range(n))
        )
        found = assign(cost)
        assert sorted(found) == list(range(n))
        assert cost[np.arange(n), found].sum() == pytest.approx(best)
    moved = clouds(1, 60, 3)
    order = torch.randperm(60, generator=g(4))
    assert float(metrics.emd_matrix(moved, moved[:, order])) == pytest.approx(0, abs=1e-7)
    shifted = metrics.emd_matrix(moved, moved + torch.tensor([0.001, 0, 0]))
    assert float(shifted) == pytest.approx(0.001, rel=1e-3)
    with pytest.raises(SpecError, match="assignment"):
        assign(np.zeros((2, 3)))


def test_bad_clouds_are_said_in_one_line() -> None:
    a = clouds(3, 10, 0)
    bad: list[tuple[Tensor, Tensor, str]] = [
        (a, clouds(3, 12, 1), "10 points against 12, expected as many; draw 10 points"),
        (a[..., :2], a, r"got \(3, 10, 2\), expected clouds of one size"),
        (a[0], a, r"got \(10, 3\)"),
        (a[:0], a, r"got none in \(0, 10, 3\)"),
        (a / 0, a, "not finite"),
    ]
    for x, y, message in bad:
        for measure in (metrics.cloud_scores, metrics.chamfer_matrix, metrics.emd_matrix):
            with pytest.raises(SpecError, match=message) as error:
                measure(x, y)
            assert "\n" not in str(error.value)
    with pytest.raises(SpecError, match="got list"):
        metrics.cloud_scores([a[0], a[0, :3]], a)  # type: ignore[arg-type]


def test_a_cloud_of_one_point_has_a_box() -> None:
    assert torch.equal(metrics.to_box(torch.ones(1, 4, 3)), torch.zeros(1, 4, 3))
    assert POINT_ARGS["sample_num_points"] == 32 and issubclass(SpecError, Ld3Error)
