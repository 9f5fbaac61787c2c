"""The target: any transformers causal LM, read only, with our attention and the captured layers.

B requests, T rows, D hidden, L = 3D captured features, W target vocabulary.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from eyas.base.errors import InputError
from eyas.base.provenance import digest_bytes, digest_file, digest_json
from eyas.model.attention import Attend, Compiled, RowAttend
from eyas.model.attention_probe import HeadShape, check_config, probe
from eyas.model.devices import AUTO, check_device
from eyas.model.hook import ATTENTION_NAME, Capture, hook_layers, register_attention, run_decoder
from eyas.model.layer_ids import HFIndex, check_layers, default_layers
from eyas.model.submodules import (
    all_rope_parameters,
    capped,
    find_decoder,
    find_embedding,
    find_layers,
    logit_cap,
    num_parameters,
    output_matrix,
    text_config,
)
from eyas.model.target_info import TargetFacts

EMBEDDED = "embedded"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)
VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "vocab.txt", "merges.txt"]
HUB_FILES += ["README.md", "LICEN[SC]E*", "COPYING*", "USE_POLICY*", "NOTICE*"]  # what the licence gate reads


@dataclass(frozen=True)
class TargetOut:
    """hidden_BTD after the final norm; aux_BTL the captured layers side by side, low to high, if wanted."""

    hidden_BTD: Tensor
    aux_BTL: Tensor | None


def resolve_target(name: str | Path) -> Path:
    """The directory of a target: "embedded" (shipped with the package), a local directory, or a hub id.

    `InputError` if there is no such directory, or if the hub does not give it.
    """
    if str(name) == EMBEDDED:
        return Path(__file__).parent.parent / "embedded" / "target"
    path = Path(name)
    if path.is_dir():
        return path
    is_hub_id = isinstance(name, str) and name.count("/") == 1 and name[0] not in "./~"
    if not is_hub_id:
        raise InputError(
            f"no directory {name}", "a local directory, a hub id or 'embedded' as target", "correct the target's path"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(name), allow_patterns=HUB_FILES))
    except Exception as error:  # the hub client raises many unrelated classes, all meaning "not available"
        raise InputError(
            f"no directory {name}, and the hub does not give it ({type(error).__name__})",
            "a local directory, a hub id or 'embedded' as target",
            "correct the name, or download the target first",
        ) from error


def count_layers(name: str | Path) -> int:
    """How many layers a target has, without its weights. `InputError` as `Target.load`."""
    directory = resolve_target(name)
    check_files(directory)
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
        return config.get_text_config(decoder=True).num_hidden_layers
    except Exception as error:  # transformers raises many classes for a file it cannot use
        raise not_loadable(directory, error) from error


class Target:
    """A loaded target. It keeps no state between forwards: past keys live in `attend`, captures in the result."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        directory: Path,
        facts: TargetFacts,
        aux_layer_ids: tuple[HFIndex, ...],
    ) -> None:
        """Use `Target.load`."""
        self.model = model
        self.tokenizer = tokenizer
        self.directory = directory
        self.facts = facts
        self.aux_layer_ids = aux_layer_ids
        self.decoder: nn.Module = find_decoder(model)
        self.lm_head = output_matrix(model)
        self.logit_cap = logit_cap(model)
        self.embedding = find_embedding(model)
        hook_layers(find_layers(model), aux_layer_ids)
        self.compiled: Compiled | None = None
        """(ids_1T, positions_1T) -> hidden_1TD, aux_1TL, where `compiled.compile_pair` has made one."""

    @staticmethod
    def load(
        name: str | Path,
        dtype: torch.dtype = torch.bfloat16,
        layers: tuple[int, ...] | None = None,
        device: torch.device | str = "cpu",
    ) -> "Target":
        """Load a target for inference; `layers` are the captured ones (None: 2, n // 2, n - 3).

        device "auto" spreads the layers over all devices by transformers' device_map, which needs accelerate; rows then
        enter on the device of the embedding and leave on that of the last layer.

        `InputError` for a missing directory, configuration, weights or tokenizer, for damaged or incomplete weights,
        for layers out of range, for devices missing or too small, and for families that docs/families.md refuses (with
        the reason). `UsageError` for a device of no known name. Only safetensors are read and no code from the model's
        repository is run.
        """
        check_device(str(device))
        directory = resolve_target(name)
        check_files(directory)
        register_attention()
        try:
            config = AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
            text = config.get_text_config(decoder=True)
            check_config(text)
            num_layers: int = text.num_hidden_layers
            aux_layer_ids = default_layers(num_layers) if layers is None else check_layers(layers, num_layers)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                directory,
                dtype=dtype,
                attn_implementation=ATTENTION_NAME,
                device_map="auto" if device == AUTO else None,
                trust_remote_code=False,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
            )
            model, report = loaded  # a pair because of output_loading_info
            tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
        except InputError:
            raise
        except Exception as error:  # transformers and safetensors raise many classes for a file they cannot use
            raise not_loadable(directory, error) from error
        require_weights(directory, report)
        if device != AUTO:
            model = model.to(device)
        elif any(weight.is_meta for weight in model.parameters()):
            raise InputError(
                f"target {directory} that the devices here hold only in part",
                "room for all its weights",
                "use more or larger devices, or a smaller dtype",
            )
        model = model.eval().requires_grad_(False)
        shape = probe(model, num_layers)
        return Target(model, tokenizer, directory, read_facts(str(name), model, shape), aux_layer_ids)

    def forward(self, ids_BT: Tensor, positions_BT: Tensor, attend: Attend, want_aux: bool = False) -> TargetOut:
        """Run the rows through the decoder; no logits. positions_BT is [B, T] or [1, T]; any order, a tree's too."""
        if self.compiled is not None and isinstance(attend, RowAttend):
            hidden_BTD, aux_BTL = self.compiled(attend.rows, ids_BT, positions_BT)
            return TargetOut(hidden_BTD, aux_BTL if want_aux else None)
        capture = Capture() if want_aux else None
        hidden_BTD = run_decoder(self.decoder, ids_BT, positions_BT, attend, capture)
        if capture is None:
            return TargetOut(hidden_BTD, None)
        last = self.facts.num_layers
        taken = [hidden_BTD if i == last else capture.inputs_BTD[i] for i in self.aux_layer_ids]
        return TargetOut(hidden_BTD, torch.cat([layer_BTD.to(hidden_BTD.device) for layer_BTD in taken], -1))

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., W] of final hidden rows [..., D]; hand over only the rows whose logits are needed."""
        return capped(self.lm_head(hidden), self.logit_cap)

    def embed(self, ids: Tensor) -> Tensor:
        """[..., D] rows of the input embedding, as the head takes them.

        The stored rows, also where the target itself reads scaled ones (Gemma): SGLang and vLLM hand the weight on.
        """
        return F.embedding(ids, self.embedding.weight)

    def require_chat_template(self) -> str:
        """The chat template; `InputError` if the tokenizer has none."""
        return require_template(self.tokenizer, self.directory)

    @property
    def quantisation(self) -> dict[str, Any] | None:
        """How its weights are quantised, in the words of its own configuration; None where they are not."""
        config: Any = getattr(self.model.config, "quantization_config", None)
        return config.to_dict() if hasattr(config, "to_dict") else config

    @cached_property
    def digest(self) -> str:
        """Digest over the configuration and the weight files; reads them once."""
        return digest_target(self.directory)

    @cached_property
    def tokenizer_digest(self) -> str:
        """Digest over the tokenizer's files."""
        return digest_tokenizer(self.directory)

    @cached_property
    def template_digest(self) -> str:
        """Digest of the chat template; `InputError` if there is none."""
        return digest_bytes(self.require_chat_template().encode())

    @property
    def word_digests(self) -> dict[str, str | None]:
        """Both by name; None for a chat template that is not there."""
        template = self.tokenizer.chat_template
        return {"tokenizer": self.tokenizer_digest, "chat template": self.template_digest if template else None}


