"""References: what samples are compared with, seen through a feature network.

    .npz            mu and sigma (EDM's fid-refs), with images in arr_0 (ADM's VIRTUAL_*.npz), or
                    with features; and what :func:`make_reference` writes
    .pkl            mu and sigma of EDM2's refs, read without unpickling
    folder, zip     images; also a dataset that the package `datasets` saved

A file of others holds numbers alone: which network and which images they are of is not in it. What
can be checked is: the number of features, the size of images inside, and a size in the file's name
(`cifar10-32x32.npz`). A file of our own says all of it, and anything that differs is refused: two
numbers are never compared across feature networks.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ld3.errors import SpecError, StoreError, unknown
from ld3.metrics.frechet import Gaussian, Moments
from ld3.metrics.inception import RESIZE
from ld3.metrics.kernel import FeatureSet
from ld3.runs.cache import Cache
from ld3.runs.evaluation.image_sets import CROPS, PART, ImageSet, open_images
from ld3.runs.evaluation.npz import Array, read_npz, write_npz
from ld3.runs.evaluation.pickled import read_pickled_arrays
from ld3.runs.progress import Report, silent
from ld3.store import digest, tensor_checksum
from ld3.zoo.features import FeatureNet, feature_net
from ld3.zoo.loading import check_device

ABOUT = "about"  # the array with a JSON text, in files of our own
FORMAT = "ld3-reference-1"
KEPT = 10_000  # features that are stored with `--with-features`
Size = tuple[int, int]


@dataclass(frozen=True)
class Reference:
    """Moments of data in the features of one network; None is what a file does not say."""

    source: str
    digest: str
    gaussian: Gaussian
    count: int | None = None  # images
    size: Size | None = None  # height and width
    network: str | None = None  # digest of the feature network
    network_name: str = ""
    resize: str | None = None  # the network's resize rule
    crop: str = ""  # how images came to their size
    features: FeatureSet | None = None  # for KID, CMMD, precision and recall

    def checked(self, net: FeatureNet, dimension: int, size: Size) -> "Reference":
        """Itself, if it fits features of this network and samples of this size."""
        named = f"reference {self.source}"
        if self.resize is not None and self.network_name == net.name and self.resize != net.resize:
            raise SpecError(
                f"{named}: got statistics with resize rule {self.resize}, but samples are resized "
                f"by {net.resize}; give --resize {self.resize}, or make the reference again"
            )
        if self.network is not None and self.network != net.digest:
            raise SpecError(
                f"{named}: got statistics of {self.network_name} ({self.network}), but the feature "
                f"network is {net.name} ({net.digest}); give --features of the same network, or "
                "make the reference again with `ld3 reference`"
            )
        if len(self.gaussian.mean) != dimension:
            raise SpecError(
                f"{named}: got {len(self.gaussian.mean)} features, but {net.name} gives "
                f"{dimension}; give --features of the network that the reference was made with"
            )
        _check_size(self.source, self.size, size)
        return self

    def needed(self, metric: str) -> FeatureSet:
        """Its features, which KID, CMMD, precision and recall need."""
        if self.features is None:
            raise SpecError(
                f"{metric}: got reference {self.source} with mean and covariance alone, expected "
                "one with features or images: `ld3 reference IMAGES OUT.npz --with-features`"
            )
        return self.features

    @property
    def title(self) -> str:
        """Such as `cifar10-32x32.npz (50,000 images)`."""
        known = "" if self.count is None else f" ({self.count:,} images)"
        return f"{self.source}{known}"


def _check_size(source: str, own: Size | None, samples: Size) -> None:
    if own is not None and own != samples:
        raise SpecError(
            f"reference {source}: got images of {own[0]}x{own[1]}, but samples are "
            f"{samples[0]}x{samples[1]}; give the reference of that resolution"
        )


def load_reference(
    path: Path, net: FeatureNet, cache: Cache, report: Report = silent, size: Size | None = None
) -> Reference:
    """The reference at a path. Images are seen by `net`; the cache stores their features. Images of
    another size than `size` are refused before that."""
    path = path.expanduser()
    if path.suffix == ".pkl":
        return _of_pickle(path)
    if path.suffix == ".npz":
        return _of_npz(path, net, cache, report)
    images = open_images(path, net.channels)
    if size is not None:
        _check_size(path.name, _size_of(images), size)
    return of_images(images, net, cache, report)


def _size_of(images: ImageSet) -> Size:
    first = next(images.parts(0, 1))
    return first.shape[-2], first.shape[-1]


def of_images(
    images: ImageSet, net: FeatureNet, cache: Cache, report: Report = silent, crop: str = ""
) -> Reference:
    """Moments and features of images; a part at a time, so that memory does not grow."""
    features = _features_of(images, net, cache, report)
    moments = Moments.of(part for _, part in features.blocks())
    return Reference(
        images.source.name, digest([images.digest, net.digest]), moments.gaussian, images.count,
        _size_of(images), net.digest, net.name, net.resize, crop, features,
    )  # fmt: skip


def make_reference(
    images: ImageSet,
    out: Path,
    net: FeatureNet,
    cache: Cache,
    report: Report = silent,
    crop: str = "",
    with_features: bool = False,
) -> Reference:
    """Write the reference of images to an `.npz` with mu and sigma, which other tools read too."""
    found = of_images(images, net, cache, report, crop)
    assert found.features is not None and found.size is not None
    arrays: dict[str, Any] = {
        "mu": found.gaussian.mean.numpy(), "sigma": found.gaussian.cov.numpy(),
    }  # fmt: skip
    if with_features:
        rows, left = [], KEPT
        for _, part in found.features.blocks():
            rows.append(part[:left])
            left -= len(rows[-1])
            if not left:
                break
        arrays["features"] = torch.cat(rows).numpy()
    about = {
        "format": FORMAT, "source": found.source, "count": found.count, "size": list(found.size),
        "network": found.network, "network_name": found.network_name, "resize": found.resize,
        "crop": found.crop, "sha256": _proof(arrays),
    }  # fmt: skip
    write_npz(out, arrays | {ABOUT: np.array(json.dumps(about))})
    return found


def run_reference(
    images: Path,
    out: Path,
    *,
    features: Path | None = None,
    resize: str | None = None,
    side: int | None = None,
    crop: str = "center-crop",
    with_features: bool = False,
    device: str = "cpu",
    report: Report = silent,
) -> Reference:
    """The walk of `ld3 reference`; what was computed before is in a cache beside `out`."""
    if crop not in CROPS:
        raise unknown("crop", crop, CROPS)
    if resize is not None and resize not in RESIZE:
        raise unknown("resize rule", resize, RESIZE)
    if out.suffix != ".npz":
        raise SpecError(f"out: got {out}, expected a name that ends in .npz")
    check_device(device)
    net = feature_net(features, False, device, resize)
    opened = open_images(images.expanduser(), net.channels, side, crop)  # type: ignore[arg-type]
    cache = Cache(out.parent / "cache")
    return make_reference(
        opened, out, net, cache, report, crop if side is not None else "", with_features
    )


def _features_of(images: ImageSet, net: FeatureNet, cache: Cache, report: Report) -> FeatureSet:
    if images.count < 2:
        raise SpecError(f"{images.source}: got {images.count} image, expected at least 2")
    key = {"images": images.digest, "features": net.digest}
    firsts = range(0, images.count, PART)

    def part(first: int) -> Tensor:
        def make() -> dict[str, Tensor]:
            pixels = next(images.parts(first, PART))
            found = net(pixels.float() / 127.5 - 1).float().cpu()
            report("features of the data", first + len(pixels), images.count)
            return {"features": found}

        return cache.tensors("features", {**key, "first": first}, make)["features"]

    return FeatureSet((images.count,), lambda: ((0, part(first)) for first in firsts))


def _of_npz(path: Path, net: FeatureNet, cache: Cache, report: Report) -> Reference:
    arrays = read_npz(path)
    about = _about(path, arrays)
    images, features = arrays.get("arr_0"), None
    size: Size | None = None
    rows = next((arrays[n] for n in ("features", "activations") if n in arrays), None)
    if images is not None and len(images.shape) == 2:
        images, rows = None, images
    if images is not None:
        own = open_images(path, net.channels)
        features = _features_of(own, net, cache, report)
        size = (images.shape[1], images.shape[2])
    elif rows is not None:
        features = _rows(rows)
    if "mu" in arrays and "sigma" in arrays:
        gaussian = _gaussian(path, arrays["mu"].whole(), arrays["sigma"].whole())
    elif features is not None:
        gaussian = Moments.of(part for _, part in features.blocks()).gaussian
    else:
        names = ", ".join(arrays) or "nothing"
        raise SpecError(
            f"reference {path.name}: got arrays {names[:100]}, expected mu and sigma, images in "
            "arr_0, or features"
        )
    if about:
        return Reference(
            path.name, about["sha256"][:16], gaussian, about["count"], tuple(about["size"]),
            about["network"], about["network_name"], about["resize"], about["crop"], features,
        )  # fmt: skip
    exact = None if features is None or "mu" in arrays else len(features)
    size = size or _size_in(path.name)
    return Reference(path.name, _digest(gaussian), gaussian, exact, size, features=features)


def _of_pickle(path: Path) -> Reference:
    arrays = read_pickled_arrays(path)
    for prefix in ("fid.", ""):  # EDM2 has also fd_dinov2, of another network
        if f"{prefix}mu" in arrays and f"{prefix}sigma" in arrays:
            gaussian = _gaussian(path, arrays[f"{prefix}mu"], arrays[f"{prefix}sigma"])
            return Reference(path.name, _digest(gaussian), gaussian, size=_size_in(path.name))
    names = ", ".join(arrays) or "no arrays"
    raise SpecError(f"reference {path.name}: got {names[:100]}, expected fid.mu and fid.sigma")


def _gaussian(path: Path, mu: Any, sigma: Any) -> Gaussian:
    count = mu.size
    if mu.ndim != 1 or sigma.shape != (count, count) or count < 1:
        raise SpecError(
            f"reference {path.name}: got mu of shape {list(mu.shape)} and sigma of "
            f"{list(sigma.shape)}, expected (D,) and (D, D)"
        )
    if mu.dtype.kind != "f" or sigma.dtype.kind != "f":
        raise SpecError(f"reference {path.name}: got {mu.dtype}, expected floating point")
    mean, cov = (torch.from_numpy(np.array(each, dtype=np.float64)) for each in (mu, sigma))
    if not bool(torch.isfinite(mean).all() and torch.isfinite(cov).all()):
        raise SpecError(f"reference {path.name}: got numbers that are not finite; get it again")
    if (cov - cov.T).abs().max() > 1e-3 * cov.abs().max():
        raise SpecError(f"reference {path.name}: got a sigma that is not symmetric; get it again")
    spread = cov.diagonal().clamp_min(0).sqrt()  # |c_ij| <= (c_ii c_jj)^{1/2}
    if (cov.abs() - torch.outer(spread, spread)).max() > 1e-3 * cov.abs().max():
        raise SpecError(
            f"reference {path.name}: got a sigma that is no covariance (an entry is larger than "
            "its variances allow); get it again"
        )
    return Gaussian(mean, (cov + cov.T) / 2)


def _rows(array: Array) -> FeatureSet:
    if len(array.shape) != 2 or array.dtype.kind != "f":
        raise SpecError(
            f"reference {array.path.name}: got {array.name} of shape {list(array.shape)}, expected "
            "features (N, D)"
        )

    def parts() -> Any:
        return ((0, torch.from_numpy(np.array(part))) for part in array.rows(PART))

    return FeatureSet((array.shape[0],), parts)


def _about(path: Path, arrays: dict[str, Array]) -> dict[str, Any]:
    """The description in a file of our own; nothing for files of others."""
    if ABOUT not in arrays:
        return {}
    try:
        found: dict[str, Any] = json.loads(str(arrays[ABOUT].whole()[()]))
        kinds: dict[str, Callable[[Any], bool]] = {
            "count": lambda v: isinstance(v, int), "network": _is_text, "crop": _is_text,
            "size": lambda v: isinstance(v, list) and len(v) == 2, "network_name": _is_text,
            "resize": _is_text, "sha256": _is_text,
        }  # fmt: skip
        whole = found["format"] == FORMAT and all(fits(found[n]) for n, fits in kinds.items())
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path}: got a damaged description ({error})") from None
    own = {name: array.whole() for name, array in arrays.items() if name != ABOUT}
    if not whole or _proof(own) != found["sha256"]:
        raise StoreError(
            f"{path}: got numbers that are not those it was written with; make it again with "
            "`ld3 reference`"
        )
    return found


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _proof(arrays: dict[str, Any]) -> str:
    return tensor_checksum({name: torch.from_numpy(np.array(v)) for name, v in arrays.items()})


def _digest(gaussian: Gaussian) -> str:
    return _proof({"mu": gaussian.mean.numpy(), "sigma": gaussian.cov.numpy()})[:16]


def _size_in(name: str) -> Size | None:
    """Of `cifar10-32x32.npz`."""
    found = re.search(r"(?<!\d)(\d{1,4})x(\d{1,4})(?!\d)", name)
    return None if found is None else (int(found[1]), int(found[2]))
