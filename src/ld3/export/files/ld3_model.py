"""A plan and the model it is used with: whether they fit, and the network times.

A tool reads x0 from the network's output o at level sigma as x0 = a x + b o, and shows it c x. The
three numbers say what the network predicts, and the table of levels on which noise schedule.
"""

import math
from contextlib import contextmanager

import torch


def sampling_of(model):
    """The part of a denoiser that knows its noise levels (`sigmas`) and how outputs are read."""
    bare = None
    for _ in range(6):
        for part in (
            model,
            getattr(model, "model_sampling", None),
            getattr(model, "predictor", None),
        ):
            levels = getattr(part, "sigmas", None)
            if torch.is_tensor(levels) and levels.numel() >= 100:
                if hasattr(part, "calculate_denoised") or hasattr(part, "get_scalings"):
                    return part
                bare = bare if bare is not None else part
        below = getattr(model, "inner_model", None)
        model = below if below is not None else getattr(model, "model", None)
        if model is None:
            break
    return bare


def reading_of(sampling, sigma):
    """(a, b, c) of a tool at level sigma, or None where it does not say."""
    level, one, zero = torch.tensor([sigma]), torch.ones(1, 1), torch.zeros(1, 1)
    if hasattr(sampling, "calculate_denoised"):
        shown = getattr(sampling, "calculate_input", lambda level, x: x)(level, one)
        return (
            float(sampling.calculate_denoised(level, zero, one)),
            float(sampling.calculate_denoised(level, one, zero)),
            float(shown),
        )
    if hasattr(sampling, "get_scalings"):
        numbers = [float(number) for number in sampling.get_scalings(level)]
        return (1.0, *numbers) if len(numbers) == 2 else tuple(numbers)
    return None


def readings(sigma):
    """(a, b, c) of what networks predict, by kind and prediction."""
    norm = math.sqrt(1 + sigma**2)
    return {
        ("vp", "eps"): (1.0, -sigma, 1 / norm),
        ("vp", "v"): (1 / norm**2, -sigma / norm, 1 / norm),
        ("vp", "x0"): (0.0, 1.0, 1 / norm),
        ("flow", "flow"): (1.0, -sigma, 1.0),
    }


def check_model(plan, model):
    """Refuse a model whose prediction or noise schedule is not the plan's, in one line.

    What a tool does not say about its model cannot be compared and is let pass.
    """
    sampling = sampling_of(model)
    if sampling is None:
        return
    kind, own = plan["kind"], plan["model"]["prediction"]
    known, got = readings(0.5), reading_of(sampling, 0.5)
    levels = sampling.sigmas.detach().cpu().double().flatten().sort().values
    if got is not None and (kind, own) in known and not _near(got, known[kind, own]):
        said = [key[1] for key, numbers in known.items() if _near(got, numbers)]
        _refuse(plan, said[0] if said else "another quantity", levels)
    if bool(levels[-1] <= 1.0001) != (kind == "flow"):
        _refuse(plan, "another quantity" if kind == "flow" else "flow", levels)
    if not _same_levels(plan, levels):
        _refuse(plan, own, levels)


def _same_levels(plan, levels):
    """Tables of trained levels must agree; of others the plan's range must be inside."""
    if plan["kind"] == "flow":
        return True  # a shift moves levels, not what they mean
    table, (low, high) = plan["model"]["table"], plan["model"]["levels"]
    if table and len(levels) == table["count"]:
        found = [levels[i].item() for i in table["at"]]
        return all(abs(a / b - 1) < 0.02 for a, b in zip(found, table["sigmas"], strict=True))
    return bool(0.9 * levels[0] <= low and high <= 1.1 * levels[-1])


def _near(got, wanted):
    return all(abs(a - b) <= 1e-3 for a, b in zip(got, wanted, strict=True))


def _refuse(plan, said, levels):
    words = {"eps": "the noise", "v": "v", "x0": "the image", "flow": "the flow velocity"}
    own, (low, high) = plan["model"]["prediction"], plan["model"]["levels"]
    raise ValueError(
        f"LD3: the plan for {plan['model']['name']} fits models that predict "
        f"{words.get(own, own)} at sigma {low:.4g} to {high:.4g}, got one that predicts "
        f"{words.get(said, said)} at sigma {levels[0]:.4g} to {levels[-1]:.4g}; use a plan that "
        "was learned for this model"
    )


def fractional_step(log_sigmas, sigma):
    """The trained step at level sigma with its fraction, for models with a table of levels.

    Between two trained steps log(alpha) = -log(1 + sigma^2)/2 is linear in the step.
    """
    table = torch.log1p(torch.exp(2 * log_sigmas.cpu().double()))  # some devices have no float64
    at = torch.log1p(sigma.cpu().double() ** 2)
    right = torch.searchsorted(table, at).clamp(1, len(table) - 1)
    share = (at - table[right - 1]) / (table[right] - table[right - 1])
    return (right - 1 + share.clamp(0, 1)).view(sigma.shape).float().to(sigma.device)


@contextmanager
def keeping_fractions(model):
    """Network times with their fractions while a run lasts, in tools that round them.

    The rounding method is covered on that one object, and uncovered at the end whatever happens.
    """
    sampling = sampling_of(model)
    table = getattr(sampling, "log_sigmas", None)
    rounds = (
        table is not None
        and hasattr(sampling, "timestep")
        and not sampling.timestep(sampling.sigmas[:1]).is_floating_point()
    )
    if not rounds:
        yield
        return
    sampling.timestep = lambda sigma: fractional_step(table, sigma)
    try:
        yield
    finally:
        del sampling.timestep


def told_level(plan, sigma):
    """The level the network gets in place of sigma (a tensor): the plan's at its own sigmas,
    between them interpolated in the logarithm. For other levels and samplers than the plan's."""
    own = torch.tensor(plan["sigmas"][:-1], dtype=torch.float64)
    told = torch.tensor(plan["told_steps"], dtype=torch.float64)
    shift = torch.log(told / own).flip(0)  # by rising sigma
    own = own.log().flip(0)
    at = sigma.cpu().double().clamp(min=1e-12).log()
    if len(own) == 1:
        return (at + shift[0]).exp().to(sigma)
    right = torch.searchsorted(own, at).clamp(1, len(own) - 1)
    share = ((at - own[right - 1]) / (own[right] - own[right - 1])).clamp(0, 1)
    moved = at + torch.lerp(shift[right - 1], shift[right], share)
    return moved.exp().to(sigma)


def told_scale(plan, sigma, told):
    """By what x at level sigma is multiplied so that the network, given another, sees the same."""
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
