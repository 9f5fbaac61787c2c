"""The keys `prompts.columns`, and what they share with the tables of `prompts.sources`."""

import json

import pytest

from eyas.base.config import build, parse_overrides, to_toml
from eyas.data.prompts_config import PromptsConfig
from eyas.data.sources.columns import ColumnsConfig, find_value
from eyas.data.sources.record_formats import RejectedRecord
from eyas.data.sources.source import SourceConfig, describe_rejected, open_source, read_records

DEEP = {"a": {"b": {"c": [{"d": {"text": "one"}}, {"d": {"text": "two"}}, {"d": {}}]}}, "x.y": "dotted", "n": [0]}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a.b.c.d.text", ["one", "two"]),
        ("a.b.c.1.d.text", "two"),
        ("a.b.c.7.d.text", None),
        ("a.b.c.2.d.text", None),
        ("a.b.c.d.other", None),
        ("x.y", "dotted"),
        ("n.0", 0),
        ("n.0.z", None),
        ("", None),
        ("b", None),
    ],
)
def test_paths(path, found):
    assert find_value(DEEP, path) == found


def test_content_id_and_language():
    columns = ColumnsConfig(text="frage", conversation="verlauf", language="meta.lang")
    assert columns.find_content({"frage": "a", "verlauf": ["b"]}) == ["b"]
    assert columns.find_content({"frage": "a", "verlauf": None}) == "a"
    assert columns.find_content({"x": 1}) == RejectedRecord("missing_column", None, "keys x")
    assert ColumnsConfig().find_content({"x": 1}) == {"x": 1}
    languages = ["de", "de-CH", "PT_br", "eng", "English", "", None, 5]
    found = [columns.find_language({"meta": {"lang": language}}) for language in languages]
    assert found == ["de", "de", "pt", None, None, None, None, None]
    assert ColumnsConfig().find_language({"meta": {"lang": "de"}}) is None
    assert [ColumnsConfig(id="i").find_id({"i": each}) for each in (7, "a/b", "a b", "x@y.de", None)] == [
        *("7", "a/b"),
        *(None,) * 3,
    ]


def test_tables_share_the_keys_of_the_recipe():
    overrides = parse_overrides(["columns.text=frage", "encoding=cp1252", "text_unit=file", "source=a.csv"])
    own = {"path": "b.csv", "columns": {"text": "question"}, "encoding": "utf-8"}
    config = build(PromptsConfig, overrides | {"sources": [{"path": "c.csv"}, own]})
    first, second, third = config.all_sources()
    assert [(each.path, each.encoding, each.text_unit) for each in (first, second, third)] == [
        ("a.csv", "cp1252", "file"),
        ("c.csv", "cp1252", "file"),
        ("b.csv", "utf-8", "file"),
    ]
    assert [each.columns and each.columns.text for each in (first, second, third)] == ["frage", "frage", "question"]
    assert 'text = "frage"' in to_toml(config)


def test_the_first_rejected_records_are_described(tmp_path):
    lines = [{"frage": "a"}, {"frage": "b"}, [], {"question": "fine"}, {"z": 1}]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, lines)))
    source = open_source(SourceConfig(str(tmp_path / "q.jsonl")), 0)
    described = describe_rejected(source)
    assert described == "q.jsonl:1, q.jsonl:2 (unknown_shape: keys frage), q.jsonl:3 (unknown_shape: type list)"
    wrong = open_source(SourceConfig(str(tmp_path / "q.jsonl"), columns=ColumnsConfig(text="frage")), 0)
    assert describe_rejected(wrong).startswith("q.jsonl:3 (missing_column: type list), q.jsonl:4 (missing_column: keys")


def test_text_files(tmp_path):
    (tmp_path / "texts").mkdir()
    for name, text in (("b", "Two\n\nlines\n"), ("a", " One "), ("c", ""), ("d", "\n")):
        (tmp_path / "texts" / f"{name}.txt").write_text(text)
    found = list(read_records(SourceConfig(str(tmp_path / "texts"))))
    assert [(record.id, record.location, record.value) for record in found] == [
        ("texts:0", "a.txt:1", "One"),
        ("texts:1", "b.txt:1", "Two\n\nlines"),
    ]
    pattern = list(read_records(SourceConfig(str(tmp_path / "texts" / "*.txt"))))
    assert pattern == found
    (tmp_path / "texts" / "c.txt").unlink()  # as a file of lines it is an error
    lines = list(read_records(SourceConfig(str(tmp_path / "texts"), text_unit="line")))
    assert [(record.id, record.value) for record in lines] == [("a:0", "One"), ("b:0", "Two"), ("b:2", "lines")]
    named = SourceConfig(str(tmp_path / "texts" / "b.txt"))
    assert [record.id for record in read_records(named)] == ["b:0", "b:2"]
    (whole,) = read_records(SourceConfig(str(tmp_path / "texts" / "b.txt"), text_unit="file"))
    assert whole.value == "Two\n\nlines"
