"""The memory that a captured model's operators keep: decided by operator, and carried out in its stages."""
