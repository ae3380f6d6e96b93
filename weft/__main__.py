"""``python -m weft``, which is how ``torchrun`` starts ``weft replay``."""

import sys

from weft.cli.main import main

sys.exit(main())
