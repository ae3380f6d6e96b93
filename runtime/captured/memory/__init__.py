"""What becomes of what a captured model's operators keep: decided by operator, and carried out in its stages."""
