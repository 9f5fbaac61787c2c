"""Makes the embedded target: tokenizer and a small Llama-architecture model, trained on the grammar in `eyas.evalsets`.

    python tools/make_embedded.py tokenizer WORK         # seconds
    python tools/make_embedded.py train WORK             # about 70 minutes on one core; resumes after any interruption
    python tools/make_embedded.py publish WORK           # copies it to src/eyas/embedded/target
    python tools/check_embedded.py                       # measures it

This script is not installed with eyas. The model has many narrow layers on purpose. The cost of decoding a small model
on a CPU is one dispatch for each layer; on a GPU, for a large model, it is one read of the weights for each layer. So
speculation saves a fixed cost for each layer in both cases.
"""

import argparse
import json
import math
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn.functional import cross_entropy, rms_norm, scaled_dot_product_attention
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from eyas.evalsets import FAMILIES, Messages, example
from eyas.evalsets.families.documents import SHORT_SIZE, write_passages

VOCAB_SIZE = 4096
SPECIAL = ("<|pad|>", "<|begin|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% if tools %}{{ '<|system|>' }}"
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + '\n\n' }}{% endif %}"
    "{{ 'You may call these functions:\n<tools>\n' }}{% for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}"
    "{{ '</tools>\nA call is JSON between two tags:\n<tool_call>\n' }}"
    '{{ \'{"name": NAME, "arguments": OBJECT}\n</tool_call><|end|>\' }}{% endif %}'
    "{% for message in messages %}{% set content = message['content'] or '' %}"
    "{% if message['role'] not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('role must be system, user, assistant or tool, not ' + message['role']) }}{% endif %}"
    "{% if message['role'] == 'tool' %}{{ '<|user|><tool_response>\n' + content + '\n</tool_response><|end|>' }}"
    "{% elif not (tools and loop.first and message['role'] == 'system') %}"
    "{{ '<|' + message['role'] + '|>' + content }}"
    "{% for call in message['tool_calls'] or [] %}{% if content or not loop.first %}{{ '\n' }}{% endif %}"
    "{{ '<tool_call>\n{\"name\": \"' + call['function']['name'] + '\", \"arguments\": ' }}"
    "{{ call['function']['arguments'] | tojson + '}\n</tool_call>' }}{% endfor %}"
    "{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
EVAL_EXAMPLES = 400  # per family: answers of these never occur in the training text
PROMPT_WEIGHT = 0.15  # of the loss of a prompt token; prompts are mostly random facts


@dataclass(frozen=True)
class Plan:
    """The options of the training run. Tokens and learning rate come from trials of a few hundred steps."""

    steps: int = 850
    tokens_per_step: int = 6_000
    warmup_steps: int = 40
    learning_rate: float = 4e-3
    weight_decay: float = 0.05
    long_from: float = 0.6  # long passages are used after this share of the run
    seed: int = 7


def model_config() -> LlamaConfig:
    """Returns the shape: 24 layers of width 256, 12.9 million parameters, 25.7 MB in bfloat16."""
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=384,
        num_hidden_layers=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=SPECIAL.index("<|pad|>"),
        bos_token_id=SPECIAL.index("<|begin|>"),
        eos_token_id=SPECIAL.index("<|end|>"),
        rms_norm_eps=1e-5,
    )


def make_tokenizer(work: Path) -> None:
    """Trains a byte-level BPE tokenizer on 12,000 examples of each family. Each digit is one token."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )

    def texts() -> Iterator[str]:
        for index in range(12_000):
            for family in FAMILIES:
                messages = example(family, "train", index).messages
                if family == "passages":
                    messages = write_passages(random.Random(f"train/passages/{index}")) if index < 500 else []
                yield from (message["content"] for message in messages)

    tokenizer.train_from_iterator(texts(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|begin|>",
        eos_token="<|end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|system|>", "<|user|>", "<|assistant|>"],
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(work / "target")
    print(f"tokenizer: {len(fast)} tokens")


def plain_attention(
    module: torch.nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: None, scaling: float, **_: object
) -> tuple[Tensor, None]:
    """Computes causal attention. Up to 1,500 rows it trains twice as fast on a CPU as the fused kernel."""
    groups, rows = q.shape[1] // k.shape[1], q.shape[2]
    if rows > 1500:
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=True)
        return out.transpose(1, 2).contiguous(), None
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    hidden = torch.full((rows, rows), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
    weights = torch.softmax((q * scaling) @ k.transpose(2, 3) + hidden, -1)
    return (weights @ v).transpose(1, 2).contiguous(), None


class FusedNorm(LlamaRMSNorm):
    """LlamaRMSNorm in one fused kernel."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return rms_norm(hidden_states, hidden_states.shape[-1:], self.weight, self.variance_epsilon)


