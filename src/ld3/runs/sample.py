"""Samples of a plan."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ld3.errors import SpecError
from ld3.models import bind_network, prior
from ld3.plan import Plan
from ld3.scores import BATCH
from ld3.spec import DTYPES
from ld3.zoo.loading import load_model


def run_sample(
    plan: Plan,
    seeds: Sequence[int],
    device: str,
    force: bool,
    batch: int = BATCH,
    guidance: float | None = None,
    prompts: Sequence[str] = (),
) -> Tensor:
    """Decoded samples of a plan, the same for a seed whatever the batch.

    `prompts` replace those that a pipeline's plan was learned with.
    """
    guidance = plan.model.guidance if guidance is None else guidance
    asked = plan.learned.get("spec")
    dtype = asked.get("dtype") if isinstance(asked, dict) else None
    options = plan.model.options
    if options is not None:
        options = options.model_copy(
            update={"latents": False} | ({"prompts": tuple(prompts)} if prompts else {})
        )
    elif prompts:
        raise SpecError(f"prompt: got one for {plan.model.name}, wanted a plan of a pipeline")
    dtype = dtype if dtype in DTYPES else None
    loaded = load_model(plan.model.name, device, dtype, learn=False, options=options)
    if not force:
        plan.check_fits(loaded.model, loaded.digest)
    table, model = plan.table(), loaded.model
    parts = []
    for first in range(0, len(seeds), batch):
        part = seeds[first : first + batch]
        network = bind_network(model, model.conditions(part), guidance=guidance)
        with torch.no_grad():
            parts.append(model.decode(table.run(network, prior(model, part, device))))
    return torch.cat(parts)
