"""vfio-user: a PCI function served by one process and used by another, over a UNIX socket.

Source: QEMU docs/interop/vfio-user.rst (version 0.0 of the protocol); structures taken from VFIO:
Linux include/uapi/linux/vfio.h.
"""
