"""A state as an index and parts, and back. Large parts are written where they belong, without a second copy.

A state may hold anything that can be pickled. Tensors of PyTorch, arrays of NumPy and whatever else pickles
its memory out of band (PEP 574) become parts. PyTorch is used where the script has loaded it.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

ALIGNMENT = 64


def aligned(size: int, to: int = ALIGNMENT) -> int:
    """The size, rounded up."""
    return -(-size // to) * to


class Part(Protocol):
    """Memory of a state."""

    @property
    def nbytes(self) -> int: ...
    def copy_into(self, place: memoryview) -> None: ...


class Flat(NamedTuple):
    """A state as it is written: the index, and the parts that follow it."""

    head: bytes
    parts: Sequence[Part]

    @property
    def nbytes(self) -> int:
        return aligned(len(self.head)) + sum(aligned(part.nbytes) for part in self.parts)

    def write_into(self, memory: memoryview) -> None:
        """Write the index, then each part where the index says."""
        memory[: len(self.head)] = self.head
        at = aligned(len(self.head))
        for part in self.parts:
            with memory[at : at + part.nbytes] as place:
                part.copy_into(place)
            at += aligned(part.nbytes)


class _Bytes:
    def __init__(self, buffer: pickle.PickleBuffer) -> None:
        self._raw = buffer.raw()
        self.nbytes = self._raw.nbytes

    def copy_into(self, place: memoryview) -> None:
        place[:] = self._raw


class _Tensor:
    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor.detach()
        self.nbytes: int = tensor.numel() * tensor.element_size()

    def copy_into(self, place: memoryview) -> None:
        if self.nbytes:
            _view_as_tensor(place, self._tensor.dtype, self._tensor.shape).copy_(self._tensor)


def _view_as_tensor(memory: Any, dtype: Any, shape: Any) -> Any:
    torch = sys.modules["torch"]
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _is_plain_tensor(value: object) -> bool:
    """Whether it is a tensor that is all in one memory. Others are pickled as PyTorch pickles them."""
    torch = sys.modules.get("torch")
    if torch is None or type(value) not in (torch.Tensor, torch.nn.Parameter):
        return False
    return bool(value.layout == torch.strided and not value.is_quantized and not value.is_meta)  # type: ignore[attr-defined]  # it is a tensor


class TensorPlace(NamedTuple):
    """What stands in an index for a tensor."""

    part: int
    dtype: Any
    shape: tuple[int, ...]


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, parts: list[Part], buffers: list[int]) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._add_bytes)
        self._parts, self._buffers = parts, buffers

    def _add_bytes(self, buffer: pickle.PickleBuffer) -> None:
        self._buffers.append(len(self._parts))
        self._parts.append(_Bytes(buffer))

    def reducer_override(self, value: Any) -> Any:
        if not _is_plain_tensor(value):
            return NotImplemented
        place = TensorPlace(len(self._parts), value.dtype, tuple(value.shape))
        self._parts.append(_Tensor(value))
        return TensorPlace, tuple(place)


def flat(state: object) -> Flat:
    """The state as index and parts. No part is copied: the state must not change until they are written."""
    parts: list[Part] = []
    buffers: list[int] = []
    body = io.BytesIO()
    _Pickler(body, parts, buffers).dump(state)
    head = pickle.dumps(([part.nbytes for part in parts], buffers))
    return Flat(head + body.getvalue(), parts)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, parts: Sequence[memoryview], buffers: list[int]) -> None:
        super().__init__(file, buffers=[bytearray(parts[index]) for index in buffers])
        self._parts = parts

    def find_class(self, module: str, name: str) -> Any:
        is_place = (module, name) == (TensorPlace.__module__, TensorPlace.__qualname__)
        return self._tensor if is_place else super().find_class(module, name)

    def _tensor(self, part: int, dtype: Any, shape: tuple[int, ...]) -> Any:
        """A tensor with memory of its own: the next snapshot overwrites that of the part."""
        torch = sys.modules["torch"]
        tensor = torch.empty(shape, dtype=dtype)
        if tensor.numel():
            tensor.copy_(_view_as_tensor(self._parts[part], dtype, shape))
        return tensor


def unflattened(content: memoryview, index_bytes: int) -> Any:
    """The state that was written there, in memory of its own."""
    file = io.BytesIO(content[:index_bytes])
    sizes, buffers = pickle.load(file)  # this rank wrote it into memory of its own
    at, parts = aligned(index_bytes), []
    for size in sizes:
        parts.append(content[at : at + size])
        at += aligned(size)
    try:
        return _Unpickler(file, parts, buffers).load()
    finally:
        for part in parts:
            part.release()
