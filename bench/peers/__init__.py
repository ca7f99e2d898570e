# SPDX-License-Identifier: Apache-2.0
"""What Cowshed is measured beside. Each peer is a context manager or a function that raises
harness.Unavailable with the reason where it cannot run; each leaves no device, mount or process."""
