"""``weft train``: training of a user's ``setup()`` by ranks started here, with saving and resuming."""
