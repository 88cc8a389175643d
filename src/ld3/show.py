"""What a person sees of plans and runs: lines for the terminal, pictures, sample files."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor

from ld3.families import FamilyLearned
from ld3.grids import TimeGrid
from ld3.learner.starts import GRIDS
from ld3.pictures import draw_curves, draw_grids, draw_rows, is_image, write_image
from ld3.plan import Plan, SolverPart
from ld3.runs import Learned, Scored, run_sample
from ld3.scores import ACCURATE, ACCURATE_JUDGED
from ld3.searches import make_grid
from ld3.store import write_tensors


def learned_table(result: Learned) -> Iterator[str]:
    """Every known grid and the plan on held-out noise."""
    plan, scores = result.plan, result.scores
    asked = plan.learned["spec"]
    yield (
        f"{plan.model.name}, {plan.solver.name}-{plan.solver.order}, {plan.nfe} evaluations: "
        f"{asked['held_out']} held-out noises, lower is better"
    )
    head = f"{'grid':<16}{'distance':>9}{'to teacher':>11}{'to accurate':>12}"
    if scores["learned"].frechet is not None:
        yield f"{'':<49}{'Fréchet distance to':>26}"
        head += f"{'real':>13}{'accurate':>14}"
    yield head
    for name, score in scores.items():
        if "@" in name:
            continue
        frechet = "".join(
            f"{'' if value is None else f'{value:.3f}':>{width}}"
            for value, width in ((score.frechet, 14), (score.frechet_accurate, 14))
        ).rstrip()
        if name == "accurate":
            yield f"{name:<48}{frechet}"
            continue
        mark = " *" if name == result.best_grid else ""
        yield (
            f"{name + mark:<16}{score.distance:>9.5f}{score.to_teacher:>11.4f}"
            f"{score.to_accurate:>12.4f}{frechet}"
        )
    best, own = scores[result.best_grid].distance, scores["learned"].distance
    if own < best:
        yield f"The plan's distance is {own / best:.2f} of that of the best known grid (*)."
    else:
        yield f"No gain: the best known grid (*) is as good ({best:.5f}); use it."
    yield from _scale_lines(result)
    yield from _rounding(plan)
    notes = [f"accurate = {ACCURATE} steps of UniPC-3"]
    if scores["learned"].frechet is not None:
        notes.append(
            f"Fréchet distances from {asked['judged']} samples only, to real pictures and to "
            f"{ACCURATE_JUDGED} steps of it from the same noise: a rough guide"
        )
    yield f"({'; '.join(notes)})"


def _scale_lines(result: Learned) -> Iterator[str]:
    """Of a plan for a range of guidance: its distance over the range."""
    plan, scores = result.plan, result.scores
    if plan.model.guidance_range is None:
        return
    low, high = plan.model.guidance_range
    ends = {scale: f" @ {scale:g}" for scale in (low, high)}
    yield f"{'guidance':<12}{result.best_grid:>14}{'learned':>10}"
    for scale in (low, plan.model.guidance, high):
        known, own = (
            scores[name + ends.get(scale, "")].distance for name in (result.best_grid, "learned")
        )
        yield f"{scale:<12g}{known:>14.5f}{own:>10.5f}"


def scored_table(plan: Plan, rows: Sequence[Scored], held_out: int) -> Iterator[str]:
    """A plan beside the best known grid, a guidance scale a line."""
    yield (
        f"{plan.model.name}, {plan.solver.name}-{plan.solver.order}, {plan.nfe} evaluations, "
        f"learned for guidance {_guidance(plan)}: {held_out} held-out noises, lower is better"
    )
    yield f"{'guidance':<10}{'best known grid':<24}{'plan':>9}{'ratio':>8}{'to accurate':>13}"
    for row in rows:
        known = f"{row.grids[row.best_grid].distance:.5f} {row.best_grid}"
        yield (
            f"{row.guidance:<10g}{known:<24}{row.plan.distance:>9.5f}{row.ratio:>8.2f}"
            f"{row.plan.to_accurate:>13.4f}"
        )
    lost = [f"{row.guidance:g}" for row in rows if row.ratio >= 1]
    if lost:
        yield f"No gain at guidance {', '.join(lost)}: the best known grid is as good there."


def draw_scored(rows: Sequence[Scored], path: Path) -> None:
    """Distance against guidance scale."""
    curves = {
        "best known grid": [row.grids[row.best_grid].distance for row in rows],
        "plan": [row.plan.distance for row in rows],
    }
    scales = [row.guidance for row in rows]
    draw_curves(path, scales, curves, "guidance scale", "held-out distance to the teacher")


def write_pictures(result: Learned, device: str) -> Iterator[Path]:
    """The same noise: best known grid and plan; and the times on a line."""
    plan = result.plan
    seeds = range(4_000_000_000, 4_000_000_012)
    steps, schedule = len(plan.times) - 1, plan.noise_schedule
    fine = SolverPart(name="unipc", order=3, variant="bh1")
    rows = []
    for label, grid, solver in (
        (f"accurate, {ACCURATE}", make_grid("logsnr", schedule, ACCURATE), fine),
        (f"{result.best_grid}, {plan.nfe}", make_grid(result.best_grid, schedule, steps), None),
    ):
        change = {
            "times": grid.times.tolist(),
            "net_times": grid.net_times.tolist(),
            "corrections": None,
            "solver": solver or plan.solver,
        }
        rows.append((label, run_sample(plan.model_copy(update=change), seeds, device, force=True)))
    rows.append((f"learned, {plan.nfe}", run_sample(plan, seeds, device, force=True)))
    if is_image(rows[0][1]):
        draw_rows(result.folder / "samples.png", rows)
        yield result.folder / "samples.png"
    draw_plan(plan, result.folder / "times.png")
    yield result.folder / "times.png"


def family_table(result: FamilyLearned) -> Iterator[str]:
    """Every number of evaluations on held-out noise."""
    plan = result.plan
    asked = plan.learned["spec"]
    yield (
        f"{plan.model.name}, {plan.solver.name}-{plan.solver.order}, one plan for many numbers of "
        f"evaluations: distance on {asked['held_out']} held-out noises, lower is better"
    )
    refined = any(row.refined is not None for row in result.rows)
    yield f"{'nfe':>4}  {'best known grid':<24}{'family':>9}" + f"{'refined':>10}" * refined
    for row in result.rows:
        known = f"{row.known:.5f} {row.best_grid}"
        more = "" if row.refined is None else f"{row.refined:>10.5f}"
        yield f"{row.nfe:>4}  {known:<24}{row.family:>9.5f}{more}"


def write_family_picture(result: FamilyLearned) -> Path:
    """The times of every member."""
    path = result.folder / "times.png"
    draw_plan(result.plan, path)
    return path


def _members(plan: Plan) -> dict[str, TimeGrid]:
    """The grids of a family by name."""
    if plan.family is None:
        return {}
    each = plan.make_solver().nfe(1)
    counts = range(plan.family.low, plan.family.high + 1, each)
    return {f"{nfe} evaluations": plan.at(nfe).grid for nfe in counts}


def draw_plan(plan: Plan, path: Path) -> None:
    """The times of a plan beside the known grids; of a family, those of its members."""
    schedule, steps = plan.noise_schedule, len(plan.times) - 1
    if plan.family is not None:
        draw_grids(path, schedule, _members(plan))
        return
    grids = {"learned": plan.grid} | {name: make_grid(name, schedule, steps) for name in GRIDS}
    draw_grids(path, schedule, grids)


def plan_lines(plan: Plan) -> Iterator[str]:
    """A plan in words and numbers."""
    variant = f" {plan.solver.variant}" if plan.solver.variant else ""
    yield f"model      {plan.model.name} ({'x'.join(map(str, plan.model.shape))}, predicts "\
        f"{plan.model.prediction}, guidance {_guidance(plan)})"  # fmt: skip
    counts = f"{plan.nfe} evaluations"
    if plan.family is not None:
        counts = f"{plan.family.low} to {plan.family.high} evaluations, here {plan.nfe}"
    yield f"solver     {plan.solver.name}-{plan.solver.order}{variant}, {counts}"
    yield f"schedule   {plan.schedule.get('name') or plan.schedule.get('kind')}"
    yield f"{'step':>4}  {'time':>12}  {'network time':>12}"
    for i, (t, net) in enumerate(zip(plan.times, plan.net_times, strict=True)):
        yield f"{i:>4}  {t:>12.6g}  {net:>12.6g}"
    if plan.corrections is not None:
        yield ""
        yield "added to the solver's weights on the noise and on each data estimate (x0) so far"
        for n, row in enumerate(plan.corrections):
            yield f"{n + 1:>4}  " + " ".join(f"{value:>9.5f}" for value in row)
    yield from _rounding(plan)
    yield ""
    yield from drawn_lines(plan)
    scores = {
        name: score["distance"]
        for name, score in plan.scores.items()
        if isinstance(score, dict) and isinstance(score.get("distance"), float)
    }
    for nfe, row in plan.scores.items():
        if isinstance(row, dict) and isinstance(row.get("family"), float):
            scores[f"{nfe} evaluations"] = row["family"]
    if scores:
        yield ""
        yield "held-out distance, lower is better"
    for name, value in scores.items():
        if value > 0:
            yield f"{name:<15}{value:.5f}"


def _rounding(plan: Plan) -> Iterator[str]:
    """What a pipeline's plan loses in tools that round the network's times."""
    costs = plan.learned.get("rounding")
    for kind, cost in costs.items() if isinstance(costs, dict) else ():
        if isinstance(cost, float):
            yield f"Network times rounded to {kind} move samples by {cost:.2g} (root mean square)."


def _guidance(plan: Plan) -> str:
    if plan.model.guidance_range is None:
        return f"{plan.model.guidance:g}"
    low, high = plan.model.guidance_range
    return f"{low:g} to {high:g}"


def drawn_lines(plan: Plan, width: int = 64) -> Iterator[str]:
    """The times of a plan and of the known grids as marks on an axis of lam."""
    schedule, steps = plan.noise_schedule, len(plan.times) - 1
    grids = _members(plan)
    if not grids:
        grids = {"this plan": plan.grid}
        grids |= {name: make_grid(name, schedule, steps) for name in GRIDS}
    first, last = schedule.lam(plan.grid.times)[[0, -1]].tolist()
    yield f"{'':<15}noise{'lam = log(alpha/sigma)':^{width - 9}}data"
    for name, grid in grids.items():
        marks = ["-"] * width
        for lam in schedule.lam(grid.times).tolist():
            marks[round((lam - first) / (last - first) * (width - 1))] = "o"
        yield f"{name:<15}{''.join(marks)}"


def write_samples(out: Path, seeds: Sequence[int], samples: Tensor) -> Iterator[Path]:
    """All as safetensors; for images also a PNG each, named by its seed, and a contact sheet."""
    write_tensors(out / "samples.safetensors", {"samples": samples})
    yield out / "samples.safetensors"
    if not is_image(samples):
        return
    for seed, image in zip(seeds, samples, strict=True):
        write_image(out / f"{seed}.png", image)
    yield out / (f"{seeds[0]}.png" if len(seeds) == 1 else f"{seeds[0]}.png .. {seeds[-1]}.png")
    rows = 8
    used = samples[: len(samples) // rows * rows] if len(samples) >= rows else samples
    columns = max(1, len(used) // rows)
    parts = [used[i : i + columns] for i in range(0, len(used), columns)]
    draw_rows(out / "sheet.png", [(str(seeds[i * columns]), part) for i, part in enumerate(parts)])
    yield out / "sheet.png"
