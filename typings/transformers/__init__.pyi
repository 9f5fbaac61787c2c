"""Lets pyright skip `transformers/__init__.py`, which imports every model and takes a third of its time.

Configurations and tokenizers keep their types. Names that are not listed here, models among them, have the type Any.
"""

from typing import Any

from transformers.configuration_utils import PreTrainedConfig as PreTrainedConfig
from transformers.models.llama.configuration_llama import LlamaConfig as LlamaConfig
from transformers.tokenization_utils_base import PreTrainedTokenizerBase as PreTrainedTokenizerBase
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast as PreTrainedTokenizerFast

__version__: str

def __getattr__(name: str) -> Any: ...
