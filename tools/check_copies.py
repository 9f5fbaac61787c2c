"""Finds copies that make the host wait for the device, in the packages whose functions run in launched work.

check_style.py calls it, and tests/test_check_style.py shows what it finds. It reads the source alone, so it misses what
needs types: tests/engine/test_nothing_waits.py runs engines under modes that find the rest.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

# Packages whose functions run in work that is launched on a device: they copy with eyas.staging.
LAUNCHED_PACKAGES = ("engine", "memory", "drafters")
HOST_READS = ("item", "tolist", "cpu", "cuda", "nonzero", "is_nonzero", "masked_select")
# The functions among them that may copy or read, and why.
_AFTER_EVENT = "reads a result on the host, after the event of its work"
COPYING_FUNCTIONS = {
    "engine/output_processor.py:process_prefill": _AFTER_EVENT,
    "engine/output_processor.py:process_round": _AFTER_EVENT,
    "engine/output_processor.py:_add_logprobs": _AFTER_EVENT,
    "engine/output_processor.py:_draft_tree": _AFTER_EVENT,
    "drafters/head_spec.py:on": "moves a head to its device before an engine is built",
}
SHAPE_SUFFIX = re.compile(r"_[A-Z0-9]+$")


def find_copies(path: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields the line of each copy that waits, and what is wrong with it."""
    package = path.parent
    if package.name not in LAUNCHED_PACKAGES or package.parent.name != "eyas":
        return
    place = f"{package.name}/{path.name}"
    for node in _walk_checked(tree, place):
        if problem := _copy_problem(node):
            yield getattr(node, "lineno", 1), f"{problem} makes the host wait for the device; use eyas.staging"


def _walk_checked(node: ast.AST, place: str) -> Iterator[ast.AST]:
    """Yields the nodes below `node`, without those of the functions that may copy."""
    for child in ast.iter_child_nodes(node):
        if f"{place}:{getattr(child, 'name', '')}" not in COPYING_FUNCTIONS:
            yield child
            yield from _walk_checked(child, place)


def _copy_problem(node: ast.AST) -> str | None:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        target = node.targets[0]
        name, index = _last_name(target.value), _last_name(target.slice)
        # A number for one element is copied from the host: tensor_R[slot].fill_(number) is not.
        if re.search("_[A-Z]$", name) and index and not SHAPE_SUFFIX.search(index + _last_name(node.value)):
            return f"a number that is assigned to an element of {name}"
    if not isinstance(node, ast.Call):
        return None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if isinstance(node.func, ast.Attribute) and name in HOST_READS:
        return f".{name}()"
    has_device = any(keyword.arg == "device" for keyword in node.keywords)
    if name in ("tensor", "as_tensor", "asarray") and has_device:
        return f"{ast.unparse(node.func)}(..., device=...)"
    texts = [ast.unparse(one) for one in node.args]
    is_moved = has_device or any("device" in text or text in ("'cpu'", "'cuda'") for text in texts)
    return ".to(device)" if name == "to" and is_moved else None


def _last_name(node: ast.AST) -> str:
    """Returns the last name of `a` or `a.b`, the digits of a number, and an empty string for anything else."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
