"""`eyas generate`: streams one answer with accepted draft tokens in green, or answers a file of prompts in batches."""

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from eyas.base.config import require_range
from eyas.base.errors import InputError, UsageError
from eyas.base.fetch import fetch, is_url
from eyas.base.progress import Progress
from eyas.base.provenance import Provenance
from eyas.base.storage import convert_read_errors
from eyas.base.terminal import GREEN, RESET, has_colors
from eyas.chat.conversation import Message, is_unicode, parse_messages
from eyas.chat.detokenizer import Detokenizer
from eyas.chat.render import render_prompt
from eyas.drafters.head_spec import HeadSpec
from eyas.drafters.heads import draft_with
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, plain_loop
from eyas.engine.request import Request, RequestOutput
from eyas.formats.fit import check_embedding, require_fit
from eyas.formats.head_dir import StoredHead, read_head, resolve_head
from eyas.model.devices import DTYPES, check_one_device, default_device
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED, read_num_layers, resolve_target, verify_target
from eyas.tree.acceptance_length import acceptance_length
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape

SLOTS = 8
MAX_NODES = 256  # more is slower than no speculation on any machine


def run_verb(parsed: argparse.Namespace) -> int:
    """Runs `eyas generate`: generates the outputs and prints them."""
    if (parsed.prompt is None) == (parsed.input is None):
        raise UsageError("Pass either a prompt or --input FILE.jsonl", 'For example: eyas generate "What is a falcon?"')
    require_range("--max-tokens", parsed.max_tokens, 1)
    if not 0 <= parsed.seed < 2**62:
        raise UsageError(f"--seed {parsed.seed} is out of range", "Use a number from 0 to 2**62 - 1")
    sampling = SamplingParams(parsed.temperature, parsed.top_k, parsed.top_p, parsed.min_p)
    prompts = [(Message("user", parsed.prompt),)] if parsed.input is None else _read_prompts(Path(parsed.input))
    target, draft = load_pair(parsed)
    target.require_chat_template()
    encoded = [tuple(render_prompt(messages, target.tokenizer)) for messages in prompts]
    requests = [
        # A seed for each line: equal prompts get independent samples.
        Request(str(number), prompt_ids, parsed.max_tokens, sampling, parsed.seed + number)
        for number, prompt_ids in enumerate(encoded)
    ]
    context = max(map(len, encoded)) + parsed.max_tokens
    engine = Engine(target, [] if draft is None else [draft], min(SLOTS, len(requests)), context)
    for request in requests:
        engine.max_new_tokens(request)  # raises before anything is generated if a prompt does not fit
    if parsed.json or parsed.input is not None:
        _print_outputs(engine, requests, parsed.json)
    else:
        _stream_output(engine, requests[0])
    return 0


def load_pair(parsed: argparse.Namespace) -> tuple[Target, HeadSpec | None]:
    """Loads the target and the head that the arguments name, and checks their digests while it loads them.

    It replaces URLs in the arguments by the local directories of their downloads. It prints warnings and the origin of
    both to stderr.

    Returns:
        The target, and the head of --head (default: the head of the embedded target) or None with --no-head.

    Raises:
        InputError: The head does not fit the target, or a file is not the one that a record promises.
    """
    if parsed.no_head and parsed.head is not None:
        raise UsageError("--head and --no-head cannot be used together", "Remove one of them")
    target_name, head_name = parsed.target, parsed.head or EMBEDDED
    dtype, device, shape = DTYPES[parsed.dtype], parsed.device or default_device(), parse_tree(parsed.tree)
    check_one_device(device)
    if parsed.head is None and target_name != EMBEDDED and not parsed.no_head:
        raise UsageError(f"No head is given for the target {target_name}", "Add --head DIR, or --no-head")
    _fetch_inputs(parsed)
    path = resolve_target(parsed.target)
    stored = None if parsed.no_head else read_head(resolve_head(parsed.head or EMBEDDED), dtype, read_num_layers(path))
    layers = (0,) if stored is None else stored.config.aux_layer_ids  # without a head, any id will do
    with ThreadPoolExecutor(1) as pool:  # hashes the files while they are loaded
        verified = pool.submit(verify_target, path)
        target = Target.load(path, dtype, layers, device)
        target.digest, record = verified.result()
    target.info = replace(target.info, name=target_name)
    print(f"eyas: target {target_name} ({target.digest[:19]}): {_describe_record(record)}", file=sys.stderr)
    if stored is None:
        return target, None
    _check_fit(head_name, stored, target)
    return target, draft_with(target.model.device, stored, shape)


def _fetch_inputs(parsed: argparse.Namespace) -> None:
    """Downloads --target, --head and --canary-head if they are URLs, and replaces them by local directories."""
    for argument in ("target", "head", "canary_head"):
        source = getattr(parsed, argument, None)
        if source is not None and is_url(source):
            setattr(parsed, argument, str(fetch(source)))


def load_canary(name: str, target: Target, draft: HeadSpec) -> HeadSpec:
    """Loads a second head. Raises InputError if it does not fit the target or reads other layers than the main head.

    Args:
        name: The directory of the second head.
        target: The target.
        draft: The main head.
    """
    stored = read_head(resolve_head(name), target.model.dtype, target.info.num_layers)
    _check_fit(name, stored, target)
    layers, main_layers = list(stored.config.aux_layer_ids), list(draft.head.config.aux_layer_ids)
    if layers != main_layers:
        problem = f"The canary head {name} reads layers {layers}, but the main head reads {main_layers}"
        fix = f"Both must read the same layers: train the canary head with capture.aux_layer_ids={main_layers}"
        raise InputError(problem, fix)
    return draft_with(target.model.device, stored, draft.shape)


