"""Finished answers with the rounds that a test wants, and a run directory with the figures that it wants."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eyas.base.config import to_toml
from eyas.base.provenance import StageInputs, finish_stage
from eyas.engine.request import Request, RequestOutput
from eyas.recipe import Recipe
from eyas.server.openai_requests import ChatRequest
from eyas.speculation.acceptance_trace import AcceptanceTrace
from eyas.speculation.arms import Arm
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape, chain_shape

HEAD = "sha256:" + "a" * 64
TREE16 = Arm("tree16", TreeShape(6, 4, 16))
CHAIN2 = Arm("chain2", chain_shape(2))


def answer(accepted: Sequence[int], arm: Arm = TREE16, context: int = 20, **sampling: Any) -> RequestOutput:
    """One round of this arm for each number of accepted tokens."""
    done = RequestOutput(Request("r-0", (1, 2), 400, SamplingParams(**sampling)), finish_reason="stop")
    for taken in accepted:
        # Each node of the path was among the first of the tree.
        needs = tuple(range(2, taken + 1))
        done.accepted.append(taken)
        done.traces.append(AcceptanceTrace(arm, context, needs, taken - 1, taken - 1))
        context += taken
        done.token_ids += [context + i for i in range(taken)]
    return done


def chat(messages: list[dict], **rest: object) -> ChatRequest:
    return ChatRequest.model_validate({"model": "m", "messages": messages, **rest})


def body(text: str, **rest: object) -> ChatRequest:
    return chat([{"role": "user", "content": text}], **rest)


def entry(length: float, low: float, high: float) -> dict:
    return {"prompts": 20, "acceptance_length": length, "ci95": [low, high]}


def write_run(directory: Path, results: dict, acceptance: dict | None, recipe: Recipe | None = None) -> Path:
    """A run as far as `eyas drift` reads it."""
    report = directory / "report"
    report.mkdir(parents=True)
    (directory / "eval").mkdir()
    (directory / "recipe.toml").write_text(to_toml(recipe or Recipe()))
    (report / "results.json").write_text(json.dumps({"schema": 1, "tasks": {}} | results))
    finish_stage(report, StageInputs("bench", "", {"head": HEAD}), 0.0)
    if acceptance is not None:
        whole = {"schema": 1, "tree": {"depth": 6, "top_k": 4, "nodes": 16}, "temperature": None, "tasks": {}}
        (directory / "eval" / "acceptance.json").write_text(json.dumps(whole | acceptance))
    return directory
