"""Plans for numbers of evaluations that were not learned."""

import math

import torch
from torch import Tensor

from ld3.density import TRIED, bump, fine_lam, looked_up, shares
from ld3.errors import PlanError
from ld3.plan import MAX_STEPS, Member, Plan


def guess(plan: Plan, nfe: int) -> Plan:
    """A plan for a number of evaluations that was not learned, from the times of one that was.

    The plan is seen as a warp of the :mod:`bump <ld3.known_grids.bumps>` nearest to it: its
    point i of N has a share s(i/N) of that bump's steps before it. With n steps, point i has

        w s(i/n) + (1 - w) i/n,   w = max(0, 1 - |log2(n/N)|),   s linear in between,

    so that half or twice as many steps are a plain bump; all of it is stretched to the first and
    the last time of the plan. Network times are shifted by
    w N/n of the plan's shift there: shorter steps, smaller shifts. Corrections and
    guidance belong to one number of evaluations and are left out.
    """
    if plan.solver.table is not None:
        raise PlanError(
            f"nfe: got {nfe}, expected {plan.nfe}: the plan holds a table of the solver "
            f"{plan.solver.name!r} for that number only"
        )
    each = plan.nfe_per_step
    if nfe < each or nfe % each or nfe > MAX_STEPS:
        raise PlanError(
            f"nfe: got {nfe}, expected a multiple of {each} from {each} to {MAX_STEPS} for "
            f"{plan.solver.name}"
        )
    schedule, own, steps = plan.noise_schedule, len(plan.times) - 1, nfe // each
    weight = max(0.0, 1 - abs(math.log2(steps / own)))
    lam, net = schedule.lam(plan.grid.times), schedule.lam(plan.grid.net_times)
    u, v = (torch.linspace(0, 1, n + 1, dtype=torch.float64, device="cpu") for n in (own, steps))

    at = fine_lam(schedule)

    def apart(share: Tensor) -> float:
        return float((looked_up(u, share, at) - lam).abs().max())

    share = min((shares(bump(at, *one), at) for one in TRIED), key=apart)
    warped = torch.lerp(v, looked_up(v, u, looked_up(lam, at, share)), weight)
    there = looked_up(warped, share, at)
    there = lam[0] + (there - there[0]) * (lam[-1] - lam[0]) / (there[-1] - there[0])
    shift = weight * own / steps * looked_up(v, u, net - lam)
    ends = (schedule.t_min, schedule.t_max)
    times, net_times = (schedule.time_at(x).clamp(*ends) for x in (there, there + shift))
    times[0], times[-1] = plan.times[0], plan.times[-1]
    return plan.with_member(Member(nfe=nfe, times=times.tolist(), net_times=net_times.tolist()))
