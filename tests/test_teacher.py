"""The teacher's pairs."""

import torch

import ld3
from ld3.teacher import Teacher, make_pairs
from ld3.zoo.toy import gaussian


def test_pairs_are_the_solution_of_the_ode_from_their_noise() -> None:
    model = gaussian([0.3, -0.2], [0.5, 0.2])
    seen: list[int] = []
    pairs = make_pairs(model, range(7), Teacher(steps=60), batch=3, progress=seen.append)
    assert seen == [3, 3, 1] and len(pairs) == 7 and pairs.seeds == tuple(range(7))
    assert torch.equal(pairs.noise, ld3.noise(range(7), (2,)))
    ends = torch.tensor([80.0, 0.002], dtype=torch.float64)
    exact = model.solve(80 * pairs.noise.double(), ends[0], ends[1])
    assert (pairs.target - exact).abs().max() < 1e-3


def test_a_teacher_by_name() -> None:
    plain = Teacher("heun", 0, "", "edm", 5)
    assert plain.make_solver() == ld3.make_solver("heun")
    assert plain.nfe == 10 and plain.title == "heun-2, 5 steps on edm"
    table = plain.table(ld3.EDM(), "eps")
    k = ld3.knots(ld3.EDM(), ld3.make_grid("edm", ld3.EDM(), 5))
    assert torch.equal(table.weights, ld3.compile_table(ld3.make_solver("heun"), k, "eps").weights)
