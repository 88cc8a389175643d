"""A solver on a grid, compiled to numbers.

With the times fixed every method here is linear in the outputs of the network. Let o_n be its n-th
output, given at state X_n and network time t^c. Then

    X_n = V[n, 0] x_T + sum_{j < n} V[n, 1 + j] o_j         n = 0..M-1,   X_M the sample

with M the number of evaluations and V lower triangular. The table is found by running the solver
itself on unit vectors, in float64, so it is differentiable in the times and cannot disagree with
the solver. The outputs are the network's own (x0, eps, v or flow velocity): their conversion is in
the numbers too. One executor of a dozen lines runs any method from its table.

A tuned solver is such a table with corrections added to the weights of its x0 form.

With guidance in the table (:mod:`ld3.guidance`) the outputs are those of single passes. Evaluation
j gives o_j with the condition and, if it is guided, a direction e_j as well; each has a column:

    x_T, o_0, (e_0), o_1, (e_1), ..

States that are not vectors (:mod:`ld3.spaces`) are moved, step by step, by tangents:

    X_{n+1} = move(X_n, sum_{j <= n} (V[n+1, 1+j] - V[n, 1+j]) o_j)

where o_j is eps as a tangent and V has a column of numbers for each part of the schedule. For
vectors, where a move is a sum, both forms are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ld3.errors import PlanError, SpecError
from ld3.grids import Knots, TimeGrid, knots
from ld3.guidance import Guidance
from ld3.predictions import Prediction, to_x0
from ld3.sampling import integrate
from ld3.schedules import Parts, Schedule, logarithms
from ld3.solvers.base import Denoise, Solver, combine
from ld3.spaces import Space

Networks = Denoise | Sequence[Denoise]
"""One network, or one per evaluation. That of a guided evaluation gives (2, B, *S): the output with
the condition, and the direction of guidance."""


class _WeightedSum(torch.autograd.Function):
    """sum_j w_j X_j, weights (K,) on the CPU; its slope in w_j is one inner product <g, X_j>.

    The same as a sum of products, whose backward pass would make K more tensors of the size of X.
    """

    @staticmethod
    def forward(weights: Tensor, *tensors: Tensor) -> Tensor:
        first, *others = weights.tolist()
        total: Tensor = first * tensors[0]
        for weight, tensor in zip(others, tensors[1:], strict=True):
            total.add_(tensor, alpha=weight)
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        weights, *tensors = ctx.saved_tensors
        on_weights = None
        if ctx.needs_input_grad[0]:
            flat = slope.flatten()
            products = [torch.dot(flat, tensor.flatten()) for tensor in tensors]
            on_weights = torch.stack(products).to(weights.device, weights.dtype)
        terms = zip(weights.tolist(), ctx.needs_input_grad[1:], strict=True)
        return on_weights, *(w * slope if needed else None for w, needed in terms)


@dataclass(frozen=True)
class Table:
    """V and the network times; float64 on the CPU."""

    weights: Tensor  # (M+1, M+1), row n holds the weights of X_n on x_T, o_0 .. o_{M-1}; of
    # a schedule with P parts (M+1, M+1, P), on eps
    net_times: Tensor  # (M,)
    guided: tuple[int, ...] | None = None  # evaluations with two passes; None: guidance is outside

    @property
    def nfe(self) -> int:
        return len(self.net_times)

    def before(self, n: int) -> int:
        """The number of outputs before evaluation n: one each, and one more if it is guided."""
        return n + sum(i < n for i in self.guided or ())

    def run(self, network: Networks, x: Tensor, space: Space | None = None) -> Tensor:
        """The sample from x = x_T, with numbers for weights: no gradient reaches the table."""
        if space is not None:
            fixed = Table(self.weights.detach(), self.net_times.detach())
            return fixed._moved(network, x, (), space)[0]
        state, outputs = x, list[Tensor]()
        for n, (t, on_start, on_state, on_outputs) in enumerate(self._program):
            outputs += self._evaluated(network, n, state, t)
            state = on_state * state if on_start == 0 else on_start * x
            for j, weight in on_outputs:
                state.add_(outputs[j], alpha=weight)
        return state

    def follow(
        self, network: Networks, x: Tensor, known: Sequence[Tensor] = (), space: Space | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """The sample with gradients to the table, and all outputs; `known` are the first ones."""
        if space is not None:
            return self._moved(network, x, known, space)
        outputs = list(known)
        for n in range(self.nfe):
            if self.before(n) < len(known):
                continue
            row = self.weights[n, : 1 + len(outputs)]
            state: Tensor = _WeightedSum.apply(row, x, *outputs)  # type: ignore[no-untyped-call]
            outputs += self._evaluated(network, n, state, self.net_times[n])
        sample: Tensor = _WeightedSum.apply(self.weights[-1], x, *outputs)  # type: ignore[no-untyped-call]
        return sample, outputs

    def _evaluated(self, network: Networks, n: int, x: Tensor, t: Tensor) -> Sequence[Tensor]:
        """The outputs of evaluation n."""
        out = network(x, t) if callable(network) else network[n](x, t)
        return out.unbind() if n in (self.guided or ()) else (out,)

    def _moved(
        self, network: Networks, x: Tensor, known: Sequence[Tensor], space: Space
    ) -> tuple[Tensor, list[Tensor]]:
        """The sample on a space, and all outputs, tangents (B, D)."""
        steps = self.weights.diff(dim=0)[:, 1:].index_select(-1, space.parts)  # (M, M, D)
        state, outputs = x, list(known)
        for n in range(self.nfe):
            if n == len(outputs):
                outputs += self._evaluated(network, n, state, self.net_times[n])
            newest = outputs[n]
            weights = steps[n, : n + 1].to(newest.device, newest.dtype)
            state = space.move(state, combine(weights.unbind(), outputs[: n + 1]))
        return state, outputs

    def in_outputs(self, prediction: Prediction, schedule: Schedule) -> "Table":
        """From the x0 form to the network's own outputs: m_j = x0 behind o_j at X_j.

        A direction is a difference of two outputs at the same state, so that X_j cancels.
        """
        unit = _unit_vectors(1 + self.before(self.nfe), schedule)
        alphas, sigmas = (value.exp() for value in logarithms(schedule, self.net_times))
        answers, rows = list[Tensor](), list[Tensor]()
        for n, row in enumerate(self.weights):
            rows.append(combine(row[: 1 + len(answers)].unbind(), (unit[0], *answers)))
            if n < self.nfe:
                own = unit[1 + len(answers) : 1 + self.before(n + 1)]
                for out, x in zip(own, (rows[n], torch.zeros_like(rows[n])), strict=False):
                    answers.append(to_x0(prediction, out, x, alphas[n], sigmas[n]))
        return replace(self, weights=torch.stack(rows))

    def tail(self, begin: int) -> "Table":
        """An x0 form from its state X_b on: on that state, and the answers after it.

        X_n = (V[n, 0] / V[b, 0]) X_b + sum_{j >= b} .. x0_j. The weights of answers before b go to
        x0_b, so that a network that always gives one x0 is still exact.
        """
        if self.guided is not None:
            raise PlanError(
                "table: got one with guidance, expected one without: a start in the middle has no "
                "directions to reuse"
            )
        share = self.weights[begin:, :1] / self.weights[begin, 0]
        rest = self.weights[begin:, 1:] - share * self.weights[begin, 1:]
        own = rest[:, begin:].clone()
        own[1:, 0] += rest[1:, :begin].sum(1)
        return Table(torch.cat([share, own], 1), self.net_times[begin:])

    def increments(self, form: Prediction, schedule: Schedule) -> "Increments":
        """Of an x0 form, step by step: for tools that own the state between evaluations."""
        if isinstance(schedule, Parts):
            raise PlanError(
                "plan: got one for states that are not vectors, expected one for vectors: other "
                "tools add steps up"
            )
        if self.guided is not None:
            raise PlanError(
                "plan: got one with guidance in it, expected one without: this tool mixes the "
                "passes itself; learn without +guidance and --passes"
            )
        ratios, steps = self.in_outputs(form, schedule)._steps()
        if not bool((finite := torch.isfinite(ratios)).all()):
            raise PlanError(
                f"table: got no weight on the noise in row {int(finite.long().argmin())}, expected "
                "one in each; the plan's corrections cannot be run step by step"
            )
        weights = [row[: n + 1].tolist() for n, row in enumerate(steps)]
        return Increments(form, ratios.tolist(), weights, self.net_times)

    def _steps(self) -> tuple[Tensor, Tensor]:
        """r_n = V[n+1, 0] / V[n, 0] (M,) and V[n+1, 1+j] - r_n V[n, 1+j], as numbers."""
        rows = self.weights.detach()
        ratios = rows[1:, 0] / rows[:-1, 0]
        return ratios, rows[1:, 1:] - ratios[:, None] * rows[:-1, 1:]

    @cached_property
    def _program(self) -> list[tuple[Tensor, float, float, list[tuple[int, float]]]]:
        """Per evaluation: its time, and X_{n+1} from x_T or from X_n, whichever takes fewer terms.

        The incremental form is X_{n+1} = r X_n + sum_j (V[n+1, 1+j] - r V[n, 1+j]) o_j with
        r = V[n+1, 0] / V[n, 0]; for many methods most of its terms cancel.
        """
        rows, program = self.weights.detach(), []
        for n, (t, r, step) in enumerate(zip(self.net_times.detach(), *self._steps(), strict=True)):
            direct = rows[n + 1, 1:]
            noise_floor = 1e-13 * rows[n : n + 2].abs().max()
            step = torch.where(step.abs() > noise_floor, step, torch.zeros_like(step))
            shorter = bool(torch.isfinite(r)) and step.count_nonzero() <= direct.count_nonzero()
            start, state = (0.0, r.item()) if shorter else (rows[n + 1, 0].item(), 0.0)
            terms = enumerate((step if shorter else direct).tolist())
            program.append((t, start, state, [(j, weight) for j, weight in terms if weight != 0]))
        return program


@dataclass(frozen=True)
class Increments:
    """X_{n+1} = ratios[n] X_n + sum_{j <= n} weights[n][j] a_j, with a_j the network's estimate of
    `form`: x0, the noise eps or the flow velocity.

    These three do not change along the exact path of one x0 and one noise, so that a run may begin
    at any X_b: the weights of the estimates before b go to a_b.
    """

    form: Prediction
    ratios: list[float]
    weights: list[list[float]]
    net_times: Tensor  # (M,)


@dataclass(frozen=True)
class TunedSolver:
    """A solver on a grid, with corrections C of its table: V[n, j] + C[n-1, j] in the x0 form."""

    solver: Solver
    grid: TimeGrid
    corrections: Tensor | None = None  # (M, M+1): added to rows 1..M
    guidance: Guidance | None = None  # None: at every evaluation, in full

    @property
    def nfe(self) -> int:
        return self.solver.nfe(self.grid.steps)

    def table(self, schedule: Schedule, prediction: Prediction = "x0") -> Table:
        """Compiled for a noise schedule and the network's prediction; differentiable."""
        k = knots(schedule, self.grid)
        return compile_table(self.solver, k, prediction, self.corrections, self.guidance)


