"""Writes the same prompts as the usual tools write them, for the part `files` of `make prove-data` and its test.

Each writer gets a directory, writes its files there, and returns the keys of its source with the expected user turns.
PROMPTS are written for eyas, with what tears files apart: delimiters, quotes, line ends, letters of many scripts.
"""

import csv
import io
import json
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROMPTS = (
    "How do I boil an egg?",
    'Explain the difference between "affect" and "effect", with examples; one of each.',
    "Fix this function:\n\ndef f(x):\n\treturn x | 1\n",
    "Was kostet ein Brötchen in Köln, wenn 3 Stück 1,95 € kosten?",
    "Übersetze: „Ça va? – Très bien, merci!“",
    "a,b;c\td|e 'f' \\ \"g\" \\\" \"\" ,,\"\n;;\"",
    "[1, 2, 3] und {\"prompt\": \"x\"} sind JSON, oder?",
    "日本の首都はどこですか。",
    "Ποια είναι η πρωτεύουσα της Ελλάδας; Что такое дом? ماذا؟",
    "Write an emoji 🦅 and the word 'sep=;'.",
    '"Quoted as a whole"',
    "'Single quotes at both ends'",
    "=SUM(A1:A3) is a formula, -5 a number, +49 a prefix and @x a name",
    "A long one: " + "word, " * 300 + "end.",
)  # fmt: skip
LINES = tuple(" ".join(prompt.split()) for prompt in PROMPTS)
LATIN = tuple(prompt for prompt in PROMPTS if prompt.encode("cp1252", "ignore").decode("cp1252") == prompt)
ANSWER = 'An answer, "quoted";\nwith a second line.'
FIRST = "First of all, hello!"
Keys = dict[str, Any]
Writer = Callable[[Path], tuple[Keys, Any]]
WRITERS: dict[tuple[str, str], Writer] = {}
"""The writers by tool and shape. A writer returns the keys of `prompts`, and the expected user turns of the records."""


def shape(tool: str, name: str) -> Callable[[Writer], Writer]:
    """Registers a writer."""

    def register(writer: Writer) -> Writer:
        WRITERS[tool, name] = writer
        return writer

    return register


def single(prompts: tuple[str, ...] = PROMPTS) -> list[tuple[str, ...]]:
    """Returns the turns of records with one prompt each."""
    return [(prompt,) for prompt in prompts]


def rows(prompts: tuple[str, ...] = PROMPTS, column: str = "prompt") -> list[dict[str, Any]]:
    """Returns records with a number, a prompt and an answer."""
    return [{"number": index, column: prompt, "response": ANSWER} for index, prompt in enumerate(prompts)]


def chat(
    user: str = "user", model: str = "assistant", role: str = "role", content: str = "content"
) -> list[list[dict[str, str]]]:
    """Returns conversations of two user turns, whose keys and roles have these names."""
    return [
        [{role: user, content: FIRST}, {role: model, content: ANSWER}, {role: user, content: prompt}]
        for prompt in PROMPTS
    ]


TURNS = [(FIRST, prompt) for prompt in PROMPTS]


def write(path: Path, text: str, encoding: str = "utf-8") -> Keys:
    """Writes a file and returns its key."""
    path.write_bytes(text.encode(encoding))
    return {"source": str(path)}


# --- json ------------------------------------------------------------------------------------------------------------


def json_file(name: str, value: Any, expected: Any, **options: Any) -> None:
    """Registers a file that json.dumps writes."""
    shape("json", name)(lambda at: (write(at / f"{name}.json", json.dumps(value, **options)), expected))


json_file("array", rows(), single())
json_file("array-indented", rows(), single(), indent=2, ensure_ascii=False)
json_file("array-below-data", {"version": "1.0", "data": rows()}, single(), indent=4)
json_file("array-below-train", {"train": rows()[:5], "test": rows()[5:]}, single())
json_file("array-of-strings", list(PROMPTS), single())
json_file("openai", [{"messages": each} for each in chat()], TURNS)
json_file("sharegpt", [{"id": "1", "conversations": each} for each in chat("human", "gpt", "from", "value")], TURNS)
json_file("sharegpt-items", [{"items": each} for each in chat("Human", "Bot", "from", "value")], TURNS, indent=1)
json_file("dialogue", [{"dialogue": each} for each in chat("USER", "AI", "speaker", "text")], TURNS)
json_file("conversation-lists", chat(), TURNS)
json_file(
    "pairs", [{"conversation": [{"human": FIRST, "assistant": ANSWER}, {"human": each}]} for each in PROMPTS], TURNS
)
json_file("speakers-in-turn", [{"id": "0", "data": [FIRST, ANSWER, prompt]} for prompt in PROMPTS], TURNS)
json_file("turns", [{"question_id": 1, "turns": list(each)} for each in TURNS], TURNS)
json_file("prompt-lists", [{"prompt": each, "chosen": ANSWER} for each in chat()], TURNS)
json_file("alpaca", [{"instruction": "Do it.", "input": each, "output": ANSWER} for each in PROMPTS],
          [(f"Do it.\n\n{each}",) for each in PROMPTS])  # fmt: skip
