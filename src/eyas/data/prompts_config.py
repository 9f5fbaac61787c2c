"""The recipe keys `prompts.*`."""

from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from eyas.base.errors import InputError, UsageError
from eyas.data.select.deduplicate import MIN_THRESHOLD
from eyas.data.select.quality import QualityConfig
from eyas.data.sources.source import BUILTIN, SourceConfig
from eyas.privacy.config import PrivacyConfig

EVALSETS = ("mt-bench", "humaneval", "gsm8k-test", "spec-bench", "eyas-eval")


@dataclass(frozen=True)
class PromptsConfig:
    """Where prompts come from, and what decides which of them are kept.

    source, license, source_name, task    one source in short; `sources` are tables for any number
    limit               keep at most so many; the grammar of `source` writes so many
    policy              a licence policy in TOML; None: the one that eyas ships
    production          a log of production requests that the prompts shall look like
    evalsets            prompts of these sets are no training data; decontaminate: files with more of them
    duplicate           share of five-letter pieces from which on two prompts count as one
    workers             processes; None: one for each core. executor: where they run
    world               machines that share the work, each with its index in JOB_COMPLETION_INDEX
    """

    source: str | None = None
    license: str | None = None
    limit: int | None = None
    seed: int = 0
    source_name: str | None = None
    task: str | None = None
    sources: tuple[SourceConfig, ...] = ()
    policy: str | None = None
    production: str | None = None
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    quality: QualityConfig = field(default_factory=QualityConfig)
    evalsets: tuple[str, ...] = EVALSETS
    decontaminate: tuple[str, ...] = ()
    duplicate: float = 0.8
    workers: int | None = None
    executor: Literal["local", "ray"] = "local"
    world: int = 1

    def __post_init__(self) -> None:
        for name in ("limit", "workers", "world"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"prompts.{name}={value}", "a number from 1 on", "raise it, or leave it out")
        if not 0 <= self.seed < 2**32:  # what the tools that draw take
            raise UsageError(f"prompts.seed={self.seed}", "a whole number from 0 to 2^32 - 1", "change it")
        if not MIN_THRESHOLD <= self.duplicate <= 1:  # before all is screened for nothing
            raise UsageError(f"prompts.duplicate={self.duplicate}", f"a share from {MIN_THRESHOLD} to 1", "correct it")
        unknown = sorted(set(self.evalsets) - set(EVALSETS))
        if unknown:
            raise UsageError(f"prompts.evalsets with {unknown[0]}", " ".join(EVALSETS), "correct it")

    def all_sources(self) -> tuple[SourceConfig, ...]:
        """The short form first, then the tables. InputError where there is none."""
        if self.source is None:
            if not self.sources:
                raise InputError("no prompts.source", "a file of prompts, or builtin:quickstart", "name it")
            return self.sources
        builtin = self.source.startswith(BUILTIN)
        first = SourceConfig(
            self.source,
            self.license,
            name=self.source_name,
            task=self.task,
            count=self.limit if builtin else None,
        )
        return (first, *self.sources)

    def without_runtime_keys(self) -> "PromptsConfig":
        """The part that decides the bytes: not where files lie, nor who works on them."""
        return replace(
            self,
            source=None,
            sources=(),
            production=None,
            policy=None,
            decontaminate=(),
            workers=None,
            executor="local",
            world=1,
            privacy=replace(self.privacy, key_file=None),
        )

    def settings(self) -> dict[str, object]:
        """For the ledger: how records were judged. Sources, policy, seed and limit have places of their own there."""
        deciding = asdict(self.without_runtime_keys())
        return {name: deciding[name] for name in ("privacy", "quality", "evalsets", "duplicate")}
