"""The learned methods of a comparison: names for ways to use the one learner."""

from dataclasses import dataclass, replace

from ld3.learner.presets import Preset, make_preset
from ld3.learner.recipes import Learn, change_recipe
from ld3.models import is_latent
from ld3.runs.session import Session
from ld3.runs.spec import Settings
from ld3.searches.protocol import Need


@dataclass(frozen=True)
class LearnedMethod:
    """LD3 by a recipe."""

    source: str
    learn: Learn | None = None  # None: as the recipe says
    paper: bool = False  # the paper's recipe, whatever the options say
    needs: frozenset[Need] = frozenset({"model", "pairs", "solver"})

    def preset(self, spec: Settings, session: Session, nfe: int) -> Preset:
        """The recipe with the pairs and the teacher of the comparison; the same `ld3 learn` with
        these options gives the same plan."""
        if self.paper:
            preset = make_preset(
                "paper-latent" if is_latent(session.model, session.device) else "paper-pixel", nfe
            )
        else:
            preset = spec.make_preset(nfe)
        recipe = preset.recipe
        if self.learn is not None:
            recipe = change_recipe(recipe, {"learn": self.learn})
        train, valid = spec.pairs or preset.train, spec.valid or preset.valid
        return replace(preset, recipe=recipe, train=train, valid=valid, teacher=session.teacher)


LEARNED: dict[str, LearnedMethod] = {
    "ld3-paper": LearnedMethod("LD3 (Tong et al. 2025): the paper's settings", paper=True),
    "ld3-times": LearnedMethod(
        "LD3, ours: times and network times by the same recipe", "times+net"
    ),
    "ld3": LearnedMethod("LD3, ours: times, network times and coefficients by our recipe"),
}
