"""What can a device do? A name, or a table as measured, in; peaks, links, and the shares that kernels reach, out."""

from weft.models.hardware.devices import DEVICES, DeviceError, DeviceType, kernel_class

__all__ = ["DEVICES", "DeviceError", "DeviceType", "kernel_class"]
