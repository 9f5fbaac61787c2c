"""`eyas generate`: one answer, streamed with accepted draft tokens in colour, or many, batched."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from eyas.base.errors import InputError, UsageError
from eyas.base.progress import Progress
from eyas.chat.conversation import Message, is_unicode, parse_messages
from eyas.chat.render import render_prompt
from eyas.cli.setup import silence_transformers
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.detokenizer import Detokenizer
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, plain_loop
from eyas.engine.request import Request, RequestOutput
from eyas.formats.fit import check_embedding, require_fit
from eyas.formats.head_dir import StoredHead, read_head
from eyas.model.devices import DTYPES, check_one_device, default_device
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED, read_num_layers
from eyas.recipe import resolve_head
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape
from eyas.tree.stats import acceptance_length

DRAFTED, RESET = "\x1b[32m", "\x1b[0m"
SLOTS = 8
MAX_NODES = 256  # more is slower than no speculation on any machine


def run(parsed: argparse.Namespace) -> int:
    """The verb; see the parser in `eyas.cli`."""
    if (parsed.prompt is None) == (parsed.input is None):
        raise UsageError("a prompt and --input, or neither", "one of the two", 'eyas generate "your words"')
    if parsed.max_tokens < 1:
        raise UsageError(f"--max-tokens {parsed.max_tokens}", "a number from 1 on", "raise it")
    if not 0 <= parsed.seed < 2**62:
        raise UsageError(f"--seed {parsed.seed}", "a number from 0 to 2**62", "choose a smaller one")
    sampling = SamplingParams(parsed.temperature, parsed.top_k, parsed.top_p, parsed.min_p)
    silence_transformers()
    target, draft = load_pair(parsed)
    target.require_chat_template()
    conversations = (
        [(Message("user", parsed.prompt),)] if parsed.prompt is not None else _read_prompts(Path(parsed.input))
    )
    requests = [
        # Each line has coins of its own: equal prompts get independent samples.
        Request(
            str(number),
            tuple(render_prompt(messages, target.tokenizer)),
            parsed.max_tokens,
            sampling,
            parsed.seed + number,
        )
        for number, messages in enumerate(conversations)
    ]
    context = max(len(request.prompt_ids) for request in requests) + parsed.max_tokens
    engine = Engine(target, [] if draft is None else [draft], min(SLOTS, len(requests)), context)
    for request in requests:
        engine.max_new_tokens(request)  # a prompt that cannot fit is refused before anything is answered
    if parsed.json or parsed.input is not None:
        _answer_all(engine, requests, parsed.json)
    else:
        _stream_answer(engine, requests[0])
    return 0


def load_pair(parsed: argparse.Namespace) -> tuple[Target, Eagle3Spec | None]:
    """The target and what to draft with: --head, the embedded head, or nothing with --no-head."""
    if parsed.no_head and parsed.head is not None:
        raise UsageError("--head and --no-head", "one of the two", "leave one out")
    name = parsed.head or (EMBEDDED if parsed.target == EMBEDDED else None)
    dtype, device = DTYPES[parsed.dtype], parsed.device or default_device()
    check_one_device(device)
    if parsed.no_head:
        return Target.load(parsed.target, dtype, (0,), device), None  # nothing is captured, so any depth will do
    if name is None:
        raise UsageError(f"--target {parsed.target} without a head", "--head DIR or --no-head", "add one of them")
    stored = read_head(resolve_head(name), dtype, read_num_layers(parsed.target))
    target = Target.load(parsed.target, dtype, stored.config.aux_layer_ids, device)
    _check_fit(stored, target)
    return target, Eagle3Spec.on(target.model.device, stored.head, stored.vocab, parse_tree(parsed.tree))


def load_canary(name: str, target: Target, draft: Eagle3Spec) -> Eagle3Spec:
    """Returns another head beside the main one. InputError where it reads other layers."""
    stored = read_head(resolve_head(name), target.model.dtype, target.info.num_layers)
    _check_fit(stored, target)
    layers, first = list(stored.config.aux_layer_ids), list(draft.head.config.aux_layer_ids)
    if layers != first:
        found = f"a canary head that reads layers {layers} in {name}"
        raise InputError(found, f"{first}, as the main head does: they are captured once for both", "train it on these")
    return Eagle3Spec.on(target.model.device, stored.head, stored.vocab, draft.shape)


def _check_fit(stored: StoredHead, target: Target) -> None:
    """Warnings on stderr; InputError for a misfit."""
    found = [*stored.findings, *require_fit(stored, target.info, target.digest, target.text_digests)]
    for finding in [*found, *check_embedding(stored, target.embedding.weight)]:
        if finding.weight != "ok":
            print(f"eyas: {finding}", file=sys.stderr)


def parse_tree(text: str) -> TreeShape:
    """DEPTH,TOP_K,NODES. UsageError."""
    try:
        depth, top_k, nodes = (int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--tree {text}", "three numbers: depth, top-k and nodes", "--tree 6,4,16") from None
    shape = TreeShape(depth, top_k, nodes)
    if shape.top_k > MAX_NODES or shape.nodes > min(MAX_NODES, shape.candidates + 1):
        most = min(MAX_NODES, shape.candidates + 1)
        raise UsageError(f"--tree {text}", f"at most {most} nodes and top-k {MAX_NODES}", "choose a smaller tree")
    return shape


def _stream_answer(engine: Engine, request: Request) -> None:
    """Stream to the terminal; green is what the head foresaw."""
    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    detokenizer = Detokenizer(engine.target.tokenizer)

    def show(answer: RequestOutput, count: int) -> None:
        for place in range(len(answer.token_ids) - count, len(answer.token_ids)):
            text = detokenizer.push(answer.token_ids[place])
            sys.stdout.write(f"{DRAFTED}{text}{RESET}" if color and answer.is_draft[place] and text else text)
        sys.stdout.flush()

    (answer,) = plain_loop(engine, RequestList([request]), show)
    print(detokenizer.finish())
    print(_summarize(answer), file=sys.stderr)


def _summarize(answer: RequestOutput) -> str:
    tpot = "no TPOT (one token)" if answer.tpot_s is None else f"TPOT {answer.tpot_s * 1000:.2f} ms"
    rounds = f"acceptance length {acceptance_length([answer.rounds]):.2f}" if answer.accepted else "no round"
    return f"{len(answer.token_ids)} tokens, {rounds}, {tpot}, TTFT {answer.ttft_s * 1000:.0f} ms"


def _answer_all(engine: Engine, requests: list[Request], as_json: bool) -> None:
    """Answers on stdout in the input's order, each as soon as those before it are out."""
    done: dict[int, RequestOutput] = {}
    shown = 0
    with Progress("generate", len(requests), "answers", enabled=len(requests) > 1) as bar:
        for answer in plain_loop(engine, RequestList(requests)):
            done[int(answer.request.id)] = answer
            bar.advance()
            while shown in done:
                answer = done.pop(shown)
                text = engine.target.tokenizer.decode(answer.token_ids, skip_special_tokens=True)
                print(json.dumps(_to_json(answer, str(text)), ensure_ascii=False) if as_json else text, flush=True)
                shown += 1


