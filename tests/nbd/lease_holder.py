# SPDX-License-Identifier: Apache-2.0
"""A process that attaches an export and holds it: prints `attached`, or why not, and obeys lines.

    lease_holder.py SOCKET EXPORT

    write OFFSET TEXT     flush     read OFFSET LENGTH     quit
"""

from __future__ import annotations

import sys

import nbd


def main(socket: str, export: str) -> int:
    """Runs until its input ends."""
    h = nbd.NBD()
    h.set_export_name(export)
    try:
        h.connect_unix(socket)
    except nbd.Error as error:
        print(f"refused: {error.string}", flush=True)
        return 1
    print("attached", flush=True)
    for line in sys.stdin:
        verb, *arguments = line.split()
        try:
            if verb == "write":
                h.pwrite(arguments[1].encode(), int(arguments[0]))
                print("ok", flush=True)
            elif verb == "read":
                print(h.pread(int(arguments[1]), int(arguments[0])).hex(), flush=True)
            elif verb == "flush":
                h.flush()
                print("ok", flush=True)
            else:
                h.shutdown()
                return 0
        except nbd.Error as error:
            print(f"error: {error.errno}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
