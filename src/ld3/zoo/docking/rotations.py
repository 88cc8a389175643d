"""Rotations: unit quaternions (w, x, y, z), rotation vectors, and the alignment of point sets.

A rotation by the angle w about the unit axis e is the vector w e, the quaternion (cos w/2, e sin
w/2), or a matrix. Nothing here takes a logarithm of a matrix, so that all gradients are finite, at
half turns too.
"""

import torch
from torch import Tensor

TINY = 1e-24  # under square roots: the slope of |v| at v = 0 is finite


def length(v: Tensor) -> Tensor:
    """|v| over the last dimension, kept; with a finite slope at 0."""
    return (v.square().sum(-1, keepdim=True) + TINY).sqrt()


def quaternion(vector: Tensor) -> Tensor:
    """The quaternion (.., 4) of a rotation vector (.., 3)."""
    half = 0.5 * length(vector)
    return torch.cat([half.cos(), 0.5 * torch.sinc(half / torch.pi) * vector], -1)


def product(p: Tensor, q: Tensor) -> Tensor:
    """First q, then p: (.., 4), (.., 4) -> (.., 4)."""
    a, u, b, v = p[..., :1], p[..., 1:], q[..., :1], q[..., 1:]
    real = a * b - (u * v).sum(-1, keepdim=True)
    return torch.cat([real, a * v + b * u + torch.linalg.cross(u, v)], -1)


def inverse(q: Tensor) -> Tensor:
    """Of a unit quaternion (.., 4)."""
    return torch.cat([q[..., :1], -q[..., 1:]], -1)


def matrix(q: Tensor) -> Tensor:
    """The matrix (.., 3, 3) of a unit quaternion (.., 4)."""
    w, x, y, z = q.unbind(-1)
    rows = (
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    )  # fmt: skip
    return torch.stack(rows, -1).view(*w.shape, 3, 3)


def turn(points: Tensor, q: Tensor) -> Tensor:
    """Points (.., n, 3) turned about the origin by q (.., 4)."""
    return points @ matrix(q).mT


def alignment(points: Tensor, onto: Tensor) -> Tensor:
    """The rotation matrix R (B, 3, 3) that minimises |R points - onto| (Kabsch 1976).

    Both (B, n, 3) are centred. R maximises tr(R^T H) with H = onto^T points. Its slope is not taken
    through the singular vectors, which have none where singular values meet, but from the condition
    that M = R^T H is symmetric: a change of H turns R by R [w] with

        (tr(M) I - M) w = vee(M - M^T)

    which is regular unless all points lie on a line.
    """
    h = onto.mT @ points
    with torch.no_grad():
        u, _, v = torch.linalg.svd(h)
        proper = torch.ones_like(h[..., 0])
        proper[..., 2] = torch.det(u @ v)
        found = (u * proper[..., None, :]) @ v
    m = found.mT @ h  # symmetric in value, not in slope
    still = m.detach()
    eye = torch.eye(3, dtype=h.dtype, device=h.device)
    size = still.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    system = size * eye - 0.5 * (still + still.mT)
    skew = m - m.mT
    vee = torch.stack([skew[..., 2, 1], skew[..., 0, 2], skew[..., 1, 0]], -1)
    w = torch.linalg.solve(system + 1e-12 * size.abs() * eye, (vee - vee.detach())[..., None])
    turned: Tensor = found @ (eye + cross_matrix(w[..., 0]))
    return turned


def cross_matrix(v: Tensor) -> Tensor:
    """[v] (.., 3, 3) with [v] u = v x u."""
    x, y, z = v.unbind(-1)
    zero = torch.zeros_like(x)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).view(*x.shape, 3, 3)