def compile_table(
    solver: Solver,
    k: Knots,
    prediction: Prediction = "x0",
    corrections: Tensor | None = None,
    guidance: Guidance | None = None,
) -> Table:
    """Run the solver on unit vectors: the states are then the rows of V.

    `corrections` (M, M+1) are added to rows 1..M in the x0 form. With `guidance` the table has a
    column for each pass. For a schedule with parts the table is on eps, for every `prediction`.
    """
    unit = _unit_vectors(solver.nfe(k.steps) + 1, k.schedule)
    rows, net_times = list[Tensor](), list[Tensor]()

    def answer(state: Tensor, t: Tensor) -> Tensor:
        rows.append(state)
        net_times.append(t)
        return unit[len(rows)]

    rows.append(integrate(answer, solver, k, unit[0]))
    weights = torch.stack(rows)
    if corrections is not None:
        added = corrections if unit.ndim == 2 else corrections[..., None]
        weights = torch.cat([weights[:1], weights[1:] + added])
    table = Table(weights, torch.stack(net_times))
    if isinstance(k.schedule, Parts):
        if guidance is not None:
            raise SpecError("guidance: got some in the plan, expected none where states are poses")
        return _tangent_table(table, k.schedule, corrections is not None)
    if guidance is not None:
        table = with_guidance(table, guidance)
    return table if prediction == "x0" else table.in_outputs(prediction, k.schedule)