def new_model(config: LlamaConfig, dtype: torch.dtype = torch.bfloat16) -> LlamaForCausalLM:
    """Makes the untrained model, with the faster attention and norm above."""
    AttentionInterface.register("plain", plain_attention)
    config._attn_implementation = "plain"
    model = LlamaForCausalLM(config).to(dtype)
    for module in model.modules():
        if isinstance(module, LlamaRMSNorm):
            module.__class__ = FusedNorm
    return model


class Evaluation:
    """The evaluation answers, which training must not contain. They are found by their first eight words."""

    def __init__(self) -> None:
        self.by_start: dict[tuple[str, ...], list[str]] = {}
        for family in FAMILIES:
            for index in range(EVAL_EXAMPLES):
                for message in example(family, "eval", index).messages:
                    if message["role"] == "assistant":
                        self.add(message["content"])

    def add(self, answer: str) -> None:
        """Adds an answer that training must not contain."""
        self.by_start.setdefault(tuple(answer.split()[:8]), []).append(answer)

    def occurs_in(self, messages: Messages) -> bool:
        """Returns True if one of these messages contains an evaluation answer."""
        for message in messages:
            words = message["content"].split()
            for start in range(len(words) - 7):
                for answer in self.by_start.get(tuple(words[start : start + 8]), ()):
                    if answer in message["content"]:
                        return True
        return False


def example_messages(index: int, long: bool = True) -> Messages:
    """Returns training conversation `index`. The families take turns; without `long`, all passages are short."""
    family = list(FAMILIES)[index % len(FAMILIES)]
    if family == "passages" and not long:
        return write_passages(random.Random(f"train/passages/{index}"), SHORT_SIZE)
    return example(family, "train", index).messages


