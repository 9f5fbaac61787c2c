from tests.drafters.blocks import learned
from tests.engine.pairs import llama

__all__ = ["learned", "llama"]
