"""BERT: an encoder with a masked-language-model head.

Source: Devlin et al. 2018 (arXiv:1810.04805). Post-norm blocks, GELU in its erf form, learned
positions and token types, output layer tied to the embedding.

Left out: next-sentence prediction and padding (sequences fill the batch, so attention needs no
mask); the loss is taken at every position, as the kernels do not depend on how many are masked.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

__all__ = ["Bert"]


class _SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        # (B, heads, T, head size)
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = functional.scaled_dot_product_attention(
            self._split(self.query(x)),
            self._split(self.key(x)),
            self._split(self.value(x)),
            dropout_p=self.dropout if self.training else 0.0,
        )
        out: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = _SelfAttention(width, heads, dropout)
        self.norm_1 = nn.LayerNorm(width, eps=1e-12)
        self.up = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * width, width)
        self.norm_2 = nn.LayerNorm(width, eps=1e-12)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm_1(x + self.drop(self.attention(x)))
        out: torch.Tensor = self.norm_2(x + self.drop(self.down(self.act(self.up(x)))))
        return out


class Bert(nn.Module):
    """Tokens (B, T) int64 to logits (B, T, vocab), or to the mean loss where targets are given."""

    def __init__(
        self, *, layers: int, width: int, heads: int, vocab: int, context: int, dropout: float
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(context, width)
        self.types = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.drop = nn.Dropout(dropout)
        self.layer = nn.ModuleList(_Layer(width, heads, dropout) for _ in range(layers))
        self.transform = nn.Linear(width, width)
        self.act = nn.GELU()
        self.transform_norm = nn.LayerNorm(width, eps=1e-12)
        self.decoder = nn.Linear(width, vocab)
        self.decoder.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Logits, or the mean cross-entropy of ``targets`` (B, T)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        embedded = self.tokens(tokens) + self.positions(positions)
        embedded = embedded + self.types(torch.zeros_like(tokens))
        x = self.drop(self.norm(embedded))
        for layer in self.layer:
            x = layer(x)
        logits: torch.Tensor = self.decoder(self.transform_norm(self.act(self.transform(x))))
        if targets is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
