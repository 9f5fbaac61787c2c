"""Writes BFCL's cases as the answers of models, with the code of other projects. `tool_calls.py` calls it."""

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from eyas.base.errors import InputError
from eyas.chat.conversation import Message, TemplateMessage
from eyas.chat.render import render_text, turn_suffix
from eyas.chat.tool_format import ToolFamily, ToolFormat, load_families, new_call_id
from eyas.chat.tool_parser import ParsedText, ToolCallParser
from eyas.model.target_dir import EMBEDDED, resolve_target

FILES = ("bfcl-simple.jsonl", "bfcl-multiple.jsonl", "bfcl-parallel.jsonl")
SCHEMA_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
DRIVERS = Path(__file__).parent / "peer_drivers"
MISTRAL_FAMILIES = {"v3": "mistral_list", "v7": "mistral_list", "v11": "mistral", "v13": "mistral"}


@dataclass(frozen=True)
class Case:
    """A case of BFCL: the tools as OpenAI's API takes them, and the first of the possible answers."""

    tools: list[dict[str, Any]]
    calls: list[tuple[str, dict[str, Any]]]


def read_cases(data: Path) -> list[Case]:
    """Reads BFCL's cases. A tool's name gets no dot, since OpenAI's API takes none."""
    cases = []
    for name in FILES:
        for line in (data / name).read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            functions = [
                {**one, "name": one["name"].replace(".", "_"), "parameters": to_json_schema(one["parameters"])}
                for one in record["function"]
            ]
            calls = []
            for answer in record["ground_truth"]:
                ((function, possible),) = answer.items()
                calls.append((function.replace(".", "_"), first_values(possible)))
            cases.append(Case([{"type": "function", "function": function} for function in functions], calls))
    return cases


def first_values(possible: dict[str, list[Any]]) -> dict[str, Any]:
    """Returns the first possible value of each argument, also inside objects. "" means that it may be left out."""
    return {key: _unfold(values[0]) for key, values in possible.items() if values[0] != ""}


def _unfold(value: Any) -> Any:
    if isinstance(value, dict):
        return first_values(value)
    return [_unfold(item) for item in value] if isinstance(value, list) else value


def to_json_schema(schema: Any) -> Any:
    """Returns a schema with JSON Schema's names of types. BFCL's "any" has no type."""
    if isinstance(schema, list):
        return [to_json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: to_json_schema(value) for key, value in schema.items()}
    if isinstance(out.get("type"), str):
        out["type"] = SCHEMA_TYPES.get(out["type"], out["type"])
        if out["type"] == "any":
            del out["type"]
    return out


# --- texts that others write -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """Calls as others' code has written them. family: the family that eyas finds for the template."""

    source: str
    family: str
    case: Case
    text: str


def template_texts(env: Path, cases: Sequence[Case]) -> Iterator[Written]:
    """Yields the cases in every chat template of TRL that writes calls, except those that the template cannot write.

    DeepSeek's writes calls, but no definitions of tools. Some templates refuse or drop all calls but the first, and
    some do not escape a quote in a string.
    """
    (directory,) = env.glob("lib/python*/site-packages/trl/chat_templates")
    for path in sorted(directory.glob("*.jinja")):
        if path.stem.endswith("_training"):
            continue
        tokenizer = tokenizer_with(path.read_text(encoding="utf-8"))
        found = ToolFormat(tokenizer)
        if found.family is None:
            continue
        for case in cases:
            text = written_by_template(tokenizer, found, case)
            quotes = found.family.python and "'" in json.dumps(case.calls)
            if text is not None and not quotes:
                yield Written(f"TRL {path.stem}", found.family.name, case, text)


