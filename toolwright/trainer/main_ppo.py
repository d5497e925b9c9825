"""`python -m toolwright.trainer.main_ppo`: takes verl's command lines, translates them and trains."""

import sys

from toolwright.verl.command import main

if __name__ == "__main__":
    sys.exit(main())
