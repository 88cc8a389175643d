"""From a spec to a plan, and from a plan to samples."""

from ld3.runs.descent import Interrupted
from ld3.runs.jobs import HELD, VALID, Job, jobs, pairs_for
from ld3.runs.learn import Learned, run_learn
from ld3.runs.sample import run_sample
from ld3.runs.score import Scored, run_score

__all__ = [
    "HELD",
    "VALID",
    "Interrupted",
    "Job",
    "Learned",
    "Scored",
    "jobs",
    "pairs_for",
    "run_learn",
    "run_sample",
    "run_score",
]
