"""`eyas prompts RECIPE --explain ID` and `--forget ID`: say what each stage did with one record, and remove it.

    decisions.jsonl -> prompts.jsonl -> conversations/part-*.jsonl -> features/shard-* -> head

`--forget` removes the record from prompts, conversations and features and updates each provenance.json, so that these
stages stay finished. A record cannot be removed from a trained head: `--forget` prints the heads that were trained on
it, which must be trained again. forgotten.jsonl stores the id, so that the next `eyas prompts` drops the record.
"""

import datetime
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import PurePath
from typing import Any

from eyas.base.errors import InputError
from eyas.base.provenance import finish_stage, has_provenance, mark_unfinished, read_provenance
from eyas.base.storage import AnyPath, StoragePath, convert_read_errors, write_atomic, write_json_atomic
from eyas.chat.conversation import Conversation, read_conversation_dir, read_conversations
from eyas.data.answers.respond import LEDGER_FILE, clear_output
from eyas.data.explain import RecordExplainer
from eyas.data.ledger.cards import render_card
from eyas.data.ledger.ledger import MAX_EXAMPLES, AnswerLedger, PromptLedger
from eyas.data.prompts import DECISIONS_FILE, FORGOTTEN_FILE, PROMPTS_FILE, job_directory, write_croissant
from eyas.data.select.screen import FORGOTTEN
from eyas.features import store
from eyas.formats.head_dir import digest_head
from eyas.recipe import RECIPE_FILE, Run, load_recipe

FIRST = "Run `eyas prompts` first"


