"""Checks that a head fits a target. D hidden size, W target vocabulary."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from eyas.base.errors import Finding, InputError, raise_misfits
from eyas.formats.aux_layers import default_layers_as_outputs
from eyas.formats.head_dir import StoredHead
from eyas.model.head import Head
from eyas.model.layer_ids import default_aux_layers, has_default_layers
from eyas.model.target_dir import public_name
from eyas.model.target_info import TargetInfo

FIX_OTHER_HEAD = "Use the head that was trained for this target"
FIX_CHANGED = "Load the original target, or give a changed target another directory name"
FIX_MEASURE = "Measure the head with `eyas eval`: it may accept less than at training"
UPLOADED_NAME = "target"  # `eyas deploy --upload` stores a run's target under this name
Digests = Mapping[str, str | None]
"""The digests of a target's "tokenizer" and "chat template"; None for a missing one."""


def check_fit(
    stored: StoredHead, info: TargetInfo, target_digest: str | None = None, text_digests: Digests | None = None
) -> list[Finding]:
    """Returns a finding for each difference between the target and the head's training target, misfits first.

    A digest that the head records is a promise about the target of the same name: another digest is a misfit. For a
    target of another name, such as a fine-tuned one, it is a warning.

    Args:
        stored: The head.
        info: The target.
        target_digest: The digest of the target; None skips this comparison.
        text_digests: The digests of the target's "tokenizer" and "chat template"; a missing digest is not compared.
    """
    config, metadata = stored.config, stored.metadata
    findings: list[Finding] = []

    def compare(weight: Literal["misfit", "warning"], name: str, trained: object, actual: object, fix: str) -> None:
        if trained != actual:
            problem = f"The head was trained for {name} {trained}, but target {info.name} has {actual}"
            findings.append(Finding(weight, problem, fix))

    compare("misfit", "hidden size", config.target_hidden_size, info.hidden_size, FIX_OTHER_HEAD)
    compare("misfit", "vocabulary size", config.vocab_size, info.vocab_size, FIX_OTHER_HEAD)
    findings += _check_layers(stored, info)
    findings += _check_positions(stored, info)
    if config.max_position_embeddings < info.max_positions:
        compare("warning", "max_position_embeddings", config.max_position_embeddings, info.max_positions, FIX_MEASURE)
    recorded = {"target": metadata.target_digest, "tokenizer": metadata.tokenizer_digest}
    recorded["chat template"] = metadata.template_digest
    actual = {"target": target_digest, **(text_digests or {})}
    is_same_target = Path(public_name(info.name)).name in (Path(metadata.target_name or "").name, UPLOADED_NAME)
    for name, digest in recorded.items():
        if digest is not None and actual.get(name) is not None:
            weight, fix = ("misfit", FIX_CHANGED) if is_same_target else ("warning", FIX_MEASURE)
            compare(weight, f"a {name} with digest", digest, actual[name], fix)
    return sorted(findings, key=lambda finding: finding.weight != "misfit")


def require_fit(
    stored: StoredHead, info: TargetInfo, target_digest: str | None = None, text_digests: Digests | None = None
) -> list[Finding]:
    """Returns the warnings of `check_fit`. Raises InputError that names every misfit, if there is one."""
    findings = check_fit(stored, info, target_digest, text_digests)
    raise_misfits(f"The head does not fit target {info.name}", findings)
    return findings


def require_layers(stored: StoredHead, captured: Sequence[int]) -> None:
    """Raises InputError unless the head reads the layers of the features. captured: their hidden_states ids."""
    ids = list(map(int, stored.config.aux_layer_ids))
    if ids != list(captured):
        fix = f"Set capture.aux_layer_ids={ids} and run `eyas capture`"
        if len(ids) != 3:
            fix = "Features have three layers; `eyas serve --head DIR` serves heads that read others"
        raise InputError(f"The head reads layers {ids}, but the run captures layers {list(captured)}", fix)


