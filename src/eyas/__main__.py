"""`python -m eyas`, for launchers such as torchrun that start Python modules."""

import sys

from eyas.cli import main

sys.exit(main())
