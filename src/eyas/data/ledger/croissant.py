"""croissant.json: prompts.jsonl described for machines, in the Croissant vocabulary (JSON-LD, version 1.0).

The shape is small and fixed, so it is written by hand; a test loads it with mlcroissant and reads records through it.
Equal ledgers give equal bytes.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# https://docs.mlcommons.org/croissant/docs/croissant-spec.html, appendix "JSON-LD context"
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
RECORDS = "prompts"
VERSION = "1.0.0"  # of the description: each collection is told from others by the digest of its file


@dataclass(frozen=True)
class PromptsFile:
    """The file that is described."""

    name: str  # beside croissant.json
    digest: str  # sha256:<hex>, as `provenance.digest_file` gives it
    num_bytes: int


def build_croissant(
    ledger: Mapping[str, Any], file: PromptsFile, name: str, creator: str, date_published: str
) -> bytes:
    """The bytes of croissant.json. date_published: YYYY-MM-DD; creator: who publishes it, an organisation."""
    sources = ", ".join(dict.fromkeys(source["name"] for source in ledger["sources"]))
    description = (
        f"{ledger['kept']} prompts (user turns, no answers) of {sources}, screened by licence, quality, language, "
        "personal data, near-duplicates and known evaluation sets. card.md and ledger.json tell what was done."
    )
    record = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "name": name,
        "description": description,
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "license": list_licenses(ledger),
        "creator": {"@type": "Organization", "name": creator},
        "datePublished": date_published,
        "citeAs": f"{creator}, {name}, {date_published}, {file.digest}",
        "version": VERSION,
        "isLiveDataset": False,
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": file.name,
                "name": file.name,
                "description": "One prompt a line, as JSON.",
                "contentUrl": file.name,
                "contentSize": f"{file.num_bytes} B",
                "encodingFormat": "application/jsonlines",
                "sha256": file.digest.removeprefix("sha256:"),
            }
        ],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": RECORDS,
                "name": RECORDS,
                "description": "The prompts.",
                "key": {"@id": f"{RECORDS}/id"},
                "field": [
                    _field(file, "id", "Names the record: source and place in it.", "id"),
                    _field(file, "source", "Which source of the ledger it is from.", "source"),
                    _messages(file),
                    _field(file, "language", "ISO 639-1.", "tags", "$.language"),
                    _field(file, "task", "What kind of task it is.", "tags", "$.task"),
                ],
            }
        ],
    }
    return (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()


def list_licenses(ledger: Mapping[str, Any]) -> list[str]:
    """The licences of all sources: a URL for each SPDX id, the text of an expression with OR, LicenseRef-* as it is."""
    found: dict[str, None] = {}
    for source in ledger["sources"]:
        spdx = source["licence"]["spdx"]
        for part in [spdx] if " OR " in spdx else spdx.split(" AND "):
            is_listed = re.fullmatch(r"[A-Za-z0-9.+-]+", part) and not part.startswith("LicenseRef-")
            found[f"https://spdx.org/licenses/{part}" if is_listed else part] = None
    return sorted(found)


def _field(file: PromptsFile, name: str, description: str, column: str, json_path: str | None = None) -> dict[str, Any]:
    source: dict[str, Any] = {"fileObject": {"@id": file.name}, "extract": {"column": column}}
    if json_path is not None:
        source["transform"] = {"jsonPath": json_path}
    return {
        "@type": "cr:Field",
        "@id": f"{RECORDS}/{name}",
        "name": name,
        "description": description,
        "dataType": "sc:Text",
        "source": source,
    }


def _messages(file: PromptsFile) -> dict[str, Any]:
    """A list of {"role", "content"}: a repeated field with a subfield for each key."""
    return {
        "@type": "cr:Field",
        "@id": f"{RECORDS}/messages",
        "name": "messages",
        "description": "A system message, if there is one, and the user's turns in their order.",
        "repeated": True,
        "subField": [
            _field(file, "messages/role", "system or user.", "messages", "$.role"),
            _field(file, "messages/content", "What was said.", "messages", "$.content"),
        ],
    }
