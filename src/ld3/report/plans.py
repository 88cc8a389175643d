"""Plans for people: lines for the terminal, figures, sample files."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from ld3.grids import TimeGrid
from ld3.images import as_images, rescaled, shown_range, write_image
from ld3.known_grids import GRIDS, METHODS, make_grid
from ld3.plan import Plan
from ld3.report.figures import draw_curves, draw_grids, draw_rows
from ld3.report.tables import significant, table_lines
from ld3.schedules import ends
from ld3.scores import FamilyScores, GuidanceScores, Scores, best_of
from ld3.store import write_tensors
from ld3.teacher import Teacher


def title_of(plan: Plan) -> str:
    """Model, solver and guidance range."""
    return f"{plan.model.name}, {plan.solver.name}-{plan.solver.order}"


def learned_lines(plan: Plan) -> Iterator[str]:
    """Every known grid and the plan on held-out noise."""
    scores = {name: s for name, s in plan.scores.items() if isinstance(s, Scores)}
    options, best = plan.learned.spec, best_of(scores, METHODS)
    yield (
        f"{title_of(plan)}, {plan.nfe} evaluations: {options.get('held_out')} held-out noises, "
        "lower is better"
    )
    sets = scores["learned"].frechet_accurate is not None
    head = ["grid", "distance", "RMSE to teacher", "to reference"]
    head += ["FD to reference", "to real images"] * sets
    rows = []
    for name, score in scores.items():
        if "@" in name:
            continue
        errors = [*map(significant, (score.distance, score.to_teacher, score.to_accurate))]
        row = [name + " *" * (name == best), *([""] * 3 if name == "accurate" else errors)]
        for value in (score.frechet_accurate, score.frechet) if sets else ():
            row.append("" if value is None else f"{value:.3f}")
        rows.append(row)
    yield from table_lines([head, *rows], right=range(1, 6))
    own, known = scores["learned"].distance, scores[best].distance
    if own < known:
        yield f"The plan's distance is {own / known:.2f} of that of the best known grid (*)."
    else:
        yield f"No gain: the best known grid (*) is as good ({significant(known)}); use it."
    yield from _scale_lines(plan, scores, best)
    yield from _rounding(plan)
    yield from _notes(plan, sets)


def _notes(plan: Plan, sets: bool) -> Iterator[str]:
    learned = plan.learned
    if learned.distance:
        yield f"Distance: {learned.distance}."
    if learned.secant:
        yield (
            f"Slopes in time are secants over {learned.secant:g} in lam: the network ripples in "
            f"time (roughness {learned.starts.roughness:.2f})."
        )
    if learned.evaluations:
        yield (
            f"Cost: {learned.evaluations:,} network evaluations to learn, "
            f"{learned.teacher_evaluations:,} for the teacher's pairs."
        )
    if plan.learned.reference:
        reference = Teacher(**plan.learned.reference).title
        yield f"Reference solution: {reference}."
    if sets:
        yield (
            f"FD: Fréchet distance from {plan.learned.spec.get('judged')} samples only, a rough "
            "guide; to the reference from the same noise."
        )


def _scale_lines(plan: Plan, scores: Mapping[str, Scores], best: str) -> Iterator[str]:
    """Of a plan for a range of guidance: its distance over the range."""
    if plan.model.guidance_range is None:
        return
    low, high = plan.model.guidance_range
    ends = {scale: f" @ {scale:g}" for scale in (low, high)}
    rows = [["guidance", best, "learned"]]
    for scale in (low, plan.model.guidance, high):
        pair = (scores[name + ends.get(scale, "")].distance for name in (best, "learned"))
        rows.append([f"{scale:g}", *(significant(value) for value in pair)])
    yield from table_lines(rows, right=(1, 2))


def guidance_lines(plan: Plan, rows: Sequence[GuidanceScores], held_out: int) -> Iterator[str]:
    """A plan beside the best known grid, one line per guidance scale."""
    yield (
        f"{title_of(plan)}, {plan.nfe} evaluations, learned for guidance {_guidance(plan)}: "
        f"{held_out} held-out noises, lower is better"
    )
    head = ["guidance", "best known grid", "distance", "plan", "ratio", "RMSE to reference"]
    body = [
        [
            f"{row.guidance:g}", row.best_grid, significant(row.grids[row.best_grid].distance),
            significant(row.plan.distance), f"{row.ratio:.2f}", significant(row.plan.to_accurate),
        ]
        for row in rows
    ]  # fmt: skip
    yield from table_lines([head, *body], right=(2, 3, 4, 5))
    lost = [f"{row.guidance:g}" for row in rows if row.ratio >= 1]
    if lost:
        yield f"No gain at guidance {', '.join(lost)}: the best known grid is as good there."


def draw_guidance(rows: Sequence[GuidanceScores], path: Path) -> None:
    """Distance against guidance scale."""
    curves = {
        "best known grid": [row.grids[row.best_grid].distance for row in rows],
        "plan": [row.plan.distance for row in rows],
    }
    scales = [row.guidance for row in rows]
    draw_curves(path, scales, curves, "guidance scale", "held-out distance to the teacher")


def family_lines(plan: Plan) -> Iterator[str]:
    """Every number of evaluations on held-out noise."""
    scores = [row for row in plan.scores.values() if isinstance(row, FamilyScores)]
    yield (
        f"{title_of(plan)}, one plan for many numbers of evaluations: distance on "
        f"{plan.learned.spec.get('held_out')} held-out noises, lower is better"
    )
    refined = any(row.refined is not None for row in scores)
    rows = [["NFE", "best known grid", "distance", "family", *(["refined"] * refined)]]
    for row in scores:
        own = [f"{row.nfe}", row.best_grid, significant(row.known), significant(row.family)]
        more = ["" if row.refined is None else significant(row.refined)] * refined
        rows.append(own + more)
    yield from table_lines(rows, right=(0, 2, 3, 4))


def _members(plan: Plan) -> dict[str, TimeGrid]:
    """The grids of a family by name."""
    if plan.family is None:
        return {}
    counts = range(plan.family.low, plan.family.high + 1, plan.nfe_per_step)
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
    rows = []
    for name, score in plan.scores.items():
        value = score.distance if isinstance(score, Scores) else score.family
        if value > 0:
            label = name if isinstance(score, Scores) else f"{score.nfe} evaluations"
            rows.append([label, significant(value)])
    if rows:
        yield ""
        yield "held-out distance, lower is better"
        yield from table_lines(rows)


def _rounding(plan: Plan) -> Iterator[str]:
    """What a pipeline's plan loses in tools that round the network's times."""
    for kind, cost in plan.learned.rounding.items():
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
    first, last = schedule.lam(ends(schedule)).tolist()
    yield f"{'':<15}noise{'lam = log(alpha/sigma)':^{width - 9}}data"
    for name, grid in grids.items():
        marks = ["-"] * width
        for lam in schedule.lam(grid.times).tolist():
            marks[round((lam - first) / (last - first) * (width - 1))] = "o"
        yield f"{name:<15}{''.join(marks)}"


def write_samples(out: Path, seeds: Sequence[int], samples: Tensor) -> Iterator[Path]:
    """All as safetensors; for images and point clouds also a PNG each, named by its seed, and a
    contact sheet."""
    write_tensors(out / "samples.safetensors", {"samples": samples})
    yield out / "samples.safetensors"
    images = as_images(samples, 256)
    if images is None:
        return
    shown = rescaled(images, shown_range(images))
    for seed, image in zip(seeds, shown, strict=True):
        write_image(out / f"{seed}.png", image)
    yield out / (f"{seeds[0]}.png" if len(seeds) == 1 else f"{seeds[0]}.png .. {seeds[-1]}.png")
    rows = 8
    used = images[: len(images) // rows * rows] if len(images) >= rows else images
    columns = max(1, len(used) // rows)
    parts = [used[i : i + columns] for i in range(0, len(used), columns)]
    draw_rows(out / "sheet.png", [(str(seeds[i * columns]), part) for i, part in enumerate(parts)])
    yield out / "sheet.png"
