"""Presets: a recipe with the number of pairs and the teacher.

`standard`, `fast` and `best` are ours: times, network times and coefficients by preconditioned Adam
with hard forcing. The others follow the appendix of the LD3 paper (arXiv 2405.15506): RMSprop for
the times, SGD for network times and noise, soft forcing with r = 0.001 d / NFE^2, validation in
every iteration. Where the paper's text and code differ, the text is followed:

- Latent models learn the times at rate 0.001 (code: 0.005).
- The start is the best known grid on the validation pairs (code: even logits).
- Network times stay within half the smallest gap. The text has no bound; the code takes it from the
  logits when it learns in lam, `window_from="logits"`.
- Stable Diffusion has 25 + 25 pairs by iPNDM-2 on the GITS grid, with one evaluation more than the
  student; another place says 10. Use it with `--solver ipndm:2 --guidance 7.5`.
- ImageNet is `paper-latent` with `--guidance 2 --teacher-grid quadratic --teacher-steps 10` (code:
  20 evaluations on its edm grid, and a guidance without effect).

Pixel models learn gaps of lam, as in the code; the text does not name the variable.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ld3.errors import unknown
from ld3.learner.recipes import GaussNewton, PaperRules, PreconditionedAdam, Recipe
from ld3.teacher import Teacher


@dataclass(frozen=True)
class Preset:
    """A recipe with its pairs and teacher."""

    recipe: Recipe
    train: int  # pairs
    valid: int
    teacher: Teacher
    starts: int = 1  # how many of the best known grids to begin with


_OURS = PreconditionedAdam(
    learn="times+net+coefficients", rate=0.08, warm_up=5, average=0.95, power=0.75, epochs=5,
    validate_every=16,
)  # fmt: skip


def _fast(nfe: int) -> Preset:
    return Preset(replace(_OURS, batch=4, validate_every=15), 48, 16, Teacher(steps=20))


def _standard(nfe: int) -> Preset:
    return Preset(_OURS, 128, 32, Teacher(steps=20 if nfe <= 6 else 40))


def _best(nfe: int) -> Preset:
    recipe = replace(_OURS, epochs=8, validate_every=32)
    return Preset(recipe, 256, 64, Teacher(steps=40), starts=4)


def _paper_pixel(nfe: int) -> Preset:
    recipe = PaperRules(
        epochs=5, batch=2, rate_times=0.005, rate_net=0.1 / nfe, rate_noise=12.0 / nfe
    )
    return Preset(recipe, 50, 50, Teacher("unipc", 3, "bh1", "logsnr", 20))


def _paper_latent(nfe: int) -> Preset:
    recipe = PaperRules(
        variable="t", epochs=3, batch=1, rate_times=0.001, rate_net=0.001 / nfe,
        rate_noise=12.0 / nfe,
    )  # fmt: skip
    return Preset(recipe, 50, 50, Teacher("unipc", 3, "bh2", "uniform", 20))


def _paper_text(nfe: int) -> Preset:
    teacher = Teacher("ipndm", 2, "", "gits-sd", nfe + 1)
    return Preset(_paper_latent(nfe).recipe, 25, 25, teacher)


PRESETS: dict[str, tuple[Callable[[int], Preset], str]] = {
    "standard": (_standard, "128 pairs, 80 iterations: the default"),
    "fast": (_fast, "48 pairs, 60 iterations"),
    "best": (_best, "256 pairs, up to 256 iterations, the best of four starts, a finer teacher"),
    "paper-pixel": (_paper_pixel, "the paper's settings for pixel models"),
    "paper-latent": (_paper_latent, "the paper's settings for latent models"),
    "paper-text-to-image": (_paper_text, "the paper's settings for Stable Diffusion"),
}


def for_family(preset: Preset) -> Preset:
    """Times and network times of a family, with twice as many iterations."""
    recipe = replace(
        preset.recipe, learn="times+net", variable="lam", epochs=2 * preset.recipe.epochs,
        validate_every=2 * preset.recipe.validate_every,
    )  # fmt: skip
    return replace(preset, recipe=recipe)


def without_gradients(preset: Preset) -> Preset:
    """The same pairs and teacher, by Gauss-Newton."""
    old, batch = preset.recipe, min(32, preset.train)
    recipe = GaussNewton(
        learn=old.learn, exact=old.exact, variable=old.variable, floor=old.floor, power=old.power,
        batch=batch, epochs=max(1, 5 * batch // preset.train), max_skipped=old.max_skipped,
    )  # fmt: skip
    return replace(preset, recipe=recipe)


def make_preset(name: str, nfe: int, pairs: int | None = None, valid: int | None = None) -> Preset:
    """The preset for a number of evaluations, perhaps with other numbers of pairs."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    preset = PRESETS[name][0](nfe)
    if pairs is not None:
        preset = replace(preset, train=pairs, valid=min(preset.valid, max(8, pairs // 2)))
    return preset if valid is None else replace(preset, valid=valid)
