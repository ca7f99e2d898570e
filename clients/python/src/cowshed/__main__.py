# SPDX-License-Identifier: Apache-2.0
"""`python3 -m cowshed` is `cow`."""

import sys

from cowshed.cli import main

sys.exit(main())
