"""`eyas prompts RECIPE --explain ID` and `--forget ID`: print what each stage did with one record, and remove it.

    decisions.jsonl -> prompts.jsonl -> conversations/part-*.jsonl -> features/shard-* -> head

`--forget` removes the record from prompts, conversations and features and updates each provenance.json, so that these
stages stay finished. A record cannot be removed from a trained head: `--forget` prints the heads that were trained on
it, which must be trained again. forgotten.jsonl stores the id, so that the next `eyas prompts` drops the record.
"""

import datetime
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from eyas.base.errors import InputError
from eyas.base.provenance import finish_stage, has_provenance, mark_unfinished, read_provenance
from eyas.base.storage import StoragePath, write_atomic, write_json_atomic
from eyas.chat.conversation import Conversation, read_conversation_dir, read_conversations
from eyas.data import prompts
from eyas.data.answers import respond
from eyas.data.answers.respond import LEDGER_FILE
from eyas.data.ledger.cards import render_card
from eyas.data.ledger.ledger import MAX_EXAMPLES, AnswerLedger, PromptLedger
from eyas.data.prompts import DECISIONS_FILE, FORGOTTEN_FILE, PROMPTS_FILE, write_croissant
from eyas.data.select.screen import FORGOTTEN
from eyas.features import store
from eyas.features.store import Manifest, RowInfo
from eyas.formats.head_dir import digest_head
from eyas.recipe import Run

FIRST = "Run `eyas prompts` first"


def explain_record(run: Run, record_id: str) -> Iterator[str]:
    """Yields lines that say what each stage did with a record. Raises InputError if the id is unknown."""
    number, decision = _find_decision(run, record_id)
    try:
        ledger = json.loads((run.directory("prompts") / LEDGER_FILE).read_bytes())
    except FileNotFoundError:  # it is written after the decisions
        raise InputError("`eyas prompts` has not finished", FIRST) from None
    source = _find_source(ledger, number)
    license_info = source["licence"]
    yield record_id
    yield (
        f"  source      {decision['where']} of {source['name']}, "
        f"license {license_info['spdx']} ({license_info['verdict']})"
    )
    if decision["dropped"] is not None:
        yield f"  prompts     dropped: {_describe_drop(decision)}"
    else:
        changed = ", ".join(f"{kind} {count}" for kind, count in sorted(decision.get("changed", {}).items()))
        yield f"  prompts     kept, {f'replaced: {changed}' if changed else 'nothing replaced'}"
        yield from _explain_later_stages(run, record_id)
    for entry in _read_forgotten(run):
        if entry["id"] == record_id:
            yield f"  forgotten   {entry['when']}; heads trained on it: {', '.join(entry['heads']) or 'none'}"


def forget_record(run: Run, record_id: str) -> Iterator[str]:
    """Removes a record from prompts, conversations and features. Yields lines that say what was done.

    If an earlier call was killed, this call completes its work. It also works if `eyas prompts` has selected prompts
    again after `eyas respond`.

    Raises:
        InputError: The id is unknown.
    """
    number, decision = _find_decision(run, record_id)
    heads = _heads_trained_on(run, record_id)
    duplicates = _find_duplicates(run, record_id)
    _append_forgotten(run, [record_id, *duplicates], heads)
    shutil.rmtree(prompts.job_directory(run.directory("prompts")), ignore_errors=True)  # of an unfinished run
    yield record_id
    new_digests: dict[str, str] = {}
    if decision["dropped"] is None:
        _forget_prompt(run, record_id, number, new_digests)
        yield f"  removed from {run.directory('prompts')}"
    else:
        original = f"; forget {decision['of']}, too" if "of" in decision else ""
        yield f"  was dropped before ({_describe_drop(decision)}) and will not be taken again{original}"
    if duplicates:
        yield f"  its duplicates will not be taken either: {', '.join(duplicates)}"
    for stage, remove, clear in (
        ("respond", _forget_conversation, lambda place: respond.clear_output(place.path)),
        ("capture", _forget_rows, _clear_unfinished_features),
    ):
        directory = run.storage_path(stage)
        if has_provenance(directory):
            if remove(run, record_id, new_digests):
                yield f"  removed from {directory}"
        elif directory.list_files():
            clear(directory)
            yield f"  deleted the unfinished work in {directory}"
    for head in heads:
        yield f"  head {head} was trained on it: run `eyas train` again, and stop serving this head"
        exported = run.directory("export")
        if has_provenance(exported) and read_provenance(exported).parents.get("head") == head:
            yield f"  {exported} holds that head: run `eyas export` again, and replace every deployment of it"


# --- reading ---------------------------------------------------------------------------------------------------------


