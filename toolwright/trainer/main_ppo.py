"""`python -m toolwright.trainer.main_ppo`: takes verl's command lines, translates them and trains."""

import sys

from toolwright.registry import added_to, load_object

if __name__ == "__main__":
    sys.exit(load_object(added_to("toolwright.trainer.main_ppo")["main"])())
