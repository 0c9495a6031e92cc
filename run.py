"""The front door: `python run.py [job=…] [group=option …] [key=value …]`, or `--help`."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def main() -> int:
    """Answer --help, or hand over to stabledrl.command_line; the exit code."""
    os.environ.setdefault("STABLEDRL_ROOT", str(ROOT))  # conf/config.yaml finds sweeps/ by it
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    if {"-h", "--help"} & set(sys.argv[1:]):
        from stabledrl.config import help_text

        print(help_text())
        return 0
    from stabledrl import command_line

    return command_line.main(ROOT / "conf")


if __name__ == "__main__":
    sys.exit(main())
