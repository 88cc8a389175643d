"""Ready for a GPU although tests run on the CPU.

With torch's default device set to `meta`, any tensor made without naming its device is on the
wrong one and the arithmetic fails, as it would with a model on a GPU. And no step may wait for the
device: reading a value back (`.item()`, `bool(tensor)`) is an error inside the loop.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ld3 import (
    METHODS,
    Solver,
    TimeGrid,
    bind,
    compile_table,
    integrate,
    knots,
    make_grid,
    make_schedule,
    make_solver,
    prior,
)
from ld3.model_checks import check_model
from ld3.schedules import SCHEDULES
from ld3.zoo.toy import gaussian, image_mixture, mixture


@pytest.fixture
def _elsewhere() -> Iterator[None]:
    with torch.device("meta"):
        yield


@pytest.mark.usefixtures("_elsewhere")
def test_the_mode_catches_what_it_should() -> None:
    with pytest.raises(RuntimeError, match="meta"):
        torch.ones(2) + torch.ones(2, device="cpu")


@pytest.mark.usefixtures("_elsewhere")
def test_solvers_name_their_device(solver: Solver) -> None:
    model = mixture([[-0.6, 0.1], [0.6, 0.3]], 0.2)
    times = make_grid("edm", model.schedule, 5).times.clone().requires_grad_()
    k = knots(model.schedule, TimeGrid.of(times))
    x = prior(model, range(3))
    out = integrate(bind(model, checkpoint=True), solver, k, x)
    (slope,) = torch.autograd.grad(out.sum(), times)
    with torch.no_grad():
        again = compile_table(solver, k).run(bind(model), x)
    assert out.device.type == slope.device.type == again.device.type == "cpu"


@pytest.mark.usefixtures("_elsewhere")
@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_schedules_and_grids_name_their_device(name: str) -> None:
    schedule = make_schedule(name)
    for method in METHODS:
        grid = make_grid(method, schedule, 4).checked(schedule)
        assert grid.times.device.type == "cpu"
        assert knots(schedule, grid).phi[0][0].device.type == "cpu"


@pytest.mark.usefixtures("_elsewhere")
def test_models_name_their_device() -> None:
    for model in (gaussian([0.0, 1.0], [0.5, 0.3]), image_mixture(shape=(1, 8, 8))):
        check_model(model)


class NoReadBack(TorchDispatchMode):
    """Refuses operations that copy a value from the device to the program."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.is_nonzero.default,
            torch.ops.aten.equal.default,
        ):
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


def test_no_step_waits_for_the_device(solver: Solver) -> None:
    model = mixture([[-0.6, 0.1], [0.6, 0.3]], 0.2)
    k = knots(model.schedule, make_grid("edm", model.schedule, 5))
    x = prior(model, range(3))
    with NoReadBack():
        out = integrate(bind(model), solver, k, x)
    assert bool(torch.isfinite(out).all())
    table = compile_table(solver, k)
    again = table.run(bind(model), x)  # its numbers are read once, before the first loop
    with NoReadBack():
        table.run(bind(model), x)
    assert (again - out).abs().max() < 1e-3


def test_reading_back_would_be_caught() -> None:
    with NoReadBack(), pytest.raises(AssertionError, match="waits"):
        torch.ones(1).item()
    model = mixture([[0.0]], 0.2)
    with NoReadBack(), pytest.raises(AssertionError, match="waits"):
        make_solver("euler").step(
            lambda x, t: x * float(t),
            knots(model.schedule, make_grid("edm", model.schedule, 2)),
            0,
            prior(model, [0]),
            (),
        )


def test_distances_go_where_the_samples_are() -> None:
    """`meta` stands for any device that is not the CPU."""
    from ld3.zoo.loading import load_model, make_measure

    distance = make_measure("perceptual", load_model("fashion"), "meta").distance
    x = torch.empty(2, 1, 28, 28, device="meta")
    assert distance(x, x).device.type == "meta"
