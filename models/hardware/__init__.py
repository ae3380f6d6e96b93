"""The capabilities of a device. A name, or a measured table, in; peaks, links, and the shares attained by kernels,
out."""

from weft.models.hardware.devices import DEVICES, DeviceError, DeviceType, kernel_class

__all__ = ["DEVICES", "DeviceError", "DeviceType", "kernel_class"]
