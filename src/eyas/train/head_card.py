"""The card of a head: README.md beside its weights. No times, no paths: equal runs write equal bytes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from eyas.features.reader import Features
from eyas.features.store import RowInfo
from eyas.model.head import Head
from eyas.model.vocab import DraftVocab


def card(
    head: Head,
    vocab: DraftVocab,
    features: Features,
    rows: Sequence[RowInfo],
    last: Mapping[str, Any],
    choices: Mapping[str, str],
) -> str:
    """Markdown. last: the last line of metrics.jsonl. choices: what is unusual about this head, by name."""
    manifest = features.manifest
    counts = Counter(row.task for row in rows)
    counts_W = features.generated_counts(features.indices("train"))
    coverage = f"{vocab.coverage(counts_W):.2%} of the generated ones"
    if unseen := int((counts_W[vocab.t2d_W] == 0).sum()):
        coverage += f"; {unseen:,} of them occur in none of those"
    more = "".join(f"| {name} | {text} |\n" for name, text in choices.items())
    table = "\n".join(
        f"| {step} | {accuracy:.1%} | {acceptance:.1%} |"
        for step, (accuracy, acceptance) in enumerate(zip(last["accuracy"], last["acceptance"], strict=True))
    )
    return f"""# EAGLE-3 draft head for {manifest.target}

A draft head for speculative decoding. It proposes tokens, the target decides: answers do not change.

| | |
|---|---|
| target | {manifest.target}, digest `{manifest.target_digest}` |
| captured layers (Hugging Face index) | {", ".join(str(i) for i in manifest.aux_layer_ids)} |
| features | digest `{features.digest}` |
| parameters | {head.num_parameters:,} |
| draft vocabulary | {vocab.size:,} of {vocab.target_size:,} tokens, {coverage} |
| trained on | {len(rows):,} texts, {sum(row.num_supervised for row in rows):,} supervised tokens |
| tasks | {", ".join(f"{task} {count}" for task, count in sorted(counts.items()))} |
{more}
At the end of training, on training texts (held-out acceptance stands in eval/acceptance.json): a chain adds
{last["chain_length"]:.2f} tokens to the text, the target's own included.

| step | accuracy | acceptance |
|---|---|---|
{table}
"""
