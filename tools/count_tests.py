"""Counts tests, asserts, tolerances and skips of two checkouts, to show that a change lost no check.

    python tools/count_tests.py BEFORE AFTER

BEFORE and AFTER are checkouts of the repository. Tests are counted in the source: a parametrized test counts once for
each literal parameter set.
"""

import argparse
import ast
import json
from collections import Counter
from pathlib import Path

TOLERANCES = ("approx", "allclose", "isclose", "assert_close", "atol", "rtol", "tolerance")
SKIPS = ("skip", "skipif", "xfail", "importorskip")


def count_checks(tests: Path) -> Counter[str]:
    """Returns the counts of all Python files below a directory."""
    counts: Counter[str] = Counter()
    for path in tests.rglob("*.py"):
        counts["files"] += 1
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                counts["test functions"] += 1
                counts["parameter sets"] += _count_parameters(node)
            counts["asserts"] += isinstance(node, ast.Assert)
            counts["expected errors"] += _is_call(node, ("raises", "refused", "warns"))
            counts["tolerances"] += _is_call(node, TOLERANCES) + _has_keyword(node, TOLERANCES)
            counts["skips"] += isinstance(node, ast.Attribute) and node.attr in SKIPS
    return counts


def _count_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Returns the product of the literal lists of `parametrize`; a list that is computed counts as one."""
    total = 1
    for decorator in function.decorator_list:
        if _is_call(decorator, ("parametrize",)) and isinstance(decorator, ast.Call) and len(decorator.args) > 1:
            values = decorator.args[1]
            total *= len(values.elts) if isinstance(values, (ast.List, ast.Tuple)) else 1
    return total


def _is_call(node: ast.AST, names: tuple[str, ...]) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in names


def _has_keyword(node: ast.AST, names: tuple[str, ...]) -> bool:
    return isinstance(node, ast.keyword) and node.arg in names


def main() -> None:
    """Prints one JSON object a count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parsed = parser.parse_args()
    before, after = count_checks(parsed.before / "tests"), count_checks(parsed.after / "tests")
    for name in before:
        print(json.dumps({"name": name, "before": before[name], "after": after[name]}))


if __name__ == "__main__":
    main()
