"""Measures what copies below drafted nodes could add to copies at the root: tokens per round, without a limit of rows.

    python benchmarks/copies_below.py --target DIR --head DIR --prompts FILE [--answers N]

The texts are greedy answers of the target. At each round, the head drafts (a chain of 3, a tree of 16), and the text so
far is searched for a copy, as in serving. Then it is also searched for copies that continue each token of the most
likely drafted path. A round yields the longest of them that the target accepts. All candidates are verified, whatever
their number and probability: a real engine has fewer rows, and wins less. Prints one line for each draft.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from replay_texts import answer_greedily
from result_rows import Row as ResultRow
from result_rows import print_rows

from eyas.bench.config import BenchConfig
from eyas.bench.workload import interleave_tasks, load_workload
from eyas.evaluation.head_drafter import build_head_drafter
from eyas.evaluation.replay import AnswerSpan, true_continuation
from eyas.features.layout import Row
from eyas.formats.head_dir import StoredHead, read_head, resolve_head
from eyas.model.target import Target
from eyas.speculation.copy_index import MAX_COPY, MAX_MATCH, CopyFinder, CopyIndex
from eyas.tree.shape import TreeShape, chain_shape
from eyas.tree.tree import Tree
from eyas.tree.verify import verify

MAX_TOKENS, LONGEST_PROMPT = 300, 700
SHAPES = {"chain of 3": chain_shape(3), "tree of 16": TreeShape(6, 4, 16)}

Round = tuple[int, list[int]]
"""The tokens that a round with the head alone yields, and the most likely drafted path."""


def draft_everywhere(
    stored: StoredHead, target: Target, shape: TreeShape, rows: Sequence[Row], spans: Sequence[AnswerSpan]
) -> list[list[Round]]:
    """Returns, for each answer, the round at each of its tokens but the last."""
    drafter = build_head_drafter(stored.head, stored.vocab, target, shape, rows)
    found: list[list[Round]] = [[] for _ in spans]
    for place in range(max(span.end - 1 - span.start for span in spans)):
        some = [number for number, span in enumerate(spans) if place < span.end - 1 - span.start]
        positions = [spans[number].start - 1 + place for number in some]
        tree = drafter.draft(some, positions)
        truth = [true_continuation(spans[n], at, tree.depth + 1) for n, at in zip(some, positions, strict=True)]
        path = verify(tree, torch.stack(truth).gather(1, tree.depths_BM))
        for index, (number, length) in enumerate(zip(some, path.lengths_B.tolist(), strict=True)):
            found[number].append((length, likely_path(tree, index)))
    return found


def likely_path(tree: Tree, index: int) -> list[int]:
    """Returns the tokens of the path that follows the most likely child of each node."""
    node, tokens = 0, []
    parents, scores = tree.parents_BM[index].tolist(), tree.scores_BM[index].tolist()
    valid = tree.valid_BM[index].tolist()
    while children := [one for one in range(1, len(parents)) if valid[one] and parents[one] == node]:
        node = max(children, key=scores.__getitem__)
        tokens.append(int(tree.tokens_BM[index, node]))
    return tokens


def longest_below(finder: CopyFinder, index: CopyIndex, path: Sequence[int], true: Sequence[int]) -> int:
    """Returns the tokens of the longest accepted copy below a token of the path, with the path and the bonus token."""
    best = 0
    for depth in range(1, len(path) + 1):
        if path[depth - 1] != true[depth - 1 : depth][0]:
            break
        place, match = index.find([*index.tokens[-MAX_MATCH:], *path[:depth]])
        if match:
            size = min(len(finder.model.curve(match, False)), MAX_COPY)
            copy, rest = index.tokens[place : place + size], true[depth:]
            hits = next((i for i, token in enumerate(copy) if rest[i : i + 1] != [token]), len(copy))
            best = max(best, depth + hits + 1)
    return best


def count_rounds(spans: Sequence[AnswerSpan], drafts: Sequence[Sequence[Round]], root: bool, below: bool) -> int:
    """Returns the number of rounds of all answers. root, below: the copies that a round verifies beside the draft."""
    finder, rounds = CopyFinder(0), 0
    for span, own in zip(spans, drafts, strict=True):
        text, index, place = span.ids_T.tolist(), CopyIndex(), 0
        while place < len(own):
            known, true = text[: span.start + place + 1], text[span.start + place + 1 :]
            count, path = own[place]
            copy = finder.propose(index, known, "", 0)
            if root and copy is not None:
                count = max(count, finder.grade(copy, known, true[: MAX_COPY + 1]) + 1)
            if below:
                count = max(count, longest_below(finder, index, path[: len(true)], true))
            place, rounds = place + count, rounds + 1
    return rounds


def rows_of(parsed: argparse.Namespace) -> Iterator[ResultRow]:
    """Yields the rows of every draft."""
    stored = read_head(resolve_head(parsed.head), torch.float32)
    target = Target.load(parsed.target, torch.float32, stored.config.aux_layer_ids)
    config = BenchConfig(prompts=parsed.prompts, prompts_per_task=10_000, max_tokens=MAX_TOKENS)
    every = interleave_tasks(load_workload(config, None, target)[0])
    prompts = [prompt for prompt in every if len(prompt.ids) < LONGEST_PROMPT][: parsed.answers]
    rows, spans = answer_greedily(target, prompts, MAX_TOKENS)
    num_tokens = sum(span.end - 1 - span.start for span in spans)
    for name, shape in SHAPES.items():
        drafts = draft_everywhere(stored, target, shape, rows, spans)
        alone, root, both = (count_rounds(spans, drafts, *use) for use in ((False, False), (True, False), (True, True)))
        note = f"tokens per round: head {num_tokens / alone:.2f}, with copies at the root {num_tokens / root:.2f}"
        where = f"{len(prompts)} answers to {Path(parsed.prompts).stem}"
        yield ResultRow(
            f"copies below the path over those at the root alone, {name}, {where}",
            round(root / both, 3),
            "told",
            True,
            note=note,
        )


@torch.inference_mode()
def main() -> int:
    """Prints all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--head", required=True)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--answers", type=int, default=24)
    return print_rows(rows_of(parser.parse_args()))


if __name__ == "__main__":
    raise SystemExit(main())
