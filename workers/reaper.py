"""What this worker does for everybody's jobs: reap what is late or lapsed, put right what foreign hands did.

Each ingress does the same; the duties stand in shared, their reasons too.
"""

from shared.reaping import Reaping
from shared.reconciling import Reconciling

__all__ = ["Reaping", "Reconciling"]
