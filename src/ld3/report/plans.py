"""Plans for people: lines for the terminal, figures, sample files."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from ld3.grids import TimeGrid
from ld3.images import as_images, rescaled, shown_range, write_image
from ld3.known_grids import GRIDS, METHODS, make_grid
from ld3.plan import Plan
from ld3.report.figures import draw_curves, draw_grids, draw_rows
from ld3.report.tables import ratio_text, significant, table_lines, terminal_width, wrapped
from ld3.schedules import ends
from ld3.scores import FamilyScores, GuidanceScores, Scores, best_of
from ld3.store import write_tensors
from ld3.teacher import SHARE, Teacher, TeacherCheck


def title_of(plan: Plan) -> str:
    """Model, solver and guidance range."""
    return f"{plan.model.name}, {plan.solver.name}-{plan.solver.order}"


def learned_lines(plan: Plan) -> Iterator[str]:
    """Every known grid and the plan on held-out seeds."""
    scores = {name: s for name, s in plan.scores.items() if isinstance(s, Scores)}
    options, best = plan.learned.spec, best_of(scores, METHODS)
    yield from wrapped(
        f"{title_of(plan)}, {_counts(plan)}: {options.get('held_out')} held-out seeds, "
        "lower is better"
    )
    sets = scores["learned"].frechet_accurate is not None
    head = ["grid", "distance", "RMSE to teacher", "to reference"]
    head += ["FD to reference", "to data"] * sets
    rows = []
    for name, score in scores.items():
        errors = [score.distance, score.to_teacher, score.to_accurate]
        values = [*errors, *[score.frechet_accurate, score.frechet] * sets]
        row = [name + " *" * (name == best), *("" if v is None else significant(v) for v in values)]
        if name == "accurate":  # the reference solution itself
            row[:5] = ["reference", "", "", "", significant(0.0)]
        rows += [] if "@" in name else [row]
    yield from table_lines([head, *rows], right=range(1, 6))
    own, known = scores["learned"].distance, scores[best].distance
    if own < known:
        share = significant(own / known, 2)
        yield f"The plan's distance is {share} of that of the best known grid (*)."
    else:
        yield f"No gain: the best known grid (*) is as good ({significant(known)}); use it."
    yield from _scale_lines(plan, scores, best)
    yield from _candidate_lines(plan)
    for note in (*_rounding(plan), *_notes(plan, sets)):
        yield from wrapped(note)


def _notes(plan: Plan, sets: bool) -> Iterator[str]:
    learned = plan.learned
    for name in plan.scores:
        if name.startswith("bump:") and "@" not in name:
            yield f"{name}: where learning started."
    if learned.distance:
        yield f"Distance: {learned.distance}."
    if learned.evaluations:
        yield _slopes(plan)
        yield _cost(plan)
    yield from _teacher(plan)
    if learned.reference:
        yield f"Reference solution: {Teacher(**learned.reference).title}."
    if sets:
        yield (
            f"FD: Fréchet distance from {learned.spec.get('judged')} samples only, a rough guide; "
            "to the reference from the same noise."
        )


def _teacher(plan: Plan) -> Iterator[str]:
    """What the check of the teacher found; a warning where it is not accurate enough."""
    learned = plan.learned
    if not learned.teacher_check or "teacher" not in learned.preset:
        return
    teacher = Teacher(**learned.preset["teacher"])
    check = TeacherCheck(teacher, **learned.teacher_check)
    share = 100 * check.error / max(check.student, 1e-30)
    yield f"Teacher: {teacher.title}; its error is about {share:.2g} % of the student's."
    if not check.is_enough:
        yield (
            f"The teacher is not accurate: expected at most {100 * SHARE:g} %. Give "
            f"--teacher-steps {2 * teacher.steps}, or another --teacher-grid or --teacher-solver."
        )


def _slopes(plan: Plan) -> str:
    """How learning took slopes in time, and why."""
    learned = plan.learned
    rough = f"roughness {significant(learned.starts.roughness, 2)}"
    forced = learned.spec.get("slope", "auto") != "auto"
    if learned.spec.get("gradient_free"):
        return f"Slopes in time: differences of forward passes (--gradient-free; {rough})."
    if learned.secant:
        why = "--slope secant" if forced else f"the network ripples in time: {rough}"
        return f"Slopes in time: secants over {learned.secant:g} in lam ({why})."
    return f"Slopes in time: exact ({'--slope exact' if forced else f'no ripples: {rough}'})."


def _cost(plan: Plan) -> str:
    learned = plan.learned
    passes = ""
    if plan.guidance is not None and learned.passes:
        passes = f"; in passes {learned.passes:,} and {2 * learned.teacher_evaluations:,}"
    return (
        f"Cost: {learned.evaluations:,} network evaluations to learn, "
        f"{learned.teacher_evaluations:,} for the teacher's pairs{passes}."
    )


def _counts(plan: Plan) -> str:
    """Evaluations, and with guidance in the plan also passes."""
    passes = "" if plan.guidance is None else f" in {plan.passes} passes"
    return f"{plan.nfe} evaluations{passes}"


def _candidate_lines(plan: Plan) -> Iterator[str]:
    """The ways to spend a number of passes, best first; which was chosen."""
    candidates = plan.learned.candidates
    if not candidates or plan.guidance is None:
        return
    yield ""
    yield from wrapped(
        f"Ways to spend {plan.passes} passes: loss on validation pairs before learning, and mean "
        "distance on all pairs after it; * was chosen"
    )
    rows = [["NFE", "guided evaluations", "grid", "start", "pairs", "learned"]]
    for one in candidates:
        own = (one.nfe, one.guided) == (plan.nfe, plan.guidance.guided)
        end = "" if one.learned is None else significant(one.learned)
        guided = ", ".join(str(n + 1) for n in one.guided)
        before = [f"{one.nfe}", guided, one.grid, significant(one.loss), f"{one.pairs}"]
        rows.append([*before, end + " *" * own])
    yield from table_lines(rows, right=(0, 3, 4))


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
    yield from wrapped(
        f"{title_of(plan)}, {_counts(plan)}, learned for guidance {_guidance(plan)}: "
        f"{held_out} held-out seeds, lower is better"
    )
    head = ["guidance", "best known grid", "distance", "plan", "ratio", "RMSE to reference"]
    body = [
        [
            f"{row.guidance:g}", row.best_grid, significant(row.grids[row.best_grid].distance),
            significant(row.plan.distance), ratio_text(row.ratio),
            significant(row.plan.to_accurate),
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
    """Every number of evaluations on held-out seeds."""
    scores = [row for row in plan.scores.values() if isinstance(row, FamilyScores)]
    yield from wrapped(
        f"{title_of(plan)}, one plan for many numbers of evaluations: distance on "
        f"{plan.learned.spec.get('held_out')} held-out seeds, lower is better"
    )
    refined = any(row.refined is not None for row in scores)
    rows = [["NFE", "best known grid", "distance", "family", *(["refined"] * refined)]]
    for row in scores:
        own = [f"{row.nfe}", row.best_grid, significant(row.known), significant(row.family)]
        more = ["" if row.refined is None else significant(row.refined)] * refined
        rows.append(own + more)
    yield from table_lines(rows, right=(0, 2, 3, 4))
    if plan.learned.evaluations:
        yield from wrapped(_cost(plan))


def _grids(plan: Plan, name: str) -> dict[str, TimeGrid]:
    """The plan by a name and the known grids; of a family, those of its members."""
    if plan.family is not None:
        counts = range(plan.family.low, plan.family.high + 1, plan.nfe_per_step)
        return {f"{nfe} evaluations": plan.at(nfe).grid for nfe in counts}
    schedule, steps = plan.noise_schedule, len(plan.times) - 1
    return {name: plan.grid} | {known: make_grid(known, schedule, steps) for known in GRIDS}


def draw_plan(plan: Plan, path: Path) -> None:
    """The times of a plan beside the known grids; of a family, those of its members."""
    draw_grids(path, plan.noise_schedule, _grids(plan, "learned"))


def plan_lines(plan: Plan) -> Iterator[str]:
    """A plan with its times, corrections and scores."""
    variant = f" {plan.solver.variant}" if plan.solver.variant else ""
    yield from wrapped(
        f"model      {plan.model.name} ({'x'.join(map(str, plan.model.shape))}, predicts "
        f"{plan.model.prediction}, guidance {_guidance(plan)})", " " * 11,
    )  # fmt: skip
    counts = _counts(plan)
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
            numbers = [f"{significant(value):>9}" for value in row]
            some = (terminal_width() - 5) // 10  # numbers that fit a line
            for first in range(0, len(row), some):
                label = "" if first else n + 1
                yield f"{label:>4}  {' '.join(numbers[first : first + some])}"
    yield from _guidance_rows(plan)
    for note in _rounding(plan):
        yield from wrapped(note)
    yield ""
    yield from drawn_lines(plan)
    values = {
        name if isinstance(score, Scores) else f"{score.nfe} evaluations": (
            score.distance if isinstance(score, Scores) else score.family
        )
        for name, score in plan.scores.items()
    }
    rows = [[label, significant(value)] for label, value in values.items() if value > 0]
    if rows:
        yield ""
        yield "held-out distance, lower is better"
        yield from table_lines(rows)


def _guidance_rows(plan: Plan) -> Iterator[str]:
    """Which evaluations are guided, and what each uses of the directions so far."""
    if plan.guidance is None:
        return
    yield ""
    yield "weights of the directions of guidance so far; * runs both passes"
    for j, row in enumerate(plan.guidance.rows):
        own = "*" if j in plan.guidance.guided else ""
        numbers = " ".join(f"{significant(value):>9}" for value in row)
        yield f"{j + 1:>4}{own:<1} {numbers}".rstrip()


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
    schedule = plan.noise_schedule
    first, last = schedule.lam(ends(schedule)).tolist()
    yield f"{'':<15}noise{'lam = log(alpha/sigma)':^{width - 9}}data"
    for name, grid in _grids(plan, "this plan").items():
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
