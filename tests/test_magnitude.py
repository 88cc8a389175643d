"""The U-Net that keeps magnitudes: its maths, and that time passes through it smoothly."""

import torch

from ld3.zoo.magnitude import MagnitudeUNet, bake, constrain, mp_cat, mp_silu, mp_sum, rows


def small() -> MagnitudeUNet:
    torch.manual_seed(0)
    net = MagnitudeUNet(1, widths=(16, 32), blocks=(1, 1), heads=2, embedding=32)
    torch.nn.init.constant_(net.gain, 1.0)
    return net


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(3, 1, 28, 28), torch.tensor([-1.0, 0.2, 0.9]), torch.tensor([0, 9, 10])


def test_pieces_keep_the_mean_square() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(8, n, 40, 40, generator=generator) for n in (12, 4))
    for out in (mp_silu(a), mp_sum(a, a.flip(0), 0.3), mp_cat(a, b)):
        assert abs(float(out.square().mean()) - 1) < 0.05
    lengths = torch.linalg.vector_norm(rows(torch.randn(5, 7, 3, 3)).flatten(1), dim=1)
    assert torch.allclose(lengths, torch.ones(5), atol=1e-5)


def test_baked_weights_give_what_training_gives() -> None:
    net, (x, u, label) = small(), inputs()
    with torch.no_grad():
        wanted = net.train()(x, u, label)
        constrain(net)
        assert torch.allclose(net(x, u, label), wanted, atol=1e-4)
        bake(net)
        assert torch.allclose(net.eval()(x, u, label), wanted, atol=1e-4)
    assert wanted.shape == x.shape


def test_the_slope_in_time_is_that_of_finite_differences() -> None:
    net = small().double()
    bake(net)
    net.eval().requires_grad_(False)
    x, u, label = inputs()
    x, u = x.double(), u.double().requires_grad_()
    (slope,) = torch.autograd.grad(net(x, u, label).square().sum(), u)
    step = 1e-5 * torch.eye(3, dtype=torch.float64)
    with torch.no_grad():
        both = [[float(net(x, u + s * e, label).square().sum()) for e in step] for s in (1, -1)]
    found = (torch.tensor(both[0]) - torch.tensor(both[1])) / 2e-5
    assert torch.allclose(slope, found.double(), rtol=1e-4, atol=1e-3)
