"""A logits processor, in the engine's own process, that kills it when a marked request is in the batch."""

import os
import signal
from typing import Any

from vllm.v1.sample.logits_processor.interface import LogitsProcessor


class Poison(LogitsProcessor):
    """The mark is `"vllm_xargs": {"poison": 1}` in the request's body."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        """Nothing to set up."""

    def is_argmax_invariant(self) -> bool:
        """It changes nothing."""
        return True

    def apply(self, logits: Any) -> Any:
        """As they are."""
        return logits

    def update_state(self, batch_update: Any) -> None:
        """Requests came into the batch."""
        for _, params, *_ in batch_update.added if batch_update else ():
            if (params.extra_args or {}).get("poison"):
                os.kill(os.getpid(), signal.SIGKILL)
