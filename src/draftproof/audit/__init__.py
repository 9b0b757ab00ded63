"""Audits: is this verification function, this engine, this backend, this server really lossless?"""

from draftproof.audit.assertion import assert_lossless
from draftproof.audit.backend import check_backend
from draftproof.audit.endpoint import check_endpoint
from draftproof.audit.engine import check_engine
from draftproof.audit.report import Finding, Power, Report, Verdict
from draftproof.audit.rule import check_rule

__all__ = [
    "Finding",
    "Power",
    "Report",
    "Verdict",
    "assert_lossless",
    "check_backend",
    "check_endpoint",
    "check_engine",
    "check_rule",
]
