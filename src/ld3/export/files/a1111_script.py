"""AUTOMATIC1111 and Forge: a schedule type and a sampler, both called NAME."""

NAME = "LD3"  # filled in by ld3 export
PLANS = []  # filled in by ld3 export


def ld3_schedule(n, sigma_min, sigma_max, device):
    """n steps: n + 1 noise levels. The ends are the plan's, whatever the settings say."""
    return sigmas_of(PLANS, n).to(device)


def ld3_sample(model, x, sigmas, extra_args=None, callback=None, disable=None):
    return sample_ld3(PLANS, model, x, sigmas, extra_args, callback, disable)


def register():
    """Add the schedule type NAME and the sampler NAME, once."""
    from modules import sd_samplers, sd_samplers_common, sd_samplers_kdiffusion, sd_schedulers

    if NAME not in [known.label for known in sd_schedulers.schedulers]:
        entry = sd_schedulers.Scheduler(NAME.lower(), NAME, ld3_schedule)
        sd_schedulers.schedulers.append(entry)
        everything = getattr(sd_schedulers, "all_schedulers", None)  # some forks keep two lists
        if everything is not None and everything is not sd_schedulers.schedulers:
            everything.append(entry)
        sd_schedulers.schedulers_map.update({entry.name: entry, entry.label: entry})
    if NAME not in [known.name for known in sd_samplers.all_samplers]:
        sampler = sd_samplers_common.SamplerData(
            NAME,
            lambda model: sd_samplers_kdiffusion.KDiffusionSampler(ld3_sample, model),
            [NAME.lower()],
            {"scheduler": NAME.lower()},
        )
        sd_samplers.all_samplers.append(sampler)
        sd_samplers.all_samplers_map[NAME] = sampler
        sd_samplers.set_samplers()


try:
    register()
except ImportError as missing:
    print(f"LD3: not registered: no {missing.name} here; the web UI must be 1.9 or newer")
