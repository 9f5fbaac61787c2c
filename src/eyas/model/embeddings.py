"""A target without its layers: its embedding and output matrix are all that a head is trained and evaluated with once
features are stored. Of 70 billion parameters these are 2 billion.

    the model           built without memory: its sizes, its modules, nothing to run
    the same, 0 layers  loaded by transformers, so files may lie and be named as they like
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig

from eyas.base.errors import InputError
from eyas.model.devices import AUTO, check_device
from eyas.model.layer_ids import check_layers, default_layers
from eyas.model.model_shape import shape_of
from eyas.model.submodules import find_embedding, output_matrix
from eyas.model.target import Target, check_files, not_loadable, read_facts, require_weights, resolve_target


def load_ends(
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
    check_files(directory)
    local: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    try:
        config, small = (AutoConfig.from_pretrained(directory, **local) for _ in range(2))
        text = config.get_text_config(decoder=True)
        num_layers: int = text.num_hidden_layers
        aux_layer_ids = default_layers(num_layers) if layers is None else check_layers(layers, num_layers)
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
        raise not_loadable(directory, error) from error
    require_weights(directory, report)
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu") if device == AUTO else torch.device(device)
    for find in (find_embedding, output_matrix):
        empty = find(model)
        for key, weight in find(ends).named_parameters():
            setattr(empty, key, nn.Parameter(weight.to(place)))
    model.generation_config = ends.generation_config
    model = model.eval().requires_grad_(False)
    return Target(model, tokenizer, directory, read_facts(str(name), model, shape_of(text)), aux_layer_ids)


def _drop_layers(text: PreTrainedConfig) -> None:
    text.num_hidden_layers = 0
    if getattr(text, "layer_types", None):  # transformers compares its length
        text.layer_types = []
