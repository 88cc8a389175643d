"""One plan for many numbers of evaluations, ranges of guidance, and runs without gradients."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from ld3 import FunctionModel, Plan, RunSpec, TimeGrid, VPLinear, make_grid, run_learn
from ld3.cli import cli
from ld3.density import DENSITY, SHIFTS, Warp
from ld3.distances import l2
from ld3.errors import ModelError, PlanError, SpecError
from ld3.known_grids import bump
from ld3.report.plans import (
    draw_guidance,
    draw_plan,
    family_lines,
    guidance_lines,
    learned_lines,
    plan_lines,
)
from ld3.report.tables import significant
from ld3.runs.family import FamilyResult, run_family
from ld3.runs.score import run_score
from ld3.schedules import SCHEDULES, Schedule, make_schedule
from ld3.seeds import seeds_for
from ld3.table import Table
from ld3.teacher import Pairs, Teacher, make_pairs, sample_table
from ld3.zoo.toy import mixture

MEANS = 0.6 * torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
MODEL = mixture(MEANS.tolist(), 0.5)
SMALL = {"preset": "fast", "held_out": 32, "pairs": 32}


def numbers(seed: int = 0, size: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        size * torch.randn(2 * DENSITY, generator=generator, dtype=torch.float64),
        0.3 * size * torch.randn(2 * SHIFTS, generator=generator, dtype=torch.float64),
    )


# The warp


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_any_numbers_give_valid_grids_for_any_steps(name: str) -> None:
    schedule = make_schedule(name)
    warp = Warp(schedule, 4, 10)
    for seed in range(5):
        density, shifts = numbers(seed)
        for steps in (1, 2, 5, 10, 40):
            grid = warp.grid(density, shifts, steps).checked(schedule, steps)
            lam, told = schedule.lam(grid.times), schedule.lam(grid.net_times)
            gap = lam.diff().abs().min()
            assert bool(((told - lam).abs() <= 0.5 * gap * (1 + 1e-9)).all())


def test_a_flat_density_is_the_logsnr_grid() -> None:
    schedule = VPLinear()
    flat = torch.zeros(2 * DENSITY, dtype=torch.float64)
    none = torch.zeros(2 * SHIFTS, dtype=torch.float64)
    found = Warp(schedule, 4, 10).grid(flat, none, 7)
    wanted = make_grid("logsnr", schedule, 7)
    assert (schedule.lam(found.times) - schedule.lam(wanted.times)).abs().max() < 1e-5
    assert torch.equal(found.times, found.net_times)


@pytest.mark.parametrize("schedule", [VPLinear(), make_schedule("edm")])
def test_a_family_starts_as_its_bump(schedule: Schedule) -> None:
    warp = Warp(schedule, 4, 10)
    start = warp.start(0.0, 3.5)
    found = warp.grid(start["times"], start["net"], 6)
    wanted = bump(0.0, 3.5)(schedule, 6)
    assert (schedule.lam(found.times) - schedule.lam(wanted.times)).abs().max() < 0.25


def test_slopes_of_the_warp() -> None:
    warp = Warp(VPLinear(), 4, 10)
    density, shifts = (0.2 * part for part in numbers())
    density, shifts = density.requires_grad_(), (0.1 * shifts).requires_grad_()

    def lam(density: Tensor, shifts: Tensor) -> Tensor:
        grid = warp.grid(density, shifts, 5)
        return torch.cat([warp.schedule.lam(grid.times), warp.schedule.lam(grid.net_times)])[1:-1]

    assert torch.autograd.gradcheck(lam, (density, shifts), atol=1e-4, rtol=1e-3)


# Families


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> FamilyResult:
    spec = RunSpec(family=(4, 7), out=tmp_path_factory.mktemp("runs"), refine=True, **SMALL)  # type: ignore[arg-type]
    return run_family(spec, model=MODEL)


def test_a_family_beats_the_known_grids_at_every_count(family: FamilyResult) -> None:
    assert [row.nfe for row in family.rows] == [4, 5, 6, 7]
    for row in family.rows:
        assert row.family < 0.5 * row.known
        assert row.refined is not None
        assert row.refined < row.family


def test_one_file_answers_for_all(family: FamilyResult) -> None:
    plan = Plan.load(family.folder / "plan.json")
    for nfe in (4, 5, 6, 7):
        member = plan.at(nfe)
        assert member.nfe == len(member.times) - 1 == nfe
        assert member.corrections is not None  # refined
        assert member.table().nfe == nfe
    assert len(list(family.folder.glob("*/plan.json"))) == 4  # runs of members are in its folder
    assert {place.name for place in family.folder.parent.iterdir()} == {"cache", family.folder.name}
    for nfe in (2, 3, 9, 20):  # outside the range: the family alone
        member = Plan.checked(plan.at(nfe).model_dump(mode="json"))
        assert member.corrections is None
        assert member.nfe == nfe


def test_a_finished_family_is_not_run_again(family: FamilyResult) -> None:
    spec = RunSpec(family=(4, 7), out=family.folder.parent, refine=True, **SMALL)  # type: ignore[arg-type]
    before = (family.folder / "plan.json").read_bytes()

    def nothing(what: str, done: int, total: int) -> None:
        if done and not what.startswith("scoring"):  # which is read
            pytest.fail(f"worked: {what}")

    assert run_family(spec, nothing, model=MODEL).rows == family.rows
    assert (family.folder / "plan.json").read_bytes() == before


def test_a_family_goes_on_to_the_bit(tmp_path: Path) -> None:
    spec = RunSpec(family=(4, 6), out=tmp_path / "a", **SMALL)  # type: ignore[arg-type]
    whole = run_family(spec, model=MODEL)

    def stop(what: str, done: int, total: int) -> None:
        if what.startswith("loss") and done == 7:
            raise KeyboardInterrupt

    other = spec.model_copy(update={"out": tmp_path / "b"})
    with pytest.raises(KeyboardInterrupt):
        run_family(other, stop, model=MODEL)
    kept = next((tmp_path / "b").glob("*nfe4-6*"))
    assert Plan.load(kept / "plan-so-far.json").family is not None
    again = run_family(other, model=MODEL)
    assert again.plan == whole.plan


def test_a_family_is_shown(family: FamilyResult, tmp_path: Path) -> None:
    text = "\n".join(family_lines(family.plan))
    assert "refined" in text
    lines = "\n".join(plan_lines(family.plan))
    assert "4 to 7 evaluations" in lines
    assert "7 evaluations" in lines
    draw_plan(family.plan, tmp_path / "times.png")
    assert (tmp_path / "times.png").stat().st_size > 1000


def test_a_plan_without_a_family_says_so(family: FamilyResult) -> None:
    with pytest.raises(PlanError, match="--nfe 4-10"):
        family.plan.at(4).at(9)


@pytest.mark.parametrize(
    "change",
    [{"low": 9}, {"density": [0.0]}, {"shifts": [1e9] * 10}, {"density": [float("nan")] * 16}],
)
def test_hostile_families_are_refused(family: FamilyResult, change: dict[str, object]) -> None:
    content = family.plan.model_dump(mode="json")
    content["family"] |= change
    with pytest.raises(PlanError, match="family"):
        Plan.checked(content)


def test_hostile_members_are_refused(family: FamilyResult) -> None:
    content = family.plan.model_dump(mode="json")
    content["members"][1]["times"][1] = 1e9
    with pytest.raises(PlanError, match="member"):
        Plan.checked(content)


# Words


def test_words_of_ranges(tmp_path: Path) -> None:
    assert RunSpec.read({"nfe": ("4-10",)}).family == (4, 10)
    assert RunSpec.read({"nfe": ("4", "6")}).nfe == (4, 6)
    spec = RunSpec.read({"guidance": "1-4.5"})
    assert (spec.guidance, spec.guidance_to) == (1, 4.5)
    assert RunSpec.read({"guidance": "2"}).guidance_to is None
    file = tmp_path / "run.toml"
    file.write_text('nfe = "3-8"\nguidance = "1-3"\n')
    spec = RunSpec.read({}, file)
    assert (spec.family, spec.guidance_to) == ((3, 8), 3)


@pytest.mark.parametrize(
    "words", [{"nfe": ("9-4",)}, {"nfe": ("4-6", "8")}, {"guidance": "4-1"}, {"nfe": ("four",)}]
)
def test_wrong_ranges_are_refused(words: dict[str, object]) -> None:
    with pytest.raises(SpecError):
        RunSpec.read(words)


# Guidance


def guided() -> FunctionModel:
    """Two mixtures: guidance moves samples from one towards the other."""
    null, cond = mixture([[0.0, 0.0]], 0.6), mixture([[-0.6, 0.2], [0.5, -0.4]], 0.3)

    def forward(x: Tensor, t: Tensor, c: object) -> Tensor:
        assert isinstance(c, Tensor)
        one, two = cond.forward(x, t, None), null.forward(x, t, None)
        return torch.where(c[:, None] > 0, one, two)

    return FunctionModel(
        forward,
        cond.schedule,
        "x0",
        (2,),
        torch.float64,
        make_conditions=lambda seeds: torch.ones(len(seeds)),
        make_null=lambda c: torch.zeros_like(c),  # type: ignore[arg-type]
    )


def distance_at(model: FunctionModel, table: Table, pairs: Pairs, scale: float) -> float:
    """Mean l2 distance of a table to the targets of pairs."""
    made = sample_table(model, table, pairs.seeds, guidance=scale)
    return float(l2(made, pairs.target).double().mean())


def test_one_plan_for_a_range_of_guidance(tmp_path: Path) -> None:
    """At the far end of the range it beats the plan that was learned for the near end."""
    model, plans = guided(), {}
    for guidance, to in ((1.0, None), (1.0, 4.0)):
        spec = RunSpec(nfe=(4,), guidance=guidance, guidance_to=to, out=tmp_path, **SMALL)  # type: ignore[arg-type]
        (result,) = run_learn(spec, model=model)
        plans[to] = result.plan
    assert plans[4.0].model.guidance_range == [1.0, 4.0]
    assert plans[4.0].model.guidance == 2.5
    held = make_pairs(model, range(9000, 9064), Teacher(steps=60), guidance=4.0)
    near, wide = (distance_at(model, plans[to].table(), held, 4.0) for to in (None, 4.0))
    assert wide < near
    lines = list(learned_lines(result.plan))
    first = next(i for i, line in enumerate(lines) if line.startswith("guidance"))
    assert [line.split()[0] for line in lines[first + 1 : first + 4]] == ["1", "2.5", "4"]
    seen = [float(line.split()[2]) for line in lines[first + 1 : first + 4]]
    asked = seeds_for("held-out", result.plan.learned.spec["held_out"])
    ends = make_pairs(model, asked, Teacher(steps=20), guidance=4.0)
    own = distance_at(model, result.plan.table(), ends, 4.0)
    assert seen[2] == pytest.approx(own, abs=1e-5)
    assert seen[0] != seen[2]


def test_a_plan_is_scored_at_other_guidance(tmp_path: Path) -> None:
    """Where learning scored it the scores are the same; elsewhere it ages."""
    model, anew = guided(), tmp_path / "anew"
    spec = RunSpec(nfe=(4,), guidance=1.0, guidance_to=4.0, out=tmp_path, **SMALL)  # type: ignore[arg-type]
    (result,) = run_learn(spec, model=model)
    plan, count = result.plan, result.plan.learned.spec["held_out"]
    rows = list(run_score(plan, (1.0, 2.5, 4.0, 9.0), count, out=anew, model=guided()))
    for row, name in zip(rows, ("learned @ 1", "learned", "learned @ 4"), strict=False):
        assert row.plan.distance == pytest.approx(result.scores[name].distance, rel=1e-9)
    assert rows[1].best_grid == result.best_grid
    assert rows[3].plan.distance > 2 * rows[2].plan.distance
    (own,) = run_score(plan, held_out=count, out=anew, model=guided())
    assert own == rows[1]
    lines = [line.split() for line in guidance_lines(plan, rows, count)]
    first = lines.index(next(line for line in lines if line[0] == "guidance")) + 1
    assert [line[0] for line in lines[first : first + 4]] == ["1", "2.5", "4", "9"]
    assert lines[first][3] == significant(rows[0].plan.distance)
    draw_guidance(rows, tmp_path / "ages.png")
    assert (tmp_path / "ages.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(PlanError, match="shape"):
        list(run_score(plan, model=mixture([[0.0]], 0.5), out=tmp_path))


@pytest.mark.parametrize("scales", ["much", "1,", "-1", "4-1", "1-2.5", "\u00b2", "101"])
def test_what_is_no_scale_is_refused(scales: str, tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match=r"--guidance: got .*expected (scales from 0 to 100|rising|1,2.5)"
    ):
        CliRunner().invoke(
            cli, ["score", str(tmp_path / "no.json"), "--guidance", scales], catch_exceptions=False
        )


def test_a_family_with_a_range_of_guidance_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="one of them"):
        run_family(RunSpec(family=(4, 6), guidance_to=3.0, out=tmp_path), model=guided())


# Without gradients


class Rounded(torch.autograd.Function):
    """A network that gives no slopes: rounding, as in a quantised one."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return torch.round(x * 512) / 512

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        raise AssertionError("asked for a gradient")


