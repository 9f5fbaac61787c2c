"""What the operator of a server decides."""

from dataclasses import dataclass

from eyas.base.errors import UsageError


@dataclass(frozen=True)
class EngineOptions:
    """Raises UsageError.

    slots          requests that run at once
    context        the most tokens of prompt and answer; None: the target's own, at most `service.CONTEXT`
    memory_tokens  tokens that the key-value memory holds; None: enough for all slots, as far as the machine allows
    max_waiting    requests beyond those that run, before a further one is refused
    speculation    "auto", or the name of an arm that every round runs (to measure fixed arms)
    compile        whether forwards may run compiled (kernels/aot_compile.py); for a CPU
    """

    slots: int = 16
    context: int | None = None
    memory_tokens: int | None = None
    max_waiting: int = 256
    speculation: str = "auto"
    compile: bool = False

    def __post_init__(self) -> None:
        for name, least in (("slots", 1), ("context", 2), ("memory_tokens", 2), ("max_waiting", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                option = "--" + name.replace("_", "-")
                raise UsageError(f"{option} {value}", f"at least {least}", f"raise {option}")
