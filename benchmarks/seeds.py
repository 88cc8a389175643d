"""How much does a learned plan depend on the seed of learning?

    python benchmarks/seeds.py --page docs/results/seeds.md

A cell is a solver, a number of evaluations, a preset and how many seeds it is learned with. A seed
has its own training and validation pairs and its own order of batches; held-out seeds are the same
for all. Printed for each cell:

    median, worst        over the seeds, of the mean distance on held-out seeds
    worst / median
    worst / best grid    the best known grid is picked on the held-out seeds, in its favour
    evaluations          of the network, mean over the seeds, without the teacher

Runs are stored in the folder `--out`: a second call with more seeds or cells only learns those.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from ld3.known_grids import GRIDS
from ld3.metrics.fidelity import per_sample
from ld3.runs.cache import Cache
from ld3.runs.learn import make_run, run_folder
from ld3.runs.plans import known_table
from ld3.runs.run import Run, learn_run
from ld3.runs.session import Session, open_session, reference_for
from ld3.runs.spec import RunSpec
from ld3.runs.teacher_check import with_checked_teacher
from ld3.seeds import seeds_for
from ld3.store import write_bytes
from ld3.table import Table

CELLS = (
    "dpmpp:4:fast:6", "unipc:4:fast:6", "ipndm:4:fast:6", "dpmpp:6:fast:6", "dpmpp:6:standard:4",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """What a cell came to."""

    cell: str
    distances: Sequence[float]  # on held-out seeds, one per seed of learning
    grid: float  # of the best known grid
    evaluations: float

    def __str__(self) -> str:
        middle, worst = median(self.distances), max(self.distances)
        solver, nfe, preset, _ = self.cell.split(":")
        return (
            f"| {solver} | {nfe} | `{preset}` | {len(self.distances)} | {middle:.5f} | "
            f"{worst:.5f} | {worst / middle:.2f} | {worst / self.grid:.2f} | "
            f"{self.evaluations:,.0f} |"
        )


HEAD = (
    "| solver | NFE | preset | seeds | median | worst | worst / median | worst / best grid | "
    "evaluations |\n|---|---|---|---|---|---|---|---|---|"
)


def distance(session: Session, table: Table, count: int) -> float:
    """The mean distance to the teacher on held-out seeds."""
    made = session.samples(table, seeds_for("held-out", count))
    target = session.held_out(count).target
    errors: list[float] = per_sample(session.distance, made, target, session.batch).tolist()
    return mean(errors)


def best_grid(session: Session, run: Run, count: int) -> float:
    """The lowest distance of a known grid."""
    tables = [known_table(session, run.solver, run.steps, name) for name in GRIDS]
    return min(distance(session, table, count) for table in tables)


def runs_of(session: Session, args: argparse.Namespace, cell: str) -> Iterator[Run]:
    """The runs of a cell, one per seed."""
    solver, nfe, preset, seeds = cell.split(":")
    for seed in range(int(seeds)):
        spec = RunSpec.read(
            {"model": args.model, "solver": solver, "nfe": nfe, "preset": preset, "seed": seed,
             "out": args.out}
        )  # fmt: skip
        teacher = spec.make_preset(int(nfe)).teacher
        own = session.with_teacher(teacher, reference_for(teacher))
        own = with_checked_teacher(own, spec, spec.make_solver(), int(nfe))
        run = make_run(spec, own, int(nfe))
        yield run.stored(run_folder(spec, run, run.key))


def measure(session: Session, args: argparse.Namespace, cell: str) -> Row:
    """All seeds of one cell."""
    distances, evaluations, grid = [], [], 0.0
    for run in runs_of(session, args, cell):
        learned = learn_run(run)
        distances.append(distance(run.session, run.session.table(learned.tuned), args.held_out))
        evaluations.append(learned.evaluations)
        grid = grid or best_grid(run.session, run, args.held_out)
        print(
            f"{cell} seed {run.seed}: {distances[-1]:.5f} from {learned.start}, "
            f"validation {learned.validation:.5f}, roughness {learned.starts.roughness:.2f}, "
            f"{learned.evaluations} evaluations",
            flush=True,
        )
    return Row(cell, distances, grid, mean(evaluations))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="fashion")
    parser.add_argument("--cells", nargs="+", default=CELLS, metavar="SOLVER:NFE:PRESET:SEEDS")
    parser.add_argument("--held-out", type=int, default=96)
    parser.add_argument("--out", type=Path, default=Path("runs/seeds"))
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    spec = RunSpec(model=args.model, out=args.out)
    session = open_session(spec, spec.make_preset(5).teacher, Cache(args.out / "cache"))
    rows = []
    for cell in args.cells:
        rows.append(measure(session, args, cell))
        print(rows[-1], flush=True)
    table = "\n".join([HEAD, *map(str, rows)])
    print(f"\n{table}")
    if args.page:
        text = (
            f"Measured by `python benchmarks/seeds.py`: `{args.model}`, distance to the teacher on "
            f"{args.held_out} held-out seeds.\n\n{table}\n"
        )
        write_bytes(args.page, text.encode())


if __name__ == "__main__":
    main()
