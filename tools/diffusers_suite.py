"""diffusers' own scheduler tests on LD3Scheduler, from a checkout of diffusers.

    git clone --depth 1 https://github.com/huggingface/diffusers
    python tools/diffusers_suite.py diffusers [--page docs/tools/diffusers-suite.md]

Nothing is copied: the test classes are imported from the checkout and run with the installed
diffusers. `SchedulerCommonTest` runs as it is, for each kind of plan. The full loops of four stock
schedulers compare with sums of these schedulers, which are no plan's; their loops run as they are,
and the sample is compared with the plan's own table or, from the middle on, with the same loop
after `set_begin_index`.
"""

import argparse
import importlib
import logging
import subprocess
import sys
import unittest
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from ld3.diffusers import LD3Scheduler  # noqa: E402
from ld3.plan import Plan  # noqa: E402
from plans import make_plan  # noqa: E402

NFE = 10  # as the loops of diffusers ask for
TUNED = {"corrections": True, "net_times": True}
PLAIN = {"corrections": False, "net_times": False}
SCALED = ("Euler", "Heun")  # their loops begin with init_noise_sigma
KINDS: dict[str, tuple[Plan, float | None]] = {  # a plan, and sigma_data
    "SD, euler": (make_plan("sd", "euler", steps=NFE, **PLAIN), None),
    "SD, dpmpp-2": (make_plan("sd", "dpmpp", 2, steps=NFE, **PLAIN), None),
    "SD, dpmpp-3, learned": (make_plan("sd", "dpmpp", 3, steps=NFE, **TUNED), None),
    "SD v, unipc-3, learned": (
        make_plan("sd", "unipc", 3, prediction="v", steps=NFE, **TUNED),
        None,
    ),
    "DDPM, ipndm-4": (make_plan("ddpm", "ipndm", 4, steps=NFE, **PLAIN), None),
    "LDM, deis-3": (make_plan("ldm", "deis", 3, steps=NFE, **PLAIN), None),
    "iDDPM, heun": (make_plan("iddpm", "heun", steps=NFE // 2, **PLAIN), None),
    "SD, dpm-single, learned": (make_plan("sd", "dpm-single", 2, steps=NFE, **TUNED), None),
    "flow, euler": (make_plan("flow", "euler", prediction="flow", steps=NFE, **PLAIN), None),
    "flow, unipc-2, learned": (
        make_plan("flow", "unipc", 2, prediction="flow", steps=NFE, **TUNED),
        None,
    ),
    "EDM, dpmpp-2": (make_plan("edm", "dpmpp", 2, prediction="x0", steps=NFE, **PLAIN), None),
    "EDM preconditioned, dpmpp-2": (
        make_plan("edm", "dpmpp", 2, prediction="x0", steps=NFE, **PLAIN),
        0.5,
    ),
}
LOOPS = {  # file: class
    "dpm_multi": "DPMSolverMultistepSchedulerTest",
    "unipc": "UniPCMultistepSchedulerTest",
    "euler": "EulerDiscreteSchedulerTest",
    "heun": "HeunDiscreteSchedulerTest",
}
WITH_NOISE, NO_NOISE = "test_full_loop_with_noise", "test_full_loop_no_noise"
REASONS = {
    "test_trained_betas": "does not apply: the test gives other betas than the plan's, refused",
    "test_compatibles": "no stock scheduler runs a network that is not preconditioned; with "
    "preconditioning, the configs differ in an empty list of defaults",
}


class Watched(LD3Scheduler):
    """Remembers what its last run was given, and gave."""

    last: list[tuple[Any, ...]] = []  # noqa: RUF012  # output, timestep, state, next state

    def set_timesteps(self, *args: Any, **words: Any) -> None:
        super().set_timesteps(*args, **words)
        Watched.last = []

    def step(self, model_output: Any, timestep: Any, sample: Any, **words: Any) -> Any:
        found = super().step(model_output, timestep, sample, **words)
        Watched.last.append((model_output, timestep, sample, found.prev_sample))
        return found


def case(stock: Any, plan: Plan, sigma_data: float | None, kind: Any = LD3Scheduler) -> Any:
    """A test class of diffusers with our scheduler in it."""

    def config(self: object, **words: Any) -> dict[str, Any]:
        given = {} if sigma_data is None else {"sigma_data": sigma_data}
        return {"plans": [plan.model_dump(mode="json")], **given, **words}

    words = {
        "scheduler_classes": (kind,),
        "forward_default_kwargs": (("num_inference_steps", plan.nfe),),
        "default_num_inference_steps": plan.nfe,
        "num_inference_steps": plan.nfe,
        "get_scheduler_config": config,
    }
    return type(stock.__name__, (stock,), words)


def common(stock: Any, plan: Plan, sigma_data: float | None) -> dict[str, bool]:
    """Each common test: whether it passes."""
    kind = case(stock, plan, sigma_data)
    found = {}
    for name in unittest.TestLoader().getTestCaseNames(kind):
        result = unittest.TestResult()
        kind(name)(result)
        found[name] = result.wasSuccessful()
    return found


def loop(stock: Any, name: str, plan: Plan, sigma_data: float | None) -> bool:
    """A loop of diffusers: whether each step is that of a scheduler whose start was set by hand.

    The test then compares sums with those of its own scheduler, which fails and says nothing.
    """
    result = unittest.TestResult()
    test = case(stock, plan, sigma_data, Watched)(name)
    test(result)
    if result.errors:
        print(f"{stock.__name__}: {result.errors[0][1].splitlines()[-1]}", file=sys.stderr)
        return False
    begin = plan.nfe - len(Watched.last)
    again = LD3Scheduler.from_plan(plan, sigma_data=sigma_data)
    again.set_begin_index(begin)
    fits = (begin > 0) == (name == WITH_NOISE)
    for output, timestep, state, found in Watched.last:
        wanted = again.step(output, timestep, state).prev_sample
        fits = fits and bool((found - wanted).abs().max() <= 1e-6 * wanted.abs().max())
    if name == WITH_NOISE and sigma_data is None:
        t, noise = plan.state_times[begin], plan.noise_schedule
        alpha, sigma = noise.log_alpha(t).exp().float(), noise.log_sigma(t).exp().float()
        scale = again.init_noise_sigma if stock.__name__.startswith(SCALED) else 1.0
        x = scale * alpha * test.dummy_sample_deter + sigma * test.dummy_noise_deter
        fits = fits and bool(torch.allclose(Watched.last[0][2], x, rtol=1e-5))
    return fits


def page(checkout: Path, passed: dict[str, dict[str, bool]]) -> str:
    """The table as a page."""
    import diffusers

    commit = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short=10", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    counts = Counter(name for found in passed.values() for name, good in found.items() if good)
    names = list(next(iter(passed.values())))
    lines = [
        "# diffusers' own scheduler tests",
        "",
        "Made by `python tools/diffusers_suite.py CHECKOUT`, which runs the test classes of a "
        "checkout of diffusers on",
        f"`LD3Scheduler`. Here: tests of {commit or 'a folder without git'}, run with diffusers "
        f"{diffusers.__version__}, for {len(passed)} kinds of plans:",
        "",
        *(f"- {name}" for name in passed),
        "",
        "A *learned* plan has corrections and network times of its own. A full loop compares with "
        "sums of a stock scheduler,",
        "which no plan has. Here its steps are compared with those of a scheduler whose first "
        "step was set by hand.",
        "",
        "| test | plans that pass | the others |",
        "|---|---|---|",
    ]
    for name in names:
        missing = [kind for kind, found in passed.items() if not found[name]]
        reason = REASONS.get(name.partition(" ")[0], "")
        others = f"{'; '.join(missing)}: {reason}" if len(missing) < len(passed) else reason
        lines.append(
            f"| `{name}` | {counts[name]} of {len(passed)} | {others if missing else 'none'} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="folder of a diffusers checkout")
    parser.add_argument("--page", type=Path, help="write the table here")
    args = parser.parse_args()
    sys.path.insert(0, str(args.checkout.resolve()))
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    stock = importlib.import_module("tests.schedulers.test_schedulers").SchedulerCommonTest
    loops = {
        name: getattr(importlib.import_module(f"tests.schedulers.test_scheduler_{file}"), name)
        for file, name in LOOPS.items()
    }
    passed: dict[str, dict[str, bool]] = {}
    for kind, (plan, sigma_data) in KINDS.items():
        found = common(stock, plan, sigma_data)
        for owner, test in loops.items():
            for name in (NO_NOISE, WITH_NOISE):
                short = owner.removesuffix("SchedulerTest")
                found[f"{name} of {short}"] = loop(test, name, plan, sigma_data)
        passed[kind] = found
        print(f"{kind}: {sum(found.values())} of {len(found)}", flush=True)
    text = page(args.checkout, passed)
    if args.page is not None:
        args.page.write_text(text)
    print(text)
    bad = [
        f"{kind}: {name}"
        for kind, found in passed.items()
        for name, good in found.items()
        if not good and not (name in REASONS and (name != "test_compatibles" or "EDM" in kind))
    ]
    sys.exit(f"failed: {', '.join(bad)}" if bad else 0)


if __name__ == "__main__":
    main()
