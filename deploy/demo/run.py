# SPDX-License-Identifier: Apache-2.0
"""Shows Cowshed at work on real input, and proves what it shows: `./dev run`.

    run.py --server <binary> --python-path <folder of the package> [--serve]

Starts a server on a pool of its own and takes a database of this machine's package index through the
life of a dataset (scenario.py). Ends with a table of what it measured, the same in
build/run-report.json, and an exit status of 0 only if everything it checked holds. With --serve the
pool is kept in build/demo, the clones stay, and the server runs until Ctrl-C.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="./dev run", description=__doc__.splitlines()[0])
    build = ROOT / "build/release"
    parser.add_argument("--server", type=Path, default=build / "bin/cowshed", help="the program")
    parser.add_argument(
        "--python-path", type=Path, default=build / "python", help="folder of the Python package"
    )
    parser.add_argument(
        "--report", type=Path, default=ROOT / "build/run-report.json", help="where the JSON goes"
    )
    parser.add_argument("--serve", action="store_true", help="leave the server running at the end")
    parser.add_argument(
        "--pool", type=Path, default=ROOT / "build/demo", help="with --serve: folder of the pool"
    )
    parser.add_argument("--listen", default="127.0.0.1:7420", help="with --serve: its address")
    parser.add_argument(
        "--metrics-listen", default="127.0.0.1:9742", help="with --serve: address of /metrics"
    )
    return parser.parse_args()


def run(options: argparse.Namespace) -> int:
    """The whole life, on a pool that is thrown away."""
    import cowshed
    from report import Report
    from rich.console import Console
    from scenario import CLONES, Scenario
    from server import Server

    report = Report(Console(soft_wrap=False, width=None if sys.stdout.isatty() else 120))
    with tempfile.TemporaryDirectory(prefix="cowshed-run-") as name:
        folder = Path(name)
        listen, nbd = f"unix:{folder}/cowshed.sock", f"unix:{folder}/nbd.sock"
        with Server(options.server, folder / "pool", listen, "127.0.0.1:0", nbd) as server:
            with cowshed.connect(server.address) as client:
                version = client.server_info().version
                scenario = Scenario(server, client, folder, report)
                scenario.build_database()
                scenario.import_golden()
                scenario.make_clones()
                scenario.change_clones()
                scenario.change_in_place()
                scenario.show()
                scenario.verify()
                scenario.destroy()
            with report.step("stop the server") as step:
                server.stop()
                step.note = "SIGTERM, exit 0"
    report.show()
    report.write(options.report, {"server_version": version, "clones_made": CLONES})
    for check in report.failed:
        print(f"run: failed: {check.name}: {check.found}", file=sys.stderr)
    if not report.failed:
        print(f"{len(report.checks)} checks hold; the figures are in {options.report}")
    return 1 if report.failed else 0


def serve(options: argparse.Namespace) -> int:
    """The same up to the clones, on a pool that stays; then leaves it to the user."""
    import cowshed
    from report import Report
    from rich.console import Console
    from scenario import GOLDEN, Scenario
    from server import Server

    options.pool.mkdir(parents=True, exist_ok=True)
    nbd = f"unix:{options.pool}/nbd.sock"
    with Server(
        options.server, options.pool, options.listen, options.metrics_listen, nbd
    ) as server:
        with cowshed.connect(server.address) as client, tempfile.TemporaryDirectory() as folder:
            if not client.exists(GOLDEN):
                scenario = Scenario(server, client, Path(folder), Report(Console()))
                scenario.build_database()
                scenario.import_golden()
                scenario.make_clones()
                scenario.change_clones()
        print(
            f"\nserving {options.pool} on {server.address}, metrics on {server.metrics}"
            f"\n\n  export COWSHED_ADDRESS={server.address}"
            "\n  ./dev cow tree"
            "\n  ./dev cow space dev/001"
            "\n  ./dev cow clone golden@v1 dev/mine"
            "\n  ./dev cow attach dev/mine --file mine.db"
            "\n  ./dev cow destroy --prefix dev --dry-run"
            "\n\nCtrl-C stops it; the next start finds everything as it was.",
            flush=True,
        )
        try:
            server.wait()
        except KeyboardInterrupt:
            print()
    return 0


def main() -> int:
    """Runs it; every failure is one clear message."""
    options = arguments()
    for path in (options.server, options.python_path / "cowshed"):
        if not path.exists():
            print(f"run: {path} does not exist: ./dev build", file=sys.stderr)
            return 1
    sys.path.insert(0, str(options.python_path))
    from cowshed.errors import CowshedError
    from server import ServerError

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stops the server on the way out
    try:
        return serve(options) if options.serve else run(options)
    except (CowshedError, ServerError, RuntimeError, OSError, TimeoutError) as error:
        print(f"run: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
