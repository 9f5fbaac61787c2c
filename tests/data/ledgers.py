"""A ledger as `eyas prompts` writes it, with something in every part. Every value is made up."""

import datetime
from typing import Any

from eyas.data.licenses.acknowledgements import append_acknowledgements
from eyas.data.licenses.license_gate import LicenseDecision, LicenseGate
from eyas.data.licenses.license_metadata import SourceClaim, TargetClaim

NOW = datetime.datetime(2026, 11, 20, 12, 30, tzinfo=datetime.UTC)
REVISION = "0123456789abcdef0123456789abcdef01234567"
LLAMA = b"LLAMA 3.1 COMMUNITY LICENSE AGREEMENT\nLlama 3.1 Version Release Date: July 23, 2024\n"


def answered(tmp_path, claim) -> LicenseDecision:
    """The decision of a claim that somebody answered for."""
    gate = LicenseGate.load()
    made = append_acknowledgements(
        tmp_path / "acknowledgements.jsonl", "A. Person, counsel", gate.find_pending([claim]), NOW
    )
    return gate.decide(claim, made)


def llama_target() -> TargetClaim:
    return TargetClaim(
        "meta-llama/Llama-3.1-8B-Instruct",
        card={"license": "llama3.1", "license_link": "LICENSE"},
        texts={"LICENSE": LLAMA, "USE_POLICY.md": b"# Use policy\n"},
        names=("meta-llama/Llama-3.1-8B-Instruct",),
    )


def a_ledger(logs: LicenseDecision | None = None) -> dict[str, Any]:
    gate = LicenseGate.load()
    mine = gate.decide(SourceClaim("mine", license="MIT"))
    terms = b"ODC\nBY\n"
    logs = logs or gate.decide(SourceClaim("logs", "allenai/WildChat-1M", "odc-by", terms, REVISION))
    return {
        "schema": 2,
        "came": 130,
        "kept": 100,
        "over_limit": 7,
        "answers_thrown_away": 12,
        "seed": 3,
        "limit": 100,
        "sources": [
            {
                "name": "mine",
                "url": "data/mine.jsonl",
                "format": "jsonl",
                "files": {"mine.jsonl": "sha256:" + "a" * 64},
                "shapes": {"messages": 60, "prompt": 20},
                "licence": mine.to_json(),
                "came": 80,
                "kept": 60,
                "dropped": {
                    "near_duplicate": {"count": 9, "lines": ["mine.jsonl:3"]},
                    "secret": {"count": 4, "lines": ["mine.jsonl:8"]},
                },
                "entities": {"PERSON": {"replaced": 5, "dropped": 0}},
                "languages": {"en": 40, "de": 20},
                "tasks": {"math": 60},
                "over_limit": 7,
                "answers_thrown_away": 12,
            },
            {
                "name": "logs",
                "url": "hf://allenai/WildChat-1M",
                "format": "parquet",
                "files": {"a|b.parquet": "sha256:" + "b" * 64},
                "shapes": {"messages": 50},
                "licence": logs.to_json(),
                "came": 50,
                "kept": 40,
                "dropped": {
                    "contaminated": {"count": 3, "lines": ["a|b.parquet:1"]},
                    "near_duplicate": {"count": 7, "lines": ["a|b.parquet:2"]},
                },
                "entities": {"CARD": {"replaced": 0, "dropped": 2}, "PERSON": {"replaced": 1, "dropped": 1}},
                "languages": {"en": 40},
                "tasks": {"chat": 40},
                "over_limit": 0,
                "answers_thrown_away": 0,
            },
        ],
        "dropped": {"near_duplicate": 16, "secret": 4, "contaminated": 3},
        "entities": {"PERSON": {"replaced": 6, "dropped": 1}, "CARD": {"replaced": 0, "dropped": 2}},
        "languages": {"en": 80, "de": 20},
        "tasks": {"math": 60, "chat": 40},
        "lengths": {"edges": [0, 50, 100, 200, 400, 800, 1600, 3200], "counts": [1, 2, 50, 40, 7, 0, 0, 0]},
        "contamination": {"gsm8k-test": 3, "mt-bench": 0},
        "traffic": {
            "production": {"prompts": 200},
            "before": {"tv": 0.375, "ks": 0.215},
            "after": {"tv": 0.072, "ks": 0.046},
            "sources": {"mine": {"tv": 0.5, "ks": 0.4}, "logs": {"tv": 0.2, "ks": 0.1}},
            "shortfall": [{"cell": "topic 3, 200-400 characters", "wanted": 10, "got": 4}],
        },
        "settings": {"quality": {"min_characters": 3}, "limit": 100},
        "policy": {"name": gate.policy.name, "digest": gate.policy.digest},
        "detectors": {"digest": "sha256:" + "d" * 64, "names": ["pattern", "gazetteer"]},
        "digests": {"prompts.jsonl": "sha256:" + "e" * 64},
    }