def _find_decision(run: Run, record_id: str) -> tuple[int, dict[str, Any]]:
    """Returns the number of the record in decisions.jsonl, from 0, and its decision: kept, changed or dropped."""
    path = run.directory("prompts") / DECISIONS_FILE
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file):
                decision = json.loads(line)
                if decision["id"] == record_id:
                    return number, decision
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", FIRST) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})", "Check --out") from None
    raise InputError(f"{path} has no record {record_id}", "Check the id, for example gsm8k-train:17")


def _describe_drop(decision: dict[str, Any]) -> str:
    return f"{decision['dropped']} of {decision['of']}" if "of" in decision else decision["dropped"]


def _find_duplicates(run: Run, record_id: str) -> list[str]:
    """Returns the ids of records that were dropped as duplicates of this record. Else one of them would be kept."""
    with (run.directory("prompts") / DECISIONS_FILE).open("rb") as file:
        return [decision["id"] for decision in map(json.loads, file) if decision.get("of") == record_id]


def _find_source(ledger: dict[str, Any], number: int) -> dict[str, Any]:
    """Returns the ledger's entry of the source of record `number`. Records are numbered source by source."""
    for source in ledger["sources"]:
        if number < source["came"]:
            return source
        number -= source["came"]
    raise InputError(f"{LEDGER_FILE} and {DECISIONS_FILE} are of different runs", "Run `eyas prompts` again")


def _explain_later_stages(run: Run, record_id: str) -> Iterator[str]:
    if has_provenance(run.storage_path("respond")):
        found = _find_conversation(run, record_id)
        if found is None:
            yield f"  respond     not answered, or dropped (see {LEDGER_FILE} of the conversations)"
            return
        tokens = sum(len(turn.token_ids) for turn in found.turns)
        reasons = ", ".join(turn.finish for turn in found.turns)
        yield f"  respond     {len(found.turns)} answers, {tokens} tokens ({reasons})"
    if has_provenance(run.storage_path("capture")):
        rows = _rows_of_record(store.read_manifest(run.storage_path("capture")), record_id)
        yield f"  capture     {', '.join(f'{row.length} tokens for {row.split}' for row in rows) or 'no row'}"
    for head in _heads_trained_on(run, record_id):
        yield f"  head        {head} was trained on it"


def _find_conversation(run: Run, record_id: str) -> Conversation | None:
    conversations = read_conversation_dir(run.directory("respond"))
    return next((conversation for conversation in conversations if conversation.id == record_id), None)


def _rows_of_record(manifest: Manifest, record_id: str) -> list[RowInfo]:
    """Returns the feature rows of a record: one row with its id, or one row for each answer with the id ID#TURN."""
    return [row for row in manifest.rows if row.id == record_id or row.id.rpartition("#")[0] == record_id]


def _heads_trained_on(run: Run, record_id: str) -> list[str]:
    """Returns a list with the digest of the run's head if it was trained on this record, else [].

    The head also counts if other records were removed from the features after training.
    """
    directory, features = run.directory("train"), run.storage_path("capture")
    if not (has_provenance(directory) and has_provenance(features)):
        return []
    digests = {read_provenance(features).digest, *(entry.get("features") for entry in _read_forgotten(run))}
    is_trained_on_them = read_provenance(directory).parents.get("features") in digests
    rows = _rows_of_record(store.read_manifest(features), record_id)
    return [digest_head(directory)] if is_trained_on_them and any(row.split == "train" for row in rows) else []


def _read_forgotten(run: Run) -> list[dict[str, Any]]:
    path = run.out / FORGOTTEN_FILE
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.is_file() else []


# --- removing --------------------------------------------------------------------------------------------------------


def _append_forgotten(run: Run, ids: list[str], heads: list[str]) -> None:
    """Adds records to forgotten.jsonl. It runs before their removal, so a kill in between leaves them forgotten."""
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    features = run.storage_path("capture")
    digest = read_provenance(features).digest if has_provenance(features) else None
    added = [{"id": record_id, "when": when, "heads": heads, "features": digest} for record_id in ids]
    lines = (json.dumps(entry) + "\n" for entry in [*_read_forgotten(run), *added])
    write_atomic(run.out / FORGOTTEN_FILE, "".join(lines))


