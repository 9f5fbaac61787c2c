"""The recipe keys `prompts.*`."""

from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from eyas.base.errors import InputError, UsageError
from eyas.data.select.contamination import EVALSET_FILES
from eyas.data.select.deduplicate import MIN_THRESHOLD
from eyas.data.select.quality import QualityConfig
from eyas.data.sources.source import BUILTIN, SourceConfig
from eyas.privacy.config import PrivacyConfig


@dataclass(frozen=True)
class PromptsConfig:
    """The sources of prompts, and the rules by which prompts are kept.

    source, license, source_name, task    one source in short; `sources` are tables for any number
    limit               keep at most so many; the grammar of `source` writes so many
    policy              a license policy in TOML; None: the one that eyas ships
    production          a log of production requests that the prompts shall resemble
    evalsets            drop prompts of these evaluation sets; decontaminate: files with more of them
    duplicate           estimated similarity from which on two prompts count as one
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
    evalsets: tuple[str, ...] = tuple(EVALSET_FILES)
    decontaminate: tuple[str, ...] = ()
    duplicate: float = 0.8
    workers: int | None = None
    executor: Literal["local", "ray"] = "local"
    world: int = 1

    def __post_init__(self) -> None:
        for name in ("limit", "workers", "world"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"prompts.{name}={value} is not a number from 1 on", "Raise it, or leave it out")
        if not 0 <= self.seed < 2**32:  # the range of the random generators
            raise UsageError(f"prompts.seed={self.seed} is out of range", "Use a whole number from 0 to 2^32 - 1")
        if not MIN_THRESHOLD <= self.duplicate <= 1:  # checked before anything is screened
            raise UsageError(f"prompts.duplicate={self.duplicate} is out of range", f"Use {MIN_THRESHOLD} to 1")
        unknown = sorted(set(self.evalsets) - set(EVALSET_FILES))
        if unknown:
            raise UsageError(
                f"prompts.evalsets has {unknown[0]}, which is no evaluation set of eyas",
                f"Use {', '.join(EVALSET_FILES)}; name files in prompts.decontaminate",
            )

    def all_sources(self) -> tuple[SourceConfig, ...]:
        """Returns the short form first, then the tables. Raises InputError if there is none."""
        if self.source is None:
            if not self.sources:
                raise InputError(
                    "The recipe has no prompts.source", "Set prompts.source to a file of prompts or builtin:quickstart"
                )
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
        """Returns the keys that decide the output: without the paths of files and the keys of workers."""
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
        """Returns the rules that drop records, for the ledger. Other keys have entries of their own there."""
        keys = asdict(self.without_runtime_keys())
        return {name: keys[name] for name in ("privacy", "quality", "evalsets", "duplicate")}
