"""Writes the prompts of file_shapes.py with pandas, pyarrow, polars, DuckDB and datasets, where they are installed."""

from importlib import import_module
from pathlib import Path
from typing import Any

from file_shapes import PROMPTS, TURNS, Keys, chat, rows, shape, single

PACKAGES = ("pandas", "pyarrow", "polars", "duckdb", "datasets")


def pandas_file(method: str, name: str, **options: Any) -> None:
    """Registers a file that a method of pandas.DataFrame writes."""

    def writer(at: Path) -> tuple[Keys, Any]:
        pandas = import_module("pandas")

        frame = pandas.DataFrame(rows())
        getattr(frame, method)(at / name, **options)
        return {"source": str(at / name)}, single()

    spelled = "".join(f", {key}={value!r}" for key, value in options.items())
    shape("pandas", f"{method}({name}{spelled})")(writer)


pandas_file("to_csv", "q.csv")
pandas_file("to_csv", "q.csv.gz", index=False)
pandas_file("to_csv", "q.csv.xz", sep=";", decimal=",")
pandas_file("to_csv", "q.csv", encoding="utf-16")
pandas_file("to_csv", "q.tsv", sep="\t", escapechar="\\", doublequote=False)
pandas_file("to_json", "q.json")
pandas_file("to_json", "q.json", orient="index", indent=2)
pandas_file("to_json", "q.json", orient="table")
pandas_file("to_json", "q.json", orient="records", force_ascii=False)
pandas_file("to_json", "q.json.bz2", orient="records", lines=True)
pandas_file("to_parquet", "q.parquet")
pandas_file("to_feather", "q.feather")


@shape("pandas", "to_csv with a list of messages")
def _pandas_messages(at: Path) -> tuple[Keys, Any]:
    pandas = import_module("pandas")

    pandas.DataFrame({"id": range(len(PROMPTS)), "messages": chat()}).to_csv(at / "q.csv", index=False)
    return {"source": str(at / "q.csv")}, TURNS


@shape("pyarrow", "parquet, nested")
def _parquet(at: Path) -> tuple[Keys, Any]:
    pyarrow = import_module("pyarrow")
    import_module("pyarrow.parquet")

    table = pyarrow.table({"number": range(len(PROMPTS)), "conversation": chat()})
    pyarrow.parquet.write_table(table, at / "q.parquet", row_group_size=5, compression="zstd")
    return {"source": str(at / "q.parquet")}, TURNS


@shape("pyarrow", "IPC stream")
def _ipc_stream(at: Path) -> tuple[Keys, Any]:
    pyarrow = import_module("pyarrow")

    table = pyarrow.Table.from_pylist([{"meta": {"frage": prompt}} for prompt in PROMPTS])
    with pyarrow.ipc.new_stream(at / "q.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=4)
    return {"source": str(at / "q.arrow"), "columns": {"text": "meta.frage"}}, single()


@shape("polars", "csv")
def _polars_csv(at: Path) -> tuple[Keys, Any]:
    polars = import_module("polars")

    polars.DataFrame(rows()).write_csv(at / "polars.csv")
    return {"source": str(at / "polars.csv")}, single()


@shape("polars", "json")
def _polars_json(at: Path) -> tuple[Keys, Any]:
    polars = import_module("polars")

    polars.DataFrame({"messages": chat()}).write_json(at / "polars.json")
    return {"source": str(at / "polars.json")}, TURNS


@shape("polars", "ipc")
def _polars_ipc(at: Path) -> tuple[Keys, Any]:
    polars = import_module("polars")

    polars.DataFrame(rows()).write_ipc(at / "polars.arrow", compression="lz4")
    return {"source": str(at / "polars.arrow")}, single()


@shape("polars", "parquet")
def _polars_parquet(at: Path) -> tuple[Keys, Any]:
    polars = import_module("polars")

    polars.DataFrame({"messages": chat()}).write_parquet(at / "polars.parquet")
    return {"source": str(at / "polars.parquet")}, TURNS


def duckdb_file(name: str, options: str) -> None:
    """Registers a file that DuckDB's COPY writes."""

    def writer(at: Path) -> tuple[Keys, Any]:
        duckdb = import_module("duckdb")

        with duckdb.connect() as database:
            database.execute("CREATE TABLE q (number INTEGER, prompt TEXT, response TEXT)")
            database.executemany("INSERT INTO q VALUES (?, ?, ?)", [list(row.values()) for row in rows()])
            database.execute(f"COPY q TO '{at / name}' ({options})")
        return {"source": str(at / name)}, single()

    shape("duckdb", name)(writer)


duckdb_file("duckdb.csv", "HEADER, DELIMITER ','")
duckdb_file("duckdb-array.json", "FORMAT json, ARRAY true")
duckdb_file("duckdb.json", "FORMAT json")
duckdb_file("duckdb.jsonl.zst", "FORMAT json, COMPRESSION zstd")
duckdb_file("duckdb.parquet", "FORMAT parquet")


@shape("datasets", "save_to_disk")
def _datasets_disk(at: Path) -> tuple[Keys, Any]:
    datasets = import_module("datasets")

    datasets.Dataset.from_list([{"messages": each} for each in chat()]).save_to_disk(at / "saved")
    return {"source": str(at / "saved")}, TURNS


@shape("datasets", "to_json")
def _datasets_json(at: Path) -> tuple[Keys, Any]:
    datasets = import_module("datasets")

    datasets.Dataset.from_list([{"conversations": each} for each in chat("human", "gpt", "from", "value")]).to_json(
        at / "datasets.json"
    )
    return {"source": str(at / "datasets.json")}, TURNS


@shape("datasets", "to_csv")
def _datasets_csv(at: Path) -> tuple[Keys, Any]:
    datasets = import_module("datasets")

    datasets.Dataset.from_list(rows()).to_csv(at / "datasets.csv")
    return {"source": str(at / "datasets.csv")}, single()
