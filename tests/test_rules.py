"""Every rule of a run against states computed by hand."""

import math
from dataclasses import MISSING, fields, replace

import pytest
import torch
from torch import Tensor

from ld3.errors import ModelError, SpecError, StoreError
from ld3.learner import least_squares
from ld3.learner.forcing import keep_better, projected_step, radius
from ld3.learner.optimizers import clipped, optimizer_step
from ld3.learner.presets import PRESETS, for_family, make_preset, without_gradients
from ld3.learner.recipes import (
    GaussNewton,
    PaperRules,
    PreconditionedAdam,
    Recipe,
    change_recipe,
)
from ld3.learner.rules import (
    averaged,
    batch_order,
    rate_factor,
    record_validation,
    reload_best,
    skip_batch,
)
from ld3.learner.state import State
from ld3.runs.states import from_tensors, to_tensors
from learning_toys import linear_values


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def make_state(recipe: Recipe) -> State:
    none = torch.empty(0)
    rates = {} if isinstance(recipe, GaussNewton) else recipe.rates
    return State(
        iteration=7,
        values=linear_values(1.0, 2.0),
        average=linear_values(3.0, 4.0),
        best_values=linear_values(5.0, 6.0),
        best=0.5,
        rates={name: scalar(rate) for name, (rate, _) in rates.items()},
        scales=tensor(1.0),
        preconditioner=none,
        noise_train=none,
        noise_valid=none,
    )


def same(a: object, b: object) -> bool:
    ours, theirs = (dict(part) for part in (a, b))  # type: ignore[call-overload]
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


# ---- batches


def test_the_order_of_batches_comes_from_seed_and_epoch() -> None:
    order = batch_order(6, 2, 3)
    wanted = torch.randperm(6, generator=torch.Generator().manual_seed(2 * 1_000_003 + 3))
    assert order.tolist() == wanted.tolist()
    assert sorted(order.tolist()) == list(range(6))
    others = [batch_order(20, s, e).tolist() for s, e in ((2, 3), (2, 4), (3, 3), (0, 0))]
    assert len({tuple(other) for other in others}) == 4


# ---- rates


def test_warm_up_factors() -> None:
    recipe = PaperRules(warm_up=4, decay="plateau")
    factors = [rate_factor(recipe, done, 100) for done in range(7)]
    assert factors == [0.2, 0.4, pytest.approx(0.6), 0.8, 1.0, 1.0, 1.0]
    assert rate_factor(PaperRules(decay="plateau"), 0, 100) == 1.0


def test_cosine_factors() -> None:
    recipe = PreconditionedAdam()
    factors = [rate_factor(recipe, done, 4) for done in range(4)]
    root = math.sqrt(0.5)
    assert factors == pytest.approx([1.0, (1 + root) / 2, 0.5, (1 - root) / 2])
    assert rate_factor(replace(recipe, warm_up=1), 0, 4) == 0.5
    assert rate_factor(replace(recipe, warm_up=9), 2, 4) == pytest.approx(0.3 * 0.5)


# ---- averages


def test_the_average_keeps_little_at_first() -> None:
    """k = min(decay, (i + 1) / (i + 10)): 1/10, 2/11, .. and at most the decay."""
    old, new = linear_values(1.0, 10.0), linear_values(2.0, 30.0)
    first = averaged(old, new, 0.95, 0)
    assert first["times"].item() == pytest.approx(0.1 * 1 + 0.9 * 2)
    assert first["net"].item() == pytest.approx(0.1 * 10 + 0.9 * 30)
    assert averaged(old, new, 0.95, 1)["times"].item() == pytest.approx((2 * 1 + 9 * 2) / 11)
    assert averaged(old, new, 0.5, 100)["times"].item() == pytest.approx(1.5)
    assert same(averaged(old, new, 0.0, 5), new)


# ---- the best values, and plateaus


