"""Models and the adapters of the libraries that run them."""

from draftproof.models.base import Model, Query, Rows, Session, Tokenizer
from draftproof.models.toy import ToyModel, ToyTokenizer

__all__ = ["Model", "Query", "Rows", "Session", "Tokenizer", "ToyModel", "ToyTokenizer"]
