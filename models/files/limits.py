"""Limits on the contents of files, in one place: they protect the machine against typing errors and malicious files.
Each is far above practical use; beyond it a file is refused in one sentence.
"""

from __future__ import annotations

import re

# -- files ---------------------------------------------------------------------------------------------------------

#: A spec is a page of YAML, with a thousand layers some 200 KB; a larger file is not a spec.
MAX_SPEC_BYTES = 1024**2
#: A config.json has some kilobytes; with labels of 100,000 classes some megabytes.
MAX_CONFIG_BYTES = 16 * 1024**2
#: A profile has a row of some 100 bytes an operator.
MAX_PROFILE_BYTES = 64 * 1024**2
#: The program in a .pt2 file, unpacked: 2 to 3 KB an operator, so some 50,000 operators.
MAX_PROGRAM_BYTES = 128 * 1024**2
#: Entries of a .pt2 file: one for each weight.
MAX_ARCHIVE_ENTRIES = 200_000
#: Entries of a YAML file with aliases expanded: they can make a small file expand to billions.
MAX_ENTRIES = 100_000
#: Levels of a YAML file, one inside the other.
MAX_DEPTH = 100

# -- names ---------------------------------------------------------------------------------------------------------

#: Letters of a name in a spec: names are shown in tables and pictures.
MAX_NAME = 200
#: Letters of a name in an operator graph, which includes module paths.
MAX_GRAPH_NAME = 1_000
#: Names are shown on terminals and in pictures, which control characters and non-characters break.
PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029\ufffe\uffff]*$"

# -- sizes of models and runs --------------------------------------------------------------------------------------

#: Layers of a model, each repeated one counted.
MAX_LAYERS = 1_024
#: Operators of a graph.
MAX_OPERATORS = 200_000
#: GPUs of a cluster.
MAX_GPUS = 1_024
#: GPUs of a cluster divided by a uniform grid: all of a stage are alike there, and one represents them.
MAX_GRID_GPUS = 131_072
#: Devices of one kind in an operator graph of another tool.
MAX_DEVICES = 65_536
#: Micro-batches in one step; a schedule has an entry for every one of them.
MAX_MICRO_BATCHES = 65_536
#: Sequences, images or samples in one micro-batch.
MAX_BATCH = 2**20
#: Widths: of hidden states, heads and feed-forward parts; numbers of heads, experts and classes.
MAX_WIDTH = 2**20
#: Tokens of a sequence, and rows of learned positions.
MAX_SEQUENCE = 2**24
#: Entries of a vocabulary.
MAX_VOCABULARY = 2**26
#: Rows of an embedding table of recommendations.
MAX_ROWS = 2**40
#: Height and width of an image.
MAX_PIXELS = 2**16
#: Elements of a tensor: still exact as a float.
MAX_ELEMENTS = 2**53
#: Floating-point operations of one pass of an operator.
MAX_FLOPS = 1e30
#: Bytes of all layers: their parameters with all training state, or the memory of a micro-batch. 1 PiB is
#: above any cluster's memory, and thousands of micro-batches of it are still 64-bit integers.
MAX_MODEL_BYTES = 2**50

_PRINTABLE = re.compile(PRINTABLE)
_SURROGATE = re.compile("[\ud800-\udfff]")


def bad_name(name: str) -> str | None:
    """What is wrong with ``name`` as a name in a graph, in words; ``None`` where nothing is."""
    if len(name) > MAX_GRAPH_NAME:
        return f"has {len(name)} letters, at most {MAX_GRAPH_NAME} are allowed"
    if not _PRINTABLE.fullmatch(name) or _SURROGATE.search(name):
        return "has characters that cannot be shown (control characters, halves of surrogate pairs); leave them out"
    return None
