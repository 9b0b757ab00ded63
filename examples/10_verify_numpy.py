"""The acceptance step for an engine of your own, on NumPy arrays."""

import numpy as np

import draftproof as dp

VOCAB, DRAFT, BATCH = 8, 3, 2
rng = np.random.default_rng(0)


def model(sharpness: float, seed: int) -> np.ndarray:
    """Stands for a model: a law for each last token."""
    logits = sharpness * np.random.default_rng(seed).normal(size=(VOCAB, VOCAB))
    laws: np.ndarray = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return laws


target, drafter = model(1.5, seed=1), model(1.0, seed=1)

texts = [[0], [3]]
for _ in range(4):
    tokens = np.zeros((BATCH, DRAFT), dtype=int)
    q = np.zeros((BATCH, DRAFT, VOCAB))
    for row, text in enumerate(texts):
        last = text[-1]
        for i in range(DRAFT):
            q[row, i] = drafter[last]  # the very law that the token is drawn from
            last = tokens[row, i] = rng.choice(VOCAB, p=q[row, i])
    contexts = np.concatenate([[[text[-1]] for text in texts], tokens], axis=1)
    p = target[contexts]  # one pass: draft + 1 rows for each text

    num_accepted, out = dp.verify(p, tokens, q, uniforms=rng.random((BATCH, DRAFT + 1)), rule="block")

    for row, text in enumerate(texts):
        text += [int(token) for token in out[row] if token >= 0]
    print("accepted", num_accepted.tolist(), "texts", texts)