def rounded() -> FunctionModel:
    def forward(x: Tensor, t: Tensor, cond: object) -> Tensor:
        return Rounded.apply(MODEL.forward(x, t, None))  # type: ignore[no-any-return, no-untyped-call]

    return FunctionModel(forward, MODEL.schedule, "x0", (8,), torch.float64)


def test_a_network_without_gradients(tmp_path: Path) -> None:
    spec = RunSpec(nfe=(4,), gradient_free=True, out=tmp_path, **SMALL)  # type: ignore[arg-type]
    (result,) = run_learn(spec, model=rounded())
    scores = result.scores
    assert scores["learned"].distance < 0.5 * scores[result.best_grid].distance
    with pytest.raises((ModelError, AssertionError)):
        next(run_learn(spec.model_copy(update={"gradient_free": False}), model=rounded()))


def test_the_command_line_takes_a_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy_family.py").write_text(
        "from ld3.zoo.toy import mixture\n"
        "def make():\n    return mixture([[-0.6, 0.2], [0.5, -0.4]], 0.4)\n"
    )
    words = ["--model", "toy_family:make", "--pairs", "16", "--preset", "fast", "--held-out", "8"]
    done = CliRunner().invoke(cli, ["learn", "--nfe", "3-5", *words])
    assert done.exit_code == 0, done.output
    (plan,) = (tmp_path / "runs").glob("*nfe3-5*/plan.json")
    asked = ["sample", "--plan", str(plan), "--nfe", "8", "--seeds", "0-3", "--out", "s"]
    drawn = CliRunner().invoke(cli, [*asked, "--model", "toy_family:make"])
    assert drawn.exit_code == 0, drawn.output
    shown = CliRunner().invoke(cli, ["show", str(plan)])
    assert "3 to 5 evaluations" in shown.output
    assert json.loads(plan.read_text())["family"]["high"] == 5


