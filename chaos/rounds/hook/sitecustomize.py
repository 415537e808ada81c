"""Python begins with this in every process of an instance that runs without a guard, Spark's
workers included: this folder is on its path then (`Fleet.around`)."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))

from chaos.rounds.mutations import mutate_here

mutate_here()
