"""Bulk streams of libusb, which its binding (libusb1) does not offer: two functions, one field.

Source: libusb 1.0.26, libusb.h (libusb_alloc_streams, libusb_transfer_set_stream_id,
LIBUSB_TRANSFER_TYPE_BULK_STREAM). The binding keeps the pointers for these functions in private
attributes. The attributes are checked before the first streams are requested.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ugpu.hcq.errors import NotSupported

_BULK_STREAM = 4
# LIBUSB_ERROR_NOT_SUPPORTED, and LIBUSB_ERROR_INVALID_PARAM: Linux returns it (EINVAL) where either
# side has none.
_NONE = (-12, -2)
_HANDLE, _TRANSFER = "_USBDeviceHandle__handle", "_USBTransfer__transfer"


class StreamCalls:
    """The two calls, on a binding that has loaded its library."""

    def __init__(self, usb1: Any) -> None:  # a module without types, as all that it has
        self._usb1 = usb1
        self._found: tuple[Any, Any] | None = None

    def allocate(self, handle: Any, count: int, endpoints: Sequence[int]) -> int:
        """Request `count` streams for endpoints; return the number allocated. Raises the binding's
        errors, and NotSupported for another libusb or another version of the binding."""
        allocate, _ = self.calls()
        addresses = (ctypes.c_ubyte * len(endpoints))(*endpoints)
        allocated = int(allocate(getattr(handle, _HANDLE), count, addresses, len(endpoints)))
        if allocated in _NONE:
            raise NotSupported("the host's USB controller, or the device, has no bulk streams")
        if allocated < 0:
            self._usb1.raiseUSBError(allocated)
        return allocated

    def assign(self, transfer: Any, stream: int) -> None:
        """Assign an allocated stream to a transfer that is set up for bulk."""
        _, assign = self.calls()
        pointer = getattr(transfer, _TRANSFER)
        pointer.contents.type = _BULK_STREAM
        assign(pointer, stream)

    def calls(self) -> tuple[Any, Any]:
        """Return the two functions, with declared types; NotSupported as above."""
        if self._found is None:
            self._found = self._declared()
        return self._found

    def _declared(self) -> tuple[Any, Any]:
        usb1 = self._usb1
        try:
            raw, library = usb1.libusb1, usb1.libusb1.libusb
            fields = {name: kind for name, kind, *_ in raw.libusb_transfer._fields_}
            if fields["type"] is not ctypes.c_ubyte or fields["endpoint"] is not ctypes.c_ubyte:
                raise AttributeError("libusb_transfer.type")
            for owner, name in ((usb1.USBDeviceHandle, _HANDLE), (usb1.USBTransfer, _TRANSFER)):
                getattr(owner, name)
            allocate, assign = library.libusb_alloc_streams, library.libusb_transfer_set_stream_id
            handle, transfer = fields["dev_handle"], raw.libusb_transfer_p
        except (AttributeError, KeyError) as error:
            raise NotSupported(
                "bulk streams need libusb 1.0.19 or later, and libusb1 3.x", missing=str(error)
            ) from error
        allocate.restype, assign.restype = ctypes.c_int, None
        allocate.argtypes = (
            handle, ctypes.c_uint32, ctypes.POINTER(ctypes.c_ubyte), ctypes.c_int,
        )  # fmt: skip
        assign.argtypes = (transfer, ctypes.c_uint32)
        return allocate, assign
