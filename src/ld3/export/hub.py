"""The hub: a folder ready to upload, with a model card.

README.md        the card: base model, solver, evaluations, scores, images, licence
plan-5.json      the plans
scheduler/       LD3Scheduler's config
exports/         comfyui, a1111, kdiffusion, text
report/          images and scores
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ld3.errors import SpecError, import_extra
from ld3.export import a1111, comfyui, diffusers, kdiffusion, text
from ld3.export.numbers import clean, decoupled, fixed, level, solver_name, title
from ld3.export.target import Exported, Wish
from ld3.plan import Plan
from ld3.report.figures import draw_grids
from ld3.report.tables import significant
from ld3.scores import Scores
from ld3.store import read_bytes, write_bytes, write_json

TOOLS = {"comfyui": comfyui, "a1111": a1111, "kdiffusion": kdiffusion, "text": text}
ADDRESS = r"[A-Za-z0-9][\w.-]*/[\w.-]+"


def write(plans: Sequence[Plan], out: Path, wish: Wish) -> Exported:
    """Everything that the other exporters make, and the card."""
    hub = import_extra("huggingface_hub", "export: expected huggingface_hub")
    if wish.base_model is not None and not re.fullmatch(ADDRESS, wish.base_model):
        raise SpecError(
            f"base model: got {wish.base_model!r}, expected an address such as owner/name"
        )
    if not re.fullmatch(r"[a-z0-9.-]+", wish.licence):
        raise SpecError(f"licence: got {wish.licence!r}, expected a short name such as apache-2.0")
    scheduler = diffusers.write(plans, out, wish)
    files, notes = list(scheduler.files), list(scheduler.notes)
    for name, tool in TOOLS.items():
        made = tool.write(plans, out / "exports" / name, wish)
        files += made.files
        notes += made.notes
    for plan in plans:
        files.append(out / f"plan-{plan.nfe}.json")
        plan.save(files[-1])
    files.append(out / "report" / "metrics.json")
    known = {
        str(plan.nfe): {name: score.model_dump() for name, score in plan.scores.items()}
        for plan in plans
    }
    write_json(files[-1], known)
    pictures = []
    with suppress(SpecError):  # drawn where there is matplotlib
        grids = {f"{plan.nfe} evaluations": plan.grid for plan in plans}
        draw_grids(out / "report" / "times.png", plans[0].noise_schedule, grids)
        pictures.append(out / "report" / "times.png")
    for number, picture in enumerate(wish.pictures):
        pictures.append(out / "report" / f"{number}-{picture.name}")
        write_bytes(pictures[-1], read_bytes(picture))
    tags = ["diffusion-schedule", "ld3", "few-step", plans[0].solver.name]
    tags += [f"nfe-{plan.nfe}" for plan in plans]
    about = {"base_model": wish.base_model, "license": wish.licence, "library_name": "diffusers"}
    data = hub.ModelCardData(**about, tags=tags, inference=False)
    files.append(out / "README.md")
    write_bytes(files[-1], card(plans, wish, data.to_yaml(), pictures, out).encode())
    if wish.base_model is None:
        notes.append("hub: the card names no base model; give it with --base-model owner/name")
    if not wish.pictures:
        notes.append(
            "hub: the card has no images of samples; export the plan.json that `ld3 learn` left "
            "beside its images"
        )
    return Exported([*files, *pictures], notes)


def card(plans: Sequence[Plan], wish: Wish, head: str, pictures: Sequence[Path], out: Path) -> str:
    """README.md."""
    first, noise = plans[0], plans[0].noise_schedule
    base = wish.base_model or clean(first.model.name)
    counts = ", ".join(str(plan.nfe) for plan in plans)
    lines = [
        "---",
        head.strip(),
        "---",
        "",
        f"# {title(plans, wish.name)}: sampling plans of {counts} evaluations",
        "",
        f"Learned with ld3 for **{base}**: at which times its ODE is solved by "
        f"{solver_name(first)}"
        + (", the times that the network gets there" if any(map(decoupled, plans)) else "")
        + (", and the solver's coefficients" if any(p.corrections for p in plans) else "")
        + ". The network itself is unchanged and not in this repository; its own licence holds for"
        f" it. The numbers here: {wish.licence}.",
        "",
        "| for | |",
        "|---|---|",
        f"| model | {base} |",
        f"| noise schedule | {clean(str(first.schedule.get('name', type(noise).__name__)))} |",
        f"| the network predicts | {first.model.prediction} |",
        f"| guidance | {guidance(first)} |",
        f"| solver | {solver_name(first)} |",
        f"| weights | `{clean(first.model.digest)}` |",
        "",
        "With another model, guidance or solver expect less, and measure.",
        "",
        "## Use",
        "",
        "```bash",
        "pip install 'ld3[diffusers]'",
        "```",
        "",
        "```python",
        "from ld3.diffusers import LD3Scheduler",
        "",
        "pipe.scheduler = LD3Scheduler.from_pretrained(",
        '    "this/repository", subfolder="scheduler", like=pipe',
        ")  # refused if the noise schedule or the prediction of `pipe` is another",
        f"images = pipe(..., num_inference_steps={plans[-1].nfe}).images",
        "```",
        "",
        *without_ld3(plans[-1]),
        "ComfyUI, AUTOMATIC1111 and Forge, k-diffusion: copy from `exports`.",
        "",
        *scores(plans),
    ]
    for picture in pictures:
        lines += ["", f"![{clean(picture.stem)}]({picture.relative_to(out).as_posix()})"]
    for plan in plans:
        lines += ["", f"Noise levels of {plan.nfe} evaluations: "
                  + ", ".join(fixed(level(plan, plan.grid.times)))]  # fmt: skip
    return "\n".join(lines) + "\n"


def without_ld3(plan: Plan) -> Iterator[str]:
    """The stock scheduler that comes nearest, to paste."""
    near = diffusers.stock(plan)
    if isinstance(near, str):
        yield f"With diffusers alone: not exactly; {near}."
    else:
        lost = "; ".join(diffusers.left_out(plan))
        yield f"With diffusers alone, nearest{f' ({lost})' if lost else ''}:"
        yield ""
        yield "```python"
        yield from diffusers.stock_lines(near)
        yield "```"
    yield ""


def scores(plans: Sequence[Plan]) -> Iterator[str]:
    """Distances on held-out noise, of the plan and of the best and the worst known grids."""
    yield "## Scores"
    yield ""
    rows = [(plan.nfe, name, value) for plan in plans for name, value in distances(plan)]
    if not rows:
        yield "These plans carry no scores: they were not made by `ld3 learn`."
        return
    yield "Distance to the model's own accurate samples on held-out noise, lower is better."
    yield ""
    yield "| evaluations | grid | distance |"
    yield "|---|---|---|"
    for nfe, name, value in rows:
        yield f"| {nfe} | {clean(name)} | {significant(value)} |"


def distances(plan: Plan) -> list[tuple[str, float]]:
    """By name, best first."""
    found: list[tuple[str, float]] = []
    for name, score in plan.scores.items():
        if isinstance(score, Scores):
            found.append((name, score.distance))
        elif score.nfe == plan.nfe:
            found += [(score.best_grid, score.known), ("family", score.family)]
            found += [] if score.refined is None else [("refined", score.refined)]
    found = [(name, value) for name, value in found if value > 0]
    return sorted(found, key=lambda pair: pair[1])[:8]


def guidance(plan: Plan) -> str:
    low_high = plan.model.guidance_range
    if low_high is None:
        return f"{plan.model.guidance:g}"
    return f"{low_high[0]:g} to {low_high[1]:g}"
