"""`ld3 import`."""

from pathlib import Path
from typing import Any, get_args

import click

from ld3.cli.options import FILE, Finite, option, print_lines, together
from ld3.cli.say import say
from ld3.errors import SpecError


@click.command("import")
@click.argument("source")
@together(
    option("--model", shown="none: --schedule and --prediction",
           help="Model that the plan is for, as in `ld3 learn`."),
    option("--schedule", "noise", shown="the model's",
           help="Without --model: noise schedule, a name of `ld3 schedules`."),
    option("--prediction", shown="the model's",
           help="Without --model: what the network predicts: eps, x0, v or flow."),
    option("--steps", type=click.IntRange(1, 1000), help="Number of steps.", shown="the source's"),
    option("--as", "kind", default="auto",
           help="What the numbers of a list are: sigmas, timesteps, times, or auto."),
    option("--solver", shown="the source's",
           help="Solver: a name of `ld3 solvers`, NAME:ORDER or NAME:ORDER:VARIANT."),
    option("--shift", type=Finite(0, 1000), shown="the model's",
           help="Shift of the flow on which a table of weights was learned."),
    option("--guidance", type=Finite(0, 100), default=1.0,
           help="Scale of classifier-free guidance that the plan is for."),
    option("--out", type=FILE, default=Path("plan.json"), help="File of the plan."),
)  # fmt: skip
def import_(
    source: str,
    model: str | None,
    noise: str | None,
    prediction: str | None,
    solver: str | None,
    guidance: float,
    out: Path,
    **options: Any,
) -> None:
    """Make a plan of a schedule that others published.

    SOURCE is a name of `ld3 methods`, diffusers:CLASS or diffusers:FOLDER of a stock scheduler, a
    file with a list or a table, or a list such as 14.6,2.9,0.03.
    """
    from ld3.importing import import_plan
    from ld3.plan import ModelPart
    from ld3.predictions import Prediction
    from ld3.report.plans import plan_lines
    from ld3.runs.spec import read_solver
    from ld3.schedules import make_schedule
    from ld3.zoo.loading import load_model

    if model is not None and (noise or prediction):
        raise SpecError("--schedule: got --model as well; give one of them")
    if model is not None:
        loaded = load_model(model, learn=False)
        schedule = loaded.model.schedule
        part = ModelPart(
            name=loaded.name, digest=loaded.digest, shape=list(loaded.model.shape),
            prediction=loaded.model.prediction, conditions=loaded.conditions, guidance=guidance,
            options=loaded.options,
        )  # fmt: skip
    elif noise is None or prediction not in get_args(Prediction):
        raise SpecError(
            f"--model: got none, with --schedule {noise or 'not given'} and --prediction "
            f"{prediction or 'not given'}; give --model, or both --schedule NAME and --prediction, "
            f"one of {', '.join(get_args(Prediction))}"
        )
    else:
        schedule = make_schedule(noise)
        part = ModelPart.model_validate(
            {"name": f"any {noise}", "digest": "none", "shape": [1], "prediction": prediction,
             "guidance": guidance}
        )  # fmt: skip
    method = None if solver is None else read_solver(solver)
    made = import_plan(source, schedule=schedule, model=part, solver=method, **options)
    made.plan.save(out)
    print_lines(plan_lines(made.plan))
    print_lines(f"note     {note}" for note in made.notes)
    say(f"plan     {out}")


COMMANDS = (import_,)
