"""Writes public sets of edits and tool calls as conversations that `eyas bench` reads.

    python benchmarks/turn_sets.py --data DIR --out DIR
    eyas bench --target T --head H --prompts DIR/bfcl-multi-turn.jsonl bench.turns=8

MT-bench, MT-bench-101 and EditEval need no conversion. A conversation of BFCL's multi-turn set has the first possible
calls as answers. Its simulated services are not part of the set, so each result is a short JSON object. The tools of a
conversation are the functions that its calls use, and, up to --num-tools, others of the same services.
"""

import argparse
import ast
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from public_prompts import Record, read_records
from tool_texts import to_json_schema

RESULT = json.dumps({"status": "done"})


def fixes(data: Path) -> Iterator[Record]:
    """Yields HumanEvalFix: the request, and the function that has a bug."""
    for record in read_records(data, "humanevalfix"):
        yield {"instruction": record["instruction"], "input": record["before"], "task": f"fix {record['lang']}"}


def single_calls(data: Path, name: str) -> Iterator[Record]:
    """Yields a set of BFCL with one request each and its tools."""
    for record in read_records(data, name):
        yield {"messages": record["question"][0], "tools": [_tool(one) for one in record["function"]], "task": name}


def call_loops(data: Path, num_tools: int) -> Iterator[Record]:
    """Yields BFCL's multi-turn set: user turns, the possible calls and their results."""
    functions = {record["class"]: record["functions"] for record in read_records(data, "bfcl-multi-turn-functions")}
    for record in read_records(data, "bfcl-multi-turn-base"):
        messages: list[dict[str, Any]] = []
        for asked, calls in zip(record["question"], record["ground_truth"], strict=True):
            messages += asked
            for text in calls:
                call = _read_call(text, f"{len(messages):09d}")
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": RESULT})
            messages.append({"role": "assistant", "content": "Done."})
        called = {call["function"]["name"] for message in messages for call in message.get("tool_calls", ())}
        known = [one for name in record["involved_classes"] for one in functions[name]]
        chosen = sorted(known, key=lambda one: one["name"] not in called)  # a stable sort: called ones first
        tools = [_tool(one) for one in chosen[: max(num_tools, len(called))]]
        yield {"messages": messages, "tools": tools, "task": "bfcl-multi-turn"}


def _read_call(text: str, call_id: str) -> dict[str, Any]:
    """Reads a call in Python, such as `mv(source='a', destination='b')`. Arguments without a name get a number."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call), text
    arguments = {f"argument_{number}": ast.literal_eval(value) for number, value in enumerate(call.args)}
    arguments |= {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    function = {"name": ast.unparse(call.func), "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    named = {"name": function["name"].replace(".", "_"), "description": function["description"]}
    return {"type": "function", "function": named | {"parameters": to_json_schema(function["parameters"])}}


def main() -> None:
    """Writes the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the directory of the sets")
    parser.add_argument("--out", type=Path, required=True, help="the directory to write to")
    parser.add_argument("--num-tools", type=int, default=8, help="the tools of a conversation, if fewer are called")
    parsed = parser.parse_args()
    sets: dict[str, Callable[[Path], Iterator[Record]]] = {
        "humanevalfix": fixes,
        "bfcl-multi-turn": partial(call_loops, num_tools=parsed.num_tools),
    }
    sets |= {name: partial(single_calls, name=name) for name in ("bfcl-simple", "bfcl-multiple", "bfcl-parallel")}
    parsed.out.mkdir(parents=True, exist_ok=True)
    for name, convert in sets.items():
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in convert(parsed.data)]
        (parsed.out / f"{name}.jsonl").write_text("".join(lines), "utf-8")
        print(f"{name}.jsonl: {len(lines)} conversations")


if __name__ == "__main__":
    main()
