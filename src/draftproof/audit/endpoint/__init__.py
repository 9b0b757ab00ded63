"""Audits of servers: what they answer, against the target's laws and against what they promise."""

from draftproof.audit.endpoint.check import check_endpoint

__all__ = ["check_endpoint"]