def _to_json(answer: RequestOutput, text: str) -> dict[str, Any]:
    """One answer as design of the command line has it; null where a figure does not exist."""
    return {
        "prompt_ids": list(answer.request.prompt_ids),
        "token_ids": answer.token_ids,
        "text": text,
        "acceptance_length": acceptance_length([answer.rounds]) if answer.accepted else None,
        "rounds": len(answer.accepted),
        "ttft_ms": answer.ttft_s * 1000,
        "tpot_ms": None if answer.tpot_s is None else answer.tpot_s * 1000,
        "finish": answer.finish_reason,
    }


def _read_prompts(path: Path) -> list[tuple[Message, ...]]:
    """Conversations to answer: messages (the last one a user's), prompt, question, or turns (the first)."""
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise InputError(f"{path}, which is not UTF-8", "a JSON-lines file in UTF-8", "convert it") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "a readable JSON-lines file", "check the path") from None
    conversations = [_parse_line(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not conversations:
        raise InputError(f"no record in {path}", "one JSON object a line", "check how it was made")
    return conversations


def _parse_line(line: str, where: str) -> tuple[Message, ...]:
    wanted = "an object with messages, prompt, question or turns"
    try:
        record = json.loads(line)
    except ValueError:
        raise InputError(f"{where} is not JSON", wanted, "mend the line") from None
    record = record if isinstance(record, dict) else {}
    if "messages" in record:
        messages = parse_messages(record["messages"], where)
        if not messages or messages[-1].role != "user":
            raise InputError(f"{where} does not end with a user's message", wanted, "drop the last answer")
        return messages
    turns = record.get("turns")
    text = record.get("prompt") or record.get("question") or (turns[0] if isinstance(turns, list) and turns else None)
    if not isinstance(text, str) or not is_unicode(text):
        raise InputError(f"{where} without a user turn of valid text", wanted, "mend the line")
    return (Message("user", text),)
