"""Runs the checks against processes that already run; `run` starts them."""

import argparse
import signal
import sys
from pathlib import Path

import through_gateway
import through_openai
import through_vllm_router
from harness import Fleet, Score, get, until
from through_aiperf import Aiperf
from through_pages import Pages


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", action="append", required=True, help="base URL; given twice")
    parser.add_argument("--router", required=True, help="base URL of the API")
    parser.add_argument("--admin", required=True, help="base URL of the admin API")
    parser.add_argument("--work", type=Path, required=True, help="folder for logs")
    parser.add_argument("--rankway", type=Path, required=True, help="the command")
    parser.add_argument("--alone", type=Path, required=True, help="environment of deploy/alone")
    parser.add_argument("--aiperf", type=Path, help="folder with aiperf and its python")
    return parser.parse_args()


def ready(router: str) -> bool:
    try:
        get(f"{router}/readiness")
    except OSError:
        return False
    return True


def main() -> int:
    # So that what a check has started ends with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    given = arguments()
    fleet = Fleet(tuple(given.engine), given.router, given.admin, given.work)
    until(lambda: ready(fleet.router), "rankway up ready")
    score = Score()
    for client, checks in {
        "openai": through_openai.CHECKS,
        "vllm-router": through_vllm_router.CHECKS,
        "gateway": through_gateway.CHECKS,
        "deploy/alone": Pages(given.rankway, given.alone).checks,
        "aiperf": Aiperf(given.aiperf).checks if given.aiperf else {},
    }.items():
        for name, check in checks.items():
            score.run(f"{client}: {name}", check, fleet)
    print(f"{score.passed} passed, {score.failed} failed")
    return 1 if score.failed else 0


if __name__ == "__main__":
    sys.exit(main())
