"""`eyas prompts RECIPE --explain ID` and `--forget ID`: one record on its way through a run.

    decisions.jsonl -> prompts.jsonl -> conversations/part-*.jsonl -> features/shard-* -> head

Forgetting removes the record from each of these and leaves the directories finished, each made from the one before as
it is now. A head cannot be made to forget: it is named, and does not fit its features any more until it is trained
again. forgotten.jsonl keeps the id, so that the record does not come back with the next `eyas prompts`.
"""

import datetime
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from eyas.base.errors import InputError
from eyas.base.provenance import (
    PROVENANCE,
    Origin,
    finish,
    read_provenance,
    reopen,
    write_atomic,
    write_json_atomic,
)
from eyas.chat.conversation import Conversation, read
from eyas.features import store
from eyas.features.store import Manifest, RowInfo
from eyas.formats.head_dir import digest_head
from eyas.recipe import Run
from eyas.synth.card import card
from eyas.synth.prompts import DECISIONS_FILE, FORGOTTEN_FILE, PROMPTS_FILE, write_croissant
from eyas.synth.respond import LEDGER_FILE
from eyas.synth.screen import FORGOTTEN


def explain(run: Run, record_id: str) -> Iterator[str]:
    """Lines for the terminal, without a word of what the record says. InputError for an id that did not come."""
    said = _decision(run, record_id)
    source = _source(json.loads((run.directory("prompts") / LEDGER_FILE).read_bytes()), said["where"])
    yield record_id
    licence = source["licence"]
    yield f"  came from   {said['where']}, source {source['name']}, licence {licence['spdx']} ({licence['verdict']})"
    if said["dropped"] is not None:
        of = f" of {said['of']}" if "of" in said else ""
        yield f"  prompts     dropped: {said['dropped']}{of}"
    else:
        changed = ", ".join(f"{kind} {count}" for kind, count in sorted(said.get("changed", {}).items()))
        yield f"  prompts     kept, {f'replaced: {changed}' if changed else 'nothing changed'}"
        yield from _later(run, record_id)
    for line in _forgotten(run, record_id):
        heads = ", ".join(line["heads"]) or "none"
        yield f"  forgotten   {line['when']}; heads that had seen it: {heads}"


def forget(run: Run, record_id: str) -> Iterator[str]:
    """Removes the record from everything derived from it; lines that say what was done. InputError as `explain`."""
    said = _decision(run, record_id)
    heads = _heads(run, record_id)
    _note(run, record_id, heads)
    yield record_id
    if said["dropped"] is None:
        _forget_prompt(run, record_id)
        yield f"  removed from {run.directory('prompts')}"
        if _is_finished(run.directory("respond")) and _forget_conversation(run, record_id):
            yield f"  removed from {run.directory('respond')}"
        if _is_finished(run.directory("capture")) and _forget_rows(run, record_id):
            yield f"  removed from {run.directory('capture')}"
    else:
        yield f"  was not kept ({said['dropped']}); it will not come back"
    for head in heads:
        yield f"  head {head} has seen it: train again (`eyas train`), and do not serve this one"


# --- looking ---------------------------------------------------------------------------------------------------------


def _decision(run: Run, record_id: str) -> dict[str, Any]:
    path = run.directory("prompts") / DECISIONS_FILE
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                said = json.loads(line)
                if said["id"] == record_id:
                    return said
    except FileNotFoundError:
        raise InputError(f"no {path}", "finished prompts", "run `eyas prompts` first") from None
    raise InputError(f"no record {record_id} in {path}", "the id of a record that came", "check the id")


def _source(ledger: dict[str, Any], where: str) -> dict[str, Any]:
    """The ledger's entry of the source that a place belongs to."""
    name = where.rpartition(":")[0]
    found = [source for source in ledger["sources"] if name in source["files"]]
    return found[0] if found else ledger["sources"][0]


def _later(run: Run, record_id: str) -> Iterator[str]:
    if _is_finished(run.directory("respond")):
        found = _conversation(run, record_id)
        if found is None:
            yield "  respond     not answered, or dropped (see its ledger.json)"
            return
        tokens = sum(len(turn.token_ids) for turn in found.turns)
        ends = ", ".join(turn.finish for turn in found.turns)
        yield f"  respond     {len(found.turns)} answers, {tokens} tokens ({ends})"
    if _is_finished(run.directory("capture")):
        rows = _rows(store.read_manifest(run.directory("capture")), record_id)
        yield f"  capture     {', '.join(f'{row.length} tokens for {row.split}' for row in rows) or 'no row'}"
    for head in _heads(run, record_id):
        yield f"  head        {head} was trained on it"


def _conversation(run: Run, record_id: str) -> Conversation | None:
    for path in sorted(run.directory("respond").glob("*.jsonl")):
        for conversation in read(path):
            if conversation.id == record_id:
                return conversation
    return None