class Text:
    """The training conversations as (ids, weights), determined by their index."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, evaluation: Evaluation) -> None:
        self.tokenizer = tokenizer
        self.evaluation = evaluation
        vocab = tokenizer.get_vocab()
        self.special = {token: vocab[token] for token in SPECIAL}

    def row(self, index: int, long: bool) -> tuple[list[int], list[float]] | None:
        """Returns conversation `index`, or None if it contains an evaluation answer or exceeds 4,096 tokens."""
        messages = example_messages(index, long)
        if self.evaluation.occurs_in(messages):
            return None
        ids, weights = self.encode(messages)
        return (ids, weights) if len(ids) <= 4096 else None

    def encode(self, messages: Messages) -> tuple[list[int], list[float]]:
        """Encodes messages like the chat template. Answers and their end tokens weigh 1, prompts PROMPT_WEIGHT."""
        ids, weights = [self.special["<|begin|>"]], [0.0]
        for message in messages:
            body = self.tokenizer.encode(message["content"], add_special_tokens=False)
            weight = 1.0 if message["role"] == "assistant" else PROMPT_WEIGHT
            ids += [self.special[f"<|{message['role']}|>"], *body, self.special["<|end|>"]]
            weights += [0.0, *[weight] * (len(body) + 1)]
        return ids, weights

    def batches(self, first: int, tokens: int, long: bool) -> tuple[list[tuple[Tensor, Tensor]], int]:
        """Returns about `tokens` tokens as padded batches (ids, weights) sorted by length, and the next index."""
        rows, count, index = [], 0, first
        while count < tokens:
            row = self.row(index, long)
            index += 1
            if row is not None:
                rows.append(row)
                count += len(row[0])
        rows.sort(key=lambda row: len(row[0]))
        groups: list[list[tuple[list[int], list[float]]]] = [[]]
        for row in rows:
            if len(groups[-1]) * len(row[0]) > 4096 or (groups[-1] and len(row[0]) > 1.3 * len(groups[-1][0][0]) + 32):
                groups.append([])
            groups[-1].append(row)
        return [_pad(group) for group in groups if group], index


def _pad(rows: list[tuple[list[int], list[float]]]) -> tuple[Tensor, Tensor]:
    width = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows])
    weights = torch.tensor([weights + [0.0] * (width - len(weights)) for _, weights in rows])
    return ids, weights


def batch_loss(model: LlamaForCausalLM, ids: Tensor, weights: Tensor) -> Tensor:
    """Returns the weighted sum of next-token losses; a sum, because the batches of a step are added. Pads are right."""
    hidden = model.model(ids[:, :-1], use_cache=False).last_hidden_state
    kept = weights[:, 1:] > 0
    losses = cross_entropy(model.lm_head(hidden[kept]).float(), ids[:, 1:][kept], reduction="none")
    return (losses * weights[:, 1:][kept]).sum()


@torch.no_grad()
def perplexities(model: LlamaForCausalLM, text: Text, examples: int) -> dict[str, float]:
    """Computes the perplexity of the held-out reference answers for each family."""
    result = {}
    for family in FAMILIES:
        total = count = 0.0
        for index in range(examples):
            ids, weights = text.encode(example(family, "eval", index).messages)
            row = torch.tensor([ids]), torch.tensor([[weight if weight == 1.0 else 0.0 for weight in weights]])
            total += float(batch_loss(model, *row))
            count += float(row[1].sum())
        result[family] = round(math.exp(total / count), 3)
    return result


class Masters:
    """Float32 copies of the weights, with Muon for the matrices and AdamW for the rest."""

    def __init__(self, model: LlamaForCausalLM, plan: Plan) -> None:
        self.plan = plan
        self.weights = dict(model.named_parameters())
        self.copies = {name: weight.detach().float().requires_grad_() for name, weight in self.weights.items()}
        matrices = [copy for name, copy in self.copies.items() if copy.ndim == 2 and "embed" not in name]
        others = [copy for name, copy in self.copies.items() if copy.ndim != 2 or "embed" in name]
        rate, decay = plan.learning_rate, plan.weight_decay
        self.optimizers = (
            torch.optim.Muon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0),
        )

    def step(self, step: int) -> None:
        """Takes one optimizer step and deletes the gradients. The rate warms up and then decays linearly to 2 %."""
        warm = min(1.0, (step + 1) / self.plan.warmup_steps)
        scale = warm * max(0.02, 1.0 - step / self.plan.steps)
        for name, weight in self.weights.items():
            assert weight.grad is not None, name
            self.copies[name].grad = weight.grad.float()
            weight.grad = None
        torch.nn.utils.clip_grad_norm_(list(self.copies.values()), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.plan.learning_rate * scale
            optimizer.step()
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(self.copies[name])


def train(work: Path, plan: Plan) -> None:
    """Trains the model and saves every 50 steps to WORK/state.pt, from which a later call resumes."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(work / "target")
    text = Text(tokenizer, Evaluation())
    torch.manual_seed(plan.seed)
    model = new_model(model_config())
    masters = Masters(model, plan)
    state_file, step, index = work / "state.pt", 0, 0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        step, index = state["step"], state["index"]
        for name, copy in masters.copies.items():
            copy.data.copy_(state["weights"][name])
            masters.weights[name].data.copy_(copy.data)
        for optimizer, saved in zip(masters.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
    started, seen = time.monotonic(), 0
    while step < plan.steps:
        batches, index = text.batches(index, plan.tokens_per_step, long=step > plan.long_from * plan.steps)
        weight = sum(float(weights[:, 1:].sum()) for _, weights in batches)
        loss = 0.0
        for ids, weights in batches:
            part = batch_loss(model, ids, weights) / weight
            part.backward()
            loss += part.item()
            seen += int((ids > 0).sum())
        masters.step(step)
        step += 1
        if step % 10 == 0:
            rate = seen / (time.monotonic() - started)
            left = (plan.steps - step) * plan.tokens_per_step / rate / 60
            print(f"step {step} loss {loss:.3f} index {index} {rate:.0f} tokens/s, {left:.0f} min left", flush=True)
        if step % 50 == 0 or step == plan.steps:
            state = {"step": step, "index": index, "weights": {n: c.data for n, c in masters.copies.items()}}
            state["optimizers"] = [optimizer.state_dict() for optimizer in masters.optimizers]
            torch.save(state, work / "state.tmp")
            (work / "state.tmp").replace(state_file)
        if step % 150 == 0 or step == plan.steps:
            print(json.dumps(perplexities(model, text, 12)), flush=True)
    model.save_pretrained(work / "target", max_shard_size="14MB")
    (work / "target" / "made.json").write_text(json.dumps({"documents": index, "steps": step}) + "\n")


def publish(work: Path) -> None:
    """Copies the finished target into the package."""
    place = Path(__file__).parent.parent / "src" / "eyas" / "embedded" / "target"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(work / "target", place)
    print(f"{sum(path.stat().st_size for path in place.iterdir()) / 1e6:.1f} MB in {len(list(place.iterdir()))} files")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("tokenizer", "train", "publish"))
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=Plan.steps)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.stage == "tokenizer":
        make_tokenizer(arguments.work)
    elif arguments.stage == "train":
        train(arguments.work, Plan(steps=arguments.steps))
    else:
        publish(arguments.work)


if __name__ == "__main__":
    main()
