"""Drafters: each one file."""

from draftproof.draft.base import Drafter, DraftSession, Proposal
from draftproof.draft.null import NullDrafter

__all__ = ["DraftSession", "Drafter", "NullDrafter", "Proposal"]