def _rows(manifest: Manifest, record_id: str) -> list[RowInfo]:
    """A conversation has one row, or one for each answer: <id>#<turn>."""
    return [row for row in manifest.rows if row.id == record_id or row.id.rpartition("#")[0] == record_id]


def _heads(run: Run, record_id: str) -> list[str]:
    """Digests of the run's heads that were trained on features with this record."""
    directory, features = run.directory("train"), run.directory("capture")
    if not (_is_finished(directory) and _is_finished(features)):
        return []
    same = read_provenance(directory).parents.get("features") == read_provenance(features).digest
    rows = _rows(store.read_manifest(features), record_id)
    return [digest_head(directory)] if same and any(row.split == "train" for row in rows) else []


def _forgotten(run: Run, record_id: str) -> list[dict[str, Any]]:
    path = run.out / FORGOTTEN_FILE
    lines = path.read_text().splitlines() if path.is_file() else []
    return [said for said in map(json.loads, lines) if said["id"] == record_id]


def _is_finished(directory: Path) -> bool:
    return (directory / PROVENANCE).is_file()


# --- removing --------------------------------------------------------------------------------------------------------


def _note(run: Run, record_id: str, heads: list[str]) -> None:
    """First of all, so that a kill in between forgets the rest with the next `eyas prompts`."""
    path = run.out / FORGOTTEN_FILE
    before = path.read_text() if path.is_file() else ""
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    write_atomic(path, before + json.dumps({"id": record_id, "when": when, "heads": heads}) + "\n")


def _forget_prompt(run: Run, record_id: str) -> None:
    directory = run.directory("prompts")
    origin = _reopen(directory)
    kept = [prompt for prompt in read(directory / PROMPTS_FILE) if prompt.id != record_id]
    write_atomic(directory / PROMPTS_FILE, (prompt.to_line() for prompt in kept))
    lines = []
    for line in (directory / DECISIONS_FILE).read_bytes().splitlines():
        said = json.loads(line)
        if said["id"] == record_id:
            said = {"id": record_id, "where": said["where"], "dropped": FORGOTTEN}
        lines.append(json.dumps(said, ensure_ascii=False) + "\n")
    write_atomic(directory / DECISIONS_FILE, "".join(lines))
    ledger = json.loads((directory / LEDGER_FILE).read_bytes())
    entry = _source(ledger, _decision(run, record_id)["where"])
    ledger["kept"] -= 1
    entry["kept"] -= 1
    ledger["dropped"][FORGOTTEN] = ledger["dropped"].get(FORGOTTEN, 0) + 1
    entry["dropped"].setdefault(FORGOTTEN, {"count": 0, "lines": []})["count"] += 1
    write_json_atomic(directory / LEDGER_FILE, ledger)
    write_atomic(directory / "card.md", card(ledger))
    write_croissant(directory, ledger)
    finish(directory, origin, time.time())


def _forget_conversation(run: Run, record_id: str) -> bool:
    directory = run.directory("respond")
    found = None
    origin = _reopen(directory)
    for path in sorted(directory.glob("*.jsonl")):
        conversations = list(read(path))
        kept = [one for one in conversations if one.id != record_id]
        if len(kept) < len(conversations):
            found = next(one for one in conversations if one.id == record_id)
            write_atomic(path, (one.to_line() for one in kept))
    if found is not None:
        ledger = json.loads((directory / LEDGER_FILE).read_bytes())
        ledger["conversations"] -= 1
        ledger["answers"] -= len(found.turns)
        ledger["tokens"] -= sum(len(turn.token_ids) for turn in found.turns)
        ledger["dropped"].setdefault(FORGOTTEN, {"count": 0, "ids": []})["count"] += 1
        write_json_atomic(directory / LEDGER_FILE, ledger)
    parent = {"prompts": read_provenance(run.directory("prompts")).digest}
    finish(directory, replace(origin, parents=dict(origin.parents) | parent), time.time())
    return found is not None


def _forget_rows(run: Run, record_id: str) -> bool:
    directory = run.directory("capture")
    manifest = store.read_manifest(directory)
    rows = _rows(manifest, record_id)
    origin = _reopen(directory)
    for number in sorted({row.shard for row in rows}):
        manifest = store.without_rows(directory, manifest, number, {row.id for row in rows})
    store.write_manifest(directory, manifest)
    parent = {"conversations": read_provenance(run.directory("respond")).digest}
    finish(directory, replace(origin, parents=dict(origin.parents) | parent), time.time())
    return bool(rows)


def _reopen(directory: Path) -> Origin:
    """The directory counts as unfinished from here on; what it was made from."""
    found = read_provenance(directory)
    reopen(directory)
    return Origin(found.stage, found.recipe, found.parents, found.tokenizer, found.template, found.undigested)
