"""Samples of a plan, with the model that it names or with another."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ld3.errors import SpecError
from ld3.models import Model
from ld3.options import PipelineOptions
from ld3.plan import Plan
from ld3.report.time_left import Part
from ld3.runs.progress import Report, counted, expect, silent
from ld3.runs.ranks import ALONE, Ranks, device_of
from ld3.runs.session import OWN, batches
from ld3.runs.spec import BATCH, DTYPES
from ld3.zoo.loading import (
    PIPELINE,
    Loaded,
    is_missing_file,
    is_safe_to_open,
    load_model,
    of_model,
    with_batch,
)


def run_sample(
    plan: Plan,
    seeds: Sequence[int],
    device: str = "cpu",
    force: bool = False,
    batch: int | None = None,
    guidance: float | None = None,
    prompts: Sequence[str] = (),
    model: Model | str | None = None,
    ranks: Ranks = ALONE,
    report: Report = silent,
) -> Tensor:
    """Decoded samples of a plan, the same for a seed in any batch; on rank 0 all of them.

    `prompts` replace those that a pipeline's plan was learned with. `model` is a model, or the name
    of one, to use instead of the one that the plan names; it must fit unless `force` is given.
    """
    if batch is not None and batch < 1:
        raise SpecError(f"--batch: got {batch}, expected 1 or more")
    device = device_of(device)
    loaded = model_of_plan(plan, device, prompts, model, batch)
    if not force:
        plan.check_fits(loaded.model, loaded.digest)
    size = batch or BATCH
    sample = plan.sampler(loaded.model, device=device, batch=size, force=True)
    expect(report, [Part("samples", len(seeds) * plan.nfe)])
    more, made = counted(report, "samples", len(seeds)), []
    more(0)
    for part in ranks.share(
        lambda part: {"samples": sample(part, guidance=guidance)}, batches(seeds, size)
    ):
        more(len(part["samples"]))
        made += [part["samples"]] if ranks.is_first else []
    return torch.cat(made) if made else torch.empty(0)


def named_model(plan: Plan) -> str:
    """The name of the model in a plan, if it is safe to load: a plan of others must not choose code
    to run or something to download."""
    name = plan.model.name
    if name == OWN:
        raise SpecError(
            "model: got a plan that names none, because it was learned from Python; give --model "
            "package.module:function, or model= in Python"
        )
    if is_safe_to_open(name):
        return name
    if ":" not in name and not is_missing_file(name):
        raise SpecError(
            f"model: got a plan for {name!r}, which is no model of the package; give yours with "
            "--model: a checkpoint file, diffusers:FOLDER or package.module:function"
        )
    runs = "would be fetched" if name.startswith(PIPELINE) else "is code that would run"
    if is_missing_file(name):
        runs = "is not here"
    raise SpecError(
        f"model: got a plan for {name!r}, which {runs}; if you trust it, say so with --model {name}"
    )


def options_for(plan: Plan, name: str) -> PipelineOptions | None:
    """Options of a plan's model for the model `name`: a folder of diffusers, such as `ld3 convert`
    writes, has the configuration of its file inside."""
    options = plan.model.options
    if options is None or not name.startswith(PIPELINE):
        return options
    return options.model_copy(update={"config": None})


def model_of_plan(
    plan: Plan,
    device: str,
    prompts: Sequence[str] = (),
    model: Model | str | None = None,
    batch: int | None = None,
) -> Loaded:
    """The model that a plan was learned for."""
    if model is not None and not isinstance(model, str):
        return of_model(model, plan.model.name, device, learn=False)
    name = model or named_model(plan)
    options = options_for(plan, name)
    if options is not None:
        changes = {"latents": False} | ({"prompts": tuple(prompts)} if prompts else {})
        options = options.model_copy(update=changes)
    elif prompts:
        raise SpecError(f"prompt: got one for {plan.model.name}, expected a plan of a pipeline")
    dtype = plan.learned.spec.get("dtype")
    dtype = dtype if dtype in DTYPES else None
    options = with_batch(options, batch, name)
    return load_model(name, device, dtype, learn=False, options=options)
