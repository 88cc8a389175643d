"""Metrics of samples and of sets of samples."""

from ld3.metrics.agreement import agreement, balanced_labels
from ld3.metrics.bound import (
    Bound,
    TrueBound,
    log_det,
    log_det_estimate,
    preimage,
    random_bounds,
    true_bound,
)
from ld3.metrics.coverage import PrecisionRecall, precision_recall
from ld3.metrics.fidelity import Fidelity, Spread, fidelity, per_sample, rmse
from ld3.metrics.frechet import Moments, frechet_distance
from ld3.metrics.inception import Inception, make_inception, to_uint8
from ld3.metrics.kernel import Kid, cmmd, kid, polynomial_mmd
from ld3.metrics.points import CloudScores, chamfer_matrix, cloud_scores, emd_matrix, to_box

__all__ = [
    "Bound", "CloudScores", "Fidelity", "Inception", "Kid", "Moments", "PrecisionRecall",
    "Spread", "TrueBound", "agreement", "balanced_labels", "chamfer_matrix", "cloud_scores",
    "cmmd", "emd_matrix", "fidelity", "frechet_distance", "kid", "log_det", "log_det_estimate",
    "make_inception", "per_sample", "polynomial_mmd", "precision_recall", "preimage",
    "random_bounds", "rmse", "to_box", "to_uint8", "true_bound",
]  # fmt: skip
