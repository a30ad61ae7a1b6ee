"""The clock keeper: a separate process, the only one that sets clocks on real hardware.

Owners (`KeeperClient`) take a lease on a GPU with a table of pairs, set them directly or through a
shared page that a CUDA stream writes to (`TriggerPage`), and beat. The keeper gives the clocks back
when the owner ends in any way; a journal and a guardian process do if the keeper does. Simulated
GPUs have the same interface without a process (`LocalKeeper`). `docs/operators.md` is for those who
run a keeper for others. Never imports torch.
"""

from .client import KeeperClient, numbered
from .events import ClockEvent, Outcome
from .limits import Limits
from .local import ClockKeeper, LocalKeeper, open_keeper
from .page import TriggerPage
from .survey import KeeperSurvey, run_repair, survey

__all__ = [
    "ClockEvent",
    "ClockKeeper",
    "KeeperClient",
    "KeeperSurvey",
    "Limits",
    "LocalKeeper",
    "Outcome",
    "TriggerPage",
    "numbered",
    "open_keeper",
    "run_repair",
    "survey",
]
