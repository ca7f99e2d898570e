# SPDX-License-Identifier: Apache-2.0
"""Messages and stubs generated from protos/cowshed/v1; the build puts them here."""
