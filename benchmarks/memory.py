"""Peak memory of a backward pass through N = 4 and N = 20 steps of a small U-Net.

With rematerialisation (`checkpoint=True`) the activations of one network call are alive at a time,
so that memory does not grow with the number of steps. Counted from torch's own record of
allocations, not from the process, so that nothing but tensors is in it.

    python benchmarks/memory.py
"""

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import ld3
from ld3.models import Cond
from ld3.zoo.networks import NO_LABEL, UNet, denoise_edm

BATCH = 4


def peak(model: ld3.Model, steps: int, checkpoint: bool) -> int:
    """The largest sum of living allocations, in bytes, above what was there before."""
    times = ld3.make_grid("edm", model.schedule, steps).times.clone().requires_grad_()
    x = ld3.prior(model, range(BATCH))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        k = ld3.knots(model.schedule, ld3.TimeGrid.of(times))
        denoise = ld3.bind(model, checkpoint=checkpoint)
        ld3.integrate(denoise, ld3.make_solver("unipc"), k, x).square().sum().backward()
    events = record.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    living = highest = 0
    for _, change in changes:
        living += change
        highest = max(highest, living)
    return highest


def main() -> None:
    torch.manual_seed(0)
    net = UNet(channels=1).requires_grad_(False)

    def forward(x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        label = torch.full((len(x),), NO_LABEL, device=x.device)
        return denoise_edm(net, x, t.expand(len(x)), label, 0.5)

    model = ld3.FunctionModel(forward, ld3.EDM(), "x0", (1, 28, 28))
    print(f"peak memory of forward and backward, UniPC-3, U-Net, batch {BATCH} of 1x28x28")
    for checkpoint in (True, False):
        few, many = peak(model, 4, checkpoint), peak(model, 20, checkpoint)
        name = "rematerialised" if checkpoint else "all kept"
        print(
            f"{name:<16}N = 4: {few / 1e6:6.1f} MB   N = 20: {many / 1e6:6.1f} MB   "
            f"ratio {many / few:.2f}"
        )


if __name__ == "__main__":
    main()
