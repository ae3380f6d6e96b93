"""What planning and running share: what was asked for, types of numbers, the meta device, the way to stages."""