def explain_records(run: Run, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields for each record, as JSON, what each gate does with it now, and what the run and its later stages did.

    A record that the recipe's sources lack is searched in the sources of RUN/recipe.toml, too. If its source is gone,
    only the decision of the run is left.

    Args:
        run: The run. `eyas prompts` may not have run yet.
        names: Ids, or FILE:LINE as the ledger names records.

    Raises:
        InputError: There is no such record, or a source cannot be opened and no run has screened it.
    """
    saved = run.out / RECIPE_FILE
    configs = [run.recipe.prompts, *([load_recipe(saved, {}).prompts] if saved.is_file() else [])]

    @cache
    def open_explainer(number: int) -> RecordExplainer:
        return RecordExplainer(configs[number], run.directory("prompts"), run.acknowledgements_file)

    for name in names:
        _, decision = _find_decision(run, name) or (0, None)
        problems: list[InputError] = []
        for number in range(len(configs)):
            try:
                explainer = open_explainer(number)
                source, record = explainer.find(name if decision is None else decision["id"])
            except InputError as error:
                problems.append(error)
                continue
            explained = explainer.explain(source, record, decision)
            notes = explainer.compare_with_run(source)
            break
        else:
            if decision is None:
                raise problems[0]
            explained = {"id": decision["id"], "where": decision["where"], "messages": []}
            notes = [f"The record cannot be read again: {problems[0].problem}"]
        stages = {} if decision is None else dict(_explain_later_stages(run, decision))
        yield explained | {"run": decision, "stages": stages, "notes": notes}


def sample_records(run: Run, count: int) -> list[dict[str, Any]]:
    """Returns random records of the recipe's sources with what each gate would do with them. Writes nothing."""
    explainer = RecordExplainer(run.recipe.prompts, run.directory("prompts"), run.acknowledgements_file, count)
    return [explainer.explain(*found) for found in explainer.sample(count, run.recipe.prompts.seed)]


def forget_record(run: Run, name: str) -> Iterator[str]:
    """Removes a record from prompts, conversations and features. Yields lines that say what was done.

    If an earlier call was killed, this call completes its work. It also works if `eyas prompts` has selected prompts
    again after `eyas respond`.

    Args:
        run: The run.
        name: The id of the record, or FILE:LINE.

    Raises:
        InputError: There is no such record.
    """
    located = _find_decision(run, name)
    if located is None:
        path = run.directory("prompts") / DECISIONS_FILE
        fix = "Check the id, for example gsm8k-train:17" if path.exists() else FIRST
        raise InputError(f"{path} has no record {name}", fix)
    number, decision = located
    record_id = decision["id"]
    heads = _heads_trained_on(run, record_id)
    with (run.directory("prompts") / DECISIONS_FILE).open("rb") as file:  # else one of its duplicates would be kept
        duplicates = [entry["id"] for entry in map(json.loads, file) if entry.get("of") == record_id]
    _append_forgotten(run, [record_id, *duplicates], heads)
    shutil.rmtree(job_directory(run.directory("prompts")), ignore_errors=True)  # of an unfinished run
    yield record_id
    new_digests: dict[str, str] = {}
    if decision["dropped"] is None:
        _forget_prompt(run, record_id, number, new_digests)
        yield f"  removed from {run.directory('prompts')}"
    else:
        kept = decision.get("of")
        of, original = ("", "") if kept is None else (f" of {kept}", f"; forget {kept}, too")
        yield f"  was dropped before ({decision['dropped']}{of}) and will not be taken again{original}"
    if duplicates:
        yield f"  its duplicates will not be taken either: {', '.join(duplicates)}"
    for stage, remove, clear in (
        ("respond", _forget_conversation, lambda place: clear_output(place.path)),
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


def _find_decision(run: Run, name: str) -> tuple[int, dict[str, Any]] | None:
    """Returns the number of a record in decisions.jsonl, from 0, and its decision; None if there is none.

    Args:
        run: The run.
        name: The id of the record, or FILE:LINE.

    Raises:
        InputError: The name is that of several records, or the file cannot be read.
    """
    path = run.directory("prompts") / DECISIONS_FILE
    location, found = PurePath(name).name, list[tuple[int, dict[str, Any]]]()
    if not path.exists():
        return None
    with convert_read_errors(path, "Check --out"), path.open("rb") as file:
        for number, line in enumerate(file):
            decision = json.loads(line)
            if name == decision["id"]:
                return number, decision
            if location == decision["where"]:
                found.append((number, decision))
    if len(found) > 1:
        ids = " and ".join(decision["id"] for _, decision in found)
        raise InputError(f"{name} names {len(found)} records", f"Use an id: {ids}")
    return found[0] if found else None


def _find_source(ledger: dict[str, Any], number: int) -> dict[str, Any]:
    """Returns the ledger's entry of the source of record `number`. Records are numbered source by source."""
    for source in ledger["sources"]:
        if number < source["came"]:
            return source
        number -= source["came"]
    raise InputError(f"{LEDGER_FILE} and {DECISIONS_FILE} are of different runs", "Run `eyas prompts` again")


def _explain_later_stages(run: Run, decision: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (stage, what it did with the record)."""
    record_id = decision["id"]
    for entry in _read_forgotten(run):
        if entry["id"] == record_id:
            yield "forgotten", f"{entry['when']}; heads trained on it: {', '.join(entry['heads']) or 'none'}"
    if decision["dropped"] is not None:
        return
    if has_provenance(run.storage_path("respond")):
        found = _find_conversation(run, record_id)
        if found is None:
            yield "respond", f"not answered, or dropped (see {LEDGER_FILE} of the conversations)"
            return
        tokens = sum(len(turn.token_ids) for turn in found.turns)
        reasons = ", ".join(turn.finish for turn in found.turns)
        yield "respond", f"{len(found.turns)} answers, {tokens} tokens ({reasons})"
    if has_provenance(run.storage_path("capture")):
        rows = _rows_of_record(store.read_manifest(run.storage_path("capture")), record_id)
        yield "capture", ", ".join(f"{row.length} tokens for {row.split}" for row in rows) or "no row"
    for head in _heads_trained_on(run, record_id):
        yield "head", f"{head} was trained on it"


def _find_conversation(run: Run, record_id: str) -> Conversation | None:
    conversations = read_conversation_dir(run.directory("respond"))
    return next((conversation for conversation in conversations if conversation.id == record_id), None)


def _rows_of_record(manifest: store.Manifest, record_id: str) -> list[store.RowInfo]:
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
    counted.count_kept(removed)
    counts["kept"] -= 1
    if "gates" in counts:  # an older run has none
        counts["gates"]["forgotten"]["dropped"] += 1
        counts["gates"]["personal data"]["changed"] -= bool(removed.changed)
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


def _has_new_parent(directory: AnyPath, new_digests: dict[str, str]) -> bool:
    return any(digest in new_digests for digest in read_provenance(directory).parents.values())


@contextmanager
def _rewritten(directory: AnyPath, new_digests: dict[str, str]) -> Iterator[dict[str, str]]:
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