@pytest.mark.parametrize("recipe", [PreconditionedAdam(), PaperRules(), GaussNewton()])
def test_only_a_strictly_lower_loss_is_a_new_best(recipe: Recipe) -> None:
    state = replace(make_state(recipe), since_best=3)
    better = record_validation(state, 0.4, recipe, 0)
    assert better.best == 0.4
    assert better.since_best == 0
    assert same(better.best_values, state.average)
    assert same(better.values, state.values)
    for valid in (0.5, 0.6, math.nan):
        worse = record_validation(state, valid, recipe, 0)
        assert worse.best == 0.5
        assert same(worse.best_values, state.best_values)


def test_a_plateau_comes_after_exactly_patience_validations() -> None:
    recipe = PreconditionedAdam(decay="plateau", patience=3, factor=0.5, rate=0.1)
    state = make_state(recipe)
    rates = []
    for _ in range(7):
        state = record_validation(state, 0.9, recipe, 0)
        rates.append(float(state.rates["all"]))
    assert rates == [0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025]
    assert state.since_best == 1


def test_a_plateau_reloads_the_best_values() -> None:
    recipe = PreconditionedAdam(decay="plateau", patience=2)
    state = record_validation(make_state(recipe), 0.9, recipe, 0)
    assert same(state.values, linear_values(1.0, 2.0))
    assert state.since_best == 1
    state = record_validation(state, 0.9, recipe, 0)
    for values in (state.values, state.average, state.best_values):
        assert same(values, linear_values(5.0, 6.0))
    assert state.since_best == 0
    assert state.best == 0.5


def test_cosine_decay_has_no_plateaus() -> None:
    recipe = PreconditionedAdam(decay="cosine", patience=1)
    state = record_validation(make_state(recipe), 0.9, recipe, 0)
    assert (state.since_best, float(state.rates["all"])) == (1, 0.1)
    assert same(state.values, linear_values(1.0, 2.0))


def test_rates_shrink_to_their_minimum_and_then_the_run_is_done() -> None:
    recipe = PreconditionedAdam(decay="plateau", patience=2, factor=0.5, rate=0.1, min_rate=0.03)
    state, seen = make_state(recipe), []
    for _ in range(8):
        state = record_validation(state, 0.9, recipe, 0)
        seen.append((float(state.rates["all"]), state.at_minimum, state.done))
    plateaus = seen[1::2]
    assert plateaus == [(0.05, 0, False), (0.03, 0, False), (0.03, 1, False), (0.03, 2, True)]


def test_a_rate_below_its_minimum_does_not_grow() -> None:
    recipe = PreconditionedAdam(decay="plateau", patience=1, rate=0.01, min_rate=0.1)
    state = record_validation(make_state(recipe), 0.9, recipe, 0)
    assert float(state.rates["all"]) == 0.01


def test_a_plateau_decays_the_rates_that_are_in_use() -> None:
    """Times in the first epochs; then every group that is learned, the coefficients too."""
    recipe = PaperRules(
        learn="times+net+coefficients", epochs_times=1, patience=1, factor=0.5, rate_times=0.4,
        rate_net=0.2, rate_coefficients=0.1,
    )  # fmt: skip
    state = record_validation(make_state(recipe), 0.9, recipe, 0)
    assert {k: float(v) for k, v in state.rates.items()} == {
        "times": 0.2, "net": 0.2, "coefficients": 0.1,
    }  # fmt: skip
    state = record_validation(state, 0.9, recipe, 1)
    assert {k: float(v) for k, v in state.rates.items()} == {
        "times": 0.1, "net": 0.1, "coefficients": 0.05,
    }  # fmt: skip
    only = replace(recipe, learn="times+net")
    state = record_validation(make_state(only), 0.9, only, 1)
    assert float(state.rates["coefficients"]) == 0.1


