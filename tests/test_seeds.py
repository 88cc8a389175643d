"""The one table of seed ranges: disjoint, and never exceeded."""

from itertools import pairwise

import pytest

from ld3 import CompareSpec, RunSpec
from ld3.errors import SpecError
from ld3.seeds import MAX_PAIRS, MAX_RUN, RANGES, seeds_for


def test_ranges_never_meet() -> None:
    ends = sorted((r.first, r.first + r.block * r.blocks) for r in RANGES.values())
    assert all(high <= low for (_, high), (low, _) in pairwise(ends))


@pytest.mark.parametrize("run", [0, 1, MAX_RUN])
def test_no_run_trains_on_the_noise_of_another_purpose(run: int) -> None:
    """Seeds 100000 and 200000 once trained on the validation and held-out noise."""
    own = set(seeds_for("training", MAX_PAIRS, run))
    assert len(own) == MAX_PAIRS
    for purpose in RANGES:
        if purpose != "training":
            other = seeds_for(purpose, MAX_PAIRS)
            assert not own & set(other), purpose
    assert not own & set(seeds_for("validation", MAX_PAIRS, run))
    if run:
        assert not own & set(seeds_for("training", MAX_PAIRS, run - 1))


def test_blocks_begin_where_they_did() -> None:
    """Numbers in the documentation were measured on these seeds."""
    assert seeds_for("training", 3, 2) == range(20_000, 20_003)
    assert seeds_for("validation", 2) == range(1_000_000_000, 1_000_000_002)
    assert seeds_for("held-out", 2) == range(2_000_000_000, 2_000_000_002)
    assert seeds_for("evaluation", 1)[0] == 3_000_000_000
    assert seeds_for("reference", 1)[0] == 3_500_000_000
    for billions, name in ((4, "images"), (5, "bound"), (6, "illustration")):
        assert seeds_for(name, 1)[0] == billions * 1_000_000_000
    assert len(seeds_for("training", 0)) == 0
    assert {RANGES[name].block for name in ("evaluation", "reference")} == {500_000_000}


@pytest.mark.parametrize(("count", "run"), [(MAX_PAIRS + 1, 0), (1, MAX_RUN + 1), (1, -1), (-1, 0)])
def test_more_than_there_is_is_refused(count: int, run: int) -> None:
    with pytest.raises(SpecError, match="expected"):
        seeds_for("training", count, run)


@pytest.mark.parametrize(
    "options", [{"seed": 200_000}, {"seed": MAX_RUN + 1}, {"pairs": 20_000}, {"valid": 20_000}]
)
def test_options_beyond_the_table_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(SpecError, match="expected at most"):
        RunSpec(**options)
    if "seed" not in options:
        with pytest.raises(SpecError, match="expected at most"):
            CompareSpec(**options)
