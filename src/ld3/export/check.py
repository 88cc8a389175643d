"""The self-check of every exporter: run what was exported with a known network, and compare.

The network is the exact denoiser of a Gaussian mixture under the plan's noise schedule, so that a
wrong time, level or weight shows. Compared are the times that the network is told and the sample.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from ld3.errors import ExportError
from ld3.models import bind_network
from ld3.plan import Plan
from ld3.predictions import from_x0
from ld3.schedules import Flow
from ld3.seeds import noise
from ld3.zoo.toy import Mixture, mixture

DIMENSION, COUNT = 24, 16
EXACT = 1e-4  # of the sample's size


@dataclass
class Spy:
    """A network for a plan that remembers what it was told."""

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
        """x0 as k-diffusion asks for it, at a noise level (B,)."""
        level = sigma[0].double().cpu()
        schedule = self.plan.noise_schedule
        lam = torch.log((1 - level) / level) if isinstance(schedule, Flow) else -level.log()
        t = schedule.time_at(lam)
        self.told.append(t.item())
        inner = x.double() / (1 - level) if isinstance(schedule, Flow) else x.double()
        return self.model.denoise(inner, torch.exp(-lam)).to(x.dtype)

    def network(self, x: Tensor, t: Tensor) -> Tensor:
        """The output behind the denoiser, for stand-ins that convert by themselves."""
        schedule = self.plan.noise_schedule
        alpha, sigma = schedule.log_alpha(t).exp(), schedule.log_sigma(t).exp()
        x0 = self.model.denoise(x.double() / alpha, sigma / alpha)
        self.told.append(t.item())
        return from_x0(self.plan.model.prediction, x0, x.double(), alpha, sigma)

    def ours(self) -> Tensor:
        """The sample as this library draws it."""
        return self.plan.table().run(bind_network(self.model), self.start)

    def loss(self, sample: Tensor) -> float:
        """RMS difference to ours, as a share of its size."""
        ours = self.ours()
        return float((sample.double() - ours).norm() / ours.norm())

    def check(self, sample: Tensor, where: str, trap: str, slack: float = 1e-3) -> None:
        """`slack`: how far the told times may be, as a share of the range of times."""
        schedule = self.plan.noise_schedule
        wanted = self.plan.table().net_times.tolist()
        span = slack * (schedule.t_max - schedule.t_min)
        near = len(wanted) == len(self.told) and all(
            abs(a - b) <= max(span, slack * abs(b)) for a, b in zip(self.told, wanted, strict=True)
        )
        if not near:
            raise ExportError(
                f"{where}: the network was told {_show(self.told)}, wanted {_show(wanted)}; {trap}"
            )
        apart = self.loss(sample)
        if not apart < EXACT:
            raise ExportError(
                f"{where}: the sample is {apart:.2g} of its size away from ours, wanted less than "
                f"{EXACT:g}; {trap}"
            )


def _show(values: Sequence[float]) -> str:
    return f"[{', '.join(f'{v:.5g}' for v in values[:12])}]"


def load_file(path: Path, name: str) -> ModuleType:
    """An exported Python file as a module; it is ours, made a moment ago."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ExportError(f"{path}: cannot be loaded as Python")
    module = module_from_spec(spec)
    run: Callable[[ModuleType], None] = spec.loader.exec_module
    run(module)
    return module


@contextmanager
def with_modules(modules: Mapping[str, ModuleType]) -> Iterator[None]:
    """These modules in place of what is or is not installed, for a while."""
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
