"""GPT-2 and GPT-3: a decoder-only transformer with learned positions and a tied output layer.

Source: Radford et al. 2019 (GPT-2) and Brown et al. 2020 (GPT-3, arXiv:2005.14165, table 2.1).
Pre-norm blocks, GELU in its tanh form as both use, biases everywhere, heads of the model's width
over the number of heads.

GPT-3 XL's row in the paper's table is inconsistent: 24 heads of 128 make 3072, not its width of
2048. We take 16 heads of 128, which keeps the head size and the width.

Left out: GPT-3's alternating locally banded attention (every layer is dense here), weight
initialisation beyond PyTorch's own (it changes no kernel), and data.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

__all__ = ["Gpt"]


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, heads, T, head size)
        mixed = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
        )
        out: torch.Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class _Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.act = nn.GELU(approximate="tanh")
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(self.act(self.up(x)))
        return out


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = _Attention(width, heads, dropout)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = _Mlp(width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop(self.attn(self.ln_1(x)))
        out: torch.Tensor = x + self.drop(self.mlp(self.ln_2(x)))
        return out


class Gpt(nn.Module):
    """Tokens (B, T) int64 to logits (B, T, vocab), or to the mean loss where targets are given."""

    def __init__(
        self, *, layers: int, width: int, heads: int, vocab: int, context: int, dropout: float
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(context, width)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList(_Block(width, heads, dropout) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Logits, or the mean cross-entropy of ``targets`` (B, T)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.wte(tokens) + self.wpe(positions))
        for block in self.h:
            x = block(x)
        logits: torch.Tensor = self.head(self.ln_f(x))
        if targets is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
