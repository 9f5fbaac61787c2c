"""Converts request bodies to engine requests: renders, tokenizes, and builds sampling parameters and grammars."""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from eyas.base.errors import EyasError
from eyas.chat.conversation import Role, TemplateMessage
from eyas.chat.infill import Infill
from eyas.chat.render import RESERVED_VARIABLES, render_prompt
from eyas.chat.tool_format import ToolFormat
from eyas.chat.tool_grammar import write_answer_grammar, write_tool_grammar
from eyas.engine.grammar import Grammar, GrammarVocab
from eyas.engine.min_length import MinLength
from eyas.engine.request import Request, StopCriteria
from eyas.model.target import Target
from eyas.server import openai_requests
from eyas.server.http_errors import ApiError, bad_request, to_api_error
from eyas.server.openai_messages import AssistantMessage, ChatMessage, Tool, ToolCall, ToolMessage, content_text
from eyas.server.openai_requests import MAX_CHOICES, ChatRequest, CompletionRequest, GenerationRequest
from eyas.server.tool_use import ToolUse, find_tool_use, no_tools
from eyas.tree.sampling import SamplingParams

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, for /v1/completions
NUM_SEEDS = 2**62  # within torch's range
DEFAULT_TEMPERATURE = 1.0  # OpenAI's
SAMPLING_KEYS = {"temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"}
ANY_OBJECT = {"type": "object"}

Ids = tuple[int, ...]