def _forget_prompt(run: Run, record_id: str, number: int, new_digests: dict[str, str]) -> None:
    """Removes a prompt from prompts.jsonl, decisions.jsonl and the counts of the ledger and the card."""
    directory = run.directory("prompts")
    kept = {prompt.id: prompt for prompt in read_conversations(directory / PROMPTS_FILE)}
    removed = kept.pop(record_id)
    with _rewritten(directory, new_digests):
        write_atomic(directory / PROMPTS_FILE, (prompt.to_line() for prompt in kept.values()))
        lines = (directory / DECISIONS_FILE).read_bytes().splitlines()
        location = json.loads(lines[number])["where"]
        decision = {"id": record_id, "where": location, "dropped": FORGOTTEN}
        lines[number] = json.dumps(decision, ensure_ascii=False).encode()
        write_atomic(directory / DECISIONS_FILE, (line + b"\n" for line in lines))
        ledger = json.loads((directory / LEDGER_FILE).read_bytes())
        source = _find_source(ledger, number)
        for counts in (ledger, source):
            _subtract_prompt(counts, removed)
        dropped = source["dropped"].get(FORGOTTEN, {"count": 0, "lines": []})
        entry = {"count": dropped["count"] + 1, "lines": [*dropped["lines"], location][:MAX_EXAMPLES]}
        for counts, value in ((ledger, ledger["dropped"].get(FORGOTTEN, 0) + 1), (source, entry)):
            counts["dropped"] = dict(sorted({**counts["dropped"], FORGOTTEN: value}.items()))
        write_json_atomic(directory / LEDGER_FILE, ledger)
        write_atomic(directory / "card.md", render_card(ledger))
        write_croissant(directory, ledger)


def _subtract_prompt(counts: dict[str, Any], removed: Conversation) -> None:
    """Subtracts a prompt from the ledger's counts of kept prompts and of values replaced for privacy."""
    counted = PromptLedger()
    length = sum(len(message.content) for message in removed.messages if message.role == "user")
    counted.count_kept(length, removed.tags)
    counts["kept"] -= 1
    for name, own in (("tasks", counted.tasks), ("languages", counted.languages)):
        counts[name] = {key: left for key, count in counts[name].items() if (left := count - own[key])}
    for index, count in counted.lengths.items():
        counts["lengths"]["counts"][int(index)] -= count
    for kind, count in removed.changed.items():
        counts["entities"][kind]["replaced"] -= count
    counts["entities"] = {kind: both for kind, both in counts["entities"].items() if any(both.values())}


def _forget_conversation(run: Run, record_id: str, new_digests: dict[str, str]) -> bool:
    """Removes the conversation of a record and updates the recorded digests. Returns True if there was one."""
    directory = run.directory("respond")
    found = _find_conversation(run, record_id) is not None
    if not found and not _has_new_parent(directory, new_digests):
        return False
    with _rewritten(directory, new_digests):
        stats = AnswerLedger()
        for path in sorted(directory.glob("*.jsonl")):
            conversations = list(read_conversations(path))
            kept = [conversation for conversation in conversations if conversation.id != record_id]
            if len(kept) < len(conversations):
                write_atomic(path, (conversation.to_line() for conversation in kept))
            for conversation in kept:
                stats.count_kept(conversation)
        if found:
            ledger = json.loads((directory / LEDGER_FILE).read_bytes())
            dropped = ledger["dropped"].get(FORGOTTEN, {"count": 0, "ids": []})
            entry = {"count": dropped["count"] + 1, "ids": [*dropped["ids"], record_id][:MAX_EXAMPLES]}
            ledger["dropped"][FORGOTTEN] = entry
            write_json_atomic(directory / LEDGER_FILE, ledger | stats.to_json())
    return found


def _forget_rows(run: Run, record_id: str, new_digests: dict[str, str]) -> bool:
    """Removes the feature rows of a record and updates the recorded digests. Returns True if there were rows."""
    directory = run.storage_path("capture")
    manifest = store.read_manifest(directory)
    rows = _rows_of_record(manifest, record_id)
    if not rows and not _has_new_parent(directory, new_digests):
        return False
    with _rewritten(directory, new_digests) as known_digests:
        for number in sorted({row.shard for row in rows}, reverse=True):
            manifest = store.remove_rows(directory, manifest, number, {row.id for row in rows})
        directory.join(store.MANIFEST).remove()
        store.write_manifest(directory, manifest)
        known_digests |= manifest.shard_digests
    return bool(rows)


def _clear_unfinished_features(directory: StoragePath) -> None:
    store.remove_shards_from(directory, 0)
    directory.join(store.MANIFEST).remove()


def _has_new_parent(directory: Path | StoragePath, new_digests: dict[str, str]) -> bool:
    return any(digest in new_digests for digest in read_provenance(directory).parents.values())


@contextmanager
def _rewritten(directory: Path | StoragePath, new_digests: dict[str, str]) -> Iterator[dict[str, str]]:
    """Removes provenance.json of a directory, lets the `with` body change files, and writes provenance.json again.

    Args:
        directory: The stage directory.
        new_digests: Old digest -> new digest of the directories that were rewritten. The recorded parents are updated
            by it, and the digests of this directory are added to it.

    Yields:
        A dictionary to which the body can add digests of files by name, so that these files are not read again.
    """
    old, known_digests = read_provenance(directory), dict[str, str]()
    mark_unfinished(directory)
    yield known_digests
    parents = {name: new_digests.get(digest, digest) for name, digest in old.parents.items()}
    inputs = replace(old.inputs, parents=parents)
    new_digests[old.digest] = finish_stage(directory, inputs, time.time(), known_digests=known_digests).digest
