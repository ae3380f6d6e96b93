"""Reading of the user's spec. YAML in; a checked :class:`~weft.models.spec.sections.Spec` out, or one sentence that
names the faulty file, line and entry.

:mod:`weft.models.spec.spec` reads, :mod:`weft.models.spec.yaml_lines` tracks the lines, :mod:`weft.models.spec.base`
and :mod:`weft.models.spec.fields` are the common base of sections and values, :mod:`weft.models.spec.quantities` reads
numbers with units. The sections are in :mod:`weft.models.spec.sections` (the whole, cluster, run, placement),
:mod:`weft.models.spec.model_sections`, :mod:`weft.models.spec.families` and :mod:`weft.models.spec.transformers`.
:mod:`weft.models.spec.huggingface` converts a config.json to a family: the differences between types are one line each
in :mod:`weft.models.spec.config_types`, keys are read by :mod:`weft.models.spec.config_values`.
"""
