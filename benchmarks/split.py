"""What a split of a learned plan costs: answers handed over to the second part, or a new start.

Plans of the models inside the package, cut after two thirds, a half and a third of their steps; 16
seeds. Errors are root mean square distances to an accurate solution (60 steps of UniPC-3), before
decoding.

    ld3 learn --model fashion --solver dpmpp:3 --nfe 6 --preset fast --pairs 32 --held-out 16
    python benchmarks/split.py runs/*/plan.json
"""

import sys
from typing import Any

import torch
from torch import Tensor

import ld3
from ld3.export.files.ld3_sampler import sample_ld3
from ld3.export.numbers import record, solver_name
from ld3.plan import Plan
from ld3.schedules import Flow
from ld3.zoo.shipped import load

SEEDS = range(16)


def errors(plan: Plan) -> list[float]:
    """Of the whole plan, of a cut in the middle with answers handed over, and of new starts."""
    model, content = load(plan.model.name), record(plan)
    schedule, cond = model.schedule, model.conditions(SEEDS)
    flow = isinstance(schedule, Flow)
    denoise = ld3.bind(model, cond)
    x = ld3.prior(model, seeds=SEEDS)
    fine = ld3.knots(schedule, ld3.make_grid("edm", schedule, 60))
    exact = ld3.integrate(denoise, ld3.make_solver("unipc"), fine, x)
    sigmas = torch.tensor(content["sigmas"], dtype=torch.float64)
    start = x / schedule.prior_std * sigmas[0].item()

    def denoiser(x: Tensor, sigma: Tensor) -> Tensor:
        """x0 at a noise level, as tools ask for it."""
        level = sigma[0].double()
        t = schedule.time_at(torch.log((1 - level) / level) if flow else -level.log())
        return denoise(x if flow else x * schedule.log_alpha(t).exp().float(), t)

    def error(cut: int | None, memory: dict[str, Any] | None) -> float:
        parts = [sigmas] if cut is None else [sigmas[: cut + 1], sigmas[cut:]]
        state = start
        for part in parts:
            state = sample_ld3([content], denoiser, state, part, memory=memory)
        return (state - exact).square().mean().sqrt().item()

    steps = len(sigmas) - 1
    cuts = (steps // 3, steps // 2, 2 * steps // 3)
    return [error(None, None), error(cuts[1], {}), *(error(cut, None) for cut in cuts)]


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    print("| model | solver | NFE | whole | handed over | new start after 1/3, 1/2, 2/3 |")
    print("|---|---|---|---|---|---|")
    for path in sys.argv[1:]:
        plan = Plan.load(path)
        whole, handed, *anew = (f"{value:.4f}" for value in errors(plan))
        print(
            f"| `{plan.model.name}` | {solver_name(plan)} | {plan.nfe} | {whole} | {handed} | "
            f"{', '.join(anew)} |"
        )


main()
