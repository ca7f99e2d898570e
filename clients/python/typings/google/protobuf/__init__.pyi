# SPDX-License-Identifier: Apache-2.0
"""What this package uses of Debian's protobuf runtime, which ships without types."""
