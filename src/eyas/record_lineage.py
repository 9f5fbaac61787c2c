"""`eyas prompts RECIPE --explain ID` and `--forget ID`: one record on its way through a run.

    decisions.jsonl -> prompts.jsonl -> conversations/part-*.jsonl -> features/shard-* -> head

Forgetting removes the record from each of these and leaves the directories finished, each made from the one before as
it is now. A head cannot be made to forget: it is named, and does not fit its features any more until it is trained
again. forgotten.jsonl keeps the id, so that the record does not come back with the next `eyas prompts`.
"""

import datetime
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from eyas.base.errors import InputError
from eyas.base.provenance import StageInputs, finish_stage, has_provenance, mark_unfinished, read_provenance
from eyas.base.storage import StoragePath, write_atomic, write_json_atomic
from eyas.chat.conversation import Conversation, read_conversations
from eyas.data import prompts
from eyas.data.answers import respond
from eyas.data.answers.respond import LEDGER_FILE
from eyas.data.answers.shard_stats import MAX_IDS, ShardStats
from eyas.data.ledger.cards import render_card
from eyas.data.ledger.ledger import MAX_LOCATIONS, Ledger
from eyas.data.prompts import DECISIONS_FILE, FORGOTTEN_FILE, PROMPTS_FILE, write_croissant
from eyas.data.select.screen import FORGOTTEN
from eyas.features import store
from eyas.features.store import Manifest, RowInfo
from eyas.formats.head_dir import digest_head
from eyas.recipe import Run


def explain_record(run: Run, record_id: str) -> Iterator[str]:
    """Lines for the terminal, without a word of what the record says. InputError for an id that did not come."""
    number, said = _find_decision(run, record_id)
    try:
        ledger = json.loads((run.directory("prompts") / LEDGER_FILE).read_bytes())
    except FileNotFoundError:  # it is written behind the decisions
        raise InputError("prompts that are unfinished", "finished prompts", "run `eyas prompts` first") from None
    source = _find_source(ledger, number)
    yield record_id
    licence = source["licence"]
    yield f"  came from   {said['where']}, source {source['name']}, licence {licence['spdx']} ({licence['verdict']})"
    if said["dropped"] is not None:
        of = f" of {said['of']}" if "of" in said else ""
        yield f"  prompts     dropped: {said['dropped']}{of}"
    else:
        changed = ", ".join(f"{kind} {count}" for kind, count in sorted(said.get("changed", {}).items()))
        yield f"  prompts     kept, {f'replaced: {changed}' if changed else 'nothing changed'}"
        yield from _explain_later_stages(run, record_id)
    for line in _forgotten_entries(run, record_id):
        heads = ", ".join(line["heads"]) or "none"
        yield f"  forgotten   {line['when']}; heads that had seen it: {heads}"


def forget_record(run: Run, record_id: str) -> Iterator[str]:
    """Removes the record from everything derived from it; lines that say what was done. InputError as `explain`.

    Also where an earlier call was killed half-way, or prompts were chosen anew since the target answered.
    """
    number, said = _find_decision(run, record_id)
    heads = _heads_trained_on(run, record_id)
    copies = _find_duplicates(run, record_id)
    _append_forgotten(run, [record_id, *copies], heads)
    shutil.rmtree(prompts.job_directory(run.directory("prompts")), ignore_errors=True)  # of an unfinished run
    yield record_id
    renewed: dict[str, str] = {}
    if said["dropped"] is None:
        _forget_prompt(run, record_id, number, renewed)
        yield f"  removed from {run.directory('prompts')}"
    else:
        of = f" of {said['of']}, which has to be forgotten, too" if "of" in said else ""
        yield f"  was not kept ({said['dropped']}{of}); it will not come back"
    if copies:
        yield f"  nor will what was dropped as a repetition of it: {', '.join(copies)}"
    for stage, remove, clear in (
        ("respond", _forget_conversation, lambda place: respond.clear_output(place.path)),
        ("capture", _forget_rows, _clear_unfinished_features),
    ):
        directory = run.place(stage)
        if has_provenance(directory):
            if remove(run, record_id, renewed):
                yield f"  removed from {directory}"
        elif directory.list_files():
            clear(directory)
            yield f"  cleared {directory}, which was unfinished"
    for head in heads:
        yield f"  head {head} has seen it: train again (`eyas train`), and do not serve this one"
        exported = run.directory("export")
        if has_provenance(exported) and read_provenance(exported).parents.get("head") == head:
            yield f"  {exported} holds that head: export again, and replace what was deployed of it"


# --- looking ---------------------------------------------------------------------------------------------------------


