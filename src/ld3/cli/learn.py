"""`ld3 learn`."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from ld3.cli import options as shared
from ld3.cli.options import (
    flag,
    given,
    noted_if_missing,
    option,
    print_lines,
    together,
    working,
)
from ld3.cli.say import say


@click.command()
@together(
    shared.model_option,
    option("--solver", shown="dpmpp",
           help="Solver: a name of `ld3 solvers`, NAME:ORDER or NAME:ORDER:VARIANT."),
    option("--order", type=int, shown="the solver's",
           help="Order of the solver: alias of --solver NAME:ORDER."),
    option("--variant", shown="the solver's",
           help="Variant of the solver: alias of --solver NAME:ORDER:VARIANT."),
    option("--nfe", multiple=True, shown="5",
           help="Number of network evaluations. 4,6: a plan for each. 4-10: one plan for all."),
    flag("--refine", default=None, help="Fine-tune the plan for each NFE of a range."),
    flag("--gradient-free", default=None,
         help="Learn by forward passes only, for networks without gradients."),
    option("--learn", shown="the preset's",
           help="What is learned: times, times+net or times+net+coefficients; the last two also "
           "with +guidance."),
    option("--passes", type=int, shown="none",
           help="Number of network passes of a plan with guidance, where a guided evaluation is "
           "two. Finds the NFE and the guided evaluations; --nfe 5,6 tries these only."),
    option("--slope", shown="auto",
           help="Slopes in time: exact, secant, or auto, which tests the network."),
    option("--pairs", type=int, help="Training pairs.", shown="the preset's"),
    option("--valid", type=int, help="Validation pairs.", shown="the preset's, or half of --pairs"),
    option("--guidance", multiple=True, shown="1",
           help="Scale of classifier-free guidance. 1,2: a plan for each. 1-4: one plan for all."),
    option("--seed", type=int, shown="0",
           help="Random seed of a run: its training noise and the order of batches."),
    option("--samples", type=int, shown="150",
           help="Samples for the Fréchet distance of models in `ld3 models`, and with --data; "
           "0: none."),
    shared.old_samples,
    shared.data_option,
    shared.network_options,
    flag("--tensorboard", default=None, help="Write losses for TensorBoard."),
)  # fmt: skip
@shared.run_options(("the preset's",) * 3, ("Folder of runs and their cache.", "runs"))
def learn(file: Path | None, resume: bool, rank_timeout: float, **options: Any) -> None:
    """Learn at which times to sample: a plan for a model, a solver and an NFE."""
    from ld3.report.plans import family_lines, learned_lines
    from ld3.runs.expected import learn_parts
    from ld3.runs.family import run_family
    from ld3.runs.learn import LearnResult, run_learn
    from ld3.runs.pictures import write_pictures
    from ld3.runs.spec import RunSpec, listed, options_of

    settings = options_of(given(options, "nfe", "guidance"), file)
    scales = listed(settings.pop("guidance", [])) or [None]
    specs = [RunSpec.read({**settings, "guidance": scale}) for scale in scales]
    with working(specs[0].device, rank_timeout) as (ranks, bar):
        begin = time.perf_counter()
        bar.expect(part for spec in specs for part in learn_parts(spec))
        for spec in specs:
            results: Iterable[LearnResult]
            if spec.family is None:
                results = run_learn(spec, bar, fresh=not resume, ranks=ranks)
            else:
                results = [run_family(spec, bar, fresh=not resume, ranks=ranks)]
            for result in results:
                if not ranks.is_first:
                    continue
                plan, folder = result.plan, result.folder
                bar.clear()
                print_lines((family_lines if plan.family else learned_lines)(plan))
                with noted_if_missing("no images"):
                    for picture in write_pictures(plan, folder, spec.device, spec.model):
                        say(f"image    {picture}")
                say(f"seconds  {time.perf_counter() - begin:.0f}")
                say(f"plan     {folder / 'plan.json'}")
                begin = time.perf_counter()


COMMANDS = (learn,)
