"""Part `peers` of `tool_calls.py`: whether the parsers of other projects find the calls that eyas finds.

Each text is read by eyas, by the parser that vLLM has for this family of models and, if it is harmony, by
openai-harmony. Two of them agree if they find the same functions with the same arguments in the same order. Where they
do not agree, the row misses its target, unless it is known that the peer is wrong and eyas reads what was written.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from result_rows import Row
from tool_texts import Written, ask_driver, parse

from eyas.model.target_dir import EMBEDDED, resolve_target

SHOWN = 5
# Families whose texts a peer reads wrongly, with the reason. eyas reads these texts as they were written.
FAULTS = {
    ("vLLM", "gemma"): "vLLM makes texts of numbers in objects whose schema names no properties",
    ("vLLM", "mistral"): "vLLM takes the id behind [CALL_ID] for a part of the name",
}


@dataclass(frozen=True)
class VllmParser:
    """A parser of vLLM. markers: the special tokens that it looks up in the vocabulary."""

    name: str
    markers: tuple[str, ...] = ()


DEEPSEEK = tuple(f"<｜tool▁{text}｜>" for text in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep"))
KIMI = tuple(f"<|tool_{text}|>" for text in ("calls_section_begin", "calls_section_end", "call_begin", "call_end"))
VLLM_PARSERS = {
    "qwen_xml": VllmParser("qwen3_coder", ("<tool_call>", "</tool_call>")),
    "glm": VllmParser(
        "glm45", ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    ),
    "hermes": VllmParser("hermes", ("<tool_call>", "</tool_call>")),
    "mistral": VllmParser("mistral", ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")),
    "mistral_list": VllmParser("mistral", ("[TOOL_CALLS]",)),
    "deepseek": VllmParser("deepseek_v3", DEEPSEEK),
    "deepseek_v3_1": VllmParser("deepseek_v31", DEEPSEEK),
    "kimi": VllmParser("kimi_k2", (*KIMI, "<|tool_call_argument_begin|>")),
    "harmony": VllmParser("openai"),
    "gemma": VllmParser("gemma4", ("<|tool_call>", "<tool_call|>", '<|"|>', "<|tool_response>")),
    "llama_json": VllmParser("llama3_json", ("<|python_tag|>",)),
    "lfm2": VllmParser("lfm2", ("<|tool_call_start|>", "<|tool_call_end|>")),
    "pythonic": VllmParser("pythonic"),
}


def peer_rows(env: Path, texts: Sequence[Written]) -> Iterator[Row]:
    """Yields, for each family and peer, the share of texts that both read alike."""
    records = []
    for written in texts:
        parser = VLLM_PARSERS[written.family]
        record = {"parser": parser.name, "markers": parser.markers, "tools": written.case.tools}
        records.append({**record, "text": written.text})
    target = resolve_target(EMBEDDED)
    yield from _rows("vLLM", texts, ask_driver(env / "vllm", "parse_vllm.py", records, str(target)))
    harmony = [written for written in texts if written.family == "harmony"]
    records = [{"text": written.text} for written in harmony]
    yield from _rows("openai-harmony", harmony, ask_driver(env / "clients", "harmony.py", records, "--parse"))


def _rows(peer: str, texts: Sequence[Written], answers: Sequence[Any]) -> Iterator[Row]:
    groups: dict[tuple[str, bool], list[tuple[Written, Any]]] = {}
    for written, calls in zip(texts, answers, strict=True):
        groups.setdefault((written.family, written.source == "eyas"), []).append((written, calls))
    for (family, is_own), pairs in sorted(groups.items()):
        unequal, is_right = [], True
        for written, answer in pairs:
            calls = [(name, _value(arguments)) for name, arguments in answer]
            own = [(call.name, json.loads(call.arguments)) for call in parse(written, [written.text]).calls]
            if own != calls:
                unequal.append((written.source, written.text, own, calls))
                is_right = is_right and own == written.case.calls
        for difference in unequal[:SHOWN]:
            print(f"{peer}, {family}: {difference}", file=sys.stderr)
        fault = FAULTS.get((peer, family)) if unequal and is_right else None
        name = f"calls that {peer} reads alike: {family}{', as eyas enforces them' if is_own else ''}"
        figure = round(1 - len(unequal) / len(pairs), 4)
        yield Row(
            f"{name} ({len(pairs)} texts)", figure, f"1, but {fault}" if fault else "1", bool(fault) or not unequal
        )


def _value(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