json_file("alpaca-context", [{"Instruction": "Do it.", "Input": "Now.", "Context": each} for each in PROMPTS],
          [(f"Do it.\n\nNow.\n\n{each}",) for each in PROMPTS])  # fmt: skip
json_file("alpaca-history", [{"instruction": each, "history": [[FIRST, ANSWER]]} for each in PROMPTS], TURNS)
json_file("query", rows(column="query"), single())
json_file("parts", [{"messages": [{"role": "user", "content": [{"type": "text", "text": each}, {"type": "image_url",
          "image_url": {"url": "data:image/png;base64,AA"}}]}]} for each in PROMPTS], single())  # fmt: skip


@shape("json", "objects-indented")
def _objects(at: Path) -> tuple[Keys, Any]:
    return write(at / "objects.json", "\n".join(json.dumps(row, indent=2) for row in rows())), single()


@shape("json", "lines")
def _lines(at: Path) -> tuple[Keys, Any]:
    return write(at / "lines.jsonl", "\n".join(json.dumps(row) for row in rows())), single()


@shape("json", "deep")
def _deep(at: Path) -> tuple[Keys, Any]:
    values = [{"a": {"b": {"c": {"d": [{"text": FIRST}, {"text": prompt}]}}}} for prompt in PROMPTS]
    keys = write(at / "deep.jsonl", "\n".join(map(json.dumps, values)))
    return keys | {"columns": {"text": "a.b.c.d.text"}}, TURNS


@shape("json", "records-key")
def _records_key(at: Path) -> tuple[Keys, Any]:
    keys = write(
        at / "nested.json", json.dumps({"meta": {"n": 1}, "result": {"frage": rows(column="frage")}}, indent=2)
    )
    return keys | {"columns": {"records": "result.frage", "text": "frage"}}, single()


# --- text, compressed ------------------------------------------------------------------------------------------------


@shape("text", "directory")
def _directory(at: Path) -> tuple[Keys, Any]:
    for number, prompt in enumerate(PROMPTS):
        (at / f"{number:03d}.txt").write_bytes(prompt.encode("utf-16" if number % 2 else "utf-8-sig"))
    return {"source": str(at)}, single(tuple(prompt.strip() for prompt in PROMPTS))


@shape("text", "lines-crlf")
def _text_lines(at: Path) -> tuple[Keys, Any]:
    return write(at / "lines.txt", "\r\n".join(LINES) + "\r\n", "utf-8-sig"), single(LINES)


@shape("text", "latin-1")
def _latin(at: Path) -> tuple[Keys, Any]:
    lines = tuple(line for line in LINES if line.encode("latin-1", "ignore").decode("latin-1") == line)
    return write(at / "lines.txt", "\n".join(lines), "latin-1") | {"encoding": "latin-1"}, single(lines)


def packed_file(ending: str, command: list[str]) -> None:
    """Registers JSON lines that a program of the system compresses."""

    def writer(at: Path) -> tuple[Keys, Any]:
        keys = write(at / "q.jsonl", "\n".join(json.dumps(row) for row in rows()))
        subprocess.run([*command, keys["source"]], check=True)
        return {"source": keys["source"] + ending}, single()

    shape(command[0], f"jsonl{ending}")(writer)


packed_file(".gz", ["gzip"])
packed_file(".bz2", ["bzip2"])
packed_file(".xz", ["xz"])
packed_file(".zst", ["zstd", "-q", "--rm"])


@shape("zstd", "csv.zst-of-two-frames")
def _two_frames(at: Path) -> tuple[Keys, Any]:
    half = len(PROMPTS) // 2
    with (at / "q.csv.zst").open("wb") as file:
        for begin, end in ((0, half), (half, None)):
            text = _to_csv(rows()[begin:end], header=begin == 0)
            packed = subprocess.run(["zstd", "-q", "-c"], input=text.encode(), check=True, capture_output=True)
            file.write(packed.stdout)
    return {"source": str(at / "q.csv.zst")}, single()


