"""A body that fits the schema -> requests of the engine."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from eyas.base.errors import EyasError
from eyas.engine.grammar import Grammar, GrammarVocab
from eyas.engine.request import Request, StopCriteria
from eyas.model.target import Target
from eyas.server.chat_prompt import encode_chat, encode_text
from eyas.server.http_errors import ApiError, bad_request, to_api_error
from eyas.server.openai_requests import (
    MAX_CHOICES,
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    StructuredOutputs,
    Tool,
    content_text,
)
from eyas.tree.sampling import SamplingParams

NUM_SEEDS = 2**62  # what torch's generators take, with room for seed + i
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions

ANY_OBJECT = {"type": "object"}

Ids = tuple[int, ...]


@dataclass(frozen=True)
class RequestParser:
    """Its methods take a while (tokenizer, template, grammar) and are called on one thread: tokenizers bear no two."""

    target: Target
    context: int  # most tokens of prompt and answer

    def parse_chat(self, body: ChatRequest, id_prefix: str) -> list[Request]:
        """n requests, named `name`-0, `name`-1, ... ApiError."""
        tools = [] if body.tools is None or body.tool_choice == "none" else body.tools
        prompt = self.encode_messages(body.messages, tools)
        asked = body.max_completion_tokens or body.max_tokens
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        return self._build_requests(body, id_prefix, [prompt], "messages", asked, logprobs)

    def parse_completion(self, body: CompletionRequest, id_prefix: str) -> list[Request]:
        """n requests for each prompt; those of the first prompt come first. ApiError."""
        prompts = self._prompts(body)
        asked = body.max_tokens or DEFAULT_COMPLETION_TOKENS
        return self._build_requests(body, id_prefix, prompts, "prompt", asked, body.logprobs)

    def encode_messages(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> Ids:
        """What the template makes of messages. ApiError."""
        self._check_length(sum(len(content_text(message.content) or "") for message in messages), "messages")
        try:
            return encode_chat(messages, tools, self.target.tokenizer)
        except EyasError as error:
            raise to_api_error(error, "messages") from None

    def encode_prompt(self, text: str) -> Ids:
        """A plain prompt. ApiError."""
        self._check_length(len(text), "prompt")
        return encode_text(text, self.target.tokenizer)

    def _prompts(self, body: CompletionRequest) -> list[Ids]:
        prompt = body.prompt
        if isinstance(prompt, str):
            return [self.encode_prompt(prompt)]
        texts = [one for one in prompt if isinstance(one, str)]
        if texts:
            return [self.encode_prompt(one) for one in texts]
        lists = [one for one in prompt if isinstance(one, list)]
        prompts = [tuple(one) for one in lists] or [tuple(one for one in prompt if isinstance(one, int))]
        for ids in prompts:
            self._check_token_ids(ids, "prompt")
        return prompts

    def _build_requests(
        self,
        body: GenerationRequest,
        id_prefix: str,
        prompts: Sequence[Ids],
        param: str,
        asked: int | None,
        logprobs: int | None,
    ) -> list[Request]:
        count = body.n or 1
        if len(prompts) * count > MAX_CHOICES:
            found = f"{len(prompts)} prompts with n = {count}"
            raise bad_request(found, f"at most {MAX_CHOICES} answers in one call", "send several calls", param="n")
        limits = [self._max_tokens(prompt, param, asked) for prompt in prompts]
        sampling, stop, grammar = self._sampling(body), self._stop(body), self._grammar(body)
        wants_rounds = body.stream_options is not None and bool(body.stream_options.include_rounds)
        seed = secrets.randbelow(NUM_SEEDS) if body.seed is None else body.seed % NUM_SEEDS
        return [
            Request(
                id=f"{id_prefix}-{index}",
                prompt_ids=prompts[index // count],
                max_tokens=limits[index // count],
                sampling=sampling,
                seed=seed + index,
                stop=stop,
                speculation=body.speculation or "auto",
                logprobs=logprobs,
                wants_text=True,
                wants_rounds=wants_rounds,
                grammar=grammar,
            )
            for index in range(len(prompts) * count)
        ]

    def _max_tokens(self, prompt: Ids, param: str, asked: int | None) -> int:
        """How many tokens the answer may have; without max_tokens, what is left of the context."""
        room = self.context - len(prompt)
        if not prompt:
            raise bad_request(f"{param} without a token", "at least one", "write something", param=param)
        if room < max(asked or 1, 1):
            wanted = "" if asked is None else f" and {asked} for the answer"
            raise bad_request(
                f"{len(prompt)} tokens in {param}{wanted}",
                f"at most {self.context} together, the context of this server",
                "shorten the prompt or ask for less",
                param=param,
                code="context_length_exceeded",
            )
        return room if asked is None else asked

    def _sampling(self, body: GenerationRequest) -> SamplingParams:
        bias = {int(token): value for token, value in (body.logit_bias or {}).items()}
        self._check_token_ids(bias, "logit_bias")
        try:
            return SamplingParams(
                temperature=1.0 if body.temperature is None else body.temperature,
                top_k=body.top_k if body.top_k and body.top_k > 0 else None,
                top_p=body.top_p,
                min_p=body.min_p,
                repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
                presence_penalty=body.presence_penalty or 0.0,
                frequency_penalty=body.frequency_penalty or 0.0,
                logit_bias=bias,
            )
        except EyasError as error:
            raise to_api_error(error) from None

    def _stop(self, body: GenerationRequest) -> StopCriteria:
        strings = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
        ids = tuple(body.stop_token_ids or ())
        self._check_token_ids(ids, "stop_token_ids")
        return StopCriteria(strings, ids, bool(body.ignore_eos))

    def _grammar(self, body: GenerationRequest) -> Grammar | None:
        """The one constraint that the body asks for, whichever name it has. ApiError."""
        outputs, wanted = body.structured_outputs or StructuredOutputs(), body.response_format
        schemas = {"guided_json": body.guided_json, "structured_outputs.json": outputs.json_}
        if isinstance(wanted, JsonObjectFormat):
            schemas["response_format"] = ANY_OBJECT
        elif isinstance(wanted, JsonSchemaFormat):
            schemas["response_format"] = wanted.json_schema.schema_ or ANY_OBJECT
        regexes = {"guided_regex": body.guided_regex, "structured_outputs.regex": outputs.regex}
        asked = [name for name, value in (*schemas.items(), *regexes.items()) if value is not None]
        if not asked:
            return None
        if body.ignore_eos:
            asked.append("ignore_eos")
        if len(asked) > 1:
            raise bad_request(" and ".join(asked), "one of them", "leave the others out", param=asked[1])
        param = asked[0]
        schema, regex = schemas.get(param), regexes.get(param)
        try:
            if schema is not None:
                return Grammar.json_schema(self._vocab, schema)
            assert regex is not None, asked
            return Grammar.regex(self._vocab, regex)
        except EyasError as error:
            raise to_api_error(error, param) from None

    @cached_property
    def _vocab(self) -> GrammarVocab:
        facts = self.target.info
        return GrammarVocab(self.target.tokenizer, facts.vocab_size, facts.eos_ids)

    def _check_length(self, num_chars: int, param: str) -> None:
        """Refuse a text that cannot fit whatever its tokens are, before a tokenizer spends seconds on it."""
        most = self.context * self._longest_token
        if num_chars > most:
            raise bad_request(
                f"{num_chars} characters in {param}",
                f"at most {most}, which a context of {self.context} tokens may just hold",
                "shorten the prompt",
                param=param,
                code="context_length_exceeded",
            )

    @cached_property
    def _longest_token(self) -> int:
        """Characters; names have at least as many as the text that they stand for."""
        return max(len(name) for name in self.target.tokenizer.get_vocab())

    def _check_token_ids(self, ids: "Ids | dict[int, float]", param: str) -> None:
        size = self.target.info.vocab_size
        wrong = next((token for token in ids if token >= size), None)
        if wrong is not None:
            raise bad_request(f"token {wrong} in {param}", f"ids below {size}", "correct it", param=param)


def check_model(asked: str | None, served: str) -> None:
    """ApiError 404 as OpenAI's for another model than the one that is served."""
    if asked is not None and asked != served:
        message = str(EyasError(f"model {asked[:80]!r}", f"{served!r}, the one that is served", "correct the name"))
        raise ApiError(404, message, param="model", code="model_not_found")
