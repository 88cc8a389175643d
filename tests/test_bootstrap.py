"""Intervals against closed forms, and how often they hold the truth."""

import math

import numpy as np
import pytest

from ld3.metrics.bootstrap import STUDENT, Weights, jackknife, mean, ratio, wins


def values(seeds: int, noises: int, seed: int = 0) -> np.ndarray:
    chance = np.random.default_rng(seed)
    hard = chance.lognormal(0, 0.6, size=noises)  # shared: some noise is hard for all
    return hard * chance.lognormal(0, 0.2, size=(seeds, noises))


def test_draws_are_the_same_each_time_and_weigh_one() -> None:
    a, b = (Weights.drawn(30, 3) for _ in range(2))
    assert np.array_equal(a.noises, b.noises) and np.array_equal(a.seeds, b.seeds)
    assert np.allclose(a.noises.sum(1), 1) and np.allclose(a.seeds.sum(1), 1)
    assert a.noises.min() >= 0 and a.seeds.min() >= 0  # a mean of distances is never negative
    assert not np.array_equal(a.noises, Weights.drawn(30, 3, seed=1).noises)


def test_a_constant_factor_is_known_exactly_and_a_constant_shift_by_closed_form() -> None:
    """Pairing: what both share cancels."""
    base, weights = values(1, 40), Weights.drawn(40, 1)
    half = ratio(0.5 * base, base, weights)
    assert (half.value, half.low, half.high) == pytest.approx((0.5, 0.5, 0.5), rel=1e-12)
    # (m + c) / m = 1 + c / m: the ends are those of the mean, turned over
    own, shifted = mean(base, weights), ratio(base + 0.3, base, weights)
    assert shifted.value == pytest.approx(1 + 0.3 / base.mean(), rel=1e-12)
    assert shifted.low == pytest.approx(1 + 0.3 / own.high, rel=2e-3)
    assert shifted.high == pytest.approx(1 + 0.3 / own.low, rel=2e-3)
    moved = mean(base + 0.3, weights)
    assert (moved.low, moved.high) == pytest.approx((own.low + 0.3, own.high + 0.3), rel=1e-12)


def test_the_spread_of_a_mean_is_that_of_the_textbook() -> None:
    """Also for two seeds, where plain resampling would halve the variance."""
    rows = values(2, 50)
    weights = Weights.drawn(50, 2, draws=100_000)
    one = weights.means(rows[:1])
    assert one.std() == pytest.approx(rows[0].std(ddof=1) / math.sqrt(50), rel=0.01)
    apart = np.array([[1.0] * 50, [3.0] * 50])  # seeds differ, noises do not
    assert weights.means(apart).std() == pytest.approx(apart.mean(1).std(ddof=1) / 2**0.5, rel=0.01)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """A true ratio of 0.8 on skewed data: 95 % would be perfect, a bootstrap has a bit less."""
    inside = unpaired = 0
    weights = Weights.drawn(64, 1, draws=1000)
    rounds = 300
    for seed in range(rounds):
        chance = np.random.default_rng(1000 + seed)
        hard = chance.lognormal(0, 1.0, size=64)
        base, own = (hard * chance.lognormal(0, 0.2, size=(1, 64)) for _ in range(2))
        found = ratio(0.8 * own, base, weights)
        inside += found.low <= 0.8 <= found.high
        alone = mean(0.8 * own, weights)
        unpaired += (alone.high - alone.low) / base.mean() > 2 * (found.high - found.low)
    assert 0.90 <= inside / rounds <= 0.98
    assert unpaired / rounds > 0.9  # pairing makes it far narrower


def test_the_jackknife_of_a_mean_is_the_textbook() -> None:
    chance = np.random.default_rng(3)
    x = chance.normal(size=10)
    without = [[float(np.delete(x, g).mean()) for g in range(10)]]
    found = jackknife([float(x.mean())], without)
    reach = STUDENT[10] * x.std(ddof=1) / math.sqrt(10)
    assert found.high - found.value == pytest.approx(reach, rel=1e-9)
    assert found.value - found.low == pytest.approx(reach, rel=1e-9)
    several = jackknife([1.0, 2.0, 3.0], [[1.0] * 10, [2.0] * 10, [3.0] * 10])
    assert several.high - 2 == pytest.approx(STUDENT[10] / 3**0.5, rel=1e-9)


def test_wins_counts_noises() -> None:
    base = np.array([[1.0, 2.0, 3.0, 4.0]])
    own = np.array([[0.5, 2.5, 1.0, 3.0], [0.5, 2.5, 3.5, 3.0]])
    assert wins(own, base) == 0.75
    assert wins(base, base) == 0
