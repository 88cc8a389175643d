"""The paper's experiments: a spec file for each, and the few kinds of experiment they are."""

from ld3.reproduce.run import run_reproduce, write_result
from ld3.reproduce.spec import Experiment, experiments, load_experiment

__all__ = ["Experiment", "experiments", "load_experiment", "run_reproduce", "write_result"]
