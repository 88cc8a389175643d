"""Runs learned plans in tools that speak k-diffusion: a denoiser (x, sigma) -> x0 and sigmas."""

import torch

from ld3.export.files.ld3_model import check_model, keeping_fractions, told_level
from ld3.export.files.ld3_plans import NEAR, find_part, nearest_part


def by_sigma(plan):
    """What tools multiply unit noise by before the first step: here the first level."""
    return plan["sigmas"][0]


def as_it_is(plan):
    """What tools divide the sample by afterwards."""
    return 1.0


@torch.no_grad()
def sample_ld3(
    plans,
    model,
    x,
    sigmas,
    extra_args=None,
    callback=None,
    disable=None,
    begun=by_sigma,
    ended=as_it_is,
    memory=None,
    foreign=False,
):
    """The sampler: `model(x, sigma, **extra_args)` gives x0; returns the sample.

    `sigmas` are those of a plan or a part of them. A part that ends early returns x at its last
    level. `memory`, a dict, then keeps the answers, and the part that goes on from there, with this
    or with another model, continues with them; without it the later part starts anew, its first
    answer standing for all that came before.
    """
    if len(sigmas) < 2:
        return x
    part = find_part(plans, sigmas)
    plan, first, last = nearest_part(plans, sigmas, foreign) if part is None else part
    check_model(plan, model)
    if "guided" in plan and not hasattr(getattr(model, "inner_model", None), "ld3_guided"):
        raise ValueError(
            "LD3: got a plan with guidance from another guider, expected the GUIDER of LD3 Guider "
            "in SamplerCustomAdvanced"
        )
    extra_args = extra_args or {}
    each, ones = plan["per_step"], x.new_ones([x.shape[0]])
    level = float(sigmas[0])
    if level <= plan["sigmas"][-1]:
        return x  # as clean as a plan leaves it

    def ask(state, alpha, told, step):  # x0 at a state, as the tool shows it
        shown = state / alpha
        x0 = model(shown, told * ones, **extra_args)
        if callback is not None:
            now = sigmas[min(step, len(sigmas) - 1)]
            callback({"x": shown, "i": step, "sigma": now, "sigma_hat": now, "denoised": x0})
        return x0

    begin, answers = first * each, []
    base = begin  # answers[0] stands for the answers 0 .. base
    with keeping_fractions(model):
        if abs(level - plan["sigmas"][first]) > NEAR * level:  # between two levels of the plan
            state, answer = _first_order(plan, first, level, x, ask)
            answers, base, begin = [answer], begin + each - 1, begin + each
        else:
            start = plan["prior"] / (plan["alphas"][0] * begun(plan)) if first == 0 else 1.0
            state = x * (plan["alphas"][first] * start)
            if first > 0 and _continues(memory, plan, first, x):
                answers = [answer.to(x) for answer in memory["answers"]]
                base = memory["base"]
        for n in range(begin, last * each):
            x0 = ask(state, plan["told_alphas"][n], plan["told"][n], n // each - first)
            answers.append(plan["on_state"][n] * state + plan["on_x0"][n] * x0)
            row = plan["weights"][n]
            weights = [sum(row[: base + 1]), *row[base + 1 :]]
            state = plan["ratios"][n] * state
            for weight, answer in zip(weights, answers, strict=True):
                state = state + weight * answer
    if last == len(plan["sigmas"]) - 1:
        return _keep(model, extra_args, state, ended(plan))
    x = state / plan["alphas"][last]
    if memory is not None:
        kept = [answer.cpu() for answer in answers]
        memory.update(plan=plan, step=last, x=x.cpu(), answers=kept, base=base)
    return x


def _first_order(plan, step, level, x, ask):
    """From a level near the beginning of a step to the end of that step, at first order."""
    told = float(told_level(plan, torch.tensor([level], dtype=torch.float64)))
    flow = plan["kind"] == "flow"

    def alpha(sigma):  # of the state X in x0; its noise is alpha sigma, on flows sigma
        return 1 - sigma if flow else (1 + sigma**2) ** -0.5 if plan["kind"] == "vp" else 1.0

    def noise(sigma):
        return sigma if flow else alpha(sigma) * sigma

    after = plan["sigmas"][step + 1]
    state = x if flow else x * alpha(level)
    x0 = ask(state, 1.0 if flow else alpha(told), told, 0)
    eps = (state - alpha(told) * x0) / noise(told)
    if plan["answers"] == "x0":
        ratio = noise(after) / noise(level)
        return ratio * state + (alpha(after) - ratio * alpha(level)) * x0, x0
    if plan["answers"] == "eps":
        ratio = alpha(after) / alpha(level)
        return ratio * state + (noise(after) - ratio * noise(level)) * eps, eps
    return state + (after - level) * (eps - x0), eps - x0


def _continues(memory, plan, first, x):
    """Whether x is where the part before ended."""
    if not memory or memory["plan"] is not plan or memory["step"] != first:
        return False
    before = memory["x"].to(x)
    return before.shape == x.shape and bool((before - x).norm() <= 1e-3 * x.norm())


def _keep(model, extra_args, state, factor):
    """The sample; what a mask of ComfyUI keeps is the given latent, without the noise of the last
    level."""
    sample = state * factor
    mask, latent = extra_args.get("denoise_mask"), getattr(model, "latent_image", None)
    if mask is None or latent is None:
        return sample
    return torch.where(mask.to(sample) == 0, latent.to(sample) * factor, sample)
