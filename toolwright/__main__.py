"""`python -m toolwright`, the same as `toolwright`."""

import sys

from toolwright.cli import main

sys.exit(main())
