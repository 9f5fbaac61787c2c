"""README.md of an exported head: the front matter that the hub reads, how to launch it, acceptance, digests, data.

No times and no paths: equal runs write equal bytes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eyas.formats.engine_formats import sglang_flags, vllm_flags
from eyas.formats.head_dir import StoredHead

DIRECTORY = "THIS_DIRECTORY"
ENGINE_NAMES = {"sglang": "SGLang", "vllm": "vLLM", "vllm-speculators": "vLLM, in the format of speculators"}


@dataclass(frozen=True)
class ExportCard:
    """What the READMEs of all engines say. trees: as `ExportInputs.trees`. data: Markdown, or nothing."""

    stored: StoredHead
    target_name: str
    digests: Mapping[str, str | None]
    trees: Sequence[Mapping[str, Any]]
    acceptance: Mapping[str, Any] | None
    ledger: Mapping[str, Any] | None
    data: str


def render_card(content: ExportCard, engine: str, file_digests: Mapping[str, str]) -> str:
    """Markdown. files: digests of the files beside it."""
    config = content.stored.config
    title = f"EAGLE-3 draft head for {content.target_name}"
    layers = ", ".join(str(int(i)) for i in config.aux_layer_ids)
    facts = [
        ("target", content.target_name),
        ("captured layers (Hugging Face index)", layers),
        ("graph", config.variant),
        ("parameters", f"{content.stored.head.num_parameters:,}"),
        ("draft vocabulary", f"{config.draft_vocab_size:,} of {config.vocab_size:,} tokens"),
        ("longest text in training", f"{content.stored.metadata.trained_context or 'not known'}"),
    ]
    digests = [
        (name, f"`{digest}`") for name, digest in {**content.digests, **file_digests}.items() if digest is not None
    ]
    parts = [
        _front_matter(content, title),
        f"# {title}",
        f"For {ENGINE_NAMES[engine]}. It proposes tokens, the target decides: answers do not change.",
        _table(("", ""), facts),
        _launch_section(content, engine),
        _acceptance_section(content.acceptance),
        "## Digests\n\n" + _table(("of", "digest"), digests),
        content.data.strip() or "## Data and licenses\n\nNothing is known of the data that trained this head.",
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(made: ExportCard, title: str) -> str:
    """YAML; every value is a JSON string, which YAML reads as it is."""
    lines = ["---", 'library_name: "eyas"', 'pipeline_tag: "text-generation"']
    if made.target_name.count("/") == 1:
        lines.append(f"base_model: {json.dumps(made.target_name)}")
    spdx = (made.ledger or {}).get("target", {}).get("spdx")
    if spdx and "LicenseRef-" not in spdx and " " not in spdx:
        lines.append(f"license: {json.dumps(spdx.lower())}")
    else:
        lines += ['license: "other"', f"license_name: {json.dumps(spdx or 'not stated')}"]
    if made.ledger is not None and made.ledger.get("languages"):
        lines.append(f"language: {json.dumps(sorted(made.ledger['languages']))}")
    lines.append('tags: ["eagle3", "speculative-decoding", "draft-head", "eyas"]')
    if made.acceptance is not None:
        lines += ["model-index:", f"  - name: {json.dumps(title)}", "    results:"]
        for task, entry in made.acceptance["tasks"].items():
            lines += [
                '      - task: {type: "text-generation"}',
                f"        dataset: {{name: {json.dumps(f'held-out answers, {task}')}, type: {json.dumps(task)}}}",
                f'        metrics: [{{type: "acceptance_length", value: {entry["acceptance_length"]:.3f}}}]',
            ]
    return "\n".join([*lines, "---"])


def _launch_section(made: ExportCard, engine: str) -> str:
    rows = [(point["streams"], launch_command(engine, point, made.target_name)) for point in made.trees]
    first = next((line for _, line in rows if line is not None), None)
    text = "## Launch\n\n"
    if first is None:
        return text + "Where it was tuned, no draft was faster than none: serve the target alone."
    text += f"```\n{first}\n```\n\n{DIRECTORY} is the directory of this file."
    if engine == "vllm-speculators":
        text += f" `vllm serve {DIRECTORY}` alone does the same: the target and a chain's length stand in config.json."
    if rows[0][0] is None:
        return text + " The tree is that of the evaluation; `eyas tune` finds the best one for each number of streams."
    lines = [(streams, f"`{line}`" if line else "no speculation") for streams, line in rows]
    return text + " What was best where it was tuned, by streams:\n\n" + _table(("streams", "launch"), lines)


def launch_command(engine: str, point: Mapping[str, Any], target_name: str) -> str | None:
    """The command that serves the target with this head; None where drafting does not pay."""
    if engine == "sglang":
        flags = sglang_flags(point["tree"], DIRECTORY)
        return None if flags is None else f"python -m sglang.launch_server --model-path {target_name} {flags}"
    flags = vllm_flags(point["chain"], DIRECTORY)
    return None if flags is None else f"vllm serve {target_name} {flags}"


def _acceptance_section(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "## Acceptance\n\nNot measured yet."
    tree = found["tree"]
    rows = [
        (
            task,
            entry["prompts"],
            f"{entry['acceptance_length']:.2f}",
            f"{entry['ci95'][0]:.2f} to {entry['ci95'][1]:.2f}",
            " ".join(f"{rate:.0%}" for rate in entry["by_depth"]),
        )
        for task, entry in found["tasks"].items()
    ]
    drawn = "greedy" if found.get("temperature") is None else f"drawn anew at temperature {found['temperature']:g}"
    return f"""## Acceptance

Tokens per forward of the target, its own included, on held-out answers ({drawn}), with a tree of depth {tree["depth"]},
top-k {tree["top_k"]}, {tree["nodes"]} nodes:

{_table(("task", "answers", "acceptance length", "95 %", "accepted at depth 1, 2, ..."), rows)}"""


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    cells = [[str(value).replace("|", "\\|") for value in row] for row in [header, *rows]]
    lines = [cells[0], ["---"] * len(header), *cells[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