def test_bumps() -> None:
    schedule = VPLinear()
    grid = make_grid("bump:0:2", schedule, 8)
    lam = schedule.lam(TimeGrid.of(grid.times).times)
    gaps = lam.diff()
    assert gaps.argmin() in (3, 4, 5)  # dense where lam is near the centre
    assert (make_grid("bump:0:99", schedule, 6).times / make_grid("logsnr", schedule, 6).times - 1).abs().max() < 0.01  # noqa: E501  # fmt: skip
    for wrong in ("bump:", "bump:0", "bump:0:-1", "bump:a:b", "bump:nan:1"):
        with pytest.raises(SpecError, match="bump:CENTRE:WIDTH"):
            make_grid(wrong, schedule, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipe": {"shared": 1.0}}, "recipe shared: got 1 with the range of nfe 3-5"),
        ({"nfe": "1-100000"}, "nfe: got 1-100000, expected a rising range within 1-100"),
        ({"nfe": "0-4"}, "nfe: got 0-4, expected a rising range within 1-100"),
        ({"preset": "paper-pixel"}, "recipe gamma: got 0.001 with the range of nfe 3-5"),
    ],
)
def test_settings_for_one_number_of_evaluations_are_refused_at_once(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecError) as error:
        RunSpec.read({"nfe": "3-5", **options})
    assert message in str(error.value) and "\n" not in str(error.value)
