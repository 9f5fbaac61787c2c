"""Results for the tests of the report, with every optional key and no equal numbers."""

from typing import Any

TASKS = ("chat", "code", "arithmetic", "extraction", "summary", "passages", "translation")


def sample_results() -> dict[str, Any]:
    return {
        "schema": 1,
        "machine": {"cpu": "A made-up processor", "cores": 2, "memory_gb": 8.0},
        "dtype": "float32",
        "target": {"name": "embedded", "parameters": 14_183_680},
        "head": {"parameters": 1_310_976, "share_of_target": 0.0924},
        "lossless": {"prompts": 128, "identical": 128, "dtype": "float32", "reference": "transformers generate"},
        "tasks": {name: _task(index) for index, name in enumerate(TASKS)},
        "concurrency": [_point(index, n) for index, n in enumerate((1, 2, 4, 8, 16, 32))],
        "rounds": {"draft_ms": 3.912, "verify_ms": 7.034, "extend_ms": 1.187, "other_ms": 0.641},
        "story": {
            "prompts": 1400,
            "answers": 1391,
            "tokens": 118_204,
            "feature_bytes": 242_081_792,
            "train_seconds": 171.4,
            "head_start": "random",
            "training": [
                {"update": 20 * n, "loss": 6.0 / n, "accuracy": 1 - 0.9 / n, "chain_length": 3 - 2 / n}
                for n in range(1, 11)
            ],
        },
        "command": "eyas quickstart --out RUN --json",
        "versions": {"eyas": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0"},
    }


def sample_acceptance() -> dict[str, Any]:
    tasks = {
        name: {
            "prompts": 24,
            "acceptance_length": 2.5 + 0.1 * index,
            "ci95": [2.4, 2.6],
            "by_depth": [0.913 - 0.021 * index - 0.047 * depth for depth in range(6)],
        }
        for index, name in enumerate(TASKS)
    }
    return {"schema": 1, "tree": {"depth": 6, "top_k": 4, "nodes": 24}, "tasks": tasks}


def _task(index: int) -> dict[str, Any]:
    baseline, speedup = 9.213 + 0.137 * index, (1.731, 2.874, 2.316, 3.127, 2.098, 1.942, 1.417)[index]
    length = (2.417, 4.128, 3.391, 4.473, 2.986, 2.713, 2.051)[index]
    return {
        "prompts": 24 + index,
        "acceptance_length": length,
        "ci95": [length - 0.173, length + 0.191],
        "tpot_ms": {"baseline": baseline, "speculative": baseline / speedup},
        "speedup": speedup,
        "speedup_ci95": [speedup - 0.091, speedup + 0.087],
        "references": {
            "prompt_lookup": {"acceptance_length": 1.113 + 0.143 * index},
            "ngram4": {"acceptance_length": 1.427 + 0.062 * index},
        },
        "uncertain_share": 0.213 + 0.031 * index,
        "looping": 2 if index == 0 else 0,
    }


def _point(index: int, n: int) -> dict[str, Any]:
    def times(p50: float) -> dict[str, Any]:
        return {"p50": p50, "p90": p50 * 1.3, "p99": p50 * 1.8, "p50_ci95": [p50 * 0.97, p50 * 1.04]}

    def arm(tpot: float, length: float | None) -> dict[str, Any]:
        tps = 1000 * n / tpot * 0.93
        figures: dict[str, Any] = {
            "tpot_ms": times(tpot),
            "ttft_ms": times(tpot * 2.3),
            "step_ms": {key: value for key, value in times(tpot * 2.7).items() if key != "p50_ci95"},
            "e2e_ms": times(tpot * 130),
            "output_tps": tps,
            "output_tps_ci95": [tps * 0.96, tps * 1.03],
            "goodput": 0.011 * tps,
        }
        if length is None:
            return figures
        span = [length - 0.13, length + 0.11]
        drafted = {"acceptance_histogram": [31, 27, 19, 13, 7], "acceptance_length_ci95": span}
        return {**figures, "acceptance_length": length, **drafted}

    before, after = 9.31 * (1 + 0.31 * index**1.5), 4.11 * (1 + 0.52 * index**1.5)
    return {
        "n": n,
        "baseline": arm(before, None),
        "speculative": arm(after, 2.9),
        "arms": {"chain of 3": arm(after * 1.1, 2.1)},
        "speedup_tpot": before / after,
        "speedup_tps": before / after,
        "speedup_tps_ci95": [before / after - 0.1, before / after + 0.1],
    }