def with_guidance(table: Table, guidance: Guidance) -> Table:
    """An x0 form V with m_j = c_j + sum_i A[j, i] e_i put in: the columns of e are V A."""
    guided = guidance.guided
    on_directions = table.weights[:, 1:] @ guidance.weights  # (M+1, |S|)
    columns = [table.weights[:, 0]]
    for j in range(table.nfe):
        columns.append(table.weights[:, 1 + j])
        if j in guided:
            columns.append(on_directions[:, guided.index(j)])
    return Table(torch.stack(columns, 1), table.net_times, guided)


def _unit_vectors(count: int, schedule: Schedule) -> Tensor:
    """(count, count), or (count, count, P) for P parts."""
    unit = torch.eye(count, dtype=torch.float64, device="cpu")
    if isinstance(schedule, Parts):
        return unit[..., None].expand(-1, -1, len(schedule.parts))
    return unit


def _tangent_table(table: Table, schedule: Parts, corrected: bool) -> Table:
    """On eps. Every state keeps all of x_T, or it could not be reached by tangents."""
    table = table.in_outputs("eps", schedule)
    off = (table.weights[:, 0].detach() - 1).abs().max()
    if float(off) > 1e-6 and not corrected:
        raise SpecError(
            "solver: got one with times of its own inside a step (dpm-single), expected another on "
            "states that are not vectors: their parts have different noise at one time"
        )
    if float(off) > 1e-6:
        raise PlanError(
            f"table: got corrections that change the weight of the start by {float(off):.2g}, "
            "expected none on states that are not vectors; learn with the recipe's exact = true"
        )
    return table
