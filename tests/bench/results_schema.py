"""The schema of results.json, written by hand from section 5 of the design, and checked strictly."""

from typing import Any

NUMBER, COUNT, TEXT, SPAN, FLAG = "number", "count", "text", "span", "flag"
PERCENTILES = {"p50": NUMBER, "p90": NUMBER, "p99": NUMBER}
TIMES = {**PERCENTILES, "p50_ci95": SPAN}
# The keys of vLLM's benchmark stand beside these.
ARM = {"tpot_ms": TIMES, "ttft_ms": TIMES, "e2e_ms": TIMES, "step_ms": PERCENTILES, "output_tps": NUMBER, "more": ...}
SPECULATIVE = {**ARM, "acceptance_length": NUMBER, "acceptance_histogram": [COUNT]}
ARMS = ("chain2", "copies", "model2")  # what the tests measure beside the two
TASK = {
    "prompts": COUNT,
    "acceptance_length": NUMBER,
    "ci95": SPAN,
    "tpot_ms": {"baseline": NUMBER, "speculative": NUMBER},
    "speedup": NUMBER,
    "speedup_ci95": SPAN,
    "by_depth": [NUMBER],
    "identical": COUNT,
}
POINT = {
    "n": COUNT,
    "baseline": ARM,
    "speculative": SPECULATIVE,
    "arms": dict.fromkeys(ARMS, SPECULATIVE) | {"copies": ARM},  # the answers of the tests have nothing to copy
    "speedup_tpot": NUMBER,
    "speedup_tpot_ci95": SPAN,
    "speedup_tps": NUMBER,
    "speedup_tps_ci95": SPAN,
    "blocks": COUNT,
}
RATES = {"baseline": NUMBER, "speculative": NUMBER}
SLICE = {
    "conversations": COUNT,
    "tokens": COUNT,
    "output_tps": RATES,
    "acceptance_length": NUMBER,
    "ci95": SPAN,
    "speedup": NUMBER,
    "speedup_ci95": SPAN,
}


def check_results(found: dict[str, Any], tasks: list[str], references: bool) -> None:
    """Asserts exactly these keys and kinds of values."""
    more = {"uncertain_share": NUMBER, "looping": COUNT, "too_short": COUNT}
    drafter = {"acceptance_length": NUMBER, "ci95": SPAN}
    task = {**TASK, **more, **({"references": {"prompt_lookup": drafter, "ngram4": drafter}} if references else {})}
    schema = {
        "schema": COUNT,
        "machine": {
            "cpu": TEXT,
            "cores": COUNT,
            "threads": COUNT,
            "memory_gb": NUMBER,
            "gpu": None if found["machine"]["gpu"] is None else TEXT,
            "os": TEXT,
            "python": TEXT,
            "torch": TEXT,
            "transformers": TEXT,
        },
        "dtype": TEXT,
        "compiled": FLAG,
        "target": {"name": TEXT, "parameters": COUNT},
        "head": {"parameters": COUNT, "share_of_target": NUMBER},
        "lossless": {"prompts": COUNT, "identical": COUNT, "dtype": TEXT, "reference": TEXT},
        "tasks": dict.fromkeys(tasks, task),
        "concurrency": [POINT],
        "rates": [POINT],
        "ramp": [POINT],
        "rounds": {"draft_ms": NUMBER, "verify_ms": NUMBER, "extend_ms": NUMBER, "other_ms": NUMBER},
        "looping": None if found["looping"] is None else TASK,
        "slices": {
            axis: {label: SLICE | ({"kv_bytes": RATES} if axis == "context" else {}) for label in found["slices"][axis]}
            for axis in ("turn", "context", "phase")
        },
        "calibration": {source: {"ece": NUMBER, "bias": NUMBER} for source in found["calibration"]},
        "command": TEXT,
        "versions": dict.fromkeys(found["versions"], TEXT),
    }
    _check(found, schema, "results")


def _check(value: Any, schema: Any, where: str) -> None:
    if schema is None:
        assert value is None, where
    elif isinstance(schema, dict):
        assert isinstance(value, dict), where
        known = {key: inner for key, inner in schema.items() if inner is not ...}
        assert set(value) >= set(known) if "more" in schema else set(value) == set(known), (
            where,
            set(value) ^ set(known),
        )
        for key, inner in known.items():
            _check(value[key], inner, f"{where}.{key}")
    elif isinstance(schema, list):
        assert isinstance(value, list), where
        for index, item in enumerate(value):
            _check(item, schema[0], f"{where}[{index}]")
    elif schema == SPAN:
        _check(value, [NUMBER], where)
        assert len(value) == 2, (where, value)
        assert value[0] <= value[1], (where, value)
    elif schema == TEXT:
        assert isinstance(value, str), where
        assert value, where
    elif schema == FLAG:
        assert type(value) is bool, (where, value)
    else:
        assert type(value) in ((int,) if schema == COUNT else (int, float)), (where, value)
        assert value >= 0, (where, value)