def tokenizer_with(template: str) -> PreTrainedTokenizerBase:
    """Returns the embedded target's tokenizer with another chat template."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(resolve_target(EMBEDDED))
    tokenizer.chat_template = template
    return tokenizer


def written_by_template(tokenizer: PreTrainedTokenizerBase, found: ToolFormat, case: Case) -> str | None:
    """Returns the answer of a case as the template writes it; None if the template refuses it."""
    assert found.family is not None
    calls = [
        found.template_call(new_call_id(found.family.call_id, name, i), name, json.dumps(arguments))
        for i, (name, arguments) in enumerate(case.calls)
    ]
    messages = [Message("user", "Go."), TemplateMessage("assistant", "", extra_fields={"tool_calls": calls})]
    try:
        prompt = render_text(messages[:1], tokenizer, True, case.tools)
        text = render_text(messages, tokenizer, False, case.tools).removesuffix(turn_suffix(messages, tokenizer))
    except InputError:
        return None
    shared = next((i for i, (a, b) in enumerate(zip(prompt, text, strict=False)) if a != b), len(prompt))
    shared -= text[:shared].endswith("<")  # the first marker of the answer may begin like one of the prompt
    is_dropped = len(case.calls) > 1 and text[shared:] == written_by_template(
        tokenizer, found, Case(case.tools, case.calls[:1])
    )
    return None if is_dropped else text[shared:]


def library_texts(env: Path, cases: Sequence[Case]) -> Iterator[Written]:
    """Yields the cases as mistral-common and openai-harmony write them."""
    records = [{"tools": case.tools, "calls": case.calls} for case in cases]
    for case, texts in zip(cases, ask_driver(env, "render_mistral.py", records), strict=True):
        for version, text in texts.items():
            yield Written(f"mistral-common {version}", MISTRAL_FAMILIES[version], case, text)
    for case, text in zip(cases, ask_driver(env, "harmony.py", records), strict=True):
        yield Written("openai-harmony", "harmony", case, text)


def pythonic_texts(texts: Sequence[Written]) -> Iterator[Written]:
    """Yields the Python calls of LFM2 without its markers, which is the form of Llama 3.2 and 4."""
    for written in texts:
        if written.family == "lfm2":
            calls = re.sub(r"<\|tool_call_(start|end)\|>", "", written.text)
            yield Written(f"{written.source} without markers", "pythonic", written.case, calls)


def enforced_texts(cases: Sequence[Case]) -> Iterator[Written]:
    """Yields the cases in the forms that eyas enforces. Only parsers of other projects read these texts."""
    for family in load_families():
        if family.call is None:
            continue
        ends_answer = family.call.endswith("<|call|>")  # a stop token, so an answer has one call
        for case in cases:
            if len(case.calls) == 1 or not ends_answer:
                yield Written("eyas", family.name, case, _write_calls(family, case))


def _write_calls(family: ToolFamily, case: Case) -> str:
    head, _, tail = str(family.call).partition("ARGUMENTS")
    calls = []
    for number, (name, arguments) in enumerate(case.calls):
        if family.parameter is None:
            text = json.dumps(arguments)
        else:
            values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
            text = "".join(family.parameter.replace("KEY", key).replace("VALUE", values[key]) for key in values)
        calls.append(head.replace("NAME", name).replace("INDEX", str(number)) + text + tail)
    return family.first + family.between.join(calls) + family.last


def parse(written: Written, pieces: Sequence[str]) -> ParsedText:
    """Parses pieces of a text."""
    family = next(family for family in load_families() if family.name == written.family)
    parser = ToolCallParser(family.template, written.case.tools, python=family.python)
    parsed = ParsedText()
    for piece in pieces:
        parsed += parser.feed(piece)
    return parsed + parser.finish()


def ask_driver(env: Path, driver: str, records: Sequence[Any], *words: str | Path) -> list[Any]:
    """Runs a script of peer_drivers in an environment. It reads and writes a JSON value in each line."""
    lines = "".join(json.dumps(record) + "\n" for record in records)
    command = [env / "bin/python", DRIVERS / driver, *words]
    done = subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]
