"""Tool calls as the models of each family write them, written without the code of eyas."""

import json
from collections.abc import Sequence
from typing import Any

Calls = Sequence[tuple[str, dict[str, Any]]]


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def tagged(arguments: dict[str, Any], template: str) -> str:
    values = {key: value if isinstance(value, str) else as_json(value) for key, value in arguments.items()}
    return "".join(template.format(key=key, value=value) for key, value in values.items())


def python_list(calls: Calls) -> str:
    written = (f"{name}({', '.join(f'{key}={value!r}' for key, value in a.items())})" for name, a in calls)
    return f"[{', '.join(written)}]"


def gemma_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{gemma_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(gemma_value, value)) + "]"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else as_json(value)


def named(calls: Calls, key: str = "arguments") -> list[str]:
    return [as_json({"name": name, key: arguments}) for name, arguments in calls]


def write(family: str, calls: Calls) -> str:
    """The calls as the models of a family write them (sources: facts about vLLM's and SGLang's parsers)."""
    if family == "hermes":
        return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in named(calls))
    if family == "qwen_xml":
        parts = [(name, tagged(a, "<parameter={key}>\n{value}\n</parameter>\n")) for name, a in calls]
        return "\n".join(f"<tool_call>\n<function={name}>\n{a}</function>\n</tool_call>" for name, a in parts)
    if family == "glm":
        parts = [(name, tagged(a, "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n")) for name, a in calls]
        return "\n".join(f"<tool_call>{name}\n{a}</tool_call>" for name, a in parts)
    if family == "mistral":
        return "".join(f"[TOOL_CALLS]{name}[ARGS]{as_json(a)}" for name, a in calls)
    if family == "mistral_list":
        return f"[TOOL_CALLS] [{', '.join(named(calls))}]"
    if family == "deepseek":
        one = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
        inner = "\n".join(one.format(name, as_json(a)) for name, a in calls)
        return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"
    if family == "deepseek_v3_1":
        one = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
        return f"<｜tool▁calls▁begin｜>{''.join(one.format(n, as_json(a)) for n, a in calls)}<｜tool▁calls▁end｜>"
    if family == "kimi":
        one = "<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
        inner = "".join(one.format(name, i, as_json(a)) for i, (name, a) in enumerate(calls))
        return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"
    if family == "harmony":
        one = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}<|call|>"
        return "<|start|>assistant".join(one.format(name, as_json(a)) for name, a in calls)
    if family == "gemma":
        return "".join(f"<|tool_call>call:{name}{gemma_value(a)}<tool_call|>" for name, a in calls)
    if family == "llama_json":
        return "; ".join(named(calls, "parameters"))
    if family == "lfm2":
        return f"<|tool_call_start|>{python_list(calls)}<|tool_call_end|>"
    assert family == "pythonic", family
    return python_list(calls)
