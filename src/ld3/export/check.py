"""The self-check of every exporter: run what was exported with a known network, and compare.

The network is the exact denoiser of a Gaussian mixture under the plan's noise schedule, so that a
wrong time, level or weight shows. The times that the network gets and the sample are compared.
"""

import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ld3.errors import ExportError
from ld3.models import bind_network
from ld3.plan import Plan
from ld3.schedules import Flow
from ld3.seeds import noise
from ld3.tool_units import from_network_units
from ld3.zoo.toy import Mixture, mixture

DIMENSION, COUNT = 24, 16
EXACT = 1e-4  # of the sample's size


@dataclass
class Spy:
    """A network for a plan that remembers the times it got."""

    plan: Plan
    model: Mixture
    noise: Tensor  # (COUNT, DIMENSION) unit variance
    told: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, plan: Plan) -> "Spy":
        means = 0.8 * noise(range(100, 105), (DIMENSION,), torch.float64)
        model = mixture(means, 0.3, plan.noise_schedule, prediction=plan.model.prediction)
        return cls(plan, model, noise(range(COUNT), (DIMENSION,), torch.float64))

    @property
    def start(self) -> Tensor:
        return self.plan.noise_schedule.prior_std * self.noise

    def output(self, x: Tensor, t: float) -> Tensor:
        """The network's own output at the plan's time t."""
        self.told.append(t)
        now = torch.tensor(t, dtype=torch.float64, device="cpu")
        return self.model.forward(x.double(), now, None)

    def denoiser(self, x: Tensor, sigma: Tensor) -> Tensor:
        """x0 as k-diffusion's samplers call it, at a noise level (B,)."""
        level = sigma[0].double().cpu()
        schedule = self.plan.noise_schedule
        lam = torch.log((1 - level) / level) if isinstance(schedule, Flow) else -level.log()
        t = schedule.time_at(lam)
        self.told.append(t.item())
        inner = x.double() / (1 - level) if isinstance(schedule, Flow) else x.double()
        return self.model.denoise(inner, torch.exp(-lam)).to(x.dtype)

    def sample(self, scheduler: Any, inside: bool = False) -> Tensor:
        """By a scheduler of diffusers with its timesteps set, in the loop of a pipeline; `inside`
        moves times into the range of the schedule."""
        schedule = self.plan.noise_schedule
        scale = getattr(scheduler, "scale_model_input", lambda x, timestep: x)
        x = self.noise * float(getattr(scheduler, "init_noise_sigma", 1.0))
        for timestep in scheduler.timesteps:
            t = from_network_units(schedule, float(timestep))
            t = min(max(t, schedule.t_min), schedule.t_max) if inside else t
            out = self.output(scale(x, timestep), t)
            x = scheduler.step(out, timestep, x, return_dict=False)[0]
        return x

    def ours(self) -> Tensor:
        """The sample as this library draws it."""
        return self.plan.table().run(bind_network(self.model), self.start)

    def loss(self, sample: Tensor) -> float:
        """RMS difference to ours, as a share of its size."""
        ours = self.ours()
        return float((sample.double() - ours).norm() / ours.norm())

    def check(self, sample: Tensor, where: str, trap: str, slack: float = 1e-3) -> None:
        """`slack`: how far the times may be, as a share of the range of times."""
        schedule = self.plan.noise_schedule
        wanted = self.plan.table().net_times.tolist()
        span = slack * (schedule.t_max - schedule.t_min)
        near = len(wanted) == len(self.told) and all(
            abs(a - b) <= max(span, slack * abs(b)) for a, b in zip(self.told, wanted, strict=True)
        )
        if not near:
            raise ExportError(
                f"{where}: the network got the times {_show(self.told)}, expected "
                f"{_show(wanted)}; {trap}"
            )
        apart = self.loss(sample)
        if not apart < EXACT:
            raise ExportError(
                f"{where}: the sample is {apart:.2g} of its size away from ours, expected less "
                f"than {EXACT:g}; {trap}"
            )


def _show(values: Sequence[float]) -> str:
    return f"[{', '.join(f'{v:.5g}' for v in values[:12])}]"


def load_file(path: Path, name: str) -> ModuleType:
    """An exported Python file as a module; it is ours, made a moment ago."""
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # for any name that ends in .py
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings, and without what diffusers logs about numbers of one's own."""
    logger = logging.getLogger("diffusers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def with_modules(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """These modules in place of what is installed, for a while; None cannot be imported."""
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
        sys.modules.update({name: old for name, old in before.items() if old is not None})
