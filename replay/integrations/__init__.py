"""Callbacks for trainers of other libraries; each module needs its library installed.

``huggingface`` (extra ``transformers``) and ``lightning`` (extra ``lightning``).
"""

from __future__ import annotations

__all__: list[str] = []
