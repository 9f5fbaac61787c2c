"""A second implementation of loading and running a head, by the rules of the engines. `formats.parity` uses it.

    ReferenceHead        EAGLE-3 heads   SGLang, vLLM
    ReferenceBlockHead   block heads     SGLang, vLLM, DeepSpec

It follows docs/formats.md and shares no code with `model.head` and `formats.head_dir`. So the parity check misses a
mistake only if both implementations make it. It is slow and runs one text at a time. Like the engines, it ignores
tensors that it does not know, and uses the default layers if config.json has no list of layers.

T rows, D hidden size, L captured features, N heads, G key-value heads, H head size, V draft vocabulary, g slots.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

AUX_LAYERS_KEY = "eagle_aux_hidden_state_layer_ids"


class _HeadFiles:
    """The content of a head directory in float32, and the parts that heads of both kinds have."""

    def __init__(self, directory: Path) -> None:
        raw = json.loads((directory / "config.json").read_text())
        self.raw: dict[str, Any] = {**raw, **raw.get("transformer_layer_config", {})}
        if self.raw["tie_word_embeddings"]:
            raise ValueError(f"{directory} ties the output matrix to the embedding")
        self.tensors: dict[str, Tensor] = {}
        for name, tensor in load_file(directory / "model.safetensors").items():
            name = name.removeprefix("model.").replace("midlayer.", "layers.0.")
            if name in ("d2t", "draft_id_to_target_id"):
                self.target_ids_V = tensor + torch.arange(tensor.shape[0])
            elif name != "t2d":
                self.tensors[name] = tensor.float()
        self.head_dim = self.raw.get("head_dim") or self.raw["hidden_size"] // self.raw["num_attention_heads"]
        self.freqs, self.amplitude = self._rope_frequencies()

    def _norm(self, x: Tensor, name: str) -> Tensor:
        mean_square = x.pow(2).mean(-1, keepdim=True)
        return x * torch.rsqrt(mean_square + self.raw["rms_norm_eps"]) * self.tensors[f"{name}.weight"]

    def _rotate(self, x_NTH: Tensor, start: int) -> Tensor:
        """Applies RoPE in Llama's layout: components i and i + H / 2 rotate together."""
        angles_TH = torch.arange(start, start + x_NTH.shape[1])[:, None].float() * self.freqs
        cos, sin = angles_TH.cos() * self.amplitude, angles_TH.sin() * self.amplitude
        first, second = x_NTH.chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    def _rope_frequencies(self) -> tuple[Tensor, float]:
        """Returns the angle of each pair of components in radians per position, and the factor of cos and sin."""
        rope = self.raw.get("rope_parameters") or {}
        theta: float = rope.get("rope_theta", self.raw.get("rope_theta", 10000.0))
        scaling = {**rope, **(self.raw.get("rope_scaling") or {})}
        plain = torch.tensor([theta ** (-2 * i / self.head_dim) for i in range(self.head_dim // 2)])
        kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor", 1.0)
        if kind in (None, "default"):
            return plain, 1.0
        if kind == "linear":
            return plain / factor, 1.0
        if kind not in ("llama3", "yarn"):
            raise ValueError(f"RoPE scaling of type {kind} is not supported")
        trained = scaling["original_max_position_embeddings"]
        rounds = trained * plain / (2 * math.pi)  # rotations within the trained length
        if kind == "llama3":
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            kept = ((rounds - low) / (high - low)).clamp(0, 1)
            return plain * (kept + (1 - kept) / factor), 1.0
        turns = (scaling.get("beta_fast") or 32, scaling.get("beta_slow") or 1)
        ends = [self.head_dim * math.log(trained / (n * 2 * math.pi)) / (2 * math.log(theta)) for n in turns]
        low, high = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), self.head_dim - 1)
        kept = 1 - ((torch.arange(self.head_dim // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
        amplitude = scaling.get("attention_factor") or (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0)
        return plain * (kept + (1 - kept) / factor), amplitude


class ReferenceHead(_HeadFiles):
    """A head that runs by the rules of one engine, in float32, and its cached keys and values.

    Attributes:
        layers: The hidden_states ids that it reads.
        target_ids_V: The target token of each draft token.
    """

    def __init__(self, directory: Path, engine: str, num_layers: int) -> None:
        """Loads the directory.

        Args:
            directory: The head directory.
            engine: "sglang", "vllm" or "vllm-speculators".
            num_layers: The number of layers of the target.

        Raises:
            ValueError: The engine rejects the files.
        """
        super().__init__(directory)
        raw = self.raw
        self.layers = self._layers(raw, engine, num_layers)
        is_speculators = engine == "vllm-speculators"
        if is_speculators != ("speculators_model_type" in raw):
            raise ValueError(f"config.json in {directory} is not in the format of {engine}")
        self.residual_is_normed = raw.get("norm_before_residual", is_speculators) and engine != "sglang"
        self.keys_GTH = torch.zeros(self.raw["num_key_value_heads"], 0, self.head_dim)
        self.values_GTH = self.keys_GTH

    @staticmethod
    def _layers(raw: dict[str, Any], engine: str, num_layers: int) -> list[int]:
        default = [2, num_layers // 2, num_layers - 3]
        nested = (raw.get("eagle_config") or {}).get(AUX_LAYERS_KEY)
        if engine == "sglang":
            if not nested:
                return default
            return [i + 1 for i in nested] if nested[0] == 1 else nested
        return raw.get(AUX_LAYERS_KEY) or nested or default

    def fuse(self, states_TD: Sequence[Tensor]) -> Tensor:
        """Returns hidden_TD of the first step from the target's hidden states, one tensor for each of `layers`."""
        aux = [state_TD.float() for state_TD in states_TD]
        if self.raw.get("fc_norm") or self.raw.get("use_aux_norm"):
            aux = [self._norm(x_TD, f"fc_norm.{i}") for i, x_TD in enumerate(aux)]
        joined_TL = torch.cat(aux, -1)
        if self.raw.get("norm_before_fc"):
            joined_TL = self._norm(joined_TL, "input_norm")
        return joined_TL @ self.tensors["fc.weight"].T

    def forward(self, embeds_TD: Tensor, hidden_TD: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Runs rows at the positions start, start + 1, ... and appends their keys and values to the cache.

        Returns:
            logits_TV, and the hidden_TD of the next step.
        """
        normed_TD = self._norm(hidden_TD, "layers.0.hidden_norm")
        pair_TC = torch.cat((self._norm(embeds_TD.float(), "layers.0.input_layernorm"), normed_TD), -1)
        residual_TD = normed_TD if self.residual_is_normed else hidden_TD
        residual_TD = residual_TD + self._attention(pair_TC, start)
        x_TD = self._norm(residual_TD, "layers.0.post_attention_layernorm")
        gate, up = self._project(x_TD, "mlp.gate_proj"), self._project(x_TD, "mlp.up_proj")
        out_TD = residual_TD + self._project(gate * gate.sigmoid() * up, "mlp.down_proj")
        last_TD = self._norm(out_TD, "norm")
        return last_TD @ self.tensors["lm_head.weight"].T, last_TD if self.raw.get("norm_output") else out_TD

    def truncate(self, length: int) -> None:
        """Keeps only the first `length` rows of the cached keys and values. This drops drafted tokens."""
        self.keys_GTH, self.values_GTH = self.keys_GTH[:, :length], self.values_GTH[:, :length]

    def _project(self, x: Tensor, name: str) -> Tensor:
        return x @ self.tensors[f"layers.0.{name}.weight"].T

    def _attention(self, pair_TC: Tensor, start: int) -> Tensor:
        rows, length = pair_TC.shape[0], self.keys_GTH.shape[1]
        projected = (self._project(pair_TC, f"self_attn.{name}_proj") for name in "qkv")
        q_NTH, k_GTH, v_GTH = (x.view(rows, -1, self.head_dim).transpose(0, 1) for x in projected)
        q_NTH, k_GTH = (self._rotate(x, start) for x in (q_NTH, k_GTH))
        self.keys_GTH = torch.cat((self.keys_GTH, k_GTH), 1)
        self.values_GTH = torch.cat((self.values_GTH, v_GTH), 1)
        share = q_NTH.shape[0] // self.keys_GTH.shape[0]
        keys_NSH = self.keys_GTH.repeat_interleave(share, 0)
        scores_NTS = q_NTH @ keys_NSH.transpose(1, 2) / math.sqrt(self.head_dim)
        future_TS = torch.ones(rows, length + rows, dtype=torch.bool).triu(length + 1)
        weights_NTS = scores_NTS.masked_fill(future_TS, float("-inf")).softmax(-1)
        out_NTH = weights_NTS @ self.values_GTH.repeat_interleave(share, 0)
        return self._project(out_NTH.transpose(0, 1).reshape(rows, -1), "self_attn.o_proj")


class ReferenceBlockHead(_HeadFiles):
    """A block head that runs by the rules of one engine, in float32.

    Attributes:
        layers: The hidden_states ids that it reads.
    """

    def __init__(self, directory: Path, engine: str, matrices: tuple[Tensor, Tensor]) -> None:
        """Loads the directory.

        Args:
            directory: The head directory.
            engine: "sglang", "vllm" or "deepspec".
            matrices: The target's embedding and output matrix [W, D]. DeepSpec takes both from the file.

        Raises:
            ValueError: The engine rejects the files.
        """
        super().__init__(directory)
        self.is_dflash = self.raw["architectures"] == ["DFlashDraftModel"]
        if self.is_dflash:
            self.raw |= self.raw["dflash_config"]
            # vLLM rejects the method dflash for a head that samples from the anchor's row.
            if self.raw.get("sample_from_anchor", False):
                raise ValueError(f"config.json in {directory} is not in the format of DFlash")
        elif (
            self.raw["architectures"] != ["Qwen3DSparkModel"]
            or self.raw.get("markov_head_type", "vanilla") != "vanilla"
        ):
            raise ValueError(f"config.json in {directory} is not in the format of DSpark")
        self.layers = [i + 1 for i in self.raw["target_layer_ids"]]
        self.embedding_WD, self.output_WD = matrices
        if engine == "deepspec":
            self.embedding_WD, self.output_WD = self.tensors["embed_tokens.weight"], self.tensors["lm_head.weight"]

    def draft(self, states_TD: Sequence[Tensor], anchor: int) -> tuple[Tensor, list[int]]:
        """Drafts a block greedily.

        Args:
            states_TD: The target's hidden states of all tokens before the anchor, one tensor for each of `layers`.
            anchor: The token after them.

        Returns:
            For each slot its logits and, as the last column, its confidence if it has one; and the drafted tokens.
        """
        # In the fill-in convention, a row predicts the token at its own position, so the anchor's row predicts nothing.
        # The block_size of DFlash counts this row.
        extra = int(self.is_dflash or not self.raw.get("sample_from_anchor", True))
        start, num_rows = states_TD[0].shape[0], self.raw["block_size"] + (0 if self.is_dflash else extra)
        x_gD = self.embedding_WD[[anchor] + [self.raw["mask_token_id"]] * (num_rows - 1)]
        context_TD = self._norm(torch.cat(list(states_TD), -1) @ self.tensors["fc.weight"].T, "hidden_norm")
        for i in range(self.raw["num_hidden_layers"]):
            layer = f"layers.{i}"
            x_gD = x_gD + self._attention(self._norm(x_gD, f"{layer}.input_layernorm"), context_TD, start, layer)
            normed_gD = self._norm(x_gD, f"{layer}.post_attention_layernorm")
            gate, up = (normed_gD @ self.tensors[f"{layer}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
            x_gD = x_gD + (gate * gate.sigmoid() * up) @ self.tensors[f"{layer}.mlp.down_proj.weight"].T
        rows, tokens = [], [anchor]
        for normed_D in self._norm(x_gD, "norm")[extra:]:
            rows.append(self.output_WD @ normed_D)
            if self.raw.get("markov_rank"):
                vector_r = self.tensors["markov_head.markov_w1.weight"][tokens[-1]]
                logits_W = rows[-1] + self.tensors["markov_head.markov_w2.weight"] @ vector_r
                confidence_1 = self.tensors["confidence_head.proj.weight"] @ torch.cat((normed_D, vector_r))
                rows[-1] = torch.cat((logits_W, confidence_1 + self.tensors["confidence_head.proj.bias"]))
            tokens.append(int(rows[-1][: len(self.output_WD)].argmax()))
        return torch.stack(rows), tokens[1:]

    def _attention(self, x_gD: Tensor, context_TD: Tensor, start: int, layer: str) -> Tensor:
        def project(rows: Tensor, name: str) -> Tensor:
            weight = self.tensors[f"{layer}.self_attn.{name}_proj.weight"]
            return (rows @ weight.T).view(rows.shape[0], -1, self.head_dim).transpose(0, 1)

        rows_SD = torch.cat((context_TD, x_gD))
        q_NgH = self._rotate(self._norm(project(x_gD, "q"), f"{layer}.self_attn.q_norm"), start)
        k_GSH = self._rotate(self._norm(project(rows_SD, "k"), f"{layer}.self_attn.k_norm"), 0)
        share = q_NgH.shape[0] // k_GSH.shape[0]
        scores_NgS = q_NgH @ k_GSH.repeat_interleave(share, 0).transpose(1, 2) / math.sqrt(self.head_dim)
        if self.raw.get("is_causal", self.raw.get("causal", False)):
            rows = x_gD.shape[0]
            scores_NgS += torch.full((rows, start + rows), float("-inf")).triu(start + 1)
        out_NgH = scores_NgS.softmax(-1) @ project(rows_SD, "v").repeat_interleave(share, 0)
        return out_NgH.transpose(0, 1).reshape(x_gD.shape[0], -1) @ self.tensors[f"{layer}.self_attn.o_proj.weight"].T