def check_embedding(stored: StoredHead, rows_WD: Tensor) -> list[Finding]:
    """Compares the embedding in the head's file, if there is one, with the target's. SGLang and eyas use the target's.

    Args:
        stored: The head.
        rows_WD: The target's embedding, on any device.
    """
    own_WD = stored.embedding_WD
    if own_WD is None:
        return []
    if own_WD.shape != rows_WD.shape:
        shapes = f"{list(own_WD.shape)}, but the target's has shape {list(rows_WD.shape)}"
        return [Finding("misfit", f"The embedding in the head's file has shape {shapes}", FIX_OTHER_HEAD)]
    # Both were rounded once or twice before they were stored: two roundings of bfloat16 change a value by 2^-7 at most.
    own_WD, rows_WD = own_WD.float(), rows_WD.to("cpu", torch.float32)
    differs = (own_WD - rows_WD).abs() > 2**-7 * rows_WD.abs() + 1e-6
    if not differs.any():
        return [Finding("ok", "The embedding in the head's file equals the target's")]
    share = differs.any(1).float().mean().item()
    problem = f"The embedding in the head's file differs from the target's in {share:.0%} of its rows"
    return [Finding("warning", f"{problem}; eyas uses the target's", FIX_OTHER_HEAD)]


def check_weights(stored: StoredHead) -> list[Finding]:
    """Returns warnings about the weights of a head for which no target is needed."""
    findings: list[Finding] = []
    if stored.layout == "ModelOpt" and isinstance(stored.head, Head) and not _has_constant_norm(stored.head):
        # ModelOpt keeps this norm in the first layer and trains on hidden_norm(input_layernorm(h)); the engines compute
        # hidden_norm(h). Both are equal while the weights of input_layernorm are constant.
        problem = "The weights of input_layernorm are not constant in this ModelOpt head: some versions of ModelOpt"
        problem += " train with this norm before hidden_norm, and no engine applies it there"
        findings.append(Finding("warning", problem, FIX_MEASURE))
    if stored.head.norm.weight.dtype == torch.float16:
        problem = "The weights are float16, but engines run a head in the target's precision, usually bfloat16"
        findings.append(Finding("warning", problem, "Store the head in bfloat16"))
    return findings


def _has_constant_norm(head: Head) -> bool:
    norm_D = head.midlayer.input_layernorm.weight.detach()
    return torch.allclose(norm_D, norm_D[0], rtol=1e-2)


def _check_layers(stored: StoredHead, info: TargetInfo) -> list[Finding]:
    ids, num_layers = list(map(int, stored.config.aux_layer_ids)), info.num_layers
    problem = f"The head reads layers {ids}"
    if any(i > num_layers for i in ids):
        return [Finding("misfit", f"{problem}, but target {info.name} has {num_layers} layers", FIX_OTHER_HEAD)]
    findings: list[Finding] = []
    if stored.layout != "eyas" and num_layers in ids:
        text = f"{problem}; other projects take layer {num_layers} before the final norm, but eyas takes it after"
        findings.append(Finding("misfit", text, f"Use a head that does not read layer {num_layers}"))
    if not has_default_layers(num_layers):
        return findings
    default = list(map(int, default_aux_layers(num_layers)))
    if ids == default_layers_as_outputs(num_layers):
        text = f"{problem}, which may be the default layers {default}, wrongly counted as layer outputs"
        fix = f"Measure it with `eyas eval`. If it accepts little, write {default} into its config.json and compare"
        findings.append(Finding("warning", text, fix))
    elif ids != default:
        text = f"{problem}, which are not the default layers {default} of target {info.name}"
        findings.append(Finding("warning", text, "Ignore this if the head was trained with these layers"))
    return findings


def _check_positions(stored: StoredHead, info: TargetInfo) -> list[Finding]:
    config, findings = stored.config, []
    if config.rope_theta != info.rope_theta:
        # Only the base must be equal: a head uses plain RoPE even if the target scales it (`HeadConfig.for_target`).
        base = "no rotary positions" if info.rope_theta is None else info.rope_theta
        scaled = "" if info.rope_type in (None, "default") else f" before scaling of type {info.rope_type}"
        problem = f"The head has rope_theta {config.rope_theta}, but target {info.name} has {base}{scaled}"
        findings.append(Finding("warning", problem, FIX_MEASURE))
    if config.rope_scaling is not None and config.rope_scaling["rope_type"] != info.rope_type:
        problem = f"The head has rope_scaling of type {config.rope_scaling['rope_type']}, but target {info.name} has"
        problem += f" {info.rope_type or 'none'}. ModelOpt writes yarn for heads trained without it"
        findings.append(Finding("warning", problem, "If it was trained without, set rope_scaling to null"))
    return findings
