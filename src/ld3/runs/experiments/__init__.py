"""Experiments: a spec file each, and the few kinds of experiment they are."""

from ld3.runs.experiments.run import run_reproduce, write_result
from ld3.runs.experiments.spec import all_experiments, experiment_names, load_experiment

__all__ = [
    "all_experiments",
    "experiment_names",
    "load_experiment",
    "run_reproduce",
    "write_result",
]
