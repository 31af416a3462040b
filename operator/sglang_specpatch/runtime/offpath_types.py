"""Names for SGLang's own objects that the decode off path handles; their classes differ from release to release.

They are not imported, since SGLang isn't there when this package is checked. What is used of them is fixed by the
tests that run on real SGLang sources.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Tensor: TypeAlias = Any
"""torch.Tensor"""

DataType: TypeAlias = Any
"""torch.dtype"""

Library: TypeAlias = Any
"""An imported module"""

Worker: TypeAlias = Any
"""EAGLEWorkerV2"""

Runner: TypeAlias = Any
"""ModelRunner, of the target or of the draft model"""

GraphRunner: TypeAlias = Any
"""DecodeCudaGraphRunner"""

Layer: TypeAlias = Any
"""RadixAttention"""

Batch: TypeAlias = Any
"""ScheduleBatch"""

ForwardBatch: TypeAlias = Any
"""ForwardBatch"""

Result: TypeAlias = Any
"""GenerationBatchResult"""

DraftInput: TypeAlias = Any
"""EagleDraftInput"""

Payload: TypeAlias = Any
"""What a step hands on to the next: RelayPayload, in older releases EagleDraftInput"""