def _check_fit(name: str, stored: StoredHead, target: Target) -> None:
    """Prints the origin of the head and warnings to stderr. Raises InputError if the head does not fit the target."""
    trained_for = f", for target {stored.metadata.target_name}" if stored.metadata.target_name else ""
    digest, record = stored.digest[:19], _describe_record(stored.provenance)
    print(f"eyas: head {name} ({digest}{trained_for}): {record}", file=sys.stderr)
    findings = [*stored.findings, *require_fit(stored, target.info, target.digest, target.text_digests)]
    for finding in [*findings, *check_embedding(stored, target.embedding.weight)]:
        if finding.weight != "ok":
            print(f"eyas: {finding}", file=sys.stderr)


def _describe_record(record: Provenance | None) -> str:
    if record is None:
        return "no provenance.json records its files"
    return f"its files are those that `eyas {record.stage}` wrote at {record.started}"


def parse_tree(text: str) -> TreeShape:
    """Parses DEPTH,TOP_K,NODES, the value of --tree. Raises UsageError if it is invalid or too large."""
    try:
        depth, top_k, nodes = (int(part) for part in text.split(","))
    except ValueError:
        problem = f"--tree {text} is not DEPTH,TOP_K,NODES"
        raise UsageError(problem, "Write three numbers, for example --tree 6,4,16") from None
    shape = TreeShape(depth, top_k, nodes)
    max_nodes = min(MAX_NODES, shape.candidates + 1)
    if shape.top_k > MAX_NODES or shape.nodes > max_nodes:
        raise UsageError(f"--tree {text} is too large", f"Use at most {max_nodes} nodes and TOP_K {MAX_NODES}")
    return shape


def _stream_output(engine: Engine, request: Request) -> None:
    """Prints each token when it is generated. On a terminal, accepted draft tokens are green."""
    color = has_colors(sys.stdout)
    detokenizer = Detokenizer(engine.target.tokenizer)

    def on_tokens(output: RequestOutput, count: int) -> None:
        for token, is_draft in zip(output.token_ids[-count:], output.is_draft[-count:], strict=True):
            text = detokenizer.push(token)
            sys.stdout.write(f"{GREEN}{text}{RESET}" if color and is_draft and text else text)
        sys.stdout.flush()

    (output,) = plain_loop(engine, RequestList([request]), on_tokens)
    print(detokenizer.finish())
    tpot = "no TPOT (one token)" if output.tpot_s is None else f"TPOT {output.tpot_s * 1000:.2f} ms"
    length = f"acceptance length {acceptance_length([output.rounds]):.2f}" if output.accepted else "no round"
    print(f"{len(output.token_ids)} tokens, {length}, {tpot}, TTFT {output.ttft_s * 1000:.0f} ms", file=sys.stderr)


def _print_outputs(engine: Engine, requests: list[Request], as_json: bool) -> None:
    """Prints the outputs in the order of the requests. A later output waits until the earlier ones are printed."""
    finished: dict[int, RequestOutput] = {}
    num_printed = 0
    with Progress("generate", len(requests), "answers", enabled=len(requests) > 1) as bar:
        for finished_output in plain_loop(engine, RequestList(requests)):
            finished[int(finished_output.request.id)] = finished_output
            bar.advance()
            while num_printed in finished:
                output = finished.pop(num_printed)
                text = str(engine.target.tokenizer.decode(output.token_ids, skip_special_tokens=True))
                print(json.dumps(_to_json(output, text), ensure_ascii=False) if as_json else text, flush=True)
                num_printed += 1


def _to_json(output: RequestOutput, text: str) -> dict[str, Any]:
    """Returns the JSON object that --json prints for an output. A figure that does not exist is None."""
    return {
        "prompt_ids": list(output.request.prompt_ids),
        "token_ids": output.token_ids,
        "text": text,
        "acceptance_length": acceptance_length([output.rounds]) if output.accepted else None,
        "rounds": len(output.accepted),
        "ttft_ms": output.ttft_s * 1000,
        "tpot_ms": None if output.tpot_s is None else output.tpot_s * 1000,
        "finish": output.finish_reason,
    }


def _read_prompts(path: Path) -> list[tuple[Message, ...]]:
    """Reads the prompts of a JSON-lines file.

    Each line is an object with one of these keys: "messages" (the last one from the user), "prompt", "question" or
    "turns" (a list of texts, of which the first is used).
    """
    try:
        with convert_read_errors(f"--input {path}", "Check the path"):
            lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise InputError(f"--input {path} is not UTF-8", "Convert the file to UTF-8") from None
    prompts = [_parse_line(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise InputError(f"--input {path} has no records", "Write one JSON object a line")
    return prompts


def _parse_line(line: str, location: str) -> tuple[Message, ...]:
    fix = 'Write an object such as {"prompt": "What is a falcon?"}'
    try:
        record = json.loads(line)
    except ValueError:
        raise InputError(f"{location} is not valid JSON", fix) from None
    record = record if isinstance(record, dict) else {}
    if "messages" in record:
        messages = parse_messages(record["messages"], location)
        if not messages or messages[-1].role != "user":
            problem = f"The messages of {location} do not end with a user message"
            raise InputError(problem, "Remove the messages after the last user message")
        return messages
    turns = record.get("turns")
    text = record.get("prompt") or record.get("question") or (turns[0] if isinstance(turns, list) and turns else None)
    if not isinstance(text, str) or not is_unicode(text):
        raise InputError(f"{location} has none of the keys prompt, question, turns and messages with valid text", fix)
    return (Message("user", text),)
