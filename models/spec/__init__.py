"""What has the user written? YAML in; a checked :class:`~weft.models.spec.sections.Spec` out, or one sentence that
names the file, the line and the entry at fault.

:mod:`weft.models.spec.spec` reads, :mod:`weft.models.spec.yaml_lines` keeps the lines, :mod:`weft.models.spec.base` and
:mod:`weft.models.spec.fields` say what every section and value has in common, :mod:`weft.models.spec.quantities` reads
numbers with units. The sections are in :mod:`weft.models.spec.sections` (the whole, cluster, run, placement),
:mod:`weft.models.spec.model_sections`, :mod:`weft.models.spec.families` and :mod:`weft.models.spec.transformers`.
:mod:`weft.models.spec.huggingface` makes a family of a config.json: what its types differ in is one line each in
:mod:`weft.models.spec.config_types`, keys are read by :mod:`weft.models.spec.config_values`.
"""