@dataclass(frozen=True)
class RequestParser:
    """The parser of the request bodies of all routes.

    Its methods take long (tokenizer, template, grammar). They run on one thread, because tokenizers are not
    thread-safe. All raise ApiError.

    Attributes:
        target: The target, for its tokenizer and chat template.
        context: The maximum number of prompt and output tokens together.
    """

    target: Target
    context: int

    def parse(self, body: GenerationRequest, id_prefix: str, tenant: str = "") -> list[Request]:
        """Converts a body to engine requests: n for the first prompt, then n for the second, and so on.

        Args:
            body: the validated body.
            id_prefix: the requests get the ids `id_prefix`-0, `id_prefix`-1, ...
            tenant: the owner of the requests; "" for none.
        """
        is_chat = isinstance(body, ChatRequest)
        tool_use = self.tool_use(body) if is_chat else None
        tools: Sequence[Tool] = () if tool_use is None else tool_use.tools
        if is_chat:
            param, prompts = "messages", [self.encode_messages(body.messages, tools, body.template_variables)]
        else:
            assert isinstance(body, CompletionRequest), type(body)
            param, prompts = "prompt", self._encode_prompts(body)
        n = body.n or 1
        if len(prompts) * n > MAX_CHOICES:
            text = f"{len(prompts)} prompts with n={n} need {len(prompts) * n} outputs, but one call may have "
            raise bad_request(f"{text}{MAX_CHOICES}. Send several calls.", param="n", code="too_many_choices")
        limit, logprobs = _output_limit(body), _num_logprobs(body)
        limits = [self._max_tokens(prompt, param, limit) for prompt in prompts]
        sampling, stop = self._sampling(body), self._stop(body)
        grammar = self._grammar(body, tool_use, prompts[0]) or self._min_length(body, stop)
        shown_ids = frozenset() if tool_use is None else tool_use.format.marker_ids
        if body.skip_special_tokens is False:
            added = self.target.tokenizer.added_tokens_decoder
            shown_ids |= {token for token, entry in added.items() if entry.special} - set(self.target.info.eos_ids)
        wants_rounds = bool(body.stream and body.stream_options and body.stream_options.include_rounds)
        seed = secrets.randbelow(NUM_SEEDS) if body.seed is None else body.seed
        return [
            Request(
                id=f"{id_prefix}-{index}",
                prompt_ids=prompts[index // n],
                max_tokens=limits[index // n],
                sampling=sampling,
                seed=(seed + index) % NUM_SEEDS,
                stop=stop,
                speculation=body.speculation or "auto",
                logprobs=logprobs,
                wants_text=True,
                shown_ids=shown_ids,
                tenant=tenant,
                wants_rounds=wants_rounds,
                grammar=grammar,
            )
            for index in range(len(prompts) * n)
        ]

    def encode_messages(
        self, messages: Sequence[ChatMessage], tools: Sequence[Tool], variables: Mapping[str, Any] | None = None
    ) -> Ids:
        """Returns the ids of the rendered messages, up to the start of the next assistant message."""
        self._check_length(sum(len(content_text(message.content) or "") for message in messages), "messages")
        if tools and not self._tool_format.knows_tools:
            raise no_tools("tools")
        rendered = [self._to_message(index, message) for index, message in enumerate(messages)]
        try:
            described = [tool.model_dump(exclude={"function": {"strict"}}, exclude_none=True) for tool in tools]
            return tuple(render_prompt(rendered, self.target.tokenizer, described, variables))
        except EyasError as error:
            is_reserved = RESERVED_VARIABLES & set(variables or ())
            raise to_api_error(error, "chat_template_kwargs" if is_reserved else "messages") from None

    def tool_use(self, body: ChatRequest) -> ToolUse | None:
        """Returns how the answers may call tools; None if they may not."""
        return find_tool_use(body, self._tool_format)

    def encode_prompt(self, text: str) -> Ids:
        """Returns the ids of a plain prompt, with the begin-of-text token if the tokenizer adds one."""
        self._check_length(len(text), "prompt")
        return tuple(self.target.tokenizer.encode(text, verbose=False))

    def _encode_prompts(self, body: CompletionRequest) -> list[Ids]:
        prompts = [self.encode_prompt(item) if isinstance(item, str) else item for item in split_prompts(body.prompt)]
        for ids in prompts:
            self._check_token_ids(ids, "prompt")
        if not body.suffix:
            return prompts
        self._check_length(len(body.suffix), "suffix")
        return [self._infill.encode(ids, body.suffix) for ids in prompts]

    def echoed_texts(self, body: CompletionRequest) -> list[str]:
        """Returns the text of the prompt of each output; [] if `echo` is not set. Raises ApiError for unknown ids."""
        decode = self.target.tokenizer.decode
        items = split_prompts(body.prompt) if body.echo else []
        for item in items:
            self._check_token_ids(() if isinstance(item, str) else item, "prompt")
        texts = [item if isinstance(item, str) else str(decode(list(item))) for item in items]
        return [text for text in texts for _ in range(body.n or 1)]

    def _max_tokens(self, prompt: Ids, param: str, limit: int | None) -> int:
        """Returns the maximum number of output tokens. Raises ApiError if prompt and output exceed the context.

        Args:
            prompt: the token ids of the prompt.
            param: the name of the prompt's parameter, for the error.
            limit: the client's max_tokens; None for as many as the context allows.
        """
        available = self.context - len(prompt)
        if not prompt:
            raise bad_request(f"{param} has no tokens. Write at least one character.", param=param)
        if available < (1 if limit is None else limit):
            wanted = "" if limit is None else f" and max_tokens is {limit}"
            text = f"{param} has {len(prompt)} tokens{wanted}, but the context of this server has {self.context}. "
            fix = "Shorten the prompt or lower max_tokens."
            raise bad_request(text + fix, param=param, code="context_length_exceeded")
        return available if limit is None else limit

    def _sampling(self, body: GenerationRequest) -> SamplingParams:
        bias = {int(token): value for token, value in (body.logit_bias or {}).items()}
        self._check_token_ids(bias, "logit_bias")
        given = body.model_dump(include=SAMPLING_KEYS, exclude_none=True)
        top_k = body.top_k if body.top_k and body.top_k > 0 else None
        try:
            return SamplingParams(**{"temperature": DEFAULT_TEMPERATURE} | given, top_k=top_k, logit_bias=bias)
        except EyasError as error:
            raise to_api_error(error) from None

    def _stop(self, body: GenerationRequest) -> StopCriteria:
        strings = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
        ids = tuple(body.stop_token_ids or ())
        self._check_token_ids(ids, "stop_token_ids")
        if isinstance(body, CompletionRequest) and body.suffix:
            ids += self._infill.marker_ids
        return StopCriteria(strings, ids, bool(body.ignore_eos))

    def _min_length(self, body: GenerationRequest, stop: StopCriteria) -> MinLength | None:
        info = self.target.info
        end_ids = (*stop.ids, *(() if stop.ignore_eos else info.eos_ids))
        return MinLength(body.min_tokens, end_ids, info.vocab_size) if body.min_tokens and end_ids else None

    def _grammar(self, body: GenerationRequest, tool_use: ToolUse | None, prompt: Ids) -> Grammar | None:
        """Returns the grammar that the body asks for; None if it asks for none.

        Five parameters can hold a schema or regular expression. Raises ApiError if more than one of them is set. They
        have no effect if the answer must be a tool call.
        """
        reader, tool_use = tool_use, tool_use if tool_use is not None and tool_use.tools else None
        outputs, response_format = body.structured_outputs or openai_requests.StructuredOutputs(), body.response_format
        schemas = {"guided_json": body.guided_json, "structured_outputs.json": outputs.json_}
        if isinstance(response_format, openai_requests.JsonObjectFormat):
            schemas["response_format"] = ANY_OBJECT
        elif isinstance(response_format, openai_requests.JsonSchemaFormat):
            schemas["response_format"] = response_format.json_schema.schema_ or ANY_OBJECT
        regexes = {"guided_regex": body.guided_regex, "structured_outputs.regex": outputs.regex}
        names = [name for name, value in (*schemas.items(), *regexes.items()) if value is not None]
        if tool_use is not None and any(name in regexes for name in names):
            names.append("tools")
        _check_exclusive(names, body)
        if tool_use is not None and (tool_use.choice != "auto" or not names):
            names = [] if tool_use.rules(None) is None else ["tools"]
            _check_exclusive(names, body)
        if not names:
            return None
        param = names[0]
        schema, regex = schemas.get(param), regexes.get(param)
        try:
            around = None if reader is None else self._thoughts(reader, prompt)
            grammar = None if schema is None else Grammar.json_schema(self._vocab, schema, around)
            if tool_use is not None:
                return self._tool_grammar(tool_use, json.loads(schema) if isinstance(schema, str) else schema, around)
            if grammar is not None:
                return grammar
            assert regex is not None, names
            return Grammar.regex(self._vocab, regex, around)
        except EyasError as error:
            raise bad_request(str(error), param=param, code="invalid_grammar") from None

    def _tool_grammar(self, tool_use: ToolUse, content: dict[str, Any] | None, around: str | None) -> Grammar:
        rules = tool_use.rules(None if tool_use.choice != "auto" else content)
        assert rules is not None
        text = write_tool_grammar(tool_use.family, rules, self._vocab.special_ids, self._vocab.eos_ids)
        return Grammar.lark(self._vocab, text, "the tools", around)

    def _thoughts(self, tool_use: ToolUse, prompt: Ids) -> str | None:
        """Returns the grammar of the thoughts before what the client asks for; None if there are none."""
        thoughts, opener = tool_use.format.answer_opener(prompt)
        opener = "" if tool_use.tools else opener
        return write_answer_grammar(thoughts, opener, self._vocab.special_ids) if thoughts else None

    @cached_property
    def _tool_format(self) -> ToolFormat:
        return ToolFormat(self.target.tokenizer)

    def _to_message(self, index: int, message: ChatMessage) -> TemplateMessage:
        extra: dict[str, Any] = {} if message.name is None else {"name": message.name}
        content = content_text(message.content)
        if reasoning := getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None):
            extra |= {"reasoning_content": reasoning, "reasoning": reasoning}  # templates read one or the other
        if isinstance(message, AssistantMessage) and message.tool_calls:
            if not self._tool_format.knows_tools and self._tool_format.family is None:
                raise no_tools("messages")
            extra["tool_calls"] = []
            for number, call in enumerate(message.tool_calls):
                _check_arguments(call, f"messages.{index}.tool_calls.{number}.function.arguments")
                name, arguments = call.function.name, call.function.arguments or "{}"
                extra["tool_calls"].append(self._tool_format.template_call(call.id, name, arguments))
        if isinstance(message, ToolMessage):
            extra["tool_call_id"] = message.tool_call_id
        role = "system" if message.role == "developer" else message.role
        return TemplateMessage(cast(Role, role), content or "", extra_fields=extra)

    @cached_property
    def _infill(self) -> Infill:
        try:
            return Infill(self.target.tokenizer)
        except EyasError as error:
            raise bad_request(str(error), param="suffix", code="suffix_not_supported") from None

    @cached_property
    def _vocab(self) -> GrammarVocab:
        info = self.target.info
        return GrammarVocab(self.target.tokenizer, info.vocab_size, info.eos_ids)

    def _check_length(self, num_chars: int, param: str) -> None:
        """Raises ApiError for a text that is too long for the context however it is tokenized. This saves seconds."""
        limit = self.context * self._longest_token
        if num_chars > limit:
            text = f"{param} has {num_chars} characters, but a context of {self.context} tokens holds at most {limit}. "
            raise bad_request(text + "Shorten the prompt.", param=param, code="context_length_exceeded")

    @cached_property
    def _longest_token(self) -> int:
        """The number of characters of the longest name in the vocabulary. No token's text is longer than its name."""
        return max(len(name) for name in self.target.tokenizer.get_vocab())

    def _check_token_ids(self, ids: Iterable[int], param: str) -> None:
        size = self.target.info.vocab_size
        if invalid := next((token for token in ids if token >= size), None):
            text = f"{param} has the token id {invalid}, but the ids end at {size - 1}."
            raise bad_request(text, param=param, code="unknown_token_id")


def _check_exclusive(names: list[str], body: GenerationRequest) -> None:
    """Raises ApiError if more than one parameter asks for a grammar, or one beside ignore_eos or min_tokens."""
    others = ["ignore_eos"] * bool(body.ignore_eos) + ["min_tokens"] * bool(body.min_tokens)
    names = [*names, *others] if names else []
    if len(names) > 1:
        raise bad_request(f"{' and '.join(names)} exclude each other. Keep one of them.", param=names[1])


def _output_limit(body: GenerationRequest) -> int | None:
    """Returns the maximum number of output tokens; None for as many as the context allows."""
    if isinstance(body, ChatRequest):
        return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens


def _num_logprobs(body: GenerationRequest) -> int | None:
    """Returns the number of alternatives for each token; None for no log-probabilities. Raises ApiError."""
    if isinstance(body, ChatRequest):
        if body.top_logprobs is not None and not body.logprobs:
            text = "top_logprobs works only with logprobs=true. Set logprobs=true or remove top_logprobs."
            raise bad_request(text, param="top_logprobs")
        return (body.top_logprobs or 0) if body.logprobs else None
    assert isinstance(body, CompletionRequest), type(body)
    if body.echo and body.logprobs is not None:
        text = "echo works only without logprobs, because the server computes none for prompts. Remove one of them."
        raise bad_request(text, param="echo")
    return body.logprobs


def split_prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[str | Ids]:
    """Returns the prompts of a completion request: each a text or token ids."""
    if isinstance(prompt, str):
        return [prompt]
    numbers = tuple(item for item in prompt if isinstance(item, int))
    items = [item if isinstance(item, str) else tuple(item) for item in prompt if not isinstance(item, int)]
    return [numbers] if numbers else items


def check_model(name: str | None, served: str) -> None:
    """Raises ApiError 404 if a body names another model than the served one. name: None if the body names no model."""
    if name is not None and name != served:
        text = f"The model {name[:80]!r} is not served here. Use {served!r}."
        raise ApiError(404, text, param="model", code="model_not_found")


def _check_arguments(call: ToolCall, param: str) -> None:
    """Raises ApiError for arguments that are not a JSON object. Empty text counts as one, as clients send it."""
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise bad_request(f'{param} is not a JSON object as text. Send for example "{{}}".', param=param)
