"""The cost of a step outside the network: ours against the schedulers of diffusers.

Same tensors, same trivial network (eps-prediction), the conversion to x0 included on both sides.
`plan` is the compiled table that sampling a fixed grid runs; `solver` is the differentiable step
that learning runs. Times are medians over interleaved rounds in one process; only ratios matter.

    python benchmarks/steps.py
"""

import statistics
import time
from collections.abc import Callable

import torch
from diffusers import DPMSolverMultistepScheduler, EulerDiscreteScheduler, UniPCMultistepScheduler
from torch import Tensor

import ld3

STEPS, ROUNDS = 8, 60
SHAPES = ((1, 4, 64, 64), (8, 3, 64, 64))
SD = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


def theirs(name: str, order: int) -> object:
    if name == "dpmpp":
        return DPMSolverMultistepScheduler(
            solver_order=order, final_sigmas_type="sigma_min", lower_order_final=True, **SD
        )
    if name == "unipc":
        return UniPCMultistepScheduler(solver_order=order, final_sigmas_type="sigma_min", **SD)
    return EulerDiscreteScheduler(**SD)


def run_theirs(scheduler: object, out: Tensor, x: Tensor) -> float:
    """Seconds of STEPS calls to step(); setting the timesteps is not counted."""
    scheduler.set_timesteps(STEPS)  # type: ignore[attr-defined]
    timesteps = scheduler.timesteps  # type: ignore[attr-defined]
    start = time.perf_counter()
    for t in timesteps:
        scaled = scheduler.scale_model_input(x, t)  # type: ignore[attr-defined]
        del scaled
        x = scheduler.step(out, t, x, return_dict=False)[0]  # type: ignore[attr-defined]
    return time.perf_counter() - start


def timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


@torch.inference_mode()
def main() -> None:
    torch.set_num_threads(1)
    schedule = ld3.make_schedule("sd")
    grid = ld3.make_grid("logsnr", schedule, STEPS)
    print(f"microseconds a step outside the network, {STEPS} steps, one thread")
    columns = ("diffusers", "plan", "ratio", "solver", "ratio")
    print(f"{'method':<10}{'tensor':<14}" + "".join(f"{column:>10}" for column in columns))
    for name, order in (("euler", 1), ("dpmpp", 2), ("dpmpp", 3), ("unipc", 2), ("unipc", 3)):
        solver = ld3.make_solver(name, order)
        scheduler = theirs(name, order)
        for shape in SHAPES:
            x, out = torch.randn(shape), torch.randn(shape)
            model = ld3.FunctionModel(lambda x, t, cond, out=out: out, schedule, "eps", shape[1:])
            denoise, network = ld3.bind(model), ld3.bind_network(model)
            k = ld3.knots(schedule, grid)
            table = ld3.compile_table(solver, k, model.prediction)
            k.phi  # noqa: B018 (looked up once per grid, like the timesteps of a scheduler)

            def by_solver() -> Tensor:
                return ld3.integrate(denoise, solver, k, x)  # noqa: B023

            def by_plan() -> Tensor:
                return table.run(network, x)  # noqa: B023

            rounds = [
                (run_theirs(scheduler, out, x), timed(by_plan), timed(by_solver))
                for _ in range(ROUNDS + 5)
            ][5:]
            their, plan, own = (
                statistics.median(column) / STEPS * 1e6 for column in zip(*rounds, strict=True)
            )
            print(
                f"{f'{name}-{order}':<10}{'x'.join(map(str, shape)):<14}{their:>10.0f}"
                f"{plan:>10.0f}{plan / their:>10.2f}{own:>10.0f}{own / their:>10.2f}"
            )


if __name__ == "__main__":
    main()