# --- csv and spreadsheets --------------------------------------------------------------------------------------------


def _to_csv(records: list[dict[str, Any]], header: bool = True, **options: Any) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(records[0]), **options)
    if header:
        writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def csv_file(name: str, ending: str = ".csv", **options: Any) -> None:
    """Registers a file that the csv module writes."""
    shape("csv", name)(lambda at: (write(at / f"q{ending}", _to_csv(rows(), **options)), single()))


csv_file("comma")
csv_file("semicolon", delimiter=";")
csv_file("tab", ".tsv", delimiter="\t")
csv_file("tab-named-csv", delimiter="\t", lineterminator="\n")
csv_file("pipe", delimiter="|", quoting=csv.QUOTE_ALL)
csv_file("hive", delimiter="\x01")
csv_file("single-quotes", quotechar="'", quoting=csv.QUOTE_ALL)
csv_file("backslashes", quoting=csv.QUOTE_ALL, doublequote=False, escapechar="\\")


@shape("csv", "one-column")
def _one_column(at: Path) -> tuple[Keys, Any]:
    return write(at / "q.csv", "prompt\n" + "".join(f"{line}\n" for line in LINES if '"' not in line)), single(
        tuple(line for line in LINES if '"' not in line)
    )


@shape("csv", "bare-quotes-between-tabs")
def _bare_quotes(at: Path) -> tuple[Keys, Any]:
    lines = ('"Bare" quotes begin this', *(line for line in LINES if not line.startswith('"')))
    return write(at / "q.tsv", "id\tquestion\n" + "".join(f"{n}\t{line}\n" for n, line in enumerate(lines))), single(
        lines
    )


def _as_excel(delimiter: str, prompts: tuple[str, ...] = PROMPTS) -> str:
    """Returns what Excel writes: CRLF after rows, LF in cells, quotes only where needed, a decimal comma with ";"."""
    cells = [["Nr", "Preis", "Frage", "Antwort"]]
    cells += [[str(n), "1,95" if delimiter != "," else "1.95", prompt, ANSWER] for n, prompt in enumerate(prompts)]
    special = {delimiter, '"', "\n"}
    quoted = [
        [f'"{cell.replace(chr(34), chr(34) * 2)}"' if special & set(cell) else cell for cell in row] for row in cells
    ]
    return "".join(delimiter.join(row) + "\r\n" for row in quoted)


FRAGE = {"columns": {"text": "Frage"}}
shape("Excel", "CSV UTF-8")(lambda at: (write(at / "q.csv", _as_excel(","), "utf-8-sig") | FRAGE, single()))
shape("Excel", "CSV UTF-8, European")(lambda at: (write(at / "q.csv", _as_excel(";"), "utf-8-sig") | FRAGE, single()))
shape("Excel", "CSV, European, cp1252")(
    lambda at: (write(at / "q.csv", _as_excel(";", LATIN), "cp1252") | FRAGE | {"encoding": "cp1252"}, single(LATIN))
)
shape("Excel", "sep= line")(
    lambda at: (write(at / "q.csv", "sep=;\r\n" + _as_excel(";"), "utf-8-sig") | FRAGE, single())
)
shape("Excel", "Unicode text")(lambda at: (write(at / "q.tsv", _as_excel("\t"), "utf-16") | FRAGE, single()))
shape("LibreOffice", "CSV, all text quoted")(
    lambda at: (write(at / "q.csv", _to_csv(rows(), quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")), single())
)


@shape("sqlite3", "csv")
def _sqlite_csv(at: Path) -> tuple[Keys, Any]:
    return _sqlite(at, "csv"), single()


@shape("sqlite3", "json")
def _sqlite_json(at: Path) -> tuple[Keys, Any]:
    return _sqlite(at, "json"), single()


def _sqlite(at: Path, mode: str) -> Keys:
    with sqlite3.connect(at / "q.db") as database:
        database.execute("CREATE TABLE q (number INTEGER, prompt TEXT, response TEXT)")
        database.executemany("INSERT INTO q VALUES (:number, :prompt, :response)", rows())
    database.close()
    command = ["sqlite3", "-header", f"-{mode}", str(at / "q.db"), "SELECT * FROM q"]
    (at / f"q.{mode}").write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
    return {"source": str(at / f"q.{mode}")}
