"""Plans and scheduler configs that version 0.1.0 wrote are read, shown and used as before."""

import json
from pathlib import Path

import pytest
import torch

import ld3
from ld3.export import TARGETS, export_plans
from ld3.known_grids import METHODS
from ld3.report.plans import family_lines, learned_lines, plan_lines
from ld3.scores import FamilyScores, Scores
from ld3.zoo.toy import mixture

FILES = Path(__file__).parent / "files_of_before"
MODEL = mixture([[-1.0, 0.0], [1.0, 0.0]], 0.2, schedule=ld3.make_schedule("sd"), prediction="eps")


def test_a_plan() -> None:
    plan = ld3.Plan.load(FILES / "plan-0.1.json")
    assert plan.learned.evaluations == 1740 and plan.learned.starts.chosen == ["bump:1:2"]
    assert isinstance(plan.scores["learned"], Scores)
    sample = plan.sampler(MODEL)(range(16))  # it fits the model it was learned for
    exact = ld3.make_pairs(MODEL, range(16), ld3.Teacher(steps=60)).target
    assert float((sample - exact).square().mean().sqrt()) < 0.1
    assert "this plan" in "\n".join(plan_lines(plan))
    assert "learned" in "\n".join(learned_lines(plan))


def test_small_shares_have_digits_and_the_start_is_named() -> None:
    """Not 0.00 of the best known grid; and what bump:1:2 in the table is."""
    plan = ld3.Plan.load(FILES / "plan-0.1.json")
    known = min(plan.scores[name].distance for name in METHODS if name in plan.scores)  # type: ignore[union-attr]
    scores = plan.scores | {
        "learned": plan.scores["learned"].model_copy(update={"distance": 0.00123 * known})
    }
    lines = "\n".join(learned_lines(plan.model_copy(update={"scores": scores})))
    assert "The plan's distance is 0.0012 of that of the best known grid (*)." in lines
    assert "bump:1:2: where learning started" in lines


def test_a_family() -> None:
    plan = ld3.Plan.load(FILES / "family-0.1.json")
    assert [plan.at(nfe).nfe for nfe in plan.counts] == [4, 5, 6]
    assert all(isinstance(row, FamilyScores) for row in plan.scores.values())
    rows = [line.split()[:2] for line in family_lines(plan)]
    assert rows[3:6] == [["4", "logsnr"], ["5", "quadratic"], ["6", "quadratic"]]


def test_a_scheduler() -> None:
    pytest.importorskip("diffusers", reason="pip install 'ld3[diffusers]'")
    from ld3.diffusers import LD3Scheduler

    config = json.loads((FILES / "scheduler-0.1.json").read_text())
    scheduler = LD3Scheduler.from_config(config)
    scheduler.set_timesteps(5)
    plan = ld3.Plan.load(FILES / "plan-0.1.json")
    steps = ld3.make_schedule("sd").index(plan.grid.net_times[:-1])  # type: ignore[attr-defined]
    assert torch.allclose(scheduler.timesteps.double(), steps, atol=1e-3)


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_exports(target: str, tmp_path: Path) -> None:
    """What is written is run and compared with the plan, so that an export that ends is right."""
    if target in ("diffusers", "hub"):
        pytest.importorskip("diffusers", reason="pip install 'ld3[diffusers]'")
    for name in ("plan-0.1.json", "family-0.1.json"):
        made = export_plans(target, [ld3.Plan.load(FILES / name)], tmp_path / name)
        assert made.files and all(file.is_file() for file in made.files)
