"""AUTOMATIC1111 and Forge: a plan in the lists of schedule types and samplers."""

from ld3.export.files.ld3_model import check_model
from ld3.export.files.ld3_plans import sigmas_of
from ld3.export.files.ld3_sampler import sample_ld3


def schedule_function(plans):
    """n steps: n + 1 noise levels. The ends are the plan's, whatever the settings say."""

    def schedule(n, sigma_min, sigma_max, inner_model, device):
        check_model(plans[0], inner_model)
        return sigmas_of(plans, n).to(device)

    return schedule


def sample_function(plans):
    """For steps that were not learned, and for another schedule type, the nearest plan runs."""

    def sample(model, x, sigmas, extra_args=None, callback=None, disable=None):
        return sample_ld3(plans, model, x, sigmas, extra_args, callback, disable, foreign=True)

    return sample


def register(name, plans):
    """Add the schedule type and the sampler, once."""
    from modules import sd_samplers, sd_samplers_common, sd_samplers_kdiffusion, sd_schedulers

    if name not in [known.label for known in sd_schedulers.schedulers]:
        entry = sd_schedulers.Scheduler(
            name.lower(), name, schedule_function(plans), need_inner_model=True
        )
        sd_schedulers.schedulers.append(entry)
        everything = getattr(sd_schedulers, "all_schedulers", None)  # some forks keep two lists
        if everything is not None and everything is not sd_schedulers.schedulers:
            everything.append(entry)
        sd_schedulers.schedulers_map.update({entry.name: entry, entry.label: entry})
    if name not in [known.name for known in sd_samplers.all_samplers]:
        function = sample_function(plans)
        sampler = sd_samplers_common.SamplerData(
            name,
            lambda model: sd_samplers_kdiffusion.KDiffusionSampler(function, model),
            [name.lower()],
            {"scheduler": name.lower()},
        )
        sd_samplers.all_samplers.append(sampler)
        sd_samplers.all_samplers_map[name] = sampler
        sd_samplers.set_samplers()


def register_all(packs):
    """{name: plans}; outside of a web UI, or in one without these lists, a line says so."""
    try:
        for name, plans in packs.items():
            register(name, plans)
    except (ImportError, AttributeError, TypeError) as error:
        print(
            f"LD3: not registered ({error}); expected the lists of samplers and schedule types of "
            "AUTOMATIC1111 1.9 or newer, Forge, reForge or Forge Neo"
        )
