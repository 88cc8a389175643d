"""Runs learned plans in tools that speak k-diffusion: a denoiser (x, sigma) -> x0 and sigmas.

Needs torch alone and runs on Python 3.10. A plan is a dict of numbers:

    sigmas       (N+1) noise levels of the solver, falling
    told         (M)   noise levels at which the network is asked, in order
    alphas       (N+1) and told_alphas (M): what these levels multiply x by to get the state X
    on_state     (M)   and on_x0 (M): a_n = on_state[n] X_n + on_x0[n] x0_n
    ratios       (M)   and weights: X_{n+1} = ratios[n] X_n + sum_{j <= n} weights[n][j] a_j
    per_step     network evaluations a step, M = per_step N
    start, end   factors between the tool's x and X, at the first level and for the sample
    others       guesses of the sigmas for half to twice as many steps
"""

import math

import torch


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
        levels = _interpolated(guess, steps, nearest["kind"] == "flow")
        print(
            f"LD3: {steps} steps were not learned (learned: {steps_known(plans)}); the sigmas are "
            f"guessed from those of {len(nearest['sigmas']) - 1}"
        )
    else:
        levels = plan["sigmas"]
    kept = min(max(round(steps * denoise), 0), steps)
    return torch.tensor(levels[steps - kept :], dtype=torch.float32)


def _interpolated(levels, steps, flow):
    def there(s):
        return math.log(s / (1 - s)) if flow else math.log(s)

    def back(u):
        return 1 / (1 + math.exp(-u)) if flow else math.exp(u)

    found = [levels[0]]
    for i in range(1, steps):
        at = i * (len(levels) - 1) / steps
        left = min(int(at), len(levels) - 2)
        low, high = there(levels[left]), there(levels[left + 1])
        found.append(back(low + (at - left) * (high - low)))
    return [*found, levels[-1]]


def find_run(plans, sigmas):
    """The plan that ends with these sigmas, and the step at which they begin."""
    wanted = [float(s) for s in sigmas]
    for plan in plans:
        own = plan["sigmas"]
        first = len(own) - len(wanted)
        if 0 <= first < len(own) - 1 and all(
            abs(a - b) <= 1e-4 * a for a, b in zip(own[first:], wanted, strict=True)
        ):
            return plan, first
    shown = ", ".join(f"{s:.6g}" for s in wanted[:12])
    raise ValueError(
        f"LD3: got sigmas [{shown}], wanted those of a plan with {steps_known(plans)} steps: a "
        "plan's solver works on its own sigmas alone; take them from the same export"
    )


@torch.no_grad()
def sample_ld3(plans, model, x, sigmas, extra_args=None, callback=None, disable=None):
    """The sampler: `model(x, sigma, **extra_args)` gives x0; returns the sample."""
    plan, first = find_run(plans, sigmas)
    extra_args = extra_args or {}
    begin = first * plan["per_step"]
    state = x * (plan["alphas"][first] * (plan["start"] if first == 0 else 1.0))
    ones = x.new_ones([x.shape[0]])
    answers = []
    for n in range(begin, len(plan["told"])):
        shown = state / plan["told_alphas"][n]
        denoised = model(shown, plan["told"][n] * ones, **extra_args)
        answers.append(plan["on_state"][n] * state + plan["on_x0"][n] * denoised)
        if callback is not None:
            i = (n - begin) // plan["per_step"]
            level = sigmas[i]
            callback({"x": shown, "i": i, "sigma": level, "sigma_hat": level, "denoised": denoised})
        row = plan["weights"][n]
        weights = [sum(row[: begin + 1]), *row[begin + 1 :]]
        state = plan["ratios"][n] * state
        for weight, answer in zip(weights, answers, strict=True):
            state = state + weight * answer
    return state * plan["end"]


def told_level(plan, sigma):
    """The level the network is told in place of sigma (a tensor): the plan's at its own sigmas,
    between them interpolated in the logarithm. For other samplers than `sample_ld3`."""
    own = torch.tensor(plan["sigmas"][:-1], dtype=torch.float64, device=sigma.device)
    told = torch.tensor(plan["told_steps"], dtype=torch.float64, device=sigma.device)
    shift = torch.log(told / own).flip(0)  # by rising sigma
    own = own.log().flip(0)
    at = sigma.double().clamp(min=1e-12).log()
    if len(own) == 1:
        return (sigma.double() * shift[0].exp()).to(sigma.dtype)
    right = torch.searchsorted(own, at).clamp(1, len(own) - 1)
    share = ((at - own[right - 1]) / (own[right] - own[right - 1])).clamp(0, 1)
    moved = at + torch.lerp(shift[right - 1], shift[right], share)
    return moved.exp().to(sigma.dtype)


def told_scale(plan, sigma, told):
    """By what x at level sigma is multiplied so that the network, told another, sees the same."""
    if plan["kind"] != "vp":
        return torch.ones_like(sigma)
    return torch.sqrt((told**2 + 1) / (sigma**2 + 1))


def answer_for(plan, x, sigma, scaled, told, x0):
    """What a sampler at level sigma is answered: x0, or for methods that work on the noise the x0
    that has the noise which the network saw."""
    if plan["form"] == "x0":
        return x0
    if plan["kind"] == "flow":
        noise = (scaled - (1 - told) * x0) / told
        return (x - sigma * noise) / (1 - sigma)
    return x - sigma * (scaled - x0) / told
