"""How far are the models of costs from what was measured? Profiles and published counts in, tables of errors out."""
