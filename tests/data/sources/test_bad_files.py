"""Damaged, huge and odd files: a clear error before anything is written, or a counted drop; memory stays flat."""

import contextlib
import gzip
import json
import os
import tracemalloc

import pyarrow
import pyarrow.parquet
import pytest

from eyas.base.errors import InputError, UsageError
from eyas.data.sources import csv_rows, file_formats, json_documents, text_stream
from eyas.data.sources.columns import ColumnsConfig
from eyas.data.sources.record_formats import RejectedRecord
from eyas.data.sources.source import SourceConfig, open_source, read_records

TOO_LARGE = RejectedRecord("too_large", None)
PROMPTS = "\n".join(json.dumps({"prompt": f"Question {number}? " + "word " * 20}) for number in range(300)).encode()


def values(path, **keys):
    return [record.value for record in read_records(SourceConfig(str(path), **keys))]


def refuse(path, match, **keys):
    with pytest.raises((InputError, UsageError), match=match) as caught:
        values(path, **keys)
    assert len(str(caught.value)) <= 240
    return str(caught.value)


@pytest.fixture
def small_limit(monkeypatch):
    for module in (csv_rows, json_documents, text_stream):
        monkeypatch.setattr(module, "MAX_RECORD_CHARS", 1000)
        monkeypatch.setattr(module, "READ_CHARS", 64, raising=False)


@pytest.mark.parametrize("keep", [0.5, 0.99])
@pytest.mark.parametrize("ending", ["zst", "gz"])
@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "txt", "log"])
def test_half_an_archive(tmp_path, kind, ending, keep):
    path = tmp_path / f"q.{kind}.{ending}"
    whole = gzip.compress(PROMPTS) if ending == "gz" else pyarrow.compress(PROMPTS, "zstd", asbytes=True)
    path.write_bytes(whole[: int(len(whole) * keep)])
    refuse(path, rf"q\.{kind}\.{ending} is damaged or cut off")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('[{"prompt": "a"}, {"prompt": "b"', "line 1"),
        ('[\n{"prompt": "a"},\n{"prompt": "b"}\n', "line 4"),
        ('{\n"data": [\n{"prompt": "a"},\n{"prompt": b}\n]}', "line 4"),
        ('{\n"prompt": "a",\n}', "line 1"),
        ("[" * 100_000, "line 1"),
    ],
)
def test_json_that_is_cut_off_or_wrong(tmp_path, text, match):
    (tmp_path / "q.json").write_text(text)
    refuse(tmp_path / "q.json", rf"q\.json is not valid JSON or is cut off, at {match}")


def test_a_quote_that_never_closes(tmp_path, small_limit):
    path = tmp_path / "q.csv"
    path.write_text('prompt;n\n"fine ""row""";1\n"open;2\n' + "next;3\n" * 20)
    refuse(path, r"misplaced quote in the row that begins at line 3")
    path.write_text('prompt;n\n"fine";1\n"open;2\n' + "next;3\n" * 2000)  # longer than a record may be
    refuse(path, r"misplaced quote in the row that begins at line 3")


def test_rows_with_more_cells_than_headings(tmp_path):
    (tmp_path / "q.csv").write_text("prompt,n\nfine,1\nno, quotes,2\nfine,3,,\n")
    assert values(tmp_path / "q.csv") == [
        {"prompt": "fine", "n": "1"},
        RejectedRecord("wrong_columns", None),
        {"prompt": "fine", "n": "3"},
    ]


