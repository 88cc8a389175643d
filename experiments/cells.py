"""Cells of an experiment: many runs of `ld3 learn`, side by side, each kept on disk.

A cell that was finished is read, one that was stopped goes on; so an experiment can be interrupted
and started again at any time.
"""

import argparse
import json
import multiprocessing
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ld3.runs import run_learn
from ld3.spec import RunSpec

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
IMAGES = ROOT / "docs" / "images"


@dataclass(frozen=True)
class Cell:
    """The words of a run, and what came of it."""

    words: dict[str, Any]
    scores: dict[str, dict[str, float | None]]
    evaluations: int
    plan: str


def arguments(description: str) -> argparse.Namespace:
    """Options every experiment has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=ROOT / "runs", help="folder of the runs")
    parser.add_argument("--jobs", type=int, default=2, help="cells side by side")
    return parser.parse_args()


def run(words: dict[str, Any], out: Path) -> Cell:
    """One cell."""
    torch.set_num_threads(1)
    (result,) = run_learn(RunSpec.read({**words, "out": out}), lambda what, done, total: None)
    scores = {name: asdict(score) for name, score in result.scores.items()}
    evaluations = result.plan.learned["evaluations"]
    return Cell(words, scores, evaluations, str(result.folder / "plan.json"))


def run_all(cells: Sequence[dict[str, Any]], out: Path, jobs: int) -> list[Cell]:
    """All cells, in the order in which they were given."""
    unique = {json.dumps(words, sort_keys=True): words for words in cells}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = {pool.submit(run, words, out): key for key, words in unique.items()}
        done = {}
        for future in tqdm(as_completed(futures), total=len(futures), unit="cell"):
            done[futures[future]] = future.result()
    return [done[json.dumps(words, sort_keys=True)] for words in cells]


def spread(values: Sequence[float], digits: int) -> str:
    """mean ± standard deviation"""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def write(name: str, text: str) -> None:
    """A piece of a page of the documentation."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / name).write_text(text)
    print(text)
