"""Speculative decoding that is provably lossless.

```python
import draftproof as dp

engine = dp.Engine("smollm2-135m", sampler=dp.Sampler(temperature=0.7, top_p=0.95))
for step in engine.stream("Once upon a time", max_tokens=64, seed=1):
    print(step.text, end="", flush=True)
```
"""

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
from draftproof.rules import CoupledRule, Rule, TokenRule
from draftproof.sampling import Sampler
from draftproof.types import Completion, Draft, Step, TokenLogprob, Usage, Verdict
from draftproof.version import __version__

__all__ = [
    "BackendError",
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
    "Drafter",
    "DraftproofError",
    "Engine",
    "Explanation",
    "FixedLength",
    "Lane",
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
    "Usage",
    "UsageError",
    "Verdict",
    "__version__",
    "explain_laws",
    "load",
]
