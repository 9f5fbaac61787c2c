"""`python -m eyas`, which is what launchers of many processes start."""

import sys

from eyas.cli import main

sys.exit(main())