def _find_decision(run: Run, record_id: str) -> tuple[int, dict[str, Any]]:
    """What became of the record in `eyas prompts`, and its number among all that came."""
    path = run.directory("prompts") / DECISIONS_FILE
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file):
                said = json.loads(line)
                if said["id"] == record_id:
                    return number, said
    except FileNotFoundError:
        raise InputError(f"no {path}", "finished prompts", "run `eyas prompts` first") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "a run directory that can be read", "check --out") from None
    raise InputError(f"no record {record_id} in {path}", "the id of a record that came", "check the id")


def _find_duplicates(run: Run, record_id: str) -> list[str]:
    """Records that were dropped as repetitions of this one: without it they would be kept."""
    with (run.directory("prompts") / DECISIONS_FILE).open("rb") as file:
        return [said["id"] for said in map(json.loads, file) if said.get("of") == record_id]


def _find_source(ledger: dict[str, Any], number: int) -> dict[str, Any]:
    """The ledger's entry of the source that a record came from: sources come one after the other."""
    for source in ledger["sources"]:
        if number < source["came"]:
            return source
        number -= source["came"]
    raise InputError("a ledger of other records than decisions.jsonl", "those of one run", "run `eyas prompts` again")


def _explain_later_stages(run: Run, record_id: str) -> Iterator[str]:
    if has_provenance(run.place("respond")):
        found = _find_conversation(run, record_id)
        if found is None:
            yield "  respond     not answered, or dropped (see its ledger.json)"
            return
        tokens = sum(len(turn.token_ids) for turn in found.turns)
        ends = ", ".join(turn.finish for turn in found.turns)
        yield f"  respond     {len(found.turns)} answers, {tokens} tokens ({ends})"
    if has_provenance(run.place("capture")):
        rows = _rows_of_record(store.read_manifest(run.place("capture")), record_id)
        yield f"  capture     {', '.join(f'{row.length} tokens for {row.split}' for row in rows) or 'no row'}"
    for head in _heads_trained_on(run, record_id):
        yield f"  head        {head} was trained on it"


def _find_conversation(run: Run, record_id: str) -> Conversation | None:
    for path in sorted(run.directory("respond").glob("*.jsonl")):
        for conversation in read_conversations(path):
            if conversation.id == record_id:
                return conversation
    return None


def _rows_of_record(manifest: Manifest, record_id: str) -> list[RowInfo]:
    """A conversation has one row, or one for each answer: <id>#<turn>."""
    return [row for row in manifest.rows if row.id == record_id or row.id.rpartition("#")[0] == record_id]


def _heads_trained_on(run: Run, record_id: str) -> list[str]:
    """Digests of the run's heads that were trained on features with this record.

    Also on what the features were before other records were forgotten: those rows were there as well.
    """
    directory, features = run.directory("train"), run.place("capture")
    if not (has_provenance(directory) and has_provenance(features)):
        return []
    seen = {read_provenance(features).digest, *(said.get("features") for said in _read_forgotten(run))}
    same = read_provenance(directory).parents.get("features") in seen
    rows = _rows_of_record(store.read_manifest(features), record_id)
    return [digest_head(directory)] if same and any(row.split == "train" for row in rows) else []


def _forgotten_entries(run: Run, record_id: str) -> list[dict[str, Any]]:
    return [said for said in _read_forgotten(run) if said["id"] == record_id]


def _read_forgotten(run: Run) -> list[dict[str, Any]]:
    path = run.out / FORGOTTEN_FILE
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.is_file() else []


# --- removing --------------------------------------------------------------------------------------------------------


def _append_forgotten(run: Run, ids: list[str], heads: list[str]) -> None:
    """First of all, so that a kill in between forgets the rest with the next `eyas prompts`."""
    path = run.out / FORGOTTEN_FILE
    before = path.read_text() if path.is_file() else ""
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    features = run.place("capture")
    digest = read_provenance(features).digest if has_provenance(features) else None
    said = [{"id": name, "when": when, "heads": heads, "features": digest} for name in ids]
    write_atomic(path, before + "".join(json.dumps(one) + "\n" for one in said))


