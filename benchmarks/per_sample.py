"""Would one plan per sample pay? K plans for one number of evaluations, and a choice among them.

    python benchmarks/per_sample.py --page docs/results/per-sample.md

All plans share their first evaluation D(x_T, t_max). A choice made after it costs nothing:
statistics of that answer (means of 16 patches, mean, deviation) and the class decide.

    one plan             learned on all pairs, then as many iterations again
    K plans, best        the plan that is nearest to the teacher's sample, which no sampler
                         can know
    K plans, chosen      ridge regression from the statistics to log d_k on the training pairs; the
                         plan with the lowest prediction
    K plans, clusters    pairs are clustered by the statistics, a plan is learned for each cluster

The K plans of the first two rows begin with clusters of the residuals of the one plan. Twice, each
plan is learned on its pairs, and each pair goes to the plan that is nearest. Scores are mean
distances on held-out seeds; ratios are to the one plan, with a 95 % interval by resampling seeds.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

import ld3
from ld3 import zoo
from ld3.distances import Distance
from ld3.learner.presets import make_preset
from ld3.models import take
from ld3.problem import PARTS, Part, Student
from ld3.seeds import seeds_for
from ld3.store import write_bytes
from ld3.table import TunedSolver
from ld3.teacher import Pairs, Teacher

ROUNDS = 2  # of learning and assigning
RIDGE = 1e-2
DRAWS = 2000  # of the bootstrap


@dataclass(frozen=True)
class Task:
    """What is learned, and on which pairs."""

    problem: ld3.Problem  # its validation pairs choose the iteration
    held_out: Pairs
    recipe: ld3.PreconditionedAdam
    seed: int

    def learn(self, rows: Tensor, valid: Tensor, start: TunedSolver | None) -> TunedSolver:
        """The best plan for some of the pairs."""
        own = replace(
            self.problem,
            train=some(self.problem.train, rows),
            valid=some(self.problem.valid, valid if len(valid) else torch.arange(8)),
        )
        *_, last = ld3.learning(own, self.recipe, start, seed=self.seed)
        return last.tuned


def some(pairs: Pairs, rows: Tensor) -> Pairs:
    """The pairs at these rows."""
    seeds = tuple(pairs.seeds[i] for i in rows.tolist())
    return Pairs(seeds, pairs.noise[rows], take(pairs.cond, rows), pairs.target[rows])


def losses(student: Student, part: Part, plans: Sequence[TunedSolver]) -> Tensor:
    """d (M, K) of every pair with every plan."""
    schedule = student.problem.model.schedule
    rows = torch.arange(len(student.problem.pairs(part)))
    tables = [plan.table(schedule) for plan in plans]
    return torch.stack(list(student.each_losses(part, rows, tables)), 1).double()


def statistics(student: Student, part: Part) -> Tensor:
    """What can be known after the first evaluation, (M, F)."""
    (answer,) = student.known(part)
    patches = torch.nn.functional.adaptive_avg_pool2d(answer, 4).flatten(1)
    flat = answer.flatten(1)
    rows = [patches, flat.mean(1, keepdim=True), flat.std(1, keepdim=True)]
    cond = student.problem.pairs(part).cond
    if isinstance(cond, Tensor):
        rows.append(torch.nn.functional.one_hot(cond.long(), 11))
    return torch.cat([row.double() for row in rows], 1)


def scaled(train: Tensor, *others: Tensor) -> list[Tensor]:
    """Centred and scaled by the training pairs, with a column of ones."""
    mean, std = train.mean(0), train.std(0).clamp_min(1e-6)
    return [torch.cat([(x - mean) / std, x.new_ones(len(x), 1)], 1) for x in (train, *others)]


def clusters(points: Tensor, count: int, seed: int) -> Tensor:
    """Centres (K, F) of k-means from `count` random points; 30 rounds."""
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
    centres = points[order[:count]].clone()
    for _ in range(30):
        nearest = torch.cdist(points, centres).argmin(1)
        for k in range(count):
            if (nearest == k).any():
                centres[k] = points[nearest == k].mean(0)
    return centres


def residuals(student: Student, plan: TunedSolver) -> Tensor:
    """The ten main directions of the residuals of a plan on training and validation pairs,
    (M, 10)."""
    table = plan.table(student.problem.model.schedule)
    parts = []
    with torch.no_grad():
        for part in PARTS:
            for i in torch.arange(len(student.problem.pairs(part))).split(32):
                x, _ = student.sample(part, i, table)
                parts.append(student.residual(x, i, part).double())
    r = torch.cat(parts)
    u, s, _ = torch.linalg.svd(r - r.mean(0), full_matrices=False)
    return u[:, :10] * s[:10]


def study(task: Task, count: int) -> dict[str, Tensor]:
    """Distances on held-out seeds, (M,), of each way."""
    problem = task.problem
    student = Student(problem)
    held = Student(replace(problem, valid=task.held_out))
    every = torch.arange(len(problem.train)), torch.arange(len(problem.valid))
    base = task.learn(*every, None)
    further = task.learn(*every, base)
    found = {"one plan": losses(held, "valid", [further])[:, 0]}

    train, valid, unseen = scaled(
        statistics(student, "train"), statistics(student, "valid"), statistics(held, "valid")
    )
    both = residuals(student, base)
    nearest = torch.cdist(both, clusters(both, count, task.seed)).argmin(1)
    plans: Sequence[TunedSolver] = [base] * count
    for _ in range(ROUNDS):
        rows, others = nearest[: len(problem.train)], nearest[len(problem.train) :]
        plans = [
            task.learn((rows == k).nonzero()[:, 0], (others == k).nonzero()[:, 0], plan)
            if (rows == k).sum() >= 4
            else plan
            for k, plan in enumerate(plans)
        ]
        d = torch.cat([losses(student, part, plans) for part in PARTS])
        nearest = d.argmin(1)
    on_held = losses(held, "valid", plans)
    found[f"{count} plans, best"] = on_held.min(1).values

    known, d = torch.cat([train, valid]), d.clamp_min(1e-12).log()
    square = known.T @ known + RIDGE * len(known) * torch.eye(known.shape[1], dtype=known.dtype)
    weights = torch.linalg.solve(square, known.T @ d)
    chosen = (unseen @ weights).argmin(1)
    found[f"{count} plans, chosen"] = on_held.gather(1, chosen[:, None])[:, 0]

    centres = clusters(train, count, task.seed)
    own = [torch.cdist(x, centres).argmin(1) for x in (train, valid, unseen)]
    plans = [
        task.learn((own[0] == k).nonzero()[:, 0], (own[1] == k).nonzero()[:, 0], base)
        for k in range(count)
    ]
    found[f"{count} plans, clusters"] = losses(held, "valid", plans).gather(1, own[2][:, None])[
        :, 0
    ]
    return found


def interval(d: Tensor, base: Tensor) -> tuple[float, float]:
    """95 % of mean d / mean base over resampled seeds."""
    g = torch.Generator().manual_seed(0)
    rows = torch.randint(len(d), (DRAWS, len(d)), generator=g)
    ratios = d[rows].mean(1) / base[rows].mean(1)
    low, high = ratios.quantile(torch.tensor([0.025, 0.975], dtype=ratios.dtype)).tolist()
    return low, high


def table_of(results: dict[int, dict[str, Tensor]]) -> str:
    """One row per way, all seeds of learning together."""
    lines = [
        "| way | " + " | ".join(f"seed {seed}" for seed in results) + " | ratio to one plan |",
        "|---|" + "---|" * (len(results) + 1),
    ]
    base = torch.cat([found["one plan"] for found in results.values()])
    for way in next(iter(results.values())):
        each = [found[way] for found in results.values()]
        ratio, (low, high) = (
            float(torch.cat(each).mean() / base.mean()),
            interval(torch.cat(each), base),
        )
        means = " | ".join(f"{float(d.mean()):.5f}" for d in each)
        lines.append(f"| {way} | {means} | {ratio:.2f} [{low:.2f}, {high:.2f}] |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="fashion")
    parser.add_argument("--solver", default="dpmpp")
    parser.add_argument("--nfe", type=int, default=4)
    parser.add_argument("--plans", type=int, default=4, help="K")
    parser.add_argument("--pairs", type=int, default=128)
    parser.add_argument("--held-out", type=int, default=192)
    parser.add_argument("--seeds", type=int, default=2, help="of learning")
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    model, distance = zoo.load(args.model), zoo.perceptual()
    results = {}
    for seed in range(args.seeds):
        results[seed] = study(make_task(model, distance, args, seed), args.plans)
        print(table_of(results), flush=True)
    words = f"`{args.model}`, {args.solver}, {args.nfe} evaluations, {args.pairs} pairs"
    text = (
        f"Measured by `python benchmarks/per_sample.py`: {words}, {args.plans} plans, perceptual "
        f"distance on {args.held_out} held-out seeds.\n\n{table_of(results)}\n"
    )
    if args.page:
        write_bytes(args.page, text.encode())


def make_task(model: ld3.Model, distance: Distance, args: argparse.Namespace, seed: int) -> Task:
    recipe = make_preset("fast", args.nfe).recipe
    assert isinstance(recipe, ld3.PreconditionedAdam)
    teacher = Teacher(steps=20)
    pairs = {
        purpose: ld3.make_pairs(model, seeds_for(purpose, count, run), teacher)
        for purpose, count, run in (
            ("training", args.pairs, seed), ("validation", args.pairs // 3, seed),
            ("held-out", args.held_out, 0),
        )
    }  # fmt: skip
    solver = ld3.make_solver(args.solver)
    problem = ld3.Problem(
        model, solver, args.nfe, distance, pairs["training"], pairs["validation"], batch=32
    )
    return Task(problem, pairs["held-out"], recipe, seed)


if __name__ == "__main__":
    main()
