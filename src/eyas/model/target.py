"""The target: a transformers causal LM that runs with eyas's attention and returns the captured layers.

B requests, T rows, D hidden, L = 3D captured features, W target vocabulary.
"""

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from eyas.base.errors import InputError
from eyas.model import submodules, target_dir
from eyas.model.attention import AttentionFn, CompiledForward, PackedAttention
from eyas.model.attention_probe import check_attention_config, probe_attention
from eyas.model.devices import AUTO, Device, check_device, own_memory
from eyas.model.hook import ATTENTION_NAME, LayerCapture, hook_layers, register_attention, run_decoder
from eyas.model.layer_ids import HFIndex, check_aux_layers, choose_aux_layers
from eyas.model.target_info import TargetInfo, attention_shape_of, read_target_info


@dataclass(frozen=True)
class TargetOutput:
    """The result of a forward.

    Attributes:
        hidden_BTD: The hidden states after the final norm.
        aux_BTL: The captured layers, concatenated low to high; None if the caller did not ask for them.
    """

    hidden_BTD: Tensor
    aux_BTL: Tensor | None


class Target(target_dir.TargetDir):
    """A loaded target. It keeps no state between forwards: the `attend` argument stores the keys and values."""

    def __init__(
        self, directory: Path, model: PreTrainedModel, info: TargetInfo, aux_layer_ids: tuple[HFIndex, ...]
    ) -> None:
        """Wraps a loaded model. Call `Target.load` or `load_target_without_layers` instead."""
        super().__init__(directory, target_dir.load_tokenizer(directory))
        self.model = model.eval().requires_grad_(False)
        self.info = info
        self.aux_layer_ids = aux_layer_ids
        self.decoder: nn.Module = submodules.find_decoder(model)
        self.lm_head = submodules.find_lm_head(model)
        self.logit_softcap = submodules.final_logit_softcap(model)
        self.embedding = submodules.find_embedding(model)
        hook_layers(submodules.find_layers(model), aux_layer_ids)
        self.compiled_forward: CompiledForward | None = None
        """Computes hidden_1TD and aux_1TL from ids_1T and positions_1T. `kernels.aot_compile.compile_pair` sets it."""

    @staticmethod
    def load(
        name: str | Path,
        dtype: torch.dtype = torch.bfloat16,
        layers: tuple[int, ...] | None = None,
        device: Device = "cpu",
    ) -> "Target":
        """Loads a target for inference. It reads only safetensors and runs no code of the model's repository.

        Args:
            name: A directory, a hub id, or "embedded".
            dtype: The dtype of the weights.
            layers: The captured layers; None for 2, n // 2 and n - 3, where n is the number of layers.
            device: The device. "auto" spreads the layers over the devices of this process (transformers' device_map,
                needs accelerate). Then inputs are on the device of the embedding, results on that of the last layer.

        Raises:
            InputError: The directory, configuration, weights or tokenizer are missing or damaged, a layer is out of
                range, a device is missing or too small, or eyas does not support the family (docs/families.md).
            UsageError: The device name is unknown.
        """
        directory, config = _read_directory(name, device)
        text = config.get_text_config(decoder=True)
        check_attention_config(text)
        aux_layer_ids = _aux_layers(text, layers)
        register_attention()
        places = {"device_map": AUTO, "max_memory": own_memory() or None} if device == AUTO else {}
        model: Any = _load_model(directory, dtype=dtype, attn_implementation=ATTENTION_NAME, **places)
        if device != AUTO:
            model = model.to(device)
        elif any(weight.is_meta for weight in model.parameters()):
            problem = f"Target {directory} does not fit on the devices of this machine"
            raise InputError(problem, "Use more or larger devices, or a smaller dtype")
        shape = probe_attention(model.eval(), text.num_hidden_layers)
        return Target(directory, model, read_target_info(str(name), model, shape), aux_layer_ids)

    def forward(
        self, ids_BT: Tensor, positions_BT: Tensor, attend: AttentionFn, want_aux: bool = False
    ) -> TargetOutput:
        """Runs the decoder over rows of tokens. It computes no logits.

        Args:
            ids_BT: Token ids.
            positions_BT: Positions in the text, [B, T] or [1, T], in any order, so that rows may be nodes of a tree.
            attend: The attention of every layer. It stores the keys and values.
            want_aux: Also returns the captured layers.
        """
        if self.compiled_forward is not None and isinstance(attend, PackedAttention):
            hidden_BTD, aux_BTL = self.compiled_forward(attend.packed_attention, ids_BT, positions_BT)
            return TargetOutput(hidden_BTD, aux_BTL if want_aux else None)
        return self.run_layers(ids_BT, positions_BT, attend, want_aux)

    def run_layers(self, ids_BT: Tensor, positions_BT: Tensor, attend: AttentionFn, want_aux: bool) -> TargetOutput:
        """Runs the decoder layer by layer, without `compiled_forward`. The arguments are those of `forward`."""
        capture = LayerCapture() if want_aux else None
        hidden_BTD = run_decoder(self.decoder, ids_BT, positions_BT, attend, capture)
        if capture is None:
            return TargetOutput(hidden_BTD, None)
        taken = [hidden_BTD if i == self.info.num_layers else capture.inputs_BTD[i] for i in self.aux_layer_ids]
        return TargetOutput(hidden_BTD, torch.cat([layer_BTD.to(hidden_BTD.device) for layer_BTD in taken], -1))

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns logits [..., W] of final hidden states [..., D]. Pass only the rows whose logits are needed."""
        return submodules.apply_softcap(self.lm_head(hidden), self.logit_softcap)

    @property
    def logits_weight(self) -> Tensor:
        """A tensor with the dtype and device of the LM head's weights."""
        return next(chain(self.lm_head.parameters(), self.lm_head.buffers()))

    def embed(self, ids: Tensor) -> Tensor:
        """Returns the rows [..., D] of the input embedding that the head reads.

        The rows are not scaled, even if the target scales its embeddings (Gemma). SGLang and vLLM do the same.
        """
        return F.embedding(ids, self.embedding.weight)

    @property
    def quantization(self) -> dict[str, Any] | None:
        """`quantization_config` of the model's configuration; None if the weights are not quantized."""
        config: Any = getattr(self.model.config, "quantization_config", None)
        return config.to_dict() if hasattr(config, "to_dict") else config


