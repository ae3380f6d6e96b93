"""What can a device do? The name of a device in; peaks, links, and the shares of the peaks that kernels reach, out."""

from weft.models.hardware.devices import DEVICES, DeviceError, DeviceType, kernel_class

__all__ = ["DEVICES", "DeviceError", "DeviceType", "kernel_class"]
