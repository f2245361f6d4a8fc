"""Exact attention, softmax(Q K^T scale) V, from an attnd server.

    client = attnd.connect("127.0.0.1:50051")
    output = client.scaled_dot_product_attention(query, key, value, is_causal=True)
    answer = client.attend(q, k, v, outputs=["weights", "lse"])

Arrays are NumPy's, torch's, or anything with `__array__` or DLPack. attnd.aio has the same client for asyncio.
"""

from __future__ import annotations

import functools
import os
import pkgutil
from typing import Any

# A program's own stubs of the contract, attnd/v1 on its path, stay what `import attnd.v1` finds.
__path__ = pkgutil.extend_path(__path__, __name__)

from attnd import aio
from attnd._arrays import Stored
from attnd._calls import Info, Plan, StoredTensor, StoredWeightSet
from attnd._client import BlockStream, Client, connect
from attnd._errors import (
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    Error,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from attnd._problem import Answer, Options, Projection, Rotary, Statistics
from attnd._stream import Block

__all__ = [
    "AlreadyExists",
    "Answer",
    "Block",
    "BlockStream",
    "Cancelled",
    "Client",
    "DeadlineExceeded",
    "Error",
    "FailedPrecondition",
    "Info",
    "Internal",
    "InvalidArgument",
    "NotFound",
    "Options",
    "PermissionDenied",
    "Plan",
    "Projection",
    "ResourceExhausted",
    "Rotary",
    "Statistics",
    "Stored",
    "StoredTensor",
    "StoredWeightSet",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "aio",
    "connect",
    "scaled_dot_product_attention",
]


@functools.cache
def _default_client() -> Client:
    return connect(os.environ.get("ATTND_SERVER", "127.0.0.1:50051"))


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Client.scaled_dot_product_attention of the server that the environment's ATTND_SERVER names (host:port; absent:
    127.0.0.1:50051), in plaintext. In place of torch.nn.functional's, argument by argument."""
    return _default_client().scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
