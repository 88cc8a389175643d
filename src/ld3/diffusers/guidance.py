"""Plans with guidance in diffusers: a hook on the network of a pipeline.

    pipe.scheduler = LD3Scheduler.from_plan(plan)
    guide_by_plan(pipe)
    image = pipe(prompt, num_inference_steps=plan.nfe, guidance_scale=plan.model.guidance).images[0]

Stock pipelines run the network on a batch of both halves, without and with the prompt, and mix
u + w (c - u) themselves. The hook gives both halves the answer of the plan,

    m_j = c_j + sum_i A[j, i] e_i        e_i = (w - 1)(c_i - u_i)

so that the mix is m_j for any w. Where the plan is not guided, the network gets the second half
only. A is on x0. Of an output o at state x, x0 = a x + b o, so that directions of outputs count
with b_i / b_j.

A run that begins in the middle, as in image to image, is guided at its first evaluation. That
direction takes the place of all that were before it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ld3.errors import PlanError
from ld3.guidance import Guidance

NETWORKS = ("unet", "transformer", "transformer_2")
PROMPT_FIRST = ("DiTPipeline",)  # whose batch begins with the half that has a condition


@dataclass(frozen=True)
class Mix:
    """Guidance for the outputs of a network."""

    guidance: Guidance
    slopes: tuple[float, ...]  # b (M,)

    def weights(self, n: int, begin: int) -> dict[int, float]:
        """Of the directions of outputs at evaluation n, for a run that begins at `begin`."""
        found: dict[int, float] = {}
        for i, weight in zip(self.guidance.guided, self.guidance.weights[n].tolist(), strict=True):
            if i <= n:
                known = max(i, begin)
                scaled = weight * self.slopes[known] / self.slopes[n]
                found[known] = found.get(known, 0.0) + scaled
        return found

    def asks_both(self, n: int, begin: int) -> bool:
        """Whether evaluation n needs the half without the prompt."""
        earlier = n == begin and any(i < n for i in self.guidance.guided)
        return n in self.guidance.guided or earlier


@dataclass
class GuidanceHook:
    """What a pipeline's networks do at each step; made by :func:`guide_by_plan`."""

    pipe: Any
    scale: float | None
    directions: dict[int, Tensor] = field(default_factory=dict)
    handles: list[Any] = field(default_factory=list)
    _last: int = -1
    _begin: int = 0
    _both: bool = True

    def remove(self) -> None:
        """The pipeline as it was."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    def before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Choose the halves of the batch that the network gets."""
        scheduler = self.pipe.scheduler
        mix = getattr(scheduler, "mix", None)
        if mix is None:
            return None
        if getattr(self.pipe, "do_classifier_free_guidance", True) is False:
            raise PlanError(
                "pipeline: got guidance switched off, expected it on for a plan with guidance; "
                "give a guidance_scale above 1"
            )
        n = scheduler.step_index or 0
        if n == self._last and self.directions:
            raise PlanError(
                "pipeline: got two calls of the network at one step, expected one with both "
                "halves of the batch; this pipeline cannot use a plan with guidance"
            )
        if n <= self._last or not self.directions:
            self.directions.clear()
            self._begin = n if scheduler.begin_index is None else scheduler.begin_index
        self._last, self._both = n, mix.asks_both(n, self._begin)
        first = _first(args, kwargs)
        if len(first) % 2:
            raise PlanError(
                f"pipeline: got a batch of {len(first)}, expected both halves, without and with "
                "the prompt"
            )
        if self._both:
            return None
        half = slice(0, len(first) // 2) if self._prompt_first else slice(len(first) // 2, None)
        return _taken(args, len(first), half), _taken(kwargs, len(first), half)

    @property
    def _prompt_first(self) -> bool:
        return type(self.pipe).__name__ in PROMPT_FIRST

    def after(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Give both halves the answer of the plan."""
        scheduler = self.pipe.scheduler
        mix = getattr(scheduler, "mix", None)
        if mix is None:
            return None
        sample = output if isinstance(output, Tensor) else output[0]
        answer = sample
        if self._both:
            halves = sample.chunk(2)
            answer, without = halves if self._prompt_first else reversed(halves)
            scale = scheduler.guidance if self.scale is None else self.scale
            self.directions[self._last] = (scale - 1) * (answer - without)
        for i, weight in mix.weights(self._last, self._begin).items():
            answer = answer + weight * self.directions[i]
        scheduler.mixed = self._last
        both = torch.cat([answer, answer])
        if isinstance(output, Tensor):
            return both
        if isinstance(output, tuple):
            return (both, *output[1:])
        name = next(iter(output))
        return type(output)(**{**output, name: both})


def guide_by_plan(pipe: Any, scale: float | None = None) -> GuidanceHook:
    """Let the plan of a pipeline's LD3Scheduler decide about guidance, from now on.

    `scale` replaces the scale that the plan was learned for. The hook serves all plans that the
    pipeline is given later; `remove()` ends it.
    """
    found = [getattr(pipe, name, None) for name in NETWORKS]
    networks = [one for one in found if isinstance(one, nn.Module)]
    if not networks:
        raise PlanError(
            f"pipeline: got {type(pipe).__name__} without a network, expected one of "
            f"{', '.join(NETWORKS)}"
        )
    hook = GuidanceHook(pipe, scale)
    for network in networks:
        hook.handles.append(network.register_forward_pre_hook(hook.before, with_kwargs=True))
        hook.handles.append(network.register_forward_hook(hook.after))
    return hook


def _first(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The states that a network is given."""
    for value in (*args, kwargs.get("sample"), kwargs.get("hidden_states")):
        if isinstance(value, Tensor) and value.ndim > 1:
            return value
    raise PlanError("pipeline: got a call of the network without states, expected a batch of them")


def _taken(value: Any, count: int, half: slice) -> Any:
    """Half of every tensor whose first dimension is the batch."""
    if isinstance(value, Tensor):
        return value[half] if value.ndim and len(value) == count else value
    if isinstance(value, dict):
        return {name: _taken(one, count, half) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_taken(one, count, half) for one in value)
    return value
