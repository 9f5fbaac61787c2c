"""The recipe keys `prompts.*`."""

from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Literal

from pydantic import Field

from eyas.base.config import PositiveInt
from eyas.base.errors import InputError
from eyas.data.select.contamination import ALL_EVALSETS, EvalSet
from eyas.data.select.deduplicate import MIN_THRESHOLD
from eyas.data.select.quality import QualityConfig
from eyas.data.sources.columns import ColumnsConfig
from eyas.data.sources.source import BUILTIN, SourceConfig, TextUnit
from eyas.privacy.config import PrivacyConfig


@dataclass(frozen=True)
class PromptsConfig:
    """The recipe keys `prompts.*`: the sources of prompts, and the rules that select prompts.

    Attributes:
        source: A single source of prompts: a file, a directory, a file pattern, hf:DATASET or builtin:SPLIT. For
            several sources use `prompts.sources`.
        license: The SPDX id of the license of `source`.
        limit: The maximum number of prompts that are kept; a builtin: source writes this number of prompts.
        seed: The seed of the random choice of prompts.
        source_name: The name of `source` in record ids and in ledger.json; by default its file name without the ending.
        task: The value of the tag `task` of all prompts of `source`; by default the name of the source.
        encoding: The encoding of files without a byte-order mark, such as latin-1; by default UTF-8.
        text_unit: What one prompt is in a .txt file: a line, or the whole file. By default it is the whole file in a
            directory or a pattern of files, and a line in a file that is named.
        sources: Any number of sources, one table for each, in addition to `prompts.source` or instead of it.
        policy: The TOML file of a license policy; by default the policy that ships with eyas.
        production: The file of a log of production requests; eyas selects prompts whose topics and lengths resemble
            those of the log.
        evalsets: The evaluation sets whose prompts are dropped from training.
        decontaminate: Files with further evaluation prompts to drop.
        duplicate: The similarity, from 0 to 1, from which two prompts count as duplicates.
        workers: The number of worker processes; by default one for each core.
        executor: Where the workers run: on this machine, or on a Ray cluster.
        world: The number of machines that share the work; each machine reads its index from the environment variable
            JOB_COMPLETION_INDEX.
    """

    source: str | None = None
    license: str | None = None
    limit: PositiveInt | None = None
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0  # the range of the random generators
    source_name: str | None = None
    task: str | None = None
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)
    encoding: str | None = None
    text_unit: TextUnit | None = None
    sources: tuple[SourceConfig, ...] = ()
    policy: str | None = None
    production: str | None = None
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    quality: QualityConfig = field(default_factory=QualityConfig)
    evalsets: tuple[EvalSet, ...] = ALL_EVALSETS
    decontaminate: tuple[str, ...] = ()
    duplicate: Annotated[float, Field(ge=MIN_THRESHOLD, le=1)] = 0.8
    workers: PositiveInt | None = None
    executor: Literal["local", "ray"] = "local"
    world: PositiveInt = 1

    def all_sources(self) -> tuple[SourceConfig, ...]:
        """Returns `prompts.source`, then the tables of `prompts.sources`. Raises InputError if there is no source.

        A table without `columns`, `encoding` or `text_unit` has that of the recipe.
        """
        sources = self.sources
        if self.source is not None:
            count = self.limit if self.source.startswith(BUILTIN) else None
            first = SourceConfig(self.source, self.license, name=self.source_name, task=self.task, count=count)
            sources = (first, *sources)
        if not sources:
            problem = "The recipe has no prompts.source"
            raise InputError(problem, "Set prompts.source to a file of prompts or builtin:quickstart")
        shared = {"columns": self.columns, "encoding": self.encoding, "text_unit": self.text_unit}
        return tuple(
            replace(source, **{name: getattr(source, name) or value for name, value in shared.items()})
            for source in sources
        )

    def without_runtime_keys(self) -> "PromptsConfig":
        """Returns the configuration with default paths and default workers: only keys that change the output differ."""
        unset = dict.fromkeys(("source", "production", "policy", "workers"))
        privacy = replace(self.privacy, key_file=None)
        return replace(self, **unset, sources=(), decontaminate=(), executor="local", world=1, privacy=privacy)

    def settings(self) -> dict[str, object]:
        """Returns the entry `settings` of ledger.json: the keys of the rules that drop records."""
        keys = asdict(self.without_runtime_keys())
        return {name: keys[name] for name in ("privacy", "quality", "evalsets", "duplicate")}
