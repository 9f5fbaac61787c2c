"""Every kind of file, cut into pieces in every place, gives the same records."""

import bz2
import csv
import gzip
import json
import lzma
import random

import pyarrow
import pyarrow.parquet
import pytest

from eyas.base.errors import InputError, UsageError
from eyas.base.provenance import digest_file
from eyas.base.storage import StoragePath
from eyas.data.prompts import read_claim
from eyas.data.sources import file_formats, text_stream
from eyas.data.sources.file_formats import SHARD_RECORDS
from eyas.data.sources.record_formats import RejectedRecord
from eyas.data.sources.source import SourceConfig, open_source, read_shard


def records(config):
    source = open_source(config, 0)
    found = [record for piece in source.shards for record in read_shard(source, piece)]
    assert source.num_records >= len(found)
    return found


def jsonl(count, seed=0):
    pick = random.Random(seed)
    return [{"question": f"{n} " + "ä" * pick.randrange(60)} for n in range(count)]


def test_lines_are_cut_after_a_thousand_records(tmp_path):
    path, said = tmp_path / "q.jsonl", jsonl(2 * SHARD_RECORDS + 7)
    path.write_text("\n".join(json.dumps(one, ensure_ascii=False) for one in said))
    source = open_source(SourceConfig(str(path)), 0)
    assert [piece.num_records for piece in source.shards] == [SHARD_RECORDS, SHARD_RECORDS, 7]
    found = records(SourceConfig(str(path)))
    assert [record.value for record in found] == said
    assert [record.id for record in found] == [f"q:{n}" for n in range(len(said))]
    assert found[1234].location == "q.jsonl:1235"
    assert source.digests == {"q.jsonl": digest_file(path)}


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\r\n"])
@pytest.mark.parametrize("block", [1, 7, 4096])
def test_wherever_blocks_and_pieces_end(tmp_path, monkeypatch, block, end):
    monkeypatch.setattr(text_stream, "READ_CHARS", block)
    monkeypatch.setattr(file_formats, "SHARD_RECORDS", 3)
    monkeypatch.setattr(file_formats, "SHARD_BYTES", 40)
    path = tmp_path / "q.jsonl"
    lines = ["\ufeff1", '"ü"', "", " ", '"' + "x" * 90 + '"', "2", "nope", "3", "4", "5"]
    path.write_bytes(("\n".join(lines) + end).encode())
    found = records(SourceConfig(str(path)))
    assert [(r.value, r.location) for r in found] == [
        (1, "q.jsonl:1"),
        ("ü", "q.jsonl:2"),
        ("x" * 90, "q.jsonl:5"),
        (2, "q.jsonl:6"),
        (RejectedRecord("not_json", None), "q.jsonl:7"),
        (3, "q.jsonl:8"),
        (4, "q.jsonl:9"),
        (5, "q.jsonl:10"),
    ]
    assert [r.id for r in found] == [f"q:{n}" for n in (0, 1, 4, 5, 6, 7, 8, 9)]


def test_parquet(tmp_path):
    said = jsonl(700)
    table = pyarrow.Table.from_pylist(said)
    pyarrow.parquet.write_table(table, tmp_path / "q.parquet", row_group_size=300)
    source = open_source(SourceConfig(str(tmp_path / "q.parquet")), 0)
    assert [piece.num_records for piece in source.shards] == [300, 300, 100]
    found = records(SourceConfig(str(tmp_path / "q.parquet")))
    assert [record.value for record in found] == said
    assert (found[650].id, found[650].location) == ("q:650", "q.parquet:651")