def test_the_first_epochs_do_not_end_a_run() -> None:
    recipe = PaperRules(epochs_times=1, patience=1, rate_times=5e-5, rate_net=1e-6)
    state = record_validation(make_state(recipe), 0.9, recipe, 0)
    assert (state.at_minimum, state.done) == (0, False)
    state = record_validation(state, 0.9, recipe, 1)
    assert (state.at_minimum, state.done) == (1, True)
    high = PaperRules(epochs_times=1, patience=1, rate_times=5e-5, rate_net=1e-3)
    assert record_validation(make_state(high), 0.9, high, 1).at_minimum == 0


def test_reloading_keeps_everything_else() -> None:
    state = replace(make_state(PaperRules()), since_best=4, skipped=2)
    again = reload_best(state)
    assert same(again.values, linear_values(5.0, 6.0))
    assert same(again.average, linear_values(5.0, 6.0))
    assert (again.since_best, again.skipped, again.best, again.iteration) == (0, 2, 0.5, 7)


def test_skipped_batches_are_counted_then_fatal() -> None:
    recipe = GaussNewton(max_skipped=2)
    state = make_state(recipe)
    for wanted in (1, 2):
        state = skip_batch(state, recipe)
        assert state.skipped == wanted
    with pytest.raises(ModelError, match="not finite 3 times, the last at iteration 7"):
        skip_batch(state, recipe)


# ---- optimisers


def test_a_step_of_sgd() -> None:
    values, memory = optimizer_step("sgd", tensor(1.0, 2.0), tensor(10.0, -4.0), 0.1, {})
    assert values.tolist() == pytest.approx([0.0, 2.4])
    assert memory == {}


def test_steps_of_rmsprop() -> None:
    """s = 0.99 s + 0.01 g^2, b = 0.9 b + g / (sqrt(s) + 1e-8), theta -= rate b."""
    values, memory = optimizer_step("rmsprop", tensor(1.0), tensor(3.0), 0.1, {})
    b = 3 / (math.sqrt(0.09) + 1e-8)
    assert values.item() == pytest.approx(1 - 0.1 * b, rel=1e-12)
    values, memory = optimizer_step("rmsprop", values, tensor(-1.0), 0.2, memory)
    s = 0.99 * 0.09 + 0.01
    second = 0.9 * b - 1 / (math.sqrt(s) + 1e-8)
    assert values.item() == pytest.approx(1 - 0.1 * b - 0.2 * second, rel=1e-12)


def test_steps_of_adam() -> None:
    """m = 0.9 m + 0.1 g, s = 0.99 s + 0.01 g^2, both without bias; theta -= rate m / sqrt(s)."""
    values, memory = optimizer_step("adam", tensor(1.0), tensor(3.0), 0.1, {})
    assert values.item() == pytest.approx(0.9, abs=1e-9)
    values, memory = optimizer_step("adam", values, tensor(-1.0), 0.2, memory)
    m = (0.9 * 0.1 * 3 - 0.1) / (1 - 0.9**2)
    s = (0.99 * 0.01 * 9 + 0.01) / (1 - 0.99**2)
    assert values.item() == pytest.approx(0.9 - 0.2 * m / math.sqrt(s), abs=1e-8)
    assert all(isinstance(part, Tensor) for part in memory.values())


@pytest.mark.parametrize("rule", ["sgd", "rmsprop", "adam"])
def test_a_step_leaves_its_inputs_alone(rule: str) -> None:
    values, slope = tensor(1.0, 2.0), tensor(0.5, 0.5)
    _, memory = optimizer_step(rule, values, slope, 0.1, {})
    before = {name: part.clone() for name, part in memory.items()}
    optimizer_step(rule, values, slope, 0.1, memory)
    assert same(memory, before)
    assert values.tolist() == [1.0, 2.0]


def test_clipping() -> None:
    slope = tensor(3.0, 4.0)
    assert clipped(slope, 1.0).tolist() == pytest.approx([0.6, 0.8], abs=1e-6)
    assert clipped(slope, 2.5).tolist() == pytest.approx([1.5, 2.0], abs=1e-6)
    assert torch.equal(clipped(slope, math.inf), slope)
    assert torch.equal(clipped(slope, 100.0), slope)


# ---- soft forcing


