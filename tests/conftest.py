"""Shared by all tests: one thread, and the list of every solver in every form it has."""

import pytest
import torch

from ld3 import SOLVERS, Solver, make_solver

torch.set_num_threads(1)


def all_solvers() -> list[Solver]:
    """Every solver of the registry in every order and variant: a new one is tested by itself."""
    return [
        make_solver(name, order, variant)
        for name, kind in SOLVERS.items()
        for order in kind.orders
        for variant in (kind.variants or (None,))
    ]


def label(solver: Solver) -> str:
    variant = getattr(solver, "variant", None)
    return f"{solver.name}-{solver.order}" + (f"-{variant}" if variant else "")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "solver" in metafunc.fixturenames:
        metafunc.parametrize("solver", all_solvers(), ids=label)
