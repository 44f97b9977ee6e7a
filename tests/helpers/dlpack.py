# SPDX-License-Identifier: Apache-2.0
"""DLPack producers that say what a test wants, true or not: by capsule and by exchange table.

What they lend is host memory of a numpy array, whatever device they claim.
"""

import ctypes

import numpy as np

CPU, CUDA, ROCM = 1, 2, 10
READ_ONLY, COPIED = 1, 2

_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_api.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_GetName.restype = ctypes.c_char_p
_api.PyCapsule_GetName.argtypes = (ctypes.py_object,)

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class DLManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


def describe(array, **changes):
    """Return a DLTensor of the array, with fields changed; and what it points at."""
    item = array.dtype.itemsize
    fields = {
        "data": array.ctypes.data if array.size else None,
        "device_type": CPU,
        "device_id": 0,
        "ndim": array.ndim,
        "code": _CODES[array.dtype.kind],
        "bits": item * 8,
        "lanes": 1,
        "byte_offset": 0,
        "shape": array.shape,
        "strides": tuple(stride // item for stride in array.strides),
    } | changes
    kept = [array]
    for name in ("shape", "strides"):
        if fields[name] is not None:
            numbers = (ctypes.c_int64 * max(len(fields[name]), 1))(*fields[name])
            kept.append(numbers)
            fields[name] = ctypes.addressof(numbers)
    return DLTensor(**fields), kept


class Lent:
    """Lends an array by `__dlpack__`, with fields of the DLTensor changed.

    Parameters
    ----------
    array : numpy.ndarray
    versioned : bool
        Whether the capsule is of DLPack 1; an older producer takes no `max_version` either.
    flags, major : int
        Of the versioned struct.
    capsule_name : bytes, optional
        What the capsule is called, whatever is in it.
    has_deleter : bool
        A struct need not have one.
    **changes
        Fields of DLTensor.

    Attributes
    ----------
    deleted : int
        How often the deleter ran.
    asked : list of dict
        The keywords of each call of `__dlpack__`.
    """

    def __init__(
        self, array, *, versioned=True, flags=0, major=1, capsule_name=None, has_deleter=True,
        **changes,
    ):  # fmt: skip
        self.array, self.changes, self.versioned = array, changes, versioned
        self.flags, self.major, self.capsule_name = flags, major, capsule_name
        self.deleted, self.asked, self.capsules = 0, [], []
        self._deleter = _Deleter(self._delete) if has_deleter else _Deleter()
        self._kept = []

    def _delete(self, address):
        self.deleted += 1

    def __dlpack_device__(self):
        return self.changes.get("device_type", CPU), self.changes.get("device_id", 0)

    def __dlpack__(self, **options):
        self.asked.append(options)
        if not self.versioned and "max_version" in options:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        tensor, kept = describe(self.array, **self.changes)
        if self.versioned:
            managed = DLManagedTensorVersioned(
                self.major, 3, None, self._deleter, self.flags, tensor
            )
        else:
            managed = DLManagedTensor(tensor, None, self._deleter)
        self._kept.append((managed, kept))
        name = self.capsule_name or (b"dltensor_versioned" if self.versioned else b"dltensor")
        # A capsule keeps the pointer to its name.
        self._kept.append(ctypes.create_string_buffer(name))
        address = ctypes.addressof(managed)
        capsule = _api.PyCapsule_New(address, ctypes.cast(self._kept[-1], ctypes.c_char_p), None)
        self.capsules.append(capsule)
        return capsule

    def names(self):
        """Return what the capsules are called now."""
        return [_api.PyCapsule_GetName(capsule).decode() for capsule in self.capsules]


# ---- the exchange table --------------------------------------------------------------------------

_FromObject = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
_Stream = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)
_SetError = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
_Allocator = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(DLTensor),
    ctypes.POINTER(ctypes.POINTER(DLManagedTensorVersioned)), ctypes.c_void_p, _SetError,
)  # fmt: skip


class ExchangeTable(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("managed_tensor_allocator", _Allocator),
        ("managed_tensor_from_py_object_no_sync", ctypes.c_void_p),
        ("managed_tensor_to_py_object_no_sync", ctypes.c_void_p),
        ("dltensor_from_py_object_no_sync", _FromObject),
        ("current_work_stream", _Stream),
    )


_for_ever = []  # a table must outlive the process, and a type that the package has seen lives on


class Library:
    """A tensor library with an exchange table: `library.Tensor(array, **changes)`.

    Attributes
    ----------
    Tensor : type
        Its instances are lent through the table alone: `__dlpack__` raises.
    stream : int, callable or None
        What the table says is current, or a function that returns it; None: the table fails.
    streams_asked : list of (device type, device number)
    allocated, freed : list of int
        Sizes that the allocator gave out, and took back.
    refuse : str
        Why the allocator gives nothing, if it does not.
    """

    def __init__(self, *, attribute="__dlpack_c_exchange_api__", major=1, previous=None):
        self.stream, self.streams_asked = 0x5710, []
        self.allocated, self.freed, self.refuse = [], [], ""
        self._blocks = {}
        self._deleter = _Deleter(self._free)
        table = ExchangeTable(
            major, 3, ctypes.addressof(previous.table) if previous else None,
            _Allocator(self._allocate), None, None, _FromObject(self._lend),
            _Stream(self._current_stream),
        )  # fmt: skip
        self.table = table
        self._name = ctypes.create_string_buffer(b"dlpack_exchange_api")
        name = ctypes.cast(self._name, ctypes.c_char_p)
        capsule = _api.PyCapsule_New(ctypes.addressof(table), name, None)
        _for_ever.append(self)

        class Tensor:
            def __init__(self, array, **changes):
                self.array, self.changes = array, changes
                self.view, self.kept = describe(array, **changes)

            def __dlpack_device__(self):
                return self.view.device_type, self.view.device_id

            def __dlpack__(self, **options):
                raise BufferError("not by the table")

        setattr(Tensor, attribute, capsule)
        self.Tensor = Tensor

    def _lend(self, tensor, out):
        if tensor.view is None:  # fails, and sets no exception: ctypes would only print one
            return -1
        out[0] = tensor.view
        return 0

    def _current_stream(self, device_type, device_id, out):
        self.streams_asked.append((device_type, device_id))
        stream = self.stream() if callable(self.stream) else self.stream
        if stream is None:
            return -1
        out[0] = stream
        return 0

    def _allocate(self, prototype, out, context, set_error):
        if self.refuse:
            set_error(context, b"MemoryError", self.refuse.encode())
            return -1
        shape = ctypes.cast(prototype[0].shape, ctypes.POINTER(ctypes.c_int64))
        size = shape[0]
        assert prototype[0].ndim == 1 and prototype[0].bits == 8
        tensor, kept = describe(
            np.zeros(size, np.uint8), device_type=prototype[0].device_type,
            device_id=prototype[0].device_id,
        )  # fmt: skip
        managed = DLManagedTensorVersioned(1, 3, None, self._deleter, 0, tensor)
        self._blocks[ctypes.addressof(managed)] = (managed, kept, size)
        self.allocated.append(size)
        out[0] = ctypes.pointer(managed)
        return 0

    def _free(self, address):
        self.freed.append(self._blocks.pop(address)[2])
