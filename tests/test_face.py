"""The public face: programs as a user writes them, with objects of one's own."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import ld3
from ld3.errors import Ld3Error, ModelError, PlanError, SpecError
from ld3.grids import Knots
from ld3.schedules import EDM, VPLinear
from ld3.solvers.base import Denoise, History, Solver, combine
from ld3.zoo.toy import mixture

MODEL = mixture([[-1.0, 0.0], [1.0, 0.5]], std=0.3)
QUICK = {"preset": "fast", "pairs": 8, "recipe": {"epochs": 1}, "progress": False}


@dataclass(frozen=True)
class Mine(Solver):
    """Euler, under a name that is in no registry."""

    name: ClassVar[str] = "mine"

    def step(
        self, denoise: Denoise, k: Knots, i: int, x: Tensor, history: History
    ) -> tuple[Tensor, History]:
        ratio = k.sigma[i + 1] / k.sigma[i]
        weight = k.alpha[i + 1] - ratio * k.alpha[i]
        return combine((ratio, weight), (x, denoise(x, k.net[i]))), ()


class Tangent(EDM):
    """A schedule of one's own: sigma = tan(t)."""

    def log_sigma(self, t: Tensor) -> Tensor:
        return t.tan().log()

    def lam(self, t: Tensor) -> Tensor:
        return -self.log_sigma(t)

    def time_at(self, lam: Tensor) -> Tensor:
        return torch.atan(torch.exp(-lam))

    @property
    def prior_std(self) -> float:
        return float(torch.tensor(self.t_max, dtype=torch.float64).tan())


def test_learn_writes_nothing_and_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = ld3.learn(MODEL, solver="unipc:2", nfe=4, held_out=16, **QUICK)
    assert not list(tmp_path.iterdir())
    assert (plan.nfe, plan.solver.name, plan.solver.order) == (4, "unipc", 2)
    assert plan.scores["learned"].distance < plan.scores["uniform"].distance
    sample = plan.sampler(MODEL, batch=3)
    drawn = sample(seeds=range(7))
    assert drawn.shape == (7, 2)
    assert torch.allclose(sample(seeds=[5])[0], drawn[5], atol=1e-5)
    with pytest.raises(PlanError, match="weights"):
        plan.sampler(mixture([[-1.0, 0.0], [1.0, 0.9]], std=0.3))
    with pytest.raises(SpecError, match="one per seed"):
        sample(seeds=range(4), cond=torch.zeros(3))


def test_learn_with_a_folder_goes_on(tmp_path: Path) -> None:
    first = ld3.learn(MODEL, nfe=3, held_out=8, out=tmp_path, **QUICK)
    files = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("state-0.safetensors")}
    again = ld3.learn(MODEL, nfe=3, held_out=8, out=tmp_path, **QUICK)
    assert again == first and files
    assert all(file.stat().st_mtime_ns == stamp for file, stamp in files.items())


def test_conditions_of_the_caller_are_used() -> None:
    shifts = torch.tensor([[0.0, 0.0], [0.5, -0.5]])
    model = ld3.FunctionModel(
        lambda x, t, cond: MODEL.forward(x, t, None) + cond, MODEL.schedule, "x0", (2,),
        make_conditions=lambda seeds: shifts[[seed % 2 for seed in seeds]],
    )  # fmt: skip
    sample = ld3.learn(model, nfe=3, held_out=0, **QUICK).sampler(model)
    own, other = sample([4, 4]), sample([4, 4], cond=shifts)
    assert torch.equal(own[0], own[1]) and torch.allclose(other[0], own[0], atol=1e-6)
    assert (other[1] - other[0]).abs().max() > 0.1


def test_a_distance_of_ones_own_is_learned_with() -> None:
    seen: list[int] = []

    def distance(x: Tensor, y: Tensor) -> Tensor:
        seen.append(len(x))
        return (x - y).abs().amax(1)

    plan = ld3.learn(MODEL, nfe=3, distance=distance, held_out=8, **QUICK)
    assert seen and plan.scores["learned"].distance > 0
    with pytest.raises(ModelError, match="one value per sample"):
        ld3.learn(MODEL, nfe=3, distance=lambda x, y: (x - y).abs().mean(), **QUICK)
    with pytest.raises(ModelError, match="zero"):
        ld3.learn(MODEL, nfe=3, distance=lambda x, y: (x - y).abs().mean(1) + 1, **QUICK)


def test_a_solver_of_ones_own_needs_no_registry(tmp_path: Path) -> None:
    mine = ld3.learn(MODEL, solver=Mine(), nfe=4, held_out=0, **QUICK)
    euler = ld3.learn(MODEL, solver="euler", nfe=4, held_out=0, **QUICK)
    assert mine.times == pytest.approx(euler.times, rel=0.05)  # their network times differ
    assert mine.solver.table is not None and "mine" not in ld3.SOLVERS
    mine.save(tmp_path / "plan.json")
    read = ld3.Plan.load(tmp_path / "plan.json")
    both = [plan.sampler(MODEL)(range(4)) for plan in (read, mine)]
    assert torch.equal(*both)
    assert (both[0] - euler.sampler(MODEL)(range(4))).abs().max() < 0.3
    with pytest.raises(PlanError, match="for that number only"):
        ld3.guess(read, 5)


@pytest.mark.parametrize("schedule", [Tangent(0.01, 1.5), VPLinear(6.0, 6.0)])
def test_schedules_of_ones_own_are_learned_for_and_compared_on(
    schedule: ld3.Schedule, tmp_path: Path
) -> None:
    model = mixture([[-1.0, 0.0], [1.0, 0.5]], std=0.3, schedule=schedule)
    plan = ld3.learn(model, nfe=4, held_out=16, **QUICK)
    assert plan.scores["learned"].distance < plan.scores["uniform"].distance
    spec = ld3.CompareSpec(
        methods="edm,ld3", nfe="4", pairs=8, valid=8, held_out=8, preset="fast",
        recipe={"epochs": 1}, out=tmp_path,
    )  # fmt: skip
    rows = ld3.run_compare(spec, model=model).blocks[0].rows
    assert not any(row.failed for row in rows)


def test_mistakes_are_errors_of_ours() -> None:
    for options in ({"solver": "unipx"}, {"nfe": 0}, {"nfe": "four"}, {"preset": "fats"}):
        with pytest.raises(Ld3Error):
            ld3.learn(MODEL, **{"progress": False, **options})  # type: ignore[arg-type]
    with pytest.raises(Ld3Error, match="nothing"):
        ld3.RunSpec(nothing=1)


def test_progress_shows_no_loss_before_there_is_one() -> None:
    seen: list[str] = []
    options = {**QUICK, "progress": lambda what, done, total: seen.append(what)}
    ld3.learn(MODEL, nfe=3, held_out=0, **options)  # type: ignore[arg-type]
    losses = [what for what in seen if what.startswith("loss")]
    assert losses[0].startswith("loss -, valid 0.") and losses[1].startswith("loss 0.")
    assert not any("nan" in what for what in seen)