def test_parquet_with_columns_that_python_cannot_hold_and_cells_without_a_value(tmp_path):
    path = tmp_path / "q.parquet"
    columns = {
        "messages": pyarrow.array([None, [{"role": "user", "content": "b"}], None]),
        "prompt": pyarrow.array(["a", None, None]),
        "day": pyarrow.array([2**30] * 3, pyarrow.date32()),
        "at": pyarrow.array([1, 2, 3], pyarrow.timestamp("us", tz="Mars/Base")),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    asked = {"messages": [{"role": "user", "content": "b"}]}
    assert [record.value for record in records(SourceConfig(str(path)))] == [{"prompt": "a"}, asked, {}]
    pyarrow.parquet.write_table(pyarrow.table({"day": columns["day"]}), path)
    assert [record.value for record in records(SourceConfig(str(path)))] == [{}] * 3


def test_a_line_with_null_is_a_record(tmp_path):
    (tmp_path / "q.jsonl").write_text('null\n\n"a"\n')
    assert [record.value for record in records(SourceConfig(str(tmp_path / "q.jsonl")))] == [None, "a"]


def test_parquet_that_is_damaged_inside(tmp_path):
    path = tmp_path / "q.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"prompt": [str(n) for n in range(500)]}), path)
    damaged = bytearray(path.read_bytes())
    damaged[20:200:20] = b"\xff" * 9
    path.write_bytes(damaged)
    with pytest.raises(InputError, match=r"q\.parquet has rows that cannot be read"):
        records(SourceConfig(str(path)))


@pytest.mark.parametrize(("ending", "mark"), [(".csv", ","), (".tsv", "\t")])
def test_csv_with_line_breaks_in_cells(tmp_path, ending, mark):
    path = tmp_path / f"q{ending}"
    said = [{"question": 'a\nb, "c"\td', "answer": "1"}, {"question": "ü", "answer": "2"}]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["question", "answer"], delimiter=mark)
        writer.writeheader()
        writer.writerows(said)
    assert [record.value for record in records(SourceConfig(str(path)))] == said


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip), (".bz2", bz2), (".xz", lzma)])
def test_compressed_lines(tmp_path, ending, pack):
    path, said = tmp_path / f"q.jsonl{ending}", jsonl(20)
    path.write_bytes(pack.compress("\n".join(map(json.dumps, said)).encode()))
    found = records(SourceConfig(str(path)))
    assert [record.value for record in found] == said
    assert found[3].id == "q:3"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match="damaged or cut off"):
        records(SourceConfig(str(path)))


@pytest.mark.parametrize("name", ["q.csv", "q.jsonl", "q.jsonl.gz"])
def test_a_file_that_changes_while_it_is_read(tmp_path, name):
    """More in a file that is read as a whole, less in one of lines."""
    path = tmp_path / name
    pack = gzip.compress if name.endswith("gz") else bytes
    text = b'"a"\n"b"\n"c"\n"d"\n'
    path.write_bytes(pack(text))
    source = open_source(SourceConfig(str(path)), 0)
    path.write_bytes(pack(text[:8] if name == "q.jsonl" else text * 2))
    with pytest.raises(InputError, match="changed while it was read"):
        list(read_shard(source, source.shards[0]))


@pytest.mark.parametrize("name", ["q.csv", "q.json", "q.jsonl.gz", "q.arrow", "q.parquet", "u.jsonl", "q.jsonl"])
def test_shards_in_any_order(tmp_path, name):
    """Workers read different shards in any order, and a stopped run continues at any shard."""
    path, said = tmp_path / name, jsonl(5300)
    if name == "q.csv":
        path.write_text("question\n" + "".join(f"{record['question']}\n" for record in said))
    elif name == "q.json":
        path.write_text(json.dumps(said))
    elif name == "q.parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(said), path, row_group_size=2100)
    elif name == "q.arrow":
        table = pyarrow.Table.from_pylist(said)
        with pyarrow.ipc.new_stream(path, table.schema) as file:
            file.write_table(table, max_chunksize=700)
    else:
        text = "\n".join(map(json.dumps, said))
        path.write_bytes(
            gzip.compress(text.encode())
            if name.endswith("gz")
            else text.encode("utf-16" if name[0] == "u" else "utf-8")
        )
    source = open_source(SourceConfig(str(path), encoding="utf-8"), 0)
    expected = [(f"{name[0]}:{number}", record) for number, record in enumerate(said)]
    numbers = list(range(len(source.shards)))
    assert len(numbers) > 5
    for order in (numbers, numbers[::-1], numbers[1::2] + numbers[::2]):
        found = {number: list(read_shard(source, source.shards[number])) for number in order}
        assert [(record.id, record.value) for number in numbers for record in found[number]] == expected