def load_target_without_layers(
    name: str | Path, dtype: torch.dtype = torch.bfloat16, layers: tuple[int, ...] | None = None, device: Device = "cpu"
) -> Target:
    """Loads only the embedding and the LM head of a target. The caller must not call its `forward`.

    Training and evaluation need no other weights once features are stored: 2 of the 70 billion parameters of a large
    target. The arguments are those of `Target.load`, except that "auto" means the first GPU, or the CPU without a GPU.
    The attention is not checked, because the stage `capture` has checked it.

    It builds the model on the meta device, loads the same model with 0 layers, and puts the loaded embedding and LM
    head into the first one.
    """
    directory, config = _read_directory(name, device)
    text = config.get_text_config(decoder=True)
    aux_layer_ids = _aux_layers(text, layers)
    short = target_dir.load_config(directory)
    short_text = short.get_text_config(decoder=True)
    short_text.num_hidden_layers = 0
    if getattr(short_text, "layer_types", None):  # transformers compares its length
        short_text.layer_types = []
    loaded = _load_model(directory, config=short, dtype=dtype)
    with target_dir.convert_load_errors(directory), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu") if device == AUTO else torch.device(device)
    for find in (submodules.find_embedding, submodules.find_lm_head):
        empty = find(model)
        for key, weight in find(loaded).named_parameters():
            setattr(empty, key, nn.Parameter(weight.to(place)))
    model.generation_config = loaded.generation_config
    return Target(directory, model, read_target_info(str(name), model, attention_shape_of(text)), aux_layer_ids)


def _read_directory(name: str | Path, device: Device) -> tuple[Path, PreTrainedConfig]:
    """Checks the device and the files, and returns the directory of the target and its configuration."""
    check_device(str(device))
    directory = target_dir.resolve_target(name)
    target_dir.check_target_files(directory)
    return directory, target_dir.load_config(directory)


def _aux_layers(config: PreTrainedConfig, layers: tuple[int, ...] | None) -> tuple[HFIndex, ...]:
    num_layers: int = config.num_hidden_layers
    return choose_aux_layers(num_layers) if layers is None else check_aux_layers(layers, num_layers)


def _load_model(directory: Path, **settings: Any) -> PreTrainedModel:
    """Loads the model. Raises InputError if weights are damaged or missing."""
    with target_dir.convert_load_errors(directory):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory, use_safetensors=True, output_loading_info=True, **settings, **target_dir.LOCAL_FILES
        )
    model, report = loaded  # a pair because of output_loading_info
    missing = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if missing:
        named = f"{', '.join(missing[:3])} ({len(missing)} tensors in all)"
        raise InputError(f"Target {directory} has no usable weights for {named}", "Download the target again")
    return model
