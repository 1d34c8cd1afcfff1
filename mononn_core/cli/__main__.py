"""``python -m mononn_core.cli``."""

import sys

from mononn_core.cli.main import main

sys.exit(main())
