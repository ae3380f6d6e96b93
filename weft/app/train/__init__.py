"""``weft train``: what a user's ``setup()`` gives, trained by ranks that are started here, saved and resumed."""