def test_a_huge_line_is_dropped_and_counted(tmp_path, small_limit):
    text = json.dumps({"prompt": "a"}) + "\n" + json.dumps({"prompt": "x" * 5000}) + "\n" + json.dumps({"prompt": "b"})
    expected = [{"prompt": "a"}, TOO_LARGE, {"prompt": "b"}]
    (tmp_path / "q.jsonl").write_text(text)
    assert values(tmp_path / "q.jsonl") == expected
    (tmp_path / "q.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    assert values(tmp_path / "q.jsonl.gz") == expected
    (tmp_path / "u.jsonl").write_bytes(text.encode("utf-16"))
    assert values(tmp_path / "u.jsonl") == expected
    (tmp_path / "long.txt").write_text("x" * 5000)
    assert values(tmp_path / "long.txt") == [TOO_LARGE]
    assert values(tmp_path / "long.txt", text_unit="file") == [TOO_LARGE]


def test_a_huge_record_of_other_forms(tmp_path, small_limit):
    (tmp_path / "q.json").write_text(json.dumps([{"prompt": "a"}, {"prompt": "x" * 5000}]))
    refuse(tmp_path / "q.json", r"q\.json has a record of more than")
    (tmp_path / "q.json").write_text(json.dumps({str(n): {"prompt": "x" * 90} for n in range(50)}))
    refuse(tmp_path / "q.json", r"q\.json has a record of more than .* prompts\.columns\.records=KEY")
    (tmp_path / "q.csv").write_text("prompt,n\n" + "x" * 5000 + ",1\n")
    refuse(tmp_path / "q.csv", r"Line 2 of q\.csv has more than")


def test_a_line_of_an_array_may_be_longer_than_a_record(tmp_path, small_limit):
    said = [{"prompt": "x" * 50 + str(n)} for n in range(200)]
    (tmp_path / "q.json").write_text(json.dumps({"version": "1", "data": said, "end": True}))
    assert values(tmp_path / "q.json") == said


@pytest.mark.parametrize("name", ["q.jsonl.gz", "q.txt.gz", "q.csv.gz", "q.json.gz"])
def test_a_small_archive_of_a_huge_line(tmp_path, monkeypatch, name):
    for module in (csv_rows, json_documents, text_stream):
        monkeypatch.setattr(module, "MAX_RECORD_CHARS", 2**20)
    size = 64 * 2**20
    with gzip.GzipFile(tmp_path / name, "wb", 1) as file:
        file.write(b"{" if "json" in name else b"p\n")
        for _ in range(size // 2**20):
            file.write(b"\0" * 2**20)
    tracemalloc.start()
    with contextlib.suppress(InputError):
        assert TOO_LARGE in values(tmp_path / name)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < size / 4


def test_mixed_encodings_in_a_directory(tmp_path):
    for name, encoding in (("a", "utf-8"), ("b", "utf-8-sig"), ("c", "utf-16"), ("d", "utf-32"), ("e", "utf-16-be")):
        mark = "\ufeff" if encoding == "utf-16-be" else ""
        (tmp_path / f"{name}.csv").write_bytes(f"{mark}prompt,n\nÜbung 日本,1\n".encode(encoding))
    assert values(tmp_path) == [{"prompt": "Übung 日本", "n": "1"}] * 5
    (tmp_path / "f.csv").write_bytes("prompt,n\nÜbung,1\n".encode("latin-1"))
    refuse(tmp_path, r"f\.csv is not valid UTF-8\. Set prompts\.encoding")
    (tmp_path / "a.csv").unlink()  # only a mark is stronger than the key
    assert values(tmp_path, encoding="latin-1")[-1] == {"prompt": "Übung", "n": "1"}


def test_encodings_that_do_not_fit(tmp_path):
    (tmp_path / "q.txt").write_bytes("Was heißt das?\nNichts.\n".encode("latin-1"))
    assert values(tmp_path / "q.txt") == [RejectedRecord("not_json", None), "Nichts."]
    assert values(tmp_path / "q.txt", encoding="cp1252") == ["Was heißt das?", "Nichts."]
    refuse(tmp_path / "q.txt", "The encoding klingon is unknown", encoding="klingon")
    refuse(tmp_path / "q.txt", "The encoding rot13 is unknown", encoding="rot13")
    (tmp_path / "cut.txt").write_bytes("Hello".encode("utf-16")[:-1])
    refuse(tmp_path / "cut.txt", r"cut\.txt is not valid UTF-16")


def test_directories_without_files_and_in_circles(tmp_path):
    refuse(tmp_path, "No prompt file matches")
    os.symlink("b.jsonl", tmp_path / "a.jsonl")
    os.symlink("a.jsonl", tmp_path / "b.jsonl")
    os.symlink(tmp_path, tmp_path / "self")
    for path in (tmp_path, tmp_path / "a.jsonl", tmp_path / "*.jsonl", tmp_path / "**" / "*.jsonl"):
        refuse(path, "No prompt file matches")
    (tmp_path / "c.jsonl").write_text('"a"')
    assert values(tmp_path) == ["a"]
    assert "a" in values(tmp_path / "**" / "*.jsonl")


@pytest.mark.parametrize(
    "text",
    [
        '[{"prompt": "a"}, {"prompt": "b"}]\n[{"prompt": "c"}]\n',
        '[{"prompt": "a"}]\n[]\n[{"prompt": "b"},\n{"prompt": "c"}]',
        '{"train": [{"prompt": "a"}], "test": [{"prompt": "b"}, {"prompt": "c"}], "n": 3}',
        '{"prompt": "a"}, {"prompt": "b"}\n\n{"prompt": "c"}\n\n',
        '{"prompt":\n"a"}{"prompt": "b"} {"prompt": "c"}',
        '{"data": {"x": [1]}, "records": [\n{"prompt": "a"},\n{"prompt": "b"},\n{"prompt": "c"}\n]}',
    ],
)
@pytest.mark.parametrize("size", [1, 17, 2**20])
def test_json_in_parts(tmp_path, monkeypatch, text, size):
    monkeypatch.setattr(json_documents, "MARGIN_CHARS", 60)
    for module in (text_stream, json_documents):
        monkeypatch.setattr(module, "READ_CHARS", max(size, 200 if "data" in text or "train" in text else 1))
    monkeypatch.setattr(file_formats, "is_json_document", lambda sample: True)
    (tmp_path / "q.json").write_text(text)
    assert values(tmp_path / "q.json") == [{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}]


@pytest.mark.parametrize("name", ["q.xlsx", "q.xls", "q.ods"])
def test_a_spreadsheet(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK")
    assert "Save it as CSV UTF-8" in refuse(tmp_path / name, f"{name} is a spreadsheet")


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow"])
def test_a_column_that_is_not_there(tmp_path, kind):
    path = tmp_path / f"q.{kind}"
    table = pyarrow.table({"frage": ["a"], "meta": [{"x": "b"}], **{f"c{n}": [1] for n in range(9)}})
    if kind == "csv":
        path.write_text(",".join(table.column_names) + "\n" + ",".join("a" * 11) + "\n")
    elif kind == "parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        with pyarrow.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    refuse(path, rf"q\.{kind} has no column question, but frage, meta, c0", columns=ColumnsConfig(text="question"))
    assert values(path, columns=ColumnsConfig(text="frage")) == ["a"]


def test_ids_that_are_equal_or_missing(tmp_path):
    (tmp_path / "q.csv").write_text("nr,prompt\na-7,x\n,y\nhas space,z\nno,cells,w\nb.8,v\n")
    found = list(read_records(SourceConfig(str(tmp_path / "q.csv"), columns=ColumnsConfig(id="nr"))))
    assert [record.id for record in found] == ["q:a-7", "q:row 1", "q:row 2", "q:row 3", "q:b.8"]
    (tmp_path / "q.csv").write_text("nr,prompt\n7,x\n8,y\n7,z\n")
    refuse(tmp_path / "q.csv", r"q\.csv:3 has the same id as a record before it", columns=ColumnsConfig(id="nr"))


def test_nothing_is_open_or_left_of_a_bad_file(tmp_path):
    path = tmp_path / "q.csv.zst"
    path.write_bytes(pyarrow.compress(b"prompt\n" + b"words\n" * 5000, "zstd", asbytes=True))
    source = open_source(SourceConfig(str(path)), 0)
    assert [shard.num_records for shard in source.shards] == [1000] * 5
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(InputError, match="damaged or cut off"):
        list(file_formats.read_values(source.files[0].data, source.files[0].digest, source.shards[4].span))
    path.write_bytes(whole)
    last = file_formats.read_values(source.files[0].data, source.files[0].digest, source.shards[4].span)
    assert list(last) == [{"prompt": "words"}] * 1000
