"""The identity of a model: everything that samples depend on, and nothing else."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ld3
from ld3 import FunctionModel, RunSpec, run_learn
from ld3.model_checks import fingerprint, identity_of, identity_of_function
from ld3.zoo.toy import gaussian

CLASSES = torch.eye(4)
SCHEDULE = ld3.make_schedule("sd")


class Network(nn.Module):
    """A few weights that know the time and the class."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(3, 8, generator=generator) / 8
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor, t: Tensor, cond: Tensor) -> Tensor:
        time = torch.stack([t, t.sin()]).expand(len(x), 2).to(x.dtype)
        return torch.cat([x, time, cond[:, :3]], 1) @ self.weight.T


def model(
    network: nn.Module | None = None,
    conditions: Callable[[object], Tensor] | None = None,
    decoder: Callable[[Tensor], Tensor] | None = None,
    **changes: object,
) -> FunctionModel:
    own = network or Network()
    made = FunctionModel(
        lambda x, t, cond: own(x, t, cond),
        SCHEDULE,
        "eps",
        (3,),
        make_conditions=conditions or (lambda seeds: CLASSES[[s % 4 for s in seeds]]),  # type: ignore[attr-defined]
        make_null=torch.zeros_like,
        decoder=decoder or (lambda x: 2 * x),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def small_change() -> nn.Module:
    """One weight, by one part in a million."""
    network = Network()
    network.weight[1, 2] *= 1 + 1e-6
    return network


def rare_condition(seeds: object) -> Tensor:
    """Differs for one seed only."""
    rows = CLASSES[[s % 4 for s in seeds]].clone()  # type: ignore[attr-defined]
    rows[[s == 37 for s in seeds]] *= 0.5  # type: ignore[attr-defined]
    return rows


CHANGES: dict[str, Callable[[], FunctionModel]] = {
    "prediction": lambda: model(prediction="v"),
    "schedule": lambda: model(schedule=ld3.make_schedule("ldm")),
    "decoder": lambda: model(decoder=lambda x: 2.00001 * x),
    "null condition": lambda: model(make_null=torch.ones_like),
    "conditions": lambda: model(conditions=rare_condition),
    "a weight": lambda: model(small_change()),
    "dtype": lambda: model(Network().double(), dtype=torch.float64),
    "another function": lambda: model(function=lambda x, t, cond: Network()(x, t, cond) + 1e-6 * x),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_another_model(change: str) -> None:
    assert identity_of(CHANGES[change]()) != identity_of(model())


def test_the_same_model_is_the_same() -> None:
    assert identity_of(model()) == identity_of(model())
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = identity_of(model())
        torch.set_num_threads(2)
        assert identity_of(model()) == one
    finally:
        torch.set_num_threads(threads)


def test_weights_are_found_in_closures_partials_and_methods() -> None:
    """Weights that the measured answers do not show count all the same."""

    class Silent(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((2,), value))

        def forward(self, x: Tensor, t: Tensor, cond: object) -> Tensor:
            return x * t + 0 * self.weight[0].detach()

    def of(value: float, how: str) -> str:
        net = Silent(value)
        if how == "closure":
            made = FunctionModel(lambda x, t, c: net(x, t, c), ld3.EDM(), "x0", (2,))
        elif how == "partial":
            made = FunctionModel(partial(_call, net), ld3.EDM(), "x0", (2,))
        else:
            made = FunctionModel(net.forward, ld3.EDM(), "x0", (2,))
        return identity_of(made)

    for how in ("closure", "partial", "method"):
        assert of(1.0, how) == of(1.0, how)
        assert of(1.0, how) != of(2.0, how), how


def _call(net: nn.Module, x: Tensor, t: Tensor, cond: object) -> Tensor:
    answer: Tensor = net(x, t, cond)
    return answer


def test_a_model_may_name_itself() -> None:
    class Named(type(gaussian([0.0], [1.0]))):  # type: ignore[misc]
        identity = "mine"

    first, second = (Named(*_parts(m)) for m in ([0.0], [0.5]))
    assert identity_of(first) == identity_of(second)
    assert fingerprint(first) != fingerprint(second)


def _parts(mean: list[float]) -> tuple[object, ...]:
    made = gaussian(mean, [1.0])
    return made.mean, made.std, made.schedule


def test_a_distance_is_known_by_what_it_does() -> None:
    x, y = torch.ones(2, 3), torch.zeros(2, 3)
    weights = [torch.ones(3), torch.tensor([1.0, 1.0, 1.001])]
    own = [partial(_weighted, w) for w in weights]
    assert identity_of_function(own[0], x, y) == identity_of_function(own[0], x, y)
    assert identity_of_function(own[0], x, y) != identity_of_function(own[1], x, y)


def _weighted(weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return (weight * (x - y)).square().mean(1)


def test_a_corrected_model_learns_anew_in_the_same_folder(tmp_path: Path) -> None:
    """A prediction corrected from eps to v once kept the old plan, and the old pairs."""
    small = {"preset": "fast", "pairs": 8, "held_out": 8, "nfe": (4,), "recipe": {"epochs": 1}}

    def learned(prediction: str, out: Path, fresh: bool = False) -> dict[str, float]:
        spec = RunSpec(out=out, **small)
        (result,) = run_learn(spec, model=model(prediction=prediction), fresh=fresh)
        return {name: score.distance for name, score in result.scores.items()}

    clean = learned("v", tmp_path / "clean")
    wrong = learned("eps", tmp_path / "used")
    assert learned("v", tmp_path / "used") == clean != wrong
    assert learned("v", tmp_path / "used", fresh=True) == clean
    assert learned("eps", tmp_path / "used") == wrong
