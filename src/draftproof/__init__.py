"""Speculative decoding that is provably lossless.

```python
import draftproof as dp

engine = dp.Engine("smollm2-135m", sampler=dp.Sampler(temperature=0.7, top_p=0.95))
for step in engine.stream("Once upon a time", max_tokens=64, seed=1):
    print(step.text, end="", flush=True)
```
"""

import importlib
from typing import Any

from draftproof.bounds import (
    Estimate,
    block_optimum,
    draft_acceptance,
    expected_tokens,
    joint_overlap_bound,
    optimal_acceptance,
)
from draftproof.cost import CostTable
from draftproof.distribution import Distribution
from draftproof.draft import (
    Drafter,
    DraftSession,
    ModelDrafter,
    NgramDrafter,
    NullDrafter,
    Proposal,
    SuffixDrafter,
)
from draftproof.engine import Engine
from draftproof.errors import (
    BackendError,
    DraftError,
    DraftproofError,
    MissingDependencyError,
    ModelLoadError,
    ProcessorError,
    PromptTooLongError,
    RequestError,
    RowError,
    UsageError,
)
from draftproof.explain import Explanation, explain_laws
from draftproof.metrics import Counts, Timings
from draftproof.models import Model, Query, Rows, Session, Tokenizer, ToyModel, ToyTokenizer
from draftproof.models.load import load
from draftproof.noise import CounterNoise, Lane, Noise, ScriptedNoise
from draftproof.policy import DraftLengthPolicy, FixedLength, PayingLength
from draftproof.request import Request
from draftproof.rules import (
    BlockRule,
    CoupledRule,
    KSequentialRule,
    MatchRule,
    RecursiveRule,
    Rule,
    TokenRule,
    TraversalRule,
    TreeMatchRule,
    TreeRule,
)
from draftproof.sampling import Sampler
from draftproof.tree import DraftTree, TreeVerdict, siblings
from draftproof.tree_verification import verify_tree
from draftproof.types import Completion, Draft, Step, TokenLogprob, Usage, Verdict
from draftproof.verification import Verification, verify, verify_logits
from draftproof.version import __version__

__all__ = [
    "BackendError",
    "BlockRule",
    "Completion",
    "CostTable",
    "CounterNoise",
    "Counts",
    "CoupledRule",
    "Distribution",
    "Draft",
    "DraftError",
    "DraftLengthPolicy",
    "DraftSession",
    "DraftTree",
    "Drafter",
    "DraftproofError",
    "Engine",
    "Estimate",
    "Explanation",
    "FixedLength",
    "KSequentialRule",
    "Lane",
    "MatchRule",
    "MissingDependencyError",
    "Model",
    "ModelDrafter",
    "ModelLoadError",
    "NgramDrafter",
    "Noise",
    "NullDrafter",
    "PayingLength",
    "ProcessorError",
    "PromptTooLongError",
    "Proposal",
    "Query",
    "RecursiveRule",
    "Request",
    "RequestError",
    "RowError",
    "Rows",
    "Rule",
    "Sampler",
    "ScriptedNoise",
    "Session",
    "Step",
    "SuffixDrafter",
    "Timings",
    "TokenLogprob",
    "TokenRule",
    "Tokenizer",
    "ToyModel",
    "ToyTokenizer",
    "TraversalRule",
    "TreeMatchRule",
    "TreeRule",
    "TreeVerdict",
    "Usage",
    "UsageError",
    "Verdict",
    "Verification",
    "__version__",
    "block_optimum",
    "draft_acceptance",
    "expected_tokens",
    "explain_laws",
    "joint_overlap_bound",
    "load",
    "optimal_acceptance",
    "siblings",
    "verify",
    "verify_logits",
    "verify_tree",
]


def __getattr__(name: str) -> Any:
    # Loaded when asked for: audits are a small part of what most programs use.
    if name == "audit":
        return importlib.import_module("draftproof.audit")
    raise AttributeError(f"module 'draftproof' has no attribute {name!r}")