def _forget_prompt(run: Run, record_id: str, number: int, renewed: dict[str, str]) -> None:
    """number: of the record among all that came. renewed: digests of directories, as they were and as they are."""
    directory = run.directory("prompts")
    before, origin = _reopen_directory(directory)
    all_prompts = list(read_conversations(directory / PROMPTS_FILE))
    write_atomic(directory / PROMPTS_FILE, (prompt.to_line() for prompt in all_prompts if prompt.id != record_id))
    lines = (directory / DECISIONS_FILE).read_bytes().splitlines()
    said = json.loads(lines[number])
    lines[number] = json.dumps(
        {"id": record_id, "where": said["where"], "dropped": FORGOTTEN}, ensure_ascii=False
    ).encode()
    write_atomic(directory / DECISIONS_FILE, (line + b"\n" for line in lines))
    ledger = json.loads((directory / LEDGER_FILE).read_bytes())
    entry = _find_source(ledger, number)
    gone = next(prompt for prompt in all_prompts if prompt.id == record_id)
    for counts in (ledger, entry):
        _subtract_prompt(counts, gone)
    ledger["dropped"] = dict(sorted({**ledger["dropped"], FORGOTTEN: ledger["dropped"].get(FORGOTTEN, 0) + 1}.items()))
    places = entry["dropped"].pop(FORGOTTEN, {"count": 0, "lines": []})
    places = {"count": places["count"] + 1, "lines": [*places["lines"], said["where"]][:MAX_LOCATIONS]}
    entry["dropped"] = dict(sorted({**entry["dropped"], FORGOTTEN: places}.items()))
    write_json_atomic(directory / LEDGER_FILE, ledger)
    write_atomic(directory / "card.md", render_card(ledger))
    write_croissant(directory, ledger)
    renewed[before] = finish_stage(directory, origin, time.time()).digest


def _subtract_prompt(counts: dict[str, Any], gone: Conversation) -> None:
    """Takes a prompt out of what a ledger counts of those that are kept, and its surrogates out of all."""
    counted = Ledger()
    counted.count_kept(sum(len(message.content) for message in gone.messages if message.role == "user"), gone.tags)
    counts["kept"] -= 1
    for name, mine in (("tasks", counted.tasks), ("languages", counted.languages)):
        counts[name] = {key: left for key, count in counts[name].items() if (left := count - mine[key])}
    for place, count in counted.lengths.items():
        counts["lengths"]["counts"][place] -= count
    for kind, count in gone.changed.items():
        counts["entities"][kind]["replaced"] -= count
    counts["entities"] = {kind: both for kind, both in counts["entities"].items() if any(both.values())}


def _forget_conversation(run: Run, record_id: str, renewed: dict[str, str]) -> bool:
    directory = run.directory("respond")
    found = _find_conversation(run, record_id) is not None
    parents = read_provenance(directory).parents
    if not found and not any(digest in renewed for digest in parents.values()):
        return False
    before, origin = _reopen_directory(directory)
    left = ShardStats()
    for path in sorted(directory.glob("*.jsonl")):
        conversations = list(read_conversations(path))
        kept = [one for one in conversations if one.id != record_id]
        if len(kept) < len(conversations):
            write_atomic(path, (one.to_line() for one in kept))
        for one in kept:
            left.count_kept(one)
    if found:
        ledger = json.loads((directory / LEDGER_FILE).read_bytes())
        dropped = ledger["dropped"].setdefault(FORGOTTEN, {"count": 0, "ids": []})
        dropped["count"] += 1
        dropped["ids"] = [*dropped["ids"], record_id][:MAX_IDS]
        write_json_atomic(directory / LEDGER_FILE, ledger | left.to_json())
    renewed[before] = finish_stage(directory, _with_new_parents(origin, renewed), time.time()).digest
    return found


def _forget_rows(run: Run, record_id: str, renewed: dict[str, str]) -> bool:
    directory = run.place("capture")
    manifest = store.read_manifest(directory)
    rows = _rows_of_record(manifest, record_id)
    if not rows and not any(digest in renewed for digest in read_provenance(directory).parents.values()):
        return False
    _, origin = _reopen_directory(directory)
    for number in sorted({row.shard for row in rows}, reverse=True):
        manifest = store.remove_rows(directory, manifest, number, {row.id for row in rows})
    directory.join(store.MANIFEST).remove()
    store.write_manifest(directory, manifest)
    finish_stage(directory, _with_new_parents(origin, renewed), time.time(), known_digests=manifest.shard_digests)
    return bool(rows)


def _clear_unfinished_features(directory: StoragePath) -> None:
    """Of an unfinished capture; the next one begins anew."""
    store.remove_shards_from(directory, 0)
    directory.join(store.MANIFEST).remove()


def _reopen_directory(directory: Path | StoragePath) -> tuple[str, StageInputs]:
    """The directory counts as unfinished from here on; its digest, and what it was made from."""
    found = read_provenance(directory)
    mark_unfinished(directory)
    origin = StageInputs(found.stage, found.recipe, found.parents, found.tokenizer, found.template, found.undigested)
    return found.digest, origin


def _with_new_parents(origin: StageInputs, renewed: dict[str, str]) -> StageInputs:
    """Made from what its parents are now, where it was made from what they were; else it stays out of step."""
    return replace(origin, parents={name: renewed.get(digest, digest) for name, digest in origin.parents.items()})