def test_the_radius_is_the_papers() -> None:
    assert radius(0.001, (3, 32, 32), 4) == pytest.approx(0.192)
    assert radius(0.001, (4, 64, 64), 7) == pytest.approx(0.334, abs=1e-3)
    assert radius(0.0, (3,), 4) == 0.0


def test_a_projected_step_by_hand() -> None:
    """Inside the ball the gradient step, outside its projection; each sample by itself."""
    centre = torch.tensor([[1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    old = torch.tensor([[1.0, 1.5], [0.0, 0.0]], dtype=torch.float64)
    slope = torch.tensor([[0.0, 1.0], [-6.0, -8.0]], dtype=torch.float64)
    new = projected_step(old, centre, slope, 0.5, 1.0)
    assert new[0].tolist() == [1.0, 1.0]
    assert new[1].tolist() == pytest.approx([0.6, 0.8])
    far = projected_step(old, centre, slope, 0.5, 10.0)
    assert far[1].tolist() == [3.0, 4.0]


def test_only_noise_with_a_strictly_lower_loss_is_kept() -> None:
    old, new = torch.zeros(4, 2), torch.ones(4, 2)
    kept = keep_better(old, new, tensor(1, 1, 1, 1), tensor(0.5, 1.0, 2.0, math.nan))
    assert kept.tolist() == [[1, 1], [0, 0], [0, 0], [0, 0]]


# ---- recipes


def test_settings_out_of_range_are_refused_in_one_line() -> None:
    for make, match in (
        (lambda: PreconditionedAdam(epochs=0), "recipe epochs: got 0, expected a positive number"),
        (lambda: PreconditionedAdam(rate=-1.0), "recipe rate: got -1.0, expected 0 or more"),
        (lambda: PreconditionedAdam(precondition=0), "recipe precondition: got 0, expected a pos"),
        (lambda: PaperRules(factor=1.1), "recipe factor: got 1.1, expected 0 or more, at most 1$"),
        (lambda: PaperRules(floor=2.0), "recipe floor: got 2.0, expected 0 or more, at most 1$"),
        (lambda: PaperRules(gamma=math.nan), "recipe gamma: got nan, expected 0 or more"),
        (lambda: PaperRules(patience=0), "recipe patience: got 0, expected a positive number"),
        (
            lambda: PaperRules(rule_net="adm"),  # type: ignore[arg-type]
            "recipe rule_net: got 'adm', expected one of sgd, rmsprop, adam",
        ),
        (
            lambda: GaussNewton(learn="net"),  # type: ignore[arg-type]
            "recipe learn: got 'net', expected one of times, times",
        ),
    ):
        with pytest.raises(SpecError, match=match):
            make()


def test_a_recipe_is_changed_by_name() -> None:
    recipe = make_preset("standard", 5).recipe
    assert change_recipe(recipe, {"gamma": 1, "epochs": 3}) == replace(recipe, gamma=1.0, epochs=3)
    assert isinstance(change_recipe(recipe, {"gamma": 1}).gamma, float)  # type: ignore[union-attr]
    for changes, match in (
        ({"gama": 1.0}, "did you mean 'gamma'"),
        ({"gamma": "much"}, "recipe gamma: got 'much', expected something like 0.0"),
        ({"epochs": 1.5}, "recipe epochs: got 1.5, expected something like 5"),
        ({"epochs": True}, "recipe epochs: got True, expected something like 5"),
        ({"exact": 1}, "recipe exact: got 1, expected something like True"),
        ({"gamma": -1}, "recipe gamma: got -1.0, expected 0 or more"),
        ({"rule_times": "sgd"}, "unknown setting of the recipe PreconditionedAdam 'rule_times'"),
    ):
        with pytest.raises(SpecError, match=match):
            change_recipe(recipe, changes)


def test_each_recipe_has_only_what_it_uses() -> None:
    def names(recipe: Recipe) -> set[str]:
        return set(vars(recipe))

    ours, paper, newton = names(PreconditionedAdam()), names(PaperRules()), names(GaussNewton())
    assert newton < ours & paper
    assert {"precondition", "rate", "min_rate", "shared"} == ours - paper
    assert not {"clip", "gamma", "decay", "warm_up", "average"} & newton


def test_which_groups_move_in_an_epoch() -> None:
    recipe = PaperRules(epochs_times=2, epochs=3, learn="times+net")
    assert [recipe.moved(epoch) for epoch in range(4)] == [
        ("times",), ("times",), ("times", "net"), ("times", "net"),
    ]  # fmt: skip
    assert recipe.all_epochs == 5
    assert recipe.rules == {"times": "rmsprop", "net": "sgd", "coefficients": "adam"}


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets(name: str) -> None:
    preset = make_preset(name, 5)
    assert preset.train >= preset.valid > 0
    smaller = make_preset(name, 5, pairs=12)
    assert (smaller.train, smaller.valid) == (12, 8)
    counts = {"standard": 80, "fast": 60, "best": 256, "paper-pixel": 175, "paper-latent": 250}
    batches = math.ceil(preset.train / preset.recipe.batch)
    assert batches * preset.recipe.all_epochs == counts.get(name, 125)
    with pytest.raises(SpecError, match="did you mean"):
        make_preset(name + "x", 5)


def test_the_settings_of_the_paper() -> None:
    recipe = make_preset("paper-pixel", 5).recipe
    assert recipe == PaperRules(
        learn="times+net", variable="lam", floor=0.0, epochs_times=2, epochs=5, batch=2,
        rule_times="rmsprop", rule_net="sgd", rate_times=0.005, rate_net=0.02, rate_noise=2.4,
        clip=1.0, gamma=0.001, decay="plateau", patience=5, factor=0.8, min_rate_times=5e-5,
        min_rate_net=1e-6, validate_every=1, warm_up=0, average=0.0, power=1.0,
    )  # fmt: skip
    latent = make_preset("paper-latent", 5).recipe
    assert latent == replace(  # type: ignore[type-var]
        recipe, variable="t", epochs=3, batch=1, rate_times=0.001, rate_net=0.0002
    )
    text = make_preset("paper-text-to-image", 5)
    assert text.recipe == latent
    assert (text.teacher.solver, text.teacher.order, text.teacher.steps) == ("ipndm", 2, 6)


def test_our_settings() -> None:
    recipe = make_preset("standard", 5).recipe
    assert recipe == PreconditionedAdam(
        learn="times+net+coefficients", exact=True, variable="lam", floor=0.01, epochs=5, batch=8,
        precondition=12, rate=0.08, clip=math.inf, gamma=0.0, decay="cosine", warm_up=5,
        validate_every=16, average=0.95, power=0.75,
    )  # fmt: skip
    assert make_preset("fast", 5).recipe == replace(recipe, batch=4, validate_every=15)
    assert make_preset("best", 5).recipe == replace(recipe, epochs=8, validate_every=32)
    assert {name for name in PRESETS if make_preset(name, 5).starts != 1} == {"best"}
    assert make_preset("best", 5).starts == 4
    pairs = [make_preset(name, 5) for name in ("fast", "standard", "best")]
    assert [(preset.train, preset.valid) for preset in pairs] == [(48, 16), (128, 32), (256, 64)]
    assert [make_preset("standard", nfe).teacher.steps for nfe in (6, 7)] == [20, 40]


def test_presets_for_families_and_without_gradients() -> None:
    preset = make_preset("standard", 5)
    family = for_family(preset).recipe
    assert (family.learn, family.epochs, family.validate_every) == ("times+net", 10, 32)
    newton = without_gradients(preset)
    assert newton.recipe == GaussNewton(
        learn="times+net+coefficients", floor=0.01, power=0.75, batch=32, epochs=1
    )
    assert (newton.train, newton.valid) == (preset.train, preset.valid)
    few = without_gradients(make_preset("standard", 5, pairs=16)).recipe
    assert (few.batch, few.epochs) == (16, 5)
    latent = make_preset("paper-latent", 5)
    assert for_family(latent).recipe.variable == "lam"
    recipe = replace(latent.recipe, exact=False, floor=0.02, max_skipped=7)
    changed = without_gradients(replace(latent, recipe=recipe)).recipe
    kept = (changed.learn, changed.variable, changed.exact, changed.floor, changed.max_skipped)
    assert kept == ("times+net", "t", False, 0.02, 7)


def test_settings_by_default() -> None:
    shared = {"learn": "times+net", "exact": True, "variable": "lam", "max_skipped": 20}
    descent = {"warm_up": 0, "patience": 5, "factor": 0.8, "average": 0.0, "rate_noise": 0.0}
    own: list[tuple[Recipe, dict[str, object]]] = [
        (
            PreconditionedAdam(),
            descent
            | {"floor": 0.01, "epochs": 10, "batch": 8, "validate_every": 10, "precondition": 12}
            | {"rate": 0.1, "min_rate": 0.001, "clip": math.inf, "gamma": 0.0, "decay": "cosine"},
        ),
        (
            PaperRules(),
            descent
            | {"floor": 0.0, "epochs_times": 2, "epochs": 5, "batch": 8, "validate_every": 1}
            | {"rate_times": 0.005, "rate_net": 0.02, "rate_coefficients": 0.01}
            | {"min_rate_times": 5e-5, "min_rate_net": 1e-6, "min_rate_coefficients": 1e-5}
            | {"clip": 1.0, "gamma": 0.001, "decay": "plateau", "window_from": "gaps"},
        ),
        (GaussNewton(), {"floor": 0.01, "epochs": 10, "batch": 32, "validate_every": 1}),
    ]
    for recipe, wanted in own:
        found = {name: value for name, value in vars(recipe).items() if name in shared | wanted}
        assert found == shared | wanted
    constants = (least_squares.GROUP, least_squares.WIDE, least_squares.DAMP, least_squares.TRUST)
    assert constants == (4, 6, 0.001, 0.2)
    assert (least_squares.PROBED, least_squares.DAMPS) == (3, (0.003, 0.03, 0.3, 3.0))


# ---- the state on disk


def test_a_state_is_the_same_after_a_round_trip() -> None:
    recipe = PaperRules(rate_times=0.1 + 0.2)
    _, memory = optimizer_step("adam", tensor(1.0), tensor(3.0), 0.1, {})
    state = replace(
        make_state(recipe), optimizer={"times": memory}, best=1 / 3, done=True, secant=0.1,
        rate_noise=0.7, skipped=3, evaluations=12345678901,
    )  # fmt: skip
    again = from_tensors(to_tensors(state))
    assert same(to_tensors(again), to_tensors(state))
    assert (again.best, again.done, again.evaluations) == (1 / 3, True, 12345678901)
    assert type(again.iteration) is type(again.evaluations) is int
    assert type(again.done) is bool


def test_a_state_begins_with_nothing_counted() -> None:
    state = make_state(PaperRules())
    required = {f.name: getattr(state, f.name) for f in fields(State) if f.default is MISSING}
    fresh = State(**{name: value for name, value in required.items() if name != "optimizer"})
    assert (fresh.rate_noise, fresh.secant, fresh.optimizer, fresh.done) == (0.0, 0.0, {}, False)
    assert (fresh.since_best, fresh.at_minimum, fresh.skipped, fresh.evaluations) == (0, 0, 0, 0)


def test_a_damaged_state_is_refused() -> None:
    tensors = to_tensors(make_state(PaperRules()))
    for name in ("values.times", "best", "iteration", "average.net", "scales", "secant"):
        with pytest.raises(StoreError, match="expected all parts"):
            from_tensors({key: v for key, v in tensors.items() if key != name})
    for extra in ("surprise", "best.times", "values.more", "rates", "optimizer"):
        with pytest.raises(StoreError, match="expected all parts"):
            from_tensors({**tensors, extra: torch.ones(1)})
