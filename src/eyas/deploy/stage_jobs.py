"""Describes how a stage before the head starts in a container. The Jobs of Kubernetes and Vertex AI share it."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from eyas.base.errors import UsageError
from eyas.deploy.config import NAME, NAME_RULE
from eyas.deploy.launch import Json


@dataclass(frozen=True)
class DataStages:
    """The stages that run as Jobs. Raises UsageError for a name or URL that Jobs cannot use.

    Attributes:
        name: The name of the recipe.
        image: The image of eyas.
        recipe: The text of the resolved recipe.
        num_pods: Stage -> number of pods or machines, in the order of the stages.
        url: The URL of the server that `respond` calls (`respond.url`); None if it is not set.
    """

    name: str
    image: str
    recipe: str
    num_pods: Mapping[str, int]
    url: str | None

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            problem = f"The recipe's name {self.name!r} is not a valid name for Jobs"
            raise UsageError(problem, f"Set name to {NAME_RULE}")
        if self.url is not None and _is_loopback(self.url):
            problem = f"respond.url={self.url!r} is the pod itself when `respond` runs in a Job"
            raise UsageError(problem, "Use an address that it reaches, such as http://SERVICE.NAMESPACE/v1")


def needs_gpu(stage: str, url: str | None) -> bool:
    """Returns True if a stage loads the target or trains. url: `respond.url`; with it, another server answers."""
    return stage not in ("prompts", "respond") or (stage == "respond" and url is None)


def stage_command(stage: str, recipe: str, out: str, num_gpus: int, num_machines: int = 1) -> Json:
    """Returns the fields `command` and `args` of a container that runs a stage.

    Args:
        stage: The name of the stage.
        recipe: The path of the recipe in the container.
        out: The run directory in the container.
        num_gpus: The number of GPUs of a machine.
        num_machines: The number of machines that train together. They read RANK, MASTER_ADDR and MASTER_PORT.
    """
    words = [stage, recipe, "--out", out]
    if stage in ("capture", "eval") and num_gpus > 1:
        words += ["--device", "auto"]
    if stage != "train" or max(num_gpus, num_machines) == 1:
        return {"args": words}
    line = launch_line(num_gpus, num_machines)
    # A shell reads the variables, which differ from machine to machine. "$@" are the words.
    command = line.split() if num_machines == 1 else ["sh", "-c", f'exec {line} "$@"', "sh"]
    return {"command": command, "args": words}


def launch_line(num_gpus: int, num_machines: int = 1) -> str:
    """Returns the words of a shell before `train`. They start one process on each GPU, or one if there is no GPU.

    Several machines run the same line. Their shells read RANK (the number of the machine, from 0), and MASTER_ADDR and
    MASTER_PORT (an address of machine 0 and a free port).
    """
    place = "--standalone"
    if num_machines > 1:
        place = '--node-rank="$RANK" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT"'
    return f"torchrun --nnodes={num_machines} --nproc-per-node={max(1, num_gpus)} {place} --no-python eyas"


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified
