"""Learned plans as numbers, for tools that speak k-diffusion: which plan, and which part of it.

Needs torch alone and runs on Python 3.10. A plan is a dict of numbers:

    sigmas       (N+1) noise levels of the solver, falling
    `told`       (M)   noise levels at which the network is evaluated, in order
    alphas       (N+1) and `told_alphas` (M): what these levels multiply x by to get the state X
    on_state     (M)   and on_x0 (M): a_n = on_state[n] X_n + on_x0[n] x0_n
    answers            what a_n is: x0, the noise eps or the flow velocity
    ratios       (M)   and weights: X_{n+1} = ratios[n] X_n + sum_{j <= n} weights[n][j] a_j
    per_step           network evaluations a step, M = per_step N
    prior              standard deviation of X at the first level
    guided             of plans with guidance: evaluations that also run without the condition;
    guidance     (M)   row j: weights of their directions up to j; scale: what they were learned for
    others             guesses of the sigmas for half to twice as many steps
    model              the model it was learned for: prediction, noise levels
"""

import json
import math
from pathlib import Path

import torch

NEAR = 1e-4  # two levels closer than this, as a share, are the same


def read_plans(*folders):
    """{name: plans} of every plan file in these folders; a broken file is named and left out."""
    found = {}
    for path in sorted(file for folder in folders for file in Path(folder).glob("*.json")):
        try:
            pack = json.loads(path.read_text(encoding="utf-8"))
            if pack["format"] != "ld3-pack-1" or not pack["plans"]:
                raise ValueError("another format")
            found[str(pack["name"])] = pack["plans"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"LD3: {path.name} was left out: not a plan file of `ld3 export` ({error})")
    return found


def steps_known(plans):
    """The numbers of steps that were learned."""
    return sorted({len(plan["sigmas"]) - 1 for plan in plans})


def plan_of(plans, steps):
    """The plan with this number of steps, or None."""
    for plan in plans:
        if len(plan["sigmas"]) - 1 == steps:
            return plan
    return None


def sigmas_of(plans, steps, denoise=1.0):
    """The noise levels for this number of steps; a part of them for image to image.

    For steps that were not learned these are the guesses of the nearest plan; beyond half or twice
    as many, interpolated evenly in log(sigma) or, on flows, in log(sigma / (1 - sigma)).
    """
    plan = plan_of(plans, steps)
    if plan is None:
        nearest = min(plans, key=lambda p: abs(len(p["sigmas"]) - 1 - steps))
        guess = min(nearest["others"], key=lambda sigmas: abs(len(sigmas) - 1 - steps))
        levels = _interpolated(nearest, guess, steps)
        print(
            f"LD3: {steps} steps were not learned (learned: {steps_known(plans)}); the sigmas are "
            f"guessed from those of {len(nearest['sigmas']) - 1}"
        )
    else:
        levels = plan["sigmas"]
    kept = min(max(round(steps * denoise), 0), steps)
    return torch.tensor(levels[steps - kept :], dtype=torch.float32)


def _place(plan, sigma):
    """log(sigma) or, on flows, log(sigma / (1 - sigma)): where steps are compared."""
    sigma = max(sigma, 1e-12)
    if plan["kind"] == "flow":
        return math.log(sigma) - math.log(max(1 - sigma, 1e-12))
    return math.log(sigma)


def _interpolated(plan, levels, steps):
    places = [_place(plan, level) for level in levels]
    found = [levels[0]]
    for i in range(1, steps):
        at = i * (len(levels) - 1) / steps
        left = min(int(at), len(levels) - 2)
        u = places[left] + (at - left) * (places[left + 1] - places[left])
        found.append(1 / (1 + math.exp(-u)) if plan["kind"] == "flow" else math.exp(u))
    return [*found, levels[-1]]


def find_part(plans, sigmas):
    """The plan that has these sigmas in a row, its first and its last step; or None."""
    wanted = [float(s) for s in sigmas]
    for plan in plans:
        own = plan["sigmas"]
        for first in range(len(own) - len(wanted) + 1):
            last = first + len(wanted) - 1
            if all(
                abs(a - b) <= NEAR * a for a, b in zip(own[first : last + 1], wanted, strict=True)
            ):
                return plan, first, last
    return None


def nearest_part(plans, sigmas, foreign):
    """For sigmas that no plan has: the end of a plan, from the first of these levels down.

    Of all plans the one whose number of steps below that level is nearest to the number of sigmas.
    `foreign`: whether sigmas may end elsewhere than plans do, as those of another scheduler.
    """
    wanted = [float(s) for s in sigmas]
    shown = ", ".join(f"{s:.6g}" for s in wanted[:12])
    ends = [plan["sigmas"][-1] for plan in plans]
    ours = any(abs(wanted[-1] - end) <= NEAR * end for end in ends)
    if not ours and (not foreign or wanted[-1] > 1.01 * max(ends)):
        raise ValueError(
            f"LD3: got sigmas [{shown}], expected those of a plan with {steps_known(plans)} steps "
            "or a part of them: its solver works on its own sigmas; take them from the same plan"
        )

    def first_step(plan):
        at = _place(plan, wanted[0])
        return min(
            range(len(plan["sigmas"]) - 1), key=lambda i: abs(_place(plan, plan["sigmas"][i]) - at)
        )

    def misfit(plan):
        total = len(plan["sigmas"]) - 1
        return abs(total - first_step(plan) - len(wanted) + 1), -total

    plan = min(plans, key=misfit)
    first, total = first_step(plan), len(plan["sigmas"]) - 1
    part = f"all {total} steps" if first == 0 else f"the last {total - first} of {total} steps"
    print(
        f"LD3: {len(wanted) - 1} steps from sigma {wanted[0]:.4g} are not in the plan (learned: "
        f"{steps_known(plans)}); the sampler runs {part}, the nearest that was learned"
    )
    return plan, first, total
