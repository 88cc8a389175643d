"""Networks that were written whole: by EDM's training code with their source text, which stays
text, and as TorchScript, whose code is left alone.

A module of EDM is an object whose state has `_parameters`, `_buffers` and `_modules`, its class and
the arguments it was made with. One of TorchScript has its tensors and modules in its state by name.
"""

from collections.abc import Collection, Iterator
from typing import Any, BinaryIO

from ld3.zoo.checkpoints.pickled_values import mapping, plain, shown
from ld3.zoo.checkpoints.pickles import Made
from ld3.zoo.checkpoints.regions import BadFile

MAX_DEPTH = 50  # of modules in modules
MAX_MODULES = 100_000
SCRIPT = "__torch__."  # what classes of TorchScript begin with


def persistent(value: object) -> tuple[str, dict[object, object]] | None:
    """Class and state of an object that EDM's code wrote with its source; the source is dropped."""
    if not isinstance(value, Made) or not value.maker.endswith("._reconstruct_persistent_obj"):
        return None
    meta = mapping(value.args[0]) if value.args else None
    if meta is None:
        return None
    name, state = meta.get("class_name"), mapping(meta.get("state"))
    return (name, state) if isinstance(name, str) and state is not None else None


def edm_config(network: object, file: BinaryIO) -> dict[str, Any]:
    """The configuration of a network, and of the one inside its preconditioner."""
    name, state = persistent(network) or ("", {})
    inner = persistent((mapping(state.get("_modules")) or {}).get("model"))
    words = plain(
        {
            key: item
            for key, item in state.items()
            if isinstance(key, str) and not key.startswith("_") and key != "training"
        },
        file,
    )
    given = plain(state.get("_init_kwargs"), file)
    config: dict[str, Any] = {
        **(words if isinstance(words, dict) else {}),
        **(given if isinstance(given, dict) else {}),
        "precond": name,
    }
    if inner is not None:
        config.setdefault("model_type", inner[0])
        config["model"] = plain(inner[1].get("_init_kwargs"), file)
    return config


def walk_modules(network: object) -> Iterator[tuple[str, object]]:
    """Parameters and buffers of a module and of those inside it, names joined by dots."""
    seen: set[str] = set()
    for number, (prefix, state) in enumerate(_states(network, "", 0)):
        if number >= MAX_MODULES:
            raise BadFile(f"got over {MAX_MODULES} modules, expected fewer")
        hidden = state.get("_non_persistent_buffers_set")
        for group in ("_parameters", "_buffers"):
            for name, value in (mapping(state.get(group)) or {}).items():
                skipped = group == "_buffers" and isinstance(hidden, list) and name in hidden
                if value is None or skipped:
                    continue
                full = f"{prefix}{name}" if isinstance(name, str) else ""
                if not full.isprintable() or not full or full in seen:
                    raise BadFile(f"got the name {full[:80]!r}, expected each name once")
                seen.add(full)
                yield full, value


def _states(module: object, prefix: str, depth: int) -> Iterator[tuple[str, dict[object, object]]]:
    """The state of a module and of all inside it, each with its prefix."""
    if depth > MAX_DEPTH:
        raise BadFile(f"got modules nested more than {MAX_DEPTH} deep, expected fewer")
    found = persistent(module)
    if found is not None:
        state = found[1]
    elif isinstance(module, Made) and isinstance(module.state, dict):
        state = module.state
    else:
        raise BadFile(f"got {shown(module)} as module {prefix[:80] or 'ema'!r}, expected a network")
    yield prefix, state
    for name, inner in (mapping(state.get("_modules")) or {}).items():
        if inner is not None:
            if not isinstance(name, str):
                raise BadFile(f"got {shown(name)} as a name of a module, expected a text")
            yield from _states(inner, f"{prefix}{name}.", depth + 1)


def walk_script(module: Made, tensors: Collection[str]) -> Iterator[tuple[str, object]]:
    """Tensors of a TorchScript module and of those inside it, names joined by dots; `tensors` are
    the functions that make one."""
    left, count = [("", module, 0)], 0
    while left:
        prefix, one, depth = left.pop()
        count += 1
        if depth > MAX_DEPTH or count > MAX_MODULES:
            raise BadFile(
                f"got over {MAX_MODULES} modules, or some nested more than {MAX_DEPTH} deep, "
                "expected fewer"
            )
        for name, value in (one.state if isinstance(one.state, dict) else {}).items():
            full = f"{prefix}{name}"
            if isinstance(value, Made) and full.isprintable():
                if value.maker.startswith(SCRIPT):
                    left.append((f"{full}.", value, depth + 1))
                elif value.maker in tensors:
                    yield full, value