def test_plain_text_is_a_prompt_a_line(tmp_path):
    (tmp_path / "q.txt").write_text("What is up?\n\n  {not json\n")
    assert [record.value for record in records(SourceConfig(str(tmp_path / "q.txt")))] == ["What is up?", "{not json"]


def test_any_url():
    said = jsonl(30)
    StoragePath("memory://prompts/a/q.jsonl").write_bytes("\n".join(map(json.dumps, said)).encode())
    for path in ("memory://prompts/a/q.jsonl", "memory://prompts/a", "memory://prompts/*/q.jsonl"):
        assert [record.value for record in records(SourceConfig(path))] == said


def test_files_of_a_directory_in_order_and_no_others(tmp_path):
    for name, text in (("b.jsonl", "2"), ("a.ndjson", "1"), ("notes.md", "x"), (".hidden.jsonl", "9")):
        (tmp_path / name).write_text(text)
    assert [record.value for record in records(SourceConfig(str(tmp_path)))] == [1, 2]


def test_a_dataset_of_the_hub(tmp_path, monkeypatch):
    """As it lies in the hub's cache, with card and licence; nothing is downloaded."""
    revision = "0123456789abcdef0123456789abcdef01234567"
    place = tmp_path / "datasets--acme--prompts" / "snapshots" / revision
    (place / "data").mkdir(parents=True)
    (place / "data" / "train.jsonl").write_text('{"question": "a"}')
    (place / "data" / "test.jsonl").write_text('{"question": "b"}')
    (place / "README.md").write_text("---\nlicense: mit\n---\n")
    (place / "LICENSE").write_text("MIT License")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    config = SourceConfig("hf:acme/prompts", revision=revision, files="data/train*", name="acme")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    source = open_source(config, 0)
    assert [record.id for record in records(config)] == ["acme:0"]
    claim = read_claim(source)
    assert (claim.dataset, claim.revision) == ("acme/prompts", revision)
    assert claim.card == {"license": "mit"}
    assert claim.license_text == b"MIT License"
    with pytest.raises(InputError, match="The hub does not provide hf:acme/other"):
        open_source(SourceConfig("hf:acme/other", revision=revision), 0)
    for wrong in (None, "", "main", "v1.0", "refs/pr/1", revision[:12], revision.upper() + "F", revision + "\n"):
        with pytest.raises(UsageError, match=f"revision {wrong}, which is not a full commit"):
            SourceConfig("hf:acme/prompts", revision=wrong)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("q.jsonl", b"", "The prompt file q.jsonl is empty"),
        ("q.parquet", b"PAR1 no", "q.parquet is not a valid Parquet file"),
        ("q.csv", b"", "The prompt file q.csv is empty"),
        ("q.csv", b"a,b\n\xff\xfe,1\n", "q.csv is not valid UTF-8"),
        ("q.docx", b"x", "q.docx has no known file ending"),
        ("q.bin.gz", b"x", "q.bin.gz is a compressed file of unknown kind"),
        ("q.jsonl.gz", b"no gzip", "damaged or cut off"),
        ("q.jsonl.gz", gzip.compress(b"", mtime=0)[:10] + b"\xff" * 20, "damaged or cut off"),
        ("q.csv", b'prompt\n"Why is that?\nWhat is this?\n', "misplaced quote in the row that begins at line 2"),
        ("q.csv", b'prompt\n"What does "hi" mean?"\n', "misplaced quote in the row that begins at line 2"),
    ],
)
def test_bad_files(tmp_path, name, content, match):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=match):
        open_source(SourceConfig(str(tmp_path / name)), 0)
    with pytest.raises(InputError, match="No prompt file matches"):
        open_source(SourceConfig(str(tmp_path / "nowhere")), 0)
