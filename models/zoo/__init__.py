"""Model families: one file each, from the sizes in a spec to the costs of its layers."""
