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
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from eyas.base.errors import InputError
from eyas.base.provenance import digest_bytes
from eyas.model.attention import AttentionFn, CompiledForward, PackedAttention
from eyas.model.attention_probe import check_attention_config, probe_attention
from eyas.model.devices import AUTO, check_device
from eyas.model.hook import ATTENTION_NAME, LayerCapture, hook_layers, register_attention, run_decoder
from eyas.model.layer_ids import HFIndex, check_aux_layers, default_aux_layers
from eyas.model.submodules import (
    apply_softcap,
    final_logit_softcap,
    find_decoder,
    find_embedding,
    find_layers,
    find_lm_head,
)
from eyas.model.target_dir import (
    check_target_files,
    digest_target,
    digest_tokenizer,
    load_error,
    require_chat_template,
    resolve_target,
)
from eyas.model.target_info import TargetInfo, attention_shape_of, read_target_info


@dataclass(frozen=True)
class TargetOutput:
    """hidden_BTD after the final norm; aux_BTL the captured layers side by side, low to high, if wanted."""

    hidden_BTD: Tensor
    aux_BTL: Tensor | None


class Target:
    """A loaded target. It keeps no state between forwards: past keys live in `attend`, captures in the result."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        directory: Path,
        info: TargetInfo,
        aux_layer_ids: tuple[HFIndex, ...],
    ) -> None:
        """Use `Target.load`."""
        self.model = model
        self.tokenizer = tokenizer
        self.directory = directory
        self.info = info
        self.aux_layer_ids = aux_layer_ids
        self.decoder: nn.Module = find_decoder(model)
        self.lm_head = find_lm_head(model)
        self.logit_softcap = final_logit_softcap(model)
        self.embedding = find_embedding(model)
        hook_layers(find_layers(model), aux_layer_ids)
        self.compiled_forward: CompiledForward | None = None
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
        check_target_files(directory)
        register_attention()
        try:
            config = AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
            text = config.get_text_config(decoder=True)
            check_attention_config(text)
            num_layers: int = text.num_hidden_layers
            aux_layer_ids = default_aux_layers(num_layers) if layers is None else check_aux_layers(layers, num_layers)
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
            raise load_error(directory, error) from error
        check_loaded_weights(directory, report)
        if device != AUTO:
            model = model.to(device)
        elif any(weight.is_meta for weight in model.parameters()):
            raise InputError(
                f"target {directory} that the devices here hold only in part",
                "room for all its weights",
                "use more or larger devices, or a smaller dtype",
            )
        model = model.eval().requires_grad_(False)
        shape = probe_attention(model, num_layers)
        return Target(model, tokenizer, directory, read_target_info(str(name), model, shape), aux_layer_ids)

    def forward(
        self, ids_BT: Tensor, positions_BT: Tensor, attend: AttentionFn, want_aux: bool = False
    ) -> TargetOutput:
        """Run the rows through the decoder; no logits. positions_BT is [B, T] or [1, T]; any order, a tree's too."""
        if self.compiled_forward is not None and isinstance(attend, PackedAttention):
            hidden_BTD, aux_BTL = self.compiled_forward(attend.packed_attention, ids_BT, positions_BT)
            return TargetOutput(hidden_BTD, aux_BTL if want_aux else None)
        capture = LayerCapture() if want_aux else None
        hidden_BTD = run_decoder(self.decoder, ids_BT, positions_BT, attend, capture)
        if capture is None:
            return TargetOutput(hidden_BTD, None)
        last = self.info.num_layers
        taken = [hidden_BTD if i == last else capture.inputs_BTD[i] for i in self.aux_layer_ids]
        return TargetOutput(hidden_BTD, torch.cat([layer_BTD.to(hidden_BTD.device) for layer_BTD in taken], -1))

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., W] of final hidden rows [..., D]; hand over only the rows whose logits are needed."""
        return apply_softcap(self.lm_head(hidden), self.logit_softcap)

    def embed(self, ids: Tensor) -> Tensor:
        """[..., D] rows of the input embedding, as the head takes them.

        The stored rows, also where the target itself reads scaled ones (Gemma): SGLang and vLLM hand the weight on.
        """
        return F.embedding(ids, self.embedding.weight)

    def require_chat_template(self) -> str:
        """The chat template; `InputError` if the tokenizer has none."""
        return require_chat_template(self.tokenizer, self.directory)

    @property
    def quantization(self) -> dict[str, Any] | None:
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
    def text_digests(self) -> dict[str, str | None]:
        """Both by name; None for a chat template that is not there."""
        template = self.tokenizer.chat_template
        return {"tokenizer": self.tokenizer_digest, "chat template": self.template_digest if template else None}


def check_loaded_weights(directory: Path, report: dict[str, Any]) -> None:
    """`InputError` for weights that transformers' report of loading misses. What it was not asked for, it does not."""
    missing = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if missing:
        raise InputError(
            f"target {directory} without usable weights for {', '.join(missing[:3])} ({len(missing)} in all)",
            "every weight that its configuration asks for",
            "fetch the target again",
        )


def load_target_without_layers(
    name: str | Path,
    dtype: torch.dtype = torch.bfloat16,
    layers: tuple[int, ...] | None = None,
    device: torch.device | str = "cpu",
) -> Target:
    """As `Target.load`, without memory for the layers: `forward` cannot be called. "auto" is a GPU where there is one.

    `InputError` as there. Whether its attention is one that we can serve was asked when its features were captured.
    """
    check_device(str(device))
    directory = resolve_target(name)
    check_target_files(directory)
    local: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    try:
        config, small = (AutoConfig.from_pretrained(directory, **local) for _ in range(2))
        text = config.get_text_config(decoder=True)
        num_layers: int = text.num_hidden_layers
        aux_layer_ids = default_aux_layers(num_layers) if layers is None else check_aux_layers(layers, num_layers)
        _drop_layers(small.get_text_config(decoder=True))
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory, config=small, dtype=dtype, use_safetensors=True, output_loading_info=True, **local
        )
        ends, report = loaded  # a pair because of output_loading_info
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(directory, **local)
    except InputError:
        raise
    except Exception as error:  # transformers and safetensors raise many classes for a file they cannot use
        raise load_error(directory, error) from error
    check_loaded_weights(directory, report)
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu") if device == AUTO else torch.device(device)
    for find in (find_embedding, find_lm_head):
        empty = find(model)
        for key, weight in find(ends).named_parameters():
            setattr(empty, key, nn.Parameter(weight.to(place)))
    model.generation_config = ends.generation_config
    model = model.eval().requires_grad_(False)
    return Target(
        model, tokenizer, directory, read_target_info(str(name), model, attention_shape_of(text)), aux_layer_ids
    )


def _drop_layers(text: PreTrainedConfig) -> None:
    text.num_hidden_layers = 0
    if getattr(text, "layer_types", None):  # transformers compares its length
        text.layer_types = []
