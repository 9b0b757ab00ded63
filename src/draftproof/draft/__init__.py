"""Drafters: each one file."""

from draftproof.draft.base import Drafter, DraftSession, Proposal
from draftproof.draft.load import load_drafter
from draftproof.draft.model import ModelDrafter
from draftproof.draft.ngram import NgramDrafter
from draftproof.draft.null import NullDrafter
from draftproof.draft.suffix import SuffixDrafter

__all__ = [
    "DraftSession",
    "Drafter",
    "ModelDrafter",
    "NgramDrafter",
    "NullDrafter",
    "Proposal",
    "SuffixDrafter",
    "load_drafter",
]