def digest_target(directory: Path) -> str:
    """Digest over config.json and all safetensors of a target directory, by name and content."""
    return _digest_files(directory, ["config.json", *sorted(path.name for path in directory.glob("*.safetensors"))])


def digest_tokenizer(directory: Path) -> str:
    """Digest over the tokenizer's files of a target directory."""
    return _digest_files(directory, [name for name in TOKENIZER_FILES if (directory / name).is_file()])


def require_template(tokenizer: PreTrainedTokenizerBase, directory: Path) -> str:
    """The chat template; `InputError` that names the directory if the tokenizer has none."""
    template = tokenizer.chat_template
    if not isinstance(template, str) or not template.strip():
        raise InputError(
            f"target {directory} without a chat template",
            "chat_template.jinja, or chat_template in tokenizer_config.json",
            "use an instruction-tuned target, or add the template it was trained with",
        )
    return template


def _digest_files(directory: Path, names: list[str]) -> str:
    return digest_json({name: digest_file(directory / name) for name in names})


def check_files(directory: Path) -> None:
    """`InputError` naming the first file without which the directory is no target."""
    missing = None
    if not (directory / "config.json").is_file():
        missing = ("config.json", "the configuration of a causal language model")
    elif not any(directory.glob("*.safetensors")):
        missing = ("*.safetensors", "weights as safetensors (other weight files may carry code and are not read)")
    elif not any((directory / name).is_file() for name in VOCABULARY_FILES):
        missing = ("tokenizer", f"one of {', '.join(VOCABULARY_FILES)}")
    if missing:
        raise InputError(f"target {directory} without {missing[0]}", missing[1], "point to a complete model directory")


def read_facts(name: str, model: PreTrainedModel, shape: HeadShape) -> TargetFacts:
    """What the model says of itself, and what its attention received."""
    config = text_config(model)
    rope = all_rope_parameters(config)[0]
    bos_id = config.bos_token_id
    eos = getattr(model.generation_config, "eos_token_id", None)
    eos = config.eos_token_id if eos is None else eos
    return TargetFacts(
        name=name,
        hidden_size=config.hidden_size,
        intermediate_size=getattr(config, "intermediate_size", None),
        vocab_size=config.vocab_size,
        num_layers=config.num_hidden_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_positions=config.max_position_embeddings,
        rope_theta=rope.get("rope_theta"),
        rope_type=rope.get("rope_type"),
        rms_norm_eps=getattr(config, "rms_norm_eps", 1e-6),
        bos_id=bos_id if isinstance(bos_id, int) else None,
        eos_ids=() if eos is None else (eos,) if isinstance(eos, int) else tuple(eos),
        num_parameters=num_parameters(model),
    )


def require_weights(directory: Path, report: dict[str, Any]) -> None:
    """`InputError` for weights that transformers' report of loading misses. What it was not asked for, it does not."""
    missing = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if missing:
        raise InputError(
            f"target {directory} without usable weights for {', '.join(missing[:3])} ({len(missing)} in all)",
            "every weight that its configuration asks for",
            "fetch the target again",
        )


def not_loadable(directory: Path, error: Exception) -> InputError:
    """What transformers raised, in our words."""
    return InputError(
        f"target {directory} that transformers cannot load ({type(error).__name__}: {_first_line(error)})",
        "a causal language model in Hugging Face format with safetensors",
        "check the directory, or fetch it again",
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
